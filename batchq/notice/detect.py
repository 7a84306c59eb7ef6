"""Which platform this is, and what there is to watch on it."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchq.clock import Clock
from batchq.errors import UsageError
from batchq.notice.azure import DEFAULT_ENDPOINT as AZURE
from batchq.notice.azure import AzureSource
from batchq.notice.base import NoticeSource
from batchq.notice.ec2 import DEFAULT_ENDPOINT as EC2
from batchq.notice.ec2 import IPV6_ENDPOINT as EC2_IPV6
from batchq.notice.ec2 import Ec2Source, InstanceMetadata
from batchq.notice.gcp import DEFAULT_ENDPOINT as GCP
from batchq.notice.gcp import GcpSource
from batchq.notice.metadata import MetadataService
from batchq.notice.signals import SignalSource
from batchq.notice.sqs import SqsSource
from batchq.words import pip_install

__all__ = ["build_sources", "describe_sources"]

NAMES = ("ec2", "sqs", "gcp", "azure")

PROBE_S = 0.8
"""For all probes together: what a start may wait on a machine that looks like a platform."""

DMI = Path("/sys/class/dmi/id")

AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
"""The chassis asset tag of every Azure machine, and of nothing else on Hyper-V."""

PLATFORM_WINDOWS = {
    "RUNPOD_POD_ID": ("RunPod", 5.0),
    "ECS_CONTAINER_METADATA_URI_V4": ("ECS", 30.0),
    "SLURM_JOB_ID": ("Slurm", 30.0),
    "KUBERNETES_SERVICE_HOST": ("Kubernetes", 30.0),
}
"""Variables that tell who will send SIGTERM, and its default time until SIGKILL in seconds.

None of them passes on what it was configured to: Kubernetes' grace period, ECS' stop
timeout, Slurm's KillWait. Where those differ, `notice_window` says so.
"""

GKE = ("GKE", 15.0)
"""What a node that is being preempted leaves to its pods."""


def build_sources(
    names: str,
    *,
    clock: Clock,
    interval: float | None = None,
    window: float | None = None,
    queue_url: str | None = None,
    azure_endpoint: str | None = None,
    rebalance: bool = False,
    signals: SignalSource | None = None,
    env: Mapping[str, str] = os.environ,
    dmi: Path = DMI,
) -> list[NoticeSource]:
    """The sources that `names` stands for, not watching yet; signals are always among them.

    `names`: `auto` (what this machine looks like), `none`, or some of ec2, sqs, gcp, azure
    with commas between. `interval` and `window` in seconds, none for each platform's own.
    `rebalance`: whether EC2's recommendation drains. `signals`: those that this process has
    taken already.

    Raises UsageError for an unknown name, a broken endpoint, a queue or a library missing.
    """
    site = _Site(
        clock=clock,
        interval=interval,
        window=window,
        queue_url=queue_url,
        azure_endpoint=azure_endpoint,
        rebalance=rebalance,
        env=env,
        dmi=dmi,
    )
    if names == "auto":
        chosen = site.detected()
    elif names == "none":
        chosen = []
    else:
        chosen = _parsed(names)
    return [*(site.source(name) for name in chosen), site.signals(signals or SignalSource())]


def describe_sources(sources: Sequence[NoticeSource]) -> list[str]:
    """One line each for people, with the window; says so if no platform is among them."""
    lines = [source.describe() for source in sources]
    match sources:
        case [SignalSource(platform=None)]:
            _, _, watched = lines[0].partition(": ")
            return [
                f"signals only: {watched}; a machine that ends without one is found by lease expiry"
            ]
    return lines


def _parsed(names: str) -> list[str]:
    chosen = list(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in chosen:
        if name not in NAMES:
            raise UsageError(
                f"there is no notice source {name!r}",
                hint="--notice is auto, none, or some of ec2, sqs, gcp, azure with commas "
                "between; signals are always watched",
            )
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """The settings and the signs from which sources are made."""

    clock: Clock
    interval: float | None
    window: float | None
    queue_url: str | None
    azure_endpoint: str | None
    rebalance: bool
    env: Mapping[str, str]
    dmi: Path

    def detected(self) -> list[str]:
        """The platforms that this machine shows signs of, unless nobody is there."""
        signs = {
            "ec2": bool(self.env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")) or self._is_on_ec2(),
            "gcp": bool(self.env.get("GCE_METADATA_HOST")) or self._is_on_gcp(),
            "azure": bool(self.azure_endpoint) or self._tag("chassis_asset_tag") == AZURE_TAG,
        }
        if self._ec2_is_disabled():
            signs["ec2"] = False
        found = _not_refused({name: self._service(name) for name in signs if signs[name]})
        return [name for name in NAMES if name in found or (name == "sqs" and self.queue_url)]

    def source(self, name: str) -> NoticeSource:
        if name == "sqs":
            return self._sqs()
        if name == "gcp":
            return GcpSource(
                self._service(name), clock=self.clock, interval=self.interval, window=self.window
            )
        if name == "azure":
            return AzureSource(
                self._service(name), clock=self.clock, interval=self.interval, window=self.window
            )
        if self._ec2_is_disabled():
            raise UsageError(
                "AWS_EC2_METADATA_DISABLED forbids what --notice ec2 asks for",
                hint="unset the variable, or leave ec2 out",
            )
        return Ec2Source(
            self._service(name),
            clock=self.clock,
            interval=self.interval,
            window=self.window,
            rebalance=self.rebalance,
        )

    def signals(self, source: SignalSource) -> SignalSource:
        signs = [PLATFORM_WINDOWS[name] for name in PLATFORM_WINDOWS if self.env.get(name)]
        if PLATFORM_WINDOWS["KUBERNETES_SERVICE_HOST"] in signs and self._is_on_gcp():
            signs.append(GKE)
        platform, window = min(signs, key=lambda sign: sign[1], default=(None, None))
        source.clock, source.window, source.platform = self.clock, self.window or window, platform
        return source

    def _sqs(self) -> SqsSource:
        if not self.queue_url:
            raise UsageError(
                "--notice sqs needs a queue", hint="name its URL in the setting notice_queue"
            )
        if importlib.util.find_spec("boto3") is None:
            raise UsageError(
                "--notice sqs needs boto3, which is not installed",
                hint=pip_install("aws"),
            )
        return SqsSource(
            self.queue_url,
            self._instance_id(),
            clock=self.clock,
            window=self.window,
            rebalance=self.rebalance,
        )

    def _instance_id(self) -> Callable[[], str]:
        # On Nitro it is in the firmware's tables, which no hop limit keeps from a container.
        tag = self._tag("board_asset_tag")
        if re.fullmatch(r"i-[0-9a-f]{8,17}", tag):
            return lambda: tag
        if self._ec2_is_disabled():
            raise UsageError(
                "--notice sqs must know this instance's id, and AWS_EC2_METADATA_DISABLED "
                "forbids to ask for it",
                hint="unset the variable, or leave sqs out",
            )
        return InstanceMetadata(self._service("ec2"), self.clock).instance_id

    def _service(self, name: str) -> MetadataService:
        if name == "azure":
            return MetadataService(self.azure_endpoint or AZURE, "azure_metadata_endpoint")
        if name == "gcp":
            host = self.env.get("GCE_METADATA_HOST")
            return MetadataService(f"http://{host}" if host else GCP, "GCE_METADATA_HOST")
        given = self.env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT")
        mode = self.env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "")
        usual = EC2_IPV6 if mode.lower() == "ipv6" else EC2
        return MetadataService(given or usual, "AWS_EC2_METADATA_SERVICE_ENDPOINT")

    def _ec2_is_disabled(self) -> bool:
        return self.env.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"

    def _is_on_ec2(self) -> bool:
        # Fargate runs on the same machines, but gives its tasks no metadata service.
        if self.env.get("AWS_EXECUTION_ENV") == "AWS_ECS_FARGATE":
            return False
        return self._tag("sys_vendor") == "Amazon EC2" or "amazon" in self._tag("bios_version")

    def _is_on_gcp(self) -> bool:
        return self._tag("product_name") == "Google Compute Engine"

    def _tag(self, name: str) -> str:
        try:
            return (self.dmi / name).read_text(errors="replace").strip()
        except OSError:
            return ""


def _not_refused(services: Mapping[str, MetadataService]) -> set[str]:
    """Those whose host does not turn a connection away, asked in parallel within PROBE_S.

    Silence does not count as a refusal: a busy platform is worth watching.
    """
    refused: set[str] = set()
    pending = set(services)
    all_known = threading.Event()

    def probe(name: str, service: MetadataService) -> None:
        try:
            socket.create_connection((service.host, service.port), PROBE_S).close()
        except TimeoutError:
            pass
        except (OSError, ValueError):
            refused.add(name)
        pending.discard(name)
        if not pending:
            all_known.set()

    # Threads that are left behind if a name does not resolve in time.
    for name, service in services.items():
        threading.Thread(target=probe, args=(name, service), daemon=True).start()
    if services:
        all_known.wait(PROBE_S)
    return set(services) - refused

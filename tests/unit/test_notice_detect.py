"""Which platform a machine is taken for, and what is watched on it."""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from batchq.clock import ManualClock, SystemClock
from batchq.errors import UsageError
from batchq.notice import detect
from batchq.notice.base import NoticeSource
from batchq.notice.detect import build_sources, describe_sources
from batchq.notice.metadata import MetadataService
from tests.faults.metadata_server import MetadataServer

AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/notices"

Build = Callable[..., list[NoticeSource]]


@pytest.fixture
def server() -> Iterator[MetadataServer[ManualClock]]:
    """A metadata service that answers."""
    with MetadataServer(ManualClock()) as serving:
        yield serving


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Sources on a machine with the given firmware tags and environment, and no others."""

    def build(
        names: str = "auto",
        *,
        tags: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> list[NoticeSource]:
        for name, value in (tags or {}).items():
            (tmp_path / name).write_text(value + "\n")
        return build_sources(names, clock=ManualClock(), env=env or {}, dmi=tmp_path, **options)

    return build


@pytest.fixture
def closed_port() -> int:
    """A port of this machine where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def names(sources: list[NoticeSource]) -> list[str]:
    return [source.name for source in sources]


# -- by name ---------------------------------------------------------------------


def test_named_sources_come_in_their_order_and_once(build: Build) -> None:
    """Signals are always among them."""
    assert names(build("gcp, ec2,azure,ec2")) == ["gcp", "ec2", "azure", "signals"]


def test_none_leaves_the_signals(build: Build) -> None:
    """And says what the worker relies on then."""
    sources = build("none")
    assert names(sources) == ["signals"]
    [said] = describe_sources(sources)
    assert said.startswith("signals only: SIGTERM, SIGINT, SIGUSR1, SIGHUP, ")
    assert "lease expiry" in said


@pytest.mark.parametrize("given", ["ec3", "ec2,,gcp", "auto,ec2", "none,ec2", "signals", ""])
def test_an_unknown_name_is_refused(build: Build, given: str) -> None:
    """With those that there are."""
    with pytest.raises(UsageError) as refused:
        build(given)
    assert refused.value.hint is not None
    assert "ec2, sqs, gcp, azure" in refused.value.hint


def test_sqs_needs_a_queue(build: Build) -> None:
    """The setting that names it is in the hint."""
    with pytest.raises(UsageError) as refused:
        build("sqs")
    assert refused.value.hint is not None
    assert "notice_queue" in refused.value.hint


def test_sqs_needs_the_sdk(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra, and the hint says which."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as refused:
        build("sqs", queue_url=QUEUE)
    assert refused.value.hint == "pip install '.[aws]' in batchq's source folder"


@pytest.mark.parametrize("given", ["ec2", "sqs"])
def test_metadata_that_is_switched_off_contradicts_what_needs_it(build: Build, given: str) -> None:
    """Both were said by somebody, so it is an error and not a guess."""
    with pytest.raises(UsageError, match="AWS_EC2_METADATA_DISABLED"):
        build(given, env={"AWS_EC2_METADATA_DISABLED": "true"}, queue_url=QUEUE)


def test_firmware_that_knows_the_instances_id_serves_sqs_without_metadata(build: Build) -> None:
    """As on Nitro, in a container that the metadata's answers do not reach."""
    sources = build(
        "sqs",
        queue_url=QUEUE,
        tags={"board_asset_tag": "i-0123456789abcdef0"},
        env={"AWS_EC2_METADATA_DISABLED": "true"},
    )
    assert names(sources) == ["sqs", "signals"]


@pytest.mark.parametrize(
    ("given", "options", "origin"),
    [
        ("ec2", {"env": {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "169.254.169.254"}}, "AWS_EC2"),
        ("ec2", {"env": {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "https://host"}}, "AWS_EC2"),
        ("gcp", {"env": {"GCE_METADATA_HOST": "host:port"}}, "GCE_METADATA_HOST"),
        ("azure", {"azure_endpoint": "ftp://host"}, "azure_metadata_endpoint"),
        ("azure", {"azure_endpoint": "http://user:secret@host"}, "azure_metadata_endpoint"),
    ],
)
def test_a_broken_endpoint_is_refused_by_the_name_of_its_setting(
    build: Build, given: str, options: dict[str, Any], origin: str
) -> None:
    """Without showing what may be a password in it."""
    with pytest.raises(UsageError, match=origin) as refused:
        build(given, **options)
    assert "secret" not in str(refused.value)


def test_an_endpoint_may_be_an_address_of_the_newer_kind() -> None:
    """In brackets, as EC2 has one."""
    service = MetadataService("http://[fd00:ec2::254]", "test")
    assert (service.host, service.port) == ("fd00:ec2::254", 80)


# -- auto ------------------------------------------------------------------------


def test_a_machine_without_signs_is_not_probed(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No connection is tried and no time passes."""
    asked: list[Any] = []
    monkeypatch.setattr(socket, "create_connection", lambda *args: asked.append(args))
    monkeypatch.setattr(detect, "PROBE_S", 100.0)
    begin = SystemClock().monotonic()
    sources = build(tags={"sys_vendor": "LENOVO", "bios_version": "N2HET75W"})
    assert SystemClock().monotonic() - begin < 60
    assert names(sources) == ["signals"]
    assert asked == []
    assert describe_sources(sources)[0].startswith("signals only: ")


@pytest.mark.parametrize(
    ("tags", "platform"),
    [
        ({"sys_vendor": "Amazon EC2"}, "ec2"),
        ({"sys_vendor": "Xen", "bios_version": "4.11.amazon"}, "ec2"),
        ({"product_name": "Google Compute Engine"}, "gcp"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": AZURE_TAG}, "azure"),
    ],
)
def test_the_firmware_tells_the_platform(
    build: Build, monkeypatch: pytest.MonkeyPatch, tags: dict[str, str], platform: str
) -> None:
    """Its metadata service is then looked for at its usual address."""
    asked: list[Any] = []

    def connect(address: Any, timeout: float) -> Any:
        asked.append(address)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    sources = build(tags=tags)
    assert names(sources) == [platform, "signals"]
    assert asked == [("169.254.169.254", 80)]
    assert describe_sources(sources)[0].startswith(f"{platform}: ")


def test_hyper_v_is_not_azure(build: Build) -> None:
    """Any machine of that vendor says so, only Azure's carry the tag."""
    sources = build(tags={"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"})
    assert names(sources) == ["signals"]


def test_an_endpoint_in_the_settings_is_a_sign(
    build: Build, server: MetadataServer[ManualClock]
) -> None:
    """Whoever names one wants it watched; all that answer are."""
    env = server.environment()
    azure = env.pop("BATCHQ_AZURE_METADATA_ENDPOINT")
    sources = build(env=env, azure_endpoint=azure, queue_url=QUEUE)
    assert names(sources) == ["ec2", "sqs", "gcp", "azure", "signals"]


def test_switched_off_metadata_is_not_detected(
    build: Build, server: MetadataServer[ManualClock]
) -> None:
    """In spite of every sign."""
    env = server.environment() | {"AWS_EC2_METADATA_DISABLED": "True"}
    assert "ec2" not in names(build(env=env, tags={"sys_vendor": "Amazon EC2"}))


def test_fargate_has_no_instance_to_watch(build: Build) -> None:
    """Its tasks get SIGTERM instead."""
    env = {"AWS_EXECUTION_ENV": "AWS_ECS_FARGATE", "ECS_CONTAINER_METADATA_URI_V4": "http://x"}
    sources = build(tags={"sys_vendor": "Amazon EC2"}, env=env)
    assert names(sources) == ["signals"]
    assert describe_sources(sources) == [
        "signals: SIGTERM, SIGINT, SIGUSR1, SIGHUP from ECS, 30 s ahead"
    ]


def test_a_host_that_turns_us_away_is_not_watched(build: Build, closed_port: int) -> None:
    """An emulator's variable on a machine where it does not run."""
    sources = build(env={"GCE_METADATA_HOST": f"127.0.0.1:{closed_port}"})
    assert names(sources) == ["signals"]


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_name_that_can_be_no_host_is_not_watched(build: Build, host: str) -> None:
    """Whatever it is that the resolver says to it."""
    assert names(build(env={"GCE_METADATA_HOST": host})) == ["signals"]


def test_a_silent_host_is_watched_and_delays_the_start_by_less_than_a_second(
    build: Build, server: MetadataServer[ManualClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that does not resolve in time, beside two platforms that are busy."""
    over = threading.Event()

    def hang(address: Any, timeout: float) -> Any:
        over.wait(120)
        raise OSError("a refusal, to whoever has waited for it")

    monkeypatch.setattr(socket, "create_connection", hang)
    env = server.environment()
    azure = env.pop("BATCHQ_AZURE_METADATA_ENDPOINT")
    sources = build(env=env, azure_endpoint=azure)
    over.set()
    assert names(sources) == ["ec2", "gcp", "azure", "signals"]
    assert detect.PROBE_S < 1


# -- windows ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "from Kubernetes, 30 s ahead"),
        ({"SLURM_JOB_ID": "7"}, "from Slurm, 30 s ahead"),
        ({"ECS_CONTAINER_METADATA_URI_V4": "http://x"}, "from ECS, 30 s ahead"),
        ({"RUNPOD_POD_ID": "x"}, "from RunPod, 5 s ahead"),
        ({"RUNPOD_POD_ID": "x", "KUBERNETES_SERVICE_HOST": "y"}, "from RunPod, 5 s ahead"),
        ({}, "SIGHUP, 25 s ahead; a machine that ends without one is found by lease expiry"),
    ],
)
def test_the_environment_tells_who_sends_signals_and_how_early(
    build: Build, env: dict[str, str], says: str
) -> None:
    """The shortest window, where several could be right."""
    assert describe_sources(build(env=env))[-1].endswith(says)


def test_pods_on_gke_get_what_the_node_leaves_them(build: Build) -> None:
    """Half of the preemption's thirty seconds is for the system's own pods."""
    sources = build(
        "none",
        tags={"product_name": "Google Compute Engine"},
        env={"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
    )
    assert describe_sources(sources)[-1].endswith("from GKE, 15 s ahead")


def test_the_settings_window_wins(build: Build) -> None:
    """Only whoever configured the grace period knows it."""
    sources = build(env={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, window=110.0)
    assert describe_sources(sources)[-1].endswith("from Kubernetes, 110 s ahead")


def test_the_settings_interval_reaches_what_is_polled(build: Build) -> None:
    """Otherwise each platform has its own."""
    assert [source.describe() for source in build("ec2,gcp,azure", interval=2.5)[:3]] == [
        "ec2: instance metadata every 2.5 s, up to 120 s ahead",
        "gcp: metadata server every 2.5 s, 30 s ahead",
        "azure: scheduled events every 2.5 s, 30 s ahead or more",
    ]
    assert "every 5 s" in build("ec2")[0].describe()

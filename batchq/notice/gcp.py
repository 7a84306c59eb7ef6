"""GCP: whether the metadata server says that this instance is being preempted.

Source: "Spot VMs" and "Get live migration notices" in the Compute Engine documentation.
"""

from __future__ import annotations

from batchq.clock import Clock
from batchq.notice.metadata import MetadataService, Refused, refusal
from batchq.notice.polling import PollingSource, Trouble

__all__ = ["DEFAULT_ENDPOINT", "GcpSource"]

# By number, since a name may take long to resolve.
DEFAULT_ENDPOINT = "http://169.254.169.254"
INTERVAL_S = 1.0

WARNING_S = 30.0
"""From the notice to the forced stop."""

PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
FLAVOR = {"Metadata-Flavor": "Google"}


class GcpSource(PollingSource):
    """Preemption drains; host maintenance, announced an hour ahead, is recorded only."""

    name = "gcp"

    def __init__(
        self,
        service: MetadataService,
        *,
        clock: Clock,
        interval: float | None = None,
        window: float | None = None,
    ) -> None:
        super().__init__(clock=clock, interval=interval or INTERVAL_S, window=window or WARNING_S)
        self._service = service
        self.window = self._window

    def describe(self) -> str:
        return f"gcp: metadata server every {self._interval:g} s, {self._window:g} s ahead"

    def _look(self) -> float:
        preempted = self._ask(PREEMPTED)
        if preempted == "TRUE":
            self._announce("preempted", "spot", "terminate", lambda: self._in(None))
        elif preempted != "FALSE":
            raise Trouble("no answer to it", f"{PREEMPTED}: neither TRUE nor FALSE")
        self._look_for_maintenance()
        return self._interval

    def _look_for_maintenance(self) -> None:
        try:
            event = self._ask(MAINTENANCE)
        except Refused:
            # Not told to every workload; preemption is.
            return
        if event.endswith("ON_HOST_MAINTENANCE"):
            action = event.removesuffix("_ON_HOST_MAINTENANCE").lower()
            self._announce(event, "maintenance", action, lambda: None, drains=False)

    def _ask(self, path: str) -> str:
        answer = self._service.ask("GET", path, FLAVOR)
        if answer.status != 200:
            raise refusal(answer, path)
        if answer.headers.get("metadata-flavor") != "Google":
            raise Trouble("not Google", f"{path}: what answers is not a Google metadata server")
        return answer.body.strip()

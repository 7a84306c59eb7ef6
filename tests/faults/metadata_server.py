"""The metadata services of EC2, GCP and Azure over HTTP, with the faults they are known for.

    with MetadataServer(clock) as server:
        server.at(30, lambda: server.ec2.interrupt("terminate"))     # seconds from now
        server.fail(503, path="/latest/meta-data", times=3)

Times come from `clock`, which may be set. A change planned with `at` is made when the next
request comes in, as if it had been made at its moment. Delays and hangs are real, and end
when the server closes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Generic, TypeVar
from urllib.parse import parse_qs, urlsplit

from batchq.clock import Clock
from tests.faults.metadata_platforms import Azure, Ec2, Gcp, Reply, Request, html

__all__ = ["MetadataServer"]

C = TypeVar("C", bound=Clock)


@dataclass(slots=True)
class Fault:
    """What goes wrong with requests under a path, `times` times or until it is mended."""

    path: str
    method: str | None
    times: int | None
    reply: Reply | None = None
    delay_s: float = 0.0
    hang: bool = False

    def covers(self, request: Request) -> bool:
        named = self.method is None or self.method == request.method
        return named and request.path.startswith(self.path) and self.times != 0


class _Platform:
    """The clock as the platforms see it while a change is made after its moment."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.late_by = 0.0

    def now(self) -> float:
        return self._clock.now() - self.late_by

    def monotonic(self) -> float:
        return self._clock.monotonic() - self.late_by


class MetadataServer(Generic[C]):
    """All three platforms at one address on this machine. Thread-safe."""

    def __init__(self, clock: C) -> None:
        self.clock = clock
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._plan: list[tuple[float, Callable[[], object]]] = []
        self._faults: list[Fault] = []
        self._per_second: int | None = None
        self._second = (0, 0)
        self._times = _Platform(clock)
        self.ec2, self.gcp, self.azure = Ec2(self._times), Gcp(), Azure(self._times)
        self.requests: list[Request] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self.host = f"127.0.0.1:{self._http.server_port}"
        self.url = f"http://{self.host}"

    def __enter__(self) -> MetadataServer[C]:
        serve = self._http.serve_forever
        threading.Thread(target=serve, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()

    def environment(self) -> dict[str, str]:
        """Variables that send a process here, whichever platform it watches."""
        return {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.url,
            "GCE_METADATA_HOST": self.host,
            "BATCHQ_AZURE_METADATA_ENDPOINT": self.url,
        }

    def at(self, seconds: float, change: Callable[[], object]) -> None:
        """Make a change so many seconds from now."""
        with self._lock:
            self._plan.append((self.clock.monotonic() + seconds, change))
            self._plan.sort(key=lambda planned: planned[0])

    def fail(
        self,
        status: int,
        *,
        path: str = "/",
        method: str | None = None,
        times: int | None = None,
        body: str | None = None,
    ) -> None:
        """Answer with this status and a page in HTML, or `body` as it stands."""
        reply = html(status, "Error") if body is None else Reply(status, body)
        self._add(Fault(path, method, times, reply=reply))

    def delay(self, seconds: float, *, path: str = "/", times: int | None = None) -> None:
        """Let each request wait before it is answered."""
        self._add(Fault(path, None, times, delay_s=seconds))

    def hang(self, *, path: str = "/", method: str | None = None) -> None:
        """Take requests and never answer."""
        self._add(Fault(path, method, None, hang=True))

    def limit_hops(self) -> None:
        """As in a container behind hop limit 1: tokens are made, but never arrive."""
        self.hang(path="/latest/api/token", method="PUT")

    def throttle(self, per_second: int) -> None:
        """Refuse with 503 what comes more often."""
        with self._lock:
            self._per_second = per_second

    def mend(self) -> None:
        """End every fault; what hangs goes on hanging."""
        with self._lock:
            self._faults.clear()
            self._per_second = None

    def asked(self, path: str) -> list[Request]:
        """The requests for this path, in order."""
        with self._lock:
            return [request for request in self.requests if request.path == path]

    def _add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def _answer(self, request: Request) -> Reply | None:
        with self._lock:
            self.requests.append(request)
            self._carry_out_plan()
            if self._is_too_often():
                return html(503, "Service Unavailable")
            fault = next((fault for fault in self._faults if fault.covers(request)), None)
            if fault is not None and fault.times is not None:
                fault.times -= 1
        if fault is not None:
            if fault.hang:
                self._closing.wait()
                return None
            self._closing.wait(fault.delay_s)
            if fault.reply is not None:
                return fault.reply
        with self._lock:
            return self._platform(request)

    def _carry_out_plan(self) -> None:
        while self._plan and self._plan[0][0] <= self.clock.monotonic():
            moment, change = self._plan.pop(0)
            self._times.late_by = self.clock.monotonic() - moment
            change()
            self._times.late_by = 0.0

    def _is_too_often(self) -> bool:
        second, count = int(self.clock.monotonic()), 1
        if self._second[0] == second:
            count += self._second[1]
        self._second = (second, count)
        return self._per_second is not None and count > self._per_second

    def _platform(self, request: Request) -> Reply:
        if request.path.startswith("/latest/"):
            return self.ec2.answer(request)
        if request.path.startswith("/computeMetadata/"):
            return self.gcp.answer(request)
        if request.path.startswith("/metadata/"):
            return self.azure.answer(request)
        return html(404, "Not Found")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                request = Request(
                    self.command,
                    url.path,
                    parse_qs(url.query),
                    {name.lower(): value for name, value in self.headers.items()},
                    self.rfile.read(length).decode(),
                )
                reply = server._answer(request)
                if reply is None:
                    return
                with suppress(ConnectionError):  # a client that gave up waiting
                    self._send(reply)

            def _send(self, reply: Reply) -> None:
                body = reply.body.encode()
                self.send_response_only(reply.status)
                for name, value in {"Content-Type": reply.type, **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_PUT = do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

"""A connection of an HTTP/1.1 server, kept for as many requests as come, at little expense.

The server of the standard library parses each header as if it were mail, which costs more
than all that a strict S3 server has to check.
"""

from __future__ import annotations

import socketserver
from collections.abc import Mapping
from http import HTTPStatus

__all__ = ["Headers", "HttpConnection"]

Headers = Mapping[str, str]
"""Names in lower case; of several with one name the last."""

_REASONS = {status.value: status.phrase for status in HTTPStatus}


class HttpConnection(socketserver.StreamRequestHandler):
    """Answers one request after the other, until `answer` says otherwise."""

    disable_nagle_algorithm = True

    def handle(self) -> None:
        try:
            while line := self.rfile.readline():
                method, target, _ = line.decode("latin-1").split(" ")
                headers = self._headers()
                if not self.answer(method, target, headers):
                    return
                if headers.get("connection", "").lower() == "close":
                    return
        except OSError:
            # The client has hung up, as some faults make it do.
            return

    def answer(self, method: str, target: str, headers: Headers) -> bool:
        """Read the body, send an answer, and say whether the connection is kept."""
        raise NotImplementedError

    def body(self, headers: Headers) -> bytes:
        """What was announced. Raises ConnectionError if less came."""
        size = int(headers.get("content-length", 0))
        if headers.get("expect", "").lower() == "100-continue":
            self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        raw = self.rfile.read(size) if size else b""
        if len(raw) < size:
            raise ConnectionError(f"{len(raw)} of {size} bytes came")
        return raw

    def send(self, status: int, headers: Headers, body: bytes) -> None:
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\n{lines}\r\n"
        self.connection.sendall(head.encode("latin-1") + body)

    def await_hangup(self) -> None:
        """Until the client is gone, or sends on."""
        self.connection.settimeout(60)
        self.connection.recv(1)

    def _headers(self) -> Headers:
        headers = {}
        while (line := self.rfile.readline()) not in (b"\r\n", b"\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return headers

"""A TCP proxy in front of PostgreSQL that cuts connections at chosen statements.

It speaks enough of the protocol to know where a statement ends and its answer begins
(https://www.postgresql.org/docs/current/protocol.html). With a TLS context it takes
encrypted connections and passes them on in the clear, for a server that knows no TLS.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from contextlib import suppress
from enum import Enum
from types import TracebackType

__all__ = ["Cut", "PostgresProxy"]

_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104

_END_OF_REQUEST = (b"Q", b"S", b"c", b"f")
"""A simple query, Sync, and the end of a COPY: after these the server answers."""

_END_OF_ANSWER = (b"Z", b"G")
"""Ready for the next query, or for the rows of a COPY."""

_AUTHENTICATED = 0
_NOTHING_TO_ANSWER = (_AUTHENTICATED, 12)


class Cut(Enum):
    BEFORE = "the statement never reaches the server"
    AFTER = "it took effect, and the answer is lost"
    LATE = "it reaches the server long after its sender gave it up, when `deliver` says so"


class PostgresProxy:
    """Listens on a port of this machine for the server at a Unix socket or an address."""

    def __init__(self, server: str | tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self.statements = 0
        """How many were seen since `arm`."""
        self._server = server
        self._tls = tls
        self._cut: tuple[int, Cut] | None = None
        self._refused = 0
        self._held: list[tuple[socket.socket, bytes]] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> PostgresProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Closing alone would not wake the thread that accepts.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def arm(self, statement: int | None = None, cut: Cut = Cut.BEFORE, refuse: int = 0) -> None:
        """Count statements from 0, and cut at one; then refuse so many new connections."""
        with self._lock:
            self.statements = 0
            self._cut = None if statement is None else (statement, cut)
            self._refused = refuse

    def deliver(self) -> int:
        """Let what was cut LATE take its effect now; how many statements those were."""
        held, self._held = self._held, []
        for server, request in held:
            with server:
                server.sendall(request)
                _answer(server)
        return len(held)

    @property
    def has_cut(self) -> bool:
        """Whether the cut that was armed has been made."""
        return self._cut is None

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            if self._is_refused():
                return
            self._relay(client)

    def _is_refused(self) -> bool:
        with self._lock:
            # Only what comes after the cut: the connection that it hits is there already.
            if self._cut is None and self._refused:
                self._refused -= 1
                return True
            return False

    def _relay(self, client: socket.socket) -> None:
        startup = _startup(client)
        while struct.unpack("!I", startup[4:8])[0] in (_SSL_REQUEST, _GSS_REQUEST):
            encrypted = self._tls is not None and startup[4:8] == struct.pack("!I", _SSL_REQUEST)
            client.sendall(b"S" if encrypted else b"N")
            if encrypted:
                assert self._tls is not None
                client = self._tls.wrap_socket(client, server_side=True)
            startup = _startup(client)
        with client, self._connect() as server:
            server.sendall(startup)
            client.sendall(_answer(server))
            while True:
                request = _request(client)
                if request[:1] in (b"p", b"X"):
                    server.sendall(request)
                    if request[:1] == b"X":
                        return
                    client.sendall(_answer(server))
                    continue
                cut = self._next()
                if cut is Cut.BEFORE:
                    return
                if cut is Cut.LATE:
                    # The connection to the server outlives the one to the client.
                    self._held.append((server.dup(), request))
                    return
                server.sendall(request)
                answer = _answer(server)
                if cut is Cut.AFTER:
                    return
                client.sendall(answer)

    def _next(self) -> Cut | None:
        """Count a statement; whether to cut at it, and how."""
        with self._lock:
            number = self.statements
            self.statements += 1
            if self._cut is None or self._cut[0] != number:
                return None
            cut = self._cut[1]
            self._cut = None
            return cut

    def _connect(self) -> socket.socket:
        if isinstance(self._server, str):
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            return server
        return socket.create_connection(self._server)


def _startup(client: socket.socket) -> bytes:
    """The first message of a client has no type."""
    head = _exactly(client, 4)
    return head + _exactly(client, struct.unpack("!I", head)[0] - 4)


def _message(peer: socket.socket) -> bytes:
    head = _exactly(peer, 5)
    return head + _exactly(peer, struct.unpack("!I", head[1:])[0] - 4)


def _request(client: socket.socket) -> bytes:
    """Messages up to one that the server answers; or a password, or a farewell."""
    messages = [_message(client)]
    if messages[0][:1] in (b"p", b"X"):
        return messages[0]
    while messages[-1][:1] not in _END_OF_REQUEST:
        messages.append(_message(client))
    return b"".join(messages)


def _answer(server: socket.socket) -> bytes:
    """Messages up to one after which the client speaks; what there is if the server hangs up."""
    messages: list[bytes] = []
    while True:
        try:
            message = _message(server)
        except ConnectionError:
            if messages:
                return b"".join(messages)
            raise
        messages.append(message)
        kind = message[:1]
        asked = kind == b"R" and struct.unpack("!I", message[5:9])[0] not in _NOTHING_TO_ANSWER
        if asked or kind in _END_OF_ANSWER:
            return b"".join(messages)


def _exactly(peer: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = peer.recv(size)
        if not part:
            raise ConnectionError("the peer has hung up")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)

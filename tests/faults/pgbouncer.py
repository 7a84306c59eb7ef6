"""pgbouncer in transaction mode, in front of a test's server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg

from batchq.clock import SystemClock

__all__ = ["pgbouncer_program", "running_pgbouncer"]


def pgbouncer_program() -> str | None:
    """Where it is installed; Debian keeps it where only root looks."""
    return shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


STARTS = 5
"""Each on another port: what was free may be taken before pgbouncer comes to it."""

START_S = 60.0


@contextmanager
def running_pgbouncer(program: str, server_port: int, *, sessions: int) -> Iterator[int]:
    """Its port. All its clients share so many sessions of the server on this machine."""
    folder = Path(tempfile.mkdtemp(prefix="batchq-pgbouncer-"))
    command = [program, "--quiet"]
    if os.getuid() == 0:
        # It refuses to be root.
        command += ["--user", "nobody"]
        folder.chmod(0o755)
    for _ in range(STARTS):
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        settings = folder / "pgbouncer.ini"
        settings.write_text(f"""
[databases]
* = host=127.0.0.1 port={server_port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
""")
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen([*command, str(settings)], stdout=log, stderr=log)
        if _answers(process, port):
            break
    else:
        raise RuntimeError((folder / "log").read_text())
    try:
        yield port
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(folder)


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until it does; false if it has ended before, or takes too long."""
    clock = SystemClock()
    give_up = clock.monotonic() + START_S
    address = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    while process.poll() is None and clock.monotonic() < give_up:
        try:
            psycopg.connect(address, connect_timeout=10).close()
        except psycopg.OperationalError:
            continue
        return process.poll() is None
    process.kill()
    process.wait()
    return False

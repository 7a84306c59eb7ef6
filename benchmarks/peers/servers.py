"""Queues in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg
import procrastinate
import psycopg
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks.peers.base import Done, batches

__all__ = ["Pgqueuer", "Procrastinate"]


async def until(late: Callable[[], bool], running: asyncio.Task[None]) -> None:
    """Wait for a worker to end, or end it once it is late."""
    while not running.done() and not late():
        await asyncio.wait([running], timeout=0.05)
    if running.done():
        running.result()
        return
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class Procrastinate:
    setting = "batch_defer by 1,000; async worker, concurrency 10, delete_jobs=successful"

    def __init__(self, address: str) -> None:
        self._address = address
        self._done: Done = lambda number: None
        self._pause = 0.0
        connector = procrastinate.PsycopgConnector(conninfo=address, min_size=4, max_size=10)
        self._app = procrastinate.App(connector=connector)

        @self._app.task(name="empty")
        async def empty(number: int) -> None:
            if self._pause:
                await asyncio.sleep(self._pause)
            self._done(number)

        self._task = empty

    def create(self) -> None:
        async def apply() -> None:
            async with self._app.open_async():
                await self._app.schema_manager.apply_schema_async()

        asyncio.run(apply())

    def enqueue(self, numbers: range, late: Callable[[], bool]) -> int:
        async def defer() -> int:
            count = 0
            async with self._app.open_async():
                for part in batches(numbers, 1000, late):
                    await self._task.batch_defer_async(*({"number": n} for n in part))
                    count += len(part)
            return count

        return asyncio.run(defer())

    def work(self, done: Done, late: Callable[[], bool], pause: float = 0.0) -> None:
        self._done, self._pause = done, pause

        async def run() -> None:
            async with self._app.open_async():
                worker = self._app.run_worker_async(
                    wait=False,
                    concurrency=10,
                    delete_jobs="successful",
                    listen_notify=False,
                    install_signal_handlers=False,
                    update_heartbeat_interval=0.5,
                    stalled_worker_timeout=2.0,
                )
                await until(late, asyncio.create_task(worker))

        asyncio.run(run())

    def left(self) -> set[int]:
        with psycopg.connect(self._address) as connection:
            rows = connection.execute(
                "SELECT args->>'number' FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
            ).fetchall()
        return {int(row[0]) for row in rows}


class Pgqueuer:
    setting = "asyncpg; enqueue by 1,000; batch_size 1,000; heartbeat_timeout 2 s"

    def __init__(self, address: str) -> None:
        self._address = address

    def create(self) -> None:
        self._with_queries(lambda queries: queries.install())

    def enqueue(self, numbers: range, late: Callable[[], bool]) -> int:
        async def send(queries: Queries) -> int:
            count = 0
            for part in batches(numbers, 1000, late):
                payloads: list[bytes | None] = [str(number).encode() for number in part]
                await queries.enqueue(["empty"] * len(part), payloads, [0] * len(part))
                count += len(part)
            return count

        count: int = self._with_queries(send)
        return count

    def work(self, done: Done, late: Callable[[], bool], pause: float = 0.0) -> None:
        async def run() -> None:
            connection = await asyncpg.connect(self._address)
            manager = QueueManager(Queries(AsyncpgDriver(connection)))

            @manager.entrypoint("empty")
            async def empty(job: Job) -> None:
                assert job.payload is not None
                if pause:
                    await asyncio.sleep(pause)
                done(int(job.payload))

            worker = manager.run(
                dequeue_timeout=timedelta(seconds=1),
                batch_size=1000,
                mode=QueueExecutionMode.drain,
                heartbeat_timeout=timedelta(seconds=2),
            )
            await until(late, asyncio.create_task(worker))

        asyncio.run(run())

    def left(self) -> set[int]:
        with psycopg.connect(self._address) as connection:
            rows = connection.execute(
                "SELECT payload FROM pgqueuer WHERE status IN ('queued', 'picked')"
            ).fetchall()
        return {int(bytes(row[0])) for row in rows}

    def _with_queries(self, call: Callable[[Queries], Any]) -> Any:
        async def run() -> Any:
            connection = await asyncpg.connect(self._address)
            try:
                return await call(Queries(AsyncpgDriver(connection)))
            finally:
                await connection.close()

        return asyncio.run(run())

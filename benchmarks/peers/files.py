"""Queues in a SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any

import litequeue
import persistqueue
from huey import SqliteHuey

from benchmarks.peers.base import Done, batches

__all__ = ["Huey", "Litequeue", "PersistQueue"]


def retried(call: Callable[[], Any]) -> Any:
    """What waits for a lock no longer than SQLite does by default is asked again."""
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            time.sleep(0.001)


class Huey:
    setting = "no result store; dequeue and execute without the consumer's threads"

    def __init__(self, address: str) -> None:
        self._huey = SqliteHuey(
            filename=address.removeprefix("sqlite:///"), results=False, utc=True, timeout=30
        )
        self._done: Done = lambda number: None
        self._pause = 0.0

        @self._huey.task()
        def empty(number: int) -> None:
            if self._pause:
                time.sleep(self._pause)
            self._done(number)

        self._task = empty

    def create(self) -> None:
        """The file is made when it is opened."""

    def enqueue(self, numbers: range, late: Callable[[], bool]) -> int:
        count = 0
        for part in batches(numbers, 20, late):
            for number in part:
                self._task(number)
            count += len(part)
        return count

    def work(self, done: Done, late: Callable[[], bool], pause: float = 0.0) -> None:
        self._done, self._pause = done, pause
        while not late() and (task := self._huey.dequeue()) is not None:
            self._huey.execute(task)

    def left(self) -> set[int]:
        return {task.args[0] for task in self._huey.pending()}


class Litequeue:
    setting = "put in transactions of 1,000; pop, done; synchronous = NORMAL (its own)"

    def __init__(self, address: str) -> None:
        path = address.removeprefix("sqlite:///")
        self._queue = retried(lambda: litequeue.LiteQueue(path, timeout=30))

    def create(self) -> None:
        """The table is made when it is opened."""

    def enqueue(self, numbers: range, late: Callable[[], bool]) -> int:
        count = 0
        for part in batches(numbers, 1000, late):
            with self._queue.transaction(mode="IMMEDIATE"):
                for number in part:
                    self._queue.put(str(number))
            count += len(part)
        return count

    def work(self, done: Done, late: Callable[[], bool], pause: float = 0.0) -> None:
        while not late() and (message := retried(self._queue.pop)) is not None:
            if pause:
                time.sleep(pause)
            done(int(message.data))
            identity = message.message_id
            retried(lambda: self._queue.done(identity))  # noqa: B023

    def left(self) -> set[int]:
        rows = self._queue.conn.execute("SELECT data FROM Queue WHERE status IN (0, 1)")
        return {int(row[0]) for row in rows}


class PersistQueue:
    setting = "SQLiteAckQueue: put, get, ack; each commits by itself"

    def __init__(self, address: str) -> None:
        folder = address.removeprefix("sqlite:///")
        self._queue = retried(lambda: persistqueue.SQLiteAckQueue(folder, multithreading=True))

    def create(self) -> None:
        """The file is made when it is opened."""

    def enqueue(self, numbers: range, late: Callable[[], bool]) -> int:
        count = 0
        for part in batches(numbers, 20, late):
            for number in part:
                retried(lambda: self._queue.put(number))  # noqa: B023
            count += len(part)
        return count

    def work(self, done: Done, late: Callable[[], bool], pause: float = 0.0) -> None:
        while not late():
            try:
                item = retried(lambda: self._queue.get(block=False, raw=True))
            except persistqueue.Empty:
                return
            if pause:
                time.sleep(pause)
            done(item["data"])
            retried(lambda: self._queue.ack(id=item["pqid"]))  # noqa: B023

    def left(self) -> set[int]:
        # 5: acknowledged.
        return {one["data"] for one in self._queue.queue() if int(one["status"]) < 5}

"""Work done a few pieces ahead of who wants the outcomes, which come in order."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

__all__ = ["Ahead"]

Piece = TypeVar("Piece")
Outcome = TypeVar("Outcome")


class Ahead(Generic[Piece, Outcome]):
    """Threads that do `work`, at most `ahead` pieces before they are asked for.

    They are daemons: one that reads a slow disk, or waits for a ledger that gives no
    answer, must not hold up a Ctrl-C.
    """

    def __init__(
        self, work: Callable[[Piece], Outcome], *, threads: int, ahead: int, name: str
    ) -> None:
        self._work = work
        self._ahead = ahead
        self._todo: queue.SimpleQueue[tuple[Piece, Future[Outcome]] | None] = queue.SimpleQueue()
        self._over: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{n}", daemon=True)
            for n in range(threads)
        ]

    def __enter__(self) -> Ahead[Piece, Outcome]:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over = self._over or CancelledError()
        for _ in self._threads:
            self._todo.put(None)

    def each(self, pieces: Iterable[Piece | Future[Outcome]]) -> Iterator[Outcome]:
        """The outcome of each piece, in order. A future among them takes its turn as it is."""
        pending: deque[Future[Outcome]] = deque()
        for piece in pieces:
            if isinstance(piece, Future):
                pending.append(piece)
            else:
                outcome: Future[Outcome] = Future()
                self._todo.put((piece, outcome))
                pending.append(outcome)
            while pending and (len(pending) > self._ahead or pending[0].done()):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _run(self) -> None:
        while (todo := self._todo.get()) is not None:
            piece, outcome = todo
            if self._over is not None:
                # One that failed behind it, or the end: who asks must not wait for ever.
                outcome.set_exception(self._over)
                continue
            try:
                outcome.set_result(self._work(piece))
            except BaseException as error:
                self._over = error
                outcome.set_exception(error)

"""One thread that writes, with group commit.

Work that is waiting when a transaction begins goes into the same transaction. When one piece
fails, the batch is undone and every piece is tried alone, so that a poisonous one fails by itself.
"""

from __future__ import annotations

import os
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from forge_nb.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa

__all__ = ["Writer"]

_BATCH_MAX = 256  # pieces of work in one transaction


class _Job:
    """A piece of work and who waits for it."""

    __slots__ = ("alone", "future", "work")

    def __init__(self, work: Callable[[sa.Connection], Any], *, alone: bool) -> None:
        self.work = work
        self.alone = alone
        self.future: Future[Any] = Future()


class Writer:
    """Runs functions of a connection on a thread of its own, each inside a transaction.

    Parameters
    ----------
    engine
        Whose transactions begin IMMEDIATE.
    translate
        Turns a database error into one of ours.
    """

    def __init__(
        self, engine: sa.Engine, translate: Callable[[BaseException], BaseException]
    ) -> None:
        self._engine = engine
        self._translate = translate
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._gate = threading.Lock()  # nothing is queued behind the end mark
        self._is_closed = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="forge-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[sa.Connection], Any], *, alone: bool = False) -> Future[Any]:
        """Queue a piece of work.

        Parameters
        ----------
        work
            What to do; may run twice when another piece of its batch fails, unless `alone`.
        alone
            Whether it must have a transaction of its own: it can run only once.

        Raises
        ------
        StoreError
            When the store is closed, or was opened by the process that this one was forked from.
        UsageError
            On the writer's own thread, where waiting for the result would never end.
        """
        if os.getpid() != self._pid:
            msg = "the store was opened before this process was forked; open it again here"
            raise StoreError(msg)
        if threading.current_thread() is self._thread:
            msg = "a generator of events cannot write to the store that consumes it; yield instead"
            raise UsageError(msg)
        job = _Job(work, alone=alone)
        with self._gate:
            if self._is_closed:
                msg = "the store is closed; open it again"
                raise StoreError(msg)
            self._queue.put(job)
        return job.future

    def close(self) -> None:
        """Finish what is queued and end the thread; does nothing the second time."""
        with self._gate:
            if self._is_closed or os.getpid() != self._pid:
                return
            self._is_closed = True
            self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        """Work until the end mark, a transaction at a time."""
        stop = False
        while not stop:
            batch, stop = self._gather()
            for group in _groups(batch):
                self._commit([job for job in group if job.future.set_running_or_notify_cancel()])

    def _gather(self) -> tuple[list[_Job], bool]:
        """Wait for work; return all that is queued, and whether the end mark came."""
        batch: list[_Job] = []
        while len(batch) < _BATCH_MAX and not (batch and self._queue.empty()):
            job = self._queue.get()
            if job is None:
                return batch, True
            batch.append(job)
        return batch, False

    def _commit(self, group: list[_Job]) -> None:
        """Run a group in one transaction; each alone when that fails."""
        if not group:
            return
        try:
            with self._engine.connect() as connection, connection.begin():
                results = [job.work(connection) for job in group]
        except BaseException as error:  # noqa: BLE001  whatever it is, the one who waits gets it
            if len(group) == 1:
                group[0].future.set_exception(self._translate(error))
                return
            for job in group:
                self._commit([job])
            return
        for job, result in zip(group, results, strict=True):
            job.future.set_result(result)


def _groups(batch: list[_Job]) -> Iterator[list[_Job]]:
    """Part a batch so that work which can run only once stands alone; order is kept."""
    group: list[_Job] = []
    for job in batch:
        if job.alone:
            yield group
            yield [job]
            group = []
        else:
            group.append(job)
    yield group

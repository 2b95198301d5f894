"""One thread that writes, with group commit.

Work that is waiting when a transaction begins goes into the same transaction. When one piece
fails, the batch is undone and every piece is tried alone, so that a poisonous one fails by itself.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from forge_nb.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

__all__ = ["Writer"]

_BATCH_MAX = 256  # pieces of work in one transaction
_Work = tuple["Callable[[sa.Connection], Any]", "Future[Any]", bool]


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
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._is_closed = False
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
            When the store is closed.
        """
        if self._is_closed:
            msg = "the store is closed; open it again"
            raise StoreError(msg)
        future: Future[Any] = Future()
        self._queue.put((work, future, alone))
        return future

    def close(self) -> None:
        """Finish what is queued and end the thread."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        with self._engine.connect() as connection:
            while True:
                first = self._queue.get()
                if first is None:
                    return
                batch, stop = self._gather(first)
                for group in _groups(batch):
                    self._commit(connection, group)
                if stop:
                    return

    def _gather(self, first: _Work) -> tuple[list[_Work], bool]:
        batch = [first]
        while len(batch) < _BATCH_MAX and not self._queue.empty():
            more = self._queue.get_nowait()
            if more is None:
                return batch, True
            batch.append(more)
        return batch, False

    def _commit(self, connection: sa.Connection, batch: list[_Work]) -> None:
        try:
            with connection.begin():
                results = [work(connection) for work, _, _ in batch]
        except BaseException as error:  # noqa: BLE001  the caller's thread gets it
            if len(batch) == 1:
                batch[0][1].set_exception(self._translate(error))
                return
            for one in batch:
                self._commit(connection, [one])
            return
        for (_, future, _), result in zip(batch, results, strict=True):
            future.set_result(result)


def _groups(batch: list[_Work]) -> list[list[_Work]]:
    """Part a batch so that work which can run only once stands alone; order is kept."""
    groups: list[list[_Work]] = [[]]
    for work in batch:
        if work[2]:
            groups += [[work], []]
        else:
            groups[-1].append(work)
    return [group for group in groups if group]

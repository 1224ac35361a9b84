"""The executor of one machine: threads of this process, a bound on what is in flight, records in order.

The work is used as it is, with the arrays it holds: nothing is described, copied or written that one process does not
need. Threads are kept from round to round: on a small graph, starting them would take longer than a sweep.
Memory: a scratch for each thread, and at most one finished record more than threads, unless records are small.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from queue import LifoQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.work import Json, Work

if TYPE_CHECKING:
    from ecgl_scale.engine.resources import Resources

Record = TypeVar("Record")


class LocalExecutor:
    """Runs blocks in as many threads as the resources have."""

    shares_memory = True

    @contextmanager
    def open(self, work: Work[Any, Record], resources: Resources) -> Iterator[LocalWorkers[Record]]:
        """Threads that share this very work."""
        workers = LocalWorkers(work, 1 if work.uses_all_threads else resources.threads)
        try:
            yield workers
        finally:
            workers.close()
            work.close()


class LocalWorkers(Generic[Record]):
    """Threads, and a scratch for each."""

    def __init__(self, work: Work[Any, Record], threads: int) -> None:
        self._work = work
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._scratches: LifoQueue[Any] = LifoQueue()
        self._num_scratches = 0
        self._lock = threading.Lock()

    def run(
        self, blocks: Iterable[Block], given: Json = None, on_finished: Callable[[Block, Any], None] | None = None
    ) -> Iterator[tuple[Block, Record]]:
        """Records in order; ``on_finished`` hears of each when its turn has come."""
        for block, record in self._records(blocks, given):
            if on_finished is not None:
                on_finished(block, record)
            yield block, record

    def _records(self, blocks: Iterable[Block], given: Json) -> Iterator[tuple[Block, Record]]:
        """As many blocks as threads are worked on; the first error stops it.

        One more is waiting. All are where records are small, so that nobody is idle while the first takes long.
        """
        num_blocks = len(blocks) if isinstance(blocks, Sized) else None
        if self._threads == 1 or num_blocks == 1:
            for block in blocks:
                yield block, self._run_one(block, given)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=self._work.name)
        if self._work.in_any_order:
            yield from self._run_in_any_order(self._pool, blocks, given)
            return
        pending: deque[tuple[Block, Future[Record]]] = deque()
        most_pending = num_blocks if num_blocks and self._work.has_small_records else self._threads
        try:
            for block in blocks:
                pending.append((block, self._pool.submit(self._run_one, block, given)))
                if len(pending) > most_pending:
                    done, future = pending.popleft()
                    yield done, future.result()
            while pending:
                done, future = pending.popleft()
                yield done, future.result()
        finally:
            _await_all([future for _, future in pending])

    def _run_in_any_order(
        self, pool: ThreadPoolExecutor, blocks: Iterable[Block], given: Json
    ) -> Iterator[tuple[Block, Record]]:
        """A block is asked for when a thread is free; records come as they are ready."""
        running: dict[Future[Record], Block] = {}
        upcoming = iter(blocks)
        try:
            while True:
                for block in islice(upcoming, self._threads - len(running)):
                    running[pool.submit(self._run_one, block, given)] = block
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        finally:
            _await_all([*running])

    def _run_one(self, block: Block, given: Json) -> Record:
        scratch = self._take_scratch()
        try:
            return self._work.run(block, given, scratch)
        finally:
            self._scratches.put(scratch)

    def _take_scratch(self) -> Any:
        """One that is free: the last used, as its memory is most likely in cache. At most as many as threads."""
        with self._lock:
            is_new = self._scratches.empty() and self._num_scratches < self._threads
            self._num_scratches += is_new
        return self._work.scratch() if is_new else self._scratches.get()

    def close(self) -> None:
        """Wait for the threads and end them."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _await_all(futures: Sequence[Future[Any]]) -> None:
    """Nobody may be at work any more when the caller goes on, or lets go of what the work uses."""
    for future in futures:
        future.cancel()
    for future in futures:
        if not future.cancelled():
            future.exception()

"""Blocks: the unit of reading, computing, retrying and journalling; and reading them ahead of need."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from ecgl_scale.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Block:
    """Rows ``start`` up to, not including, ``stop``."""

    index: int
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start


def split_blocks(num_rows: int, rows_per_block: int) -> list[Block]:
    """Cut ``num_rows`` rows into blocks of equal size; the last may be shorter."""
    starts = range(0, num_rows, rows_per_block)
    return [Block(index, start, min(start + rows_per_block, num_rows)) for index, start in enumerate(starts)]


def stream_blocks(
    blocks: Iterable[Block], read: Callable[[Block, int], T], *, ahead: int, threads: int
) -> Iterator[tuple[Block, T]]:
    """Yield ``read(block, slot)`` in block order while the next ``ahead`` blocks are being read in ``threads``.

    ``slot`` runs from 0 to ``ahead``; what was yielded from a slot is done with when the next block is asked for,
    and only then is the slot read into again. Memory: ``ahead + 1`` results.
    """
    if ahead < 0 or threads < 1:
        raise UsageError(
            "cannot read ahead like this",
            where=f"ahead={ahead}, threads={threads}",
            expected="ahead >= 0, threads >= 1",
        )
    upcoming = enumerate(blocks)
    waiting: deque[tuple[Block, Future[T]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="read-ahead")

    def start_next() -> None:
        for position, block in upcoming:
            waiting.append((block, pool.submit(read, block, position % (ahead + 1))))
            return

    try:
        for _ in range(ahead + 1):
            start_next()
        while waiting:
            block, future = waiting.popleft()
            yield block, future.result()
            start_next()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

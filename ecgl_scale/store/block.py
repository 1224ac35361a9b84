"""Blocks: the unit of reading, computing, retrying and journalling; and reading them ahead of need."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.errors import CorruptStoreError, UsageError
from ecgl_scale.run.durable import WrittenFile, storage_errors

T = TypeVar("T")


@dataclass(frozen=True)
class Block:
    """Rows ``start`` up to, not including, ``stop``."""

    index: int
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """How many rows."""
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


def checked_ids(ids: Any, num_rows: int) -> NDArray[np.int64]:
    """Row ids as int64, or a ``UsageError`` that names the first one out of range."""
    given = np.asarray(ids)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise UsageError("row ids must be a list of integers", where=f"{given.dtype} array of shape {given.shape}")
    # Before the cast, as uint64 ids past 2^63 would come out negative.
    outside = (given < 0) | (given >= num_rows)
    if outside.any():
        position = int(np.argmax(outside))
        raise UsageError(
            f"row {given[position]} does not exist", where=f"ids[{position}]", expected=f"0 <= id < {num_rows}"
        )
    return given.astype(np.int64, copy=False)


def expected_file(expected: Mapping[str, T], name: str, directory: Path) -> T:
    """What the manifest says of a file, which it must name."""
    if name not in expected:
        raise CorruptStoreError("the manifest does not name a file it should", where=directory / name)
    return expected[name]


@contextmanager
def open_expected(path: Path, expected: WrittenFile) -> Iterator[int]:
    """Open a file of a store for reading; it must be there, be no link and have the manifest's size."""
    with storage_errors(path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or path.is_symlink():
                raise corrupt(path, "is missing or is a link") from error
            raise
        try:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes != expected.size_bytes:
                raise corrupt(path, f"has {size_bytes} bytes, the manifest says {expected.size_bytes}")
            yield descriptor
        finally:
            os.close(descriptor)


def read_exactly(descriptor: int, buffers: list[Any], offset: int) -> bool:
    """Fill the byte buffers from the file, in one call where the system gives all at once; False at its end."""
    if os.preadv(descriptor, buffers, offset) == sum(len(buffer) for buffer in buffers):
        return True
    for buffer in buffers:
        done = 0
        while done < len(buffer):
            got = os.preadv(descriptor, [buffer[done:]], offset + done)
            if got == 0:
                return False
            done += got
        offset += done
    return True


def corrupt(path: Path, how: str) -> CorruptStoreError:
    """The error for a file that is not as it was written."""
    return CorruptStoreError(
        f"a file of the store {how}", where=path, fix="copy it again from a good store, or build the store again"
    )

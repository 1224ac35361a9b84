"""Every edge of a store once, as packed tiles, in pieces, with the next piece being read meanwhile.

A stripe whose pages are in memory is used where it lies (mapped); one that is not is read past the page cache into a
buffer: a sweep reads each byte once, so caching it would only cost copies. The first time a stripe is read its bytes
are compared with the manifest. Memory: two buffers of ``PIECE_BYTES`` a thread, and one for the stripe that is next.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.buffers import ReusableBytes
from ecgl_scale.base.direct import SECTOR_BYTES, open_direct, round_up
from ecgl_scale.base.durable import crc32c_of, storage_errors
from ecgl_scale.engine.block import Block
from ecgl_scale.errors import EcglError
from ecgl_scale.store.checked import corrupt
from ecgl_scale.store.edges.read import TileStore
from ecgl_scale.units import MIB

PIECE_BYTES = 16 * MIB
"""Read from the disk, pieces of 8 MiB made a sweep at scale 22 a third slower."""
EDGE_BYTES = 4
RESIDENT_SHARE = 0.9


def buffer_bytes(threads: int) -> int:
    """Plan the buffers of a ``TileStream``."""
    return (2 * threads + 1) * PIECE_BYTES


@dataclass(frozen=True)
class Piece:
    """Consecutive edges of one stripe."""

    first_edge: int
    packed: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    """Where the tiles of the whole stripe begin."""
    read_bytes: int
    """Bytes that came from the disk for it; 0 where they were in memory."""


@dataclass(frozen=True)
class _Coming:
    """A piece that is being read."""

    future: Future[Piece]
    buffer: ReusableBytes


class TileStream:
    """Reads stripes for all threads of a process, again and again."""

    def __init__(self, tiles: TileStore, threads: int) -> None:
        self._tiles = tiles
        self._checked: set[int] = set()
        self._free: list[ReusableBytes] = []
        self._readers = ThreadPoolExecutor(threads + 1, thread_name_prefix="read-ahead")
        self._stripes: dict[int, _Stripe] = {}
        self._lock = threading.Lock()
        self._expected: dict[int, _Coming | None] = {}
        self._under_way: set[int] = set()

    def expect(self, block: Block) -> None:
        """Begin to read a stripe that somebody will ask for next, unless somebody has."""
        with self._lock:
            if block.index not in self._expected and block.index not in self._under_way:
                stripe = self._begin(block)
                self._expected[block.index] = None if stripe.is_resident else self._start(stripe, 0)

    def pieces(self, block: Block) -> Iterator[Piece]:
        """The pieces of a stripe in order; each is valid until the next is asked for."""
        with self._lock:
            self._under_way.add(block.index)
            stripe = self._stripes[block.index] if block.index in self._expected else self._begin(block)
            coming = self._expected.pop(block.index, None)
        try:
            if stripe.is_resident:
                for number in range(stripe.num_pieces):
                    yield stripe.read(number, None)
                return
            for number in range(stripe.num_pieces):
                here, coming = coming or self._start(stripe, 0), None
                piece = here.future.result()
                if number + 1 < stripe.num_pieces:
                    coming = self._start(stripe, number + 1)
                yield piece
                self._free.append(here.buffer)
        finally:
            self._under_way.discard(block.index)
            if coming is not None:
                coming.future.exception()  # nobody reads into a buffer that is free

    def close(self) -> None:
        """End the threads that read ahead."""
        self._readers.shutdown(cancel_futures=True)

    def _begin(self, block: Block) -> _Stripe:
        # Maps are kept from sweep to sweep: a fresh one would fault on every page again.
        if block.index not in self._stripes:
            self._stripes[block.index] = _Stripe(self._tiles, block, self._checked)
        self._stripes[block.index].begin()
        return self._stripes[block.index]

    def _start(self, stripe: _Stripe, number: int) -> _Coming:
        """Pieces of a stripe are read one after the other: the checksum of a file is taken in its order."""
        buffer = self._free.pop() if self._free else ReusableBytes()
        return _Coming(self._readers.submit(stripe.read, number, buffer), buffer)


class _Stripe:
    """One tile file, mapped; pieces of it are views of the map or reads into a buffer."""

    def __init__(self, tiles: TileStore, block: Block, checked: set[int]) -> None:
        self._block = block
        self._path: Path = tiles.path(block)
        try:
            self._ragged = tiles.map_unchecked(block)
        except EcglError:
            raise
        except (OSError, ValueError) as error:  # what pyarrow raises for a damaged head or footer
            raise corrupt(self._path, f"is not a ragged Arrow file: {error}") from error
        self._expected = tiles.expected(block)
        self._checked = checked
        values = self._ragged.values
        offsets = self._ragged.offsets
        tile_count = tiles.num_ranges_of(block) * tiles.width(block)
        if (
            values.dtype != np.uint32
            or offsets.size != tile_count + 1
            or offsets[0] != 0
            or offsets[-1] != values.size
            or (np.diff(offsets) < 0).any()
        ):
            raise corrupt(self._path, "does not hold the stripe's tiles")
        self._values_start = self._ragged.values_start

    def begin(self) -> None:
        """Look at what has changed since the last sweep."""
        self._check = self._block.index not in self._checked
        self._crc32c = 0
        self.is_resident = _is_resident(self._ragged.values)

    @property
    def num_pieces(self) -> int:
        return max(1, -(-self._ragged.values.nbytes // PIECE_BYTES))

    def read(self, number: int, buffer: ReusableBytes | None) -> Piece:
        """A piece in the buffer; without one, where it lies."""
        first_edge = number * (PIECE_BYTES // EDGE_BYTES)
        last_edge = min(first_edge + PIECE_BYTES // EDGE_BYTES, self._ragged.values.size)
        if buffer is None:
            packed, read_bytes = self._ragged.values[first_edge:last_edge], 0
        else:
            packed, read_bytes = self._read_direct(first_edge, last_edge, buffer)
        if self._check:
            self._add_to_checksum(packed, number)
        return Piece(first_edge, packed, self._ragged.offsets, read_bytes)

    def _read_direct(self, first_edge: int, last_edge: int, buffer: ReusableBytes) -> tuple[NDArray[np.uint32], int]:
        first = self._values_start + first_edge * EDGE_BYTES
        last = self._values_start + last_edge * EDGE_BYTES
        start = first // SECTOR_BYTES * SECTOR_BYTES
        target = buffer.take(round_up(last, SECTOR_BYTES) - start)
        with storage_errors(self._path):
            descriptor = open_direct(self._path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                done = 0
                while done < last - start:
                    got = os.preadv(descriptor, [target[done:].data], start + done)
                    if got == 0:
                        raise corrupt(self._path, "has become shorter while it was read")
                    done += got
            finally:
                os.close(descriptor)
        return target[first - start : last - start].view(np.uint32), target.size

    def _add_to_checksum(self, packed: NDArray[np.uint32], number: int) -> None:
        """Head, all pieces in order, tail: the whole file's crc32c, taken on the way."""
        if number == 0:
            self._crc32c = crc32c_of(_file_bytes(self._path, 0, self._values_start))
        if packed.size:
            self._crc32c = crc32c_of(packed, self._crc32c)
        if number == self.num_pieces - 1:
            tail = self._values_start + self._ragged.values.nbytes
            found = crc32c_of(_file_bytes(self._path, tail, self._expected.size_bytes), self._crc32c)
            if found != self._expected.crc32c:
                raise corrupt(self._path, "does not have the bytes that were written")
            self._checked.add(self._block.index)


def _file_bytes(path: Path, start: int, stop: int) -> bytes:
    with storage_errors(path), path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: the rest is read past the cache
        return os.pread(file.fileno(), stop - start, start)


def _is_resident(values: NDArray[np.uint32]) -> bool:
    """Whether nearly all pages of a mapped array are in memory (mincore)."""
    if values.size == 0:
        return True
    address = values.ctypes.data
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    length = address + values.nbytes - start
    pages = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(length), pages.ctypes.data_as(ctypes.c_void_p))
    return not failed and float((pages & 1).mean()) >= RESIDENT_SHARE

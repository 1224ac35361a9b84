"""Keys parted by bucket: collected in segments, each already grouped by bucket, then read bucket by bucket.

Reading bucket ``b`` collects its slice of every segment. ``KeySpill`` keeps segments in memory as long as an allowance
lasts and in a scratch file after that; ``segments.KeySegments`` keeps each in a file that other processes see.
Files are written and read past the page cache: keys are read once, so caching them would only push out other pages.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.buffers import ReusableBytes
from ecgl_scale.base.direct import SECTOR_BYTES, open_direct, round_up, write_all
from ecgl_scale.base.durable import crc32c_of, storage_errors
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import CorruptStoreError, EcglError

KEY_BYTES = 8

Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class Segment:
    """Keys that came together; in memory, or in a file from ``file_start`` on."""

    offsets: NDArray[np.int64]
    """Bucket ``b`` is keys ``offsets[b]:offsets[b + 1]``."""
    keys: Keys | None
    path: Path
    file_start: int = 0
    crcs: NDArray[np.uint32] | None = None
    """crc32c of each bucket's keys, where another process may have written them."""

    def check(self, bucket: int, crc: int) -> None:
        """Refuse a bucket that is not as it was written."""
        if self.crcs is not None and crc != self.crcs[bucket]:
            raise CorruptStoreError("keys of edges are not as they were written", where=f"{self.path}, bucket {bucket}")


class KeyBuckets(ABC):
    """Segments, and their keys by bucket."""

    is_shared: ClassVar[bool]
    """Whether other processes see the keys."""

    def __init__(self, num_buckets: int) -> None:
        self.counts = np.zeros(num_buckets, np.int64)
        self._segments: list[Segment] = []

    @abstractmethod
    def append(self, index: int, keys: Keys, offsets: NDArray[np.int64]) -> bool:
        """Add the segment ``keys[: offsets[-1]]`` of piece ``index``; True if it keeps the array, which the caller must
        then let alone.

        ``keys`` comes from ``key_array``: it has room up to the next sector.
        """

    @abstractmethod
    def _open(self, segment: Segment) -> AbstractContextManager[int]:
        """A descriptor of the segment's file."""

    @abstractmethod
    def describe(self) -> Json:
        """How another process finds the keys."""

    def read(self, bucket: int, buffer: NDArray[np.uint8]) -> list[Keys]:
        """The bucket's slices, some of them in ``buffer``, which holds ``read_bytes(counts[bucket])``."""
        slices: list[Keys] = []
        used = 0
        for segment in self._segments:
            start, stop = int(segment.offsets[bucket]), int(segment.offsets[bucket + 1])
            if start == stop:
                continue
            if segment.keys is not None:
                slices.append(segment.keys[start:stop])
                continue
            keys, used = self._read_slice(segment, start, stop, buffer, used)
            if segment.crcs is not None:
                segment.check(bucket, crc32c_of(keys))
            slices.append(keys)
        return slices

    def batches(self, bucket: int, buffer: NDArray[np.uint8]) -> Iterator[list[Keys]]:
        """The bucket's slices, as many at a time as fit ``buffer``, for a bucket that as a whole does not.

        A batch takes slices of many segments: were each a batch of its own, cutting a bucket would never lessen them.
        """
        slices: list[Keys] = []
        num_keys = used = 0
        for segment in self._segments:
            position, stop = int(segment.offsets[bucket]), int(segment.offsets[bucket + 1])
            crc = 0
            while position < stop:
                take = min(stop - position, buffer.size // KEY_BYTES - num_keys)
                if segment.keys is None:
                    take = min(take, (buffer.size - used - 2 * SECTOR_BYTES) // KEY_BYTES)
                if take <= 0:
                    yield slices
                    slices, num_keys, used = [], 0, 0
                    continue
                if segment.keys is not None:
                    keys = segment.keys[position : position + take]
                else:
                    keys, used = self._read_slice(segment, position, position + take, buffer, used)
                    crc = crc if segment.crcs is None else crc32c_of(keys, crc)
                slices.append(keys)
                num_keys += take
                position += take
                if position == stop:
                    segment.check(bucket, crc)
        if slices:
            yield slices

    def _read_slice(
        self, segment: Segment, start: int, stop: int, buffer: NDArray[np.uint8], used: int
    ) -> tuple[Keys, int]:
        first_byte = segment.file_start + start * KEY_BYTES
        last_byte = segment.file_start + stop * KEY_BYTES
        aligned_start = first_byte // SECTOR_BYTES * SECTOR_BYTES
        aligned_stop = round_up(last_byte, SECTOR_BYTES)
        target = buffer[used : used + aligned_stop - aligned_start]
        with storage_errors(segment.path), self._open(segment) as descriptor:
            position = 0
            while position < target.size:
                got = os.preadv(descriptor, [target[position:].data], aligned_start + position)
                if got == 0:
                    raise OSError(5, "the scratch file ended early", str(segment.path))
                position += got
        keys = target[first_byte - aligned_start : last_byte - aligned_start].view(np.uint64)
        return keys, used + target.size

    def read_bytes(self, num_keys: int) -> int:
        """Buffer that ``read`` needs for a bucket of so many keys: each slice may begin and end inside a sector."""
        on_disk = sum(1 for segment in self._segments if segment.keys is None)
        return num_keys * KEY_BYTES + 2 * SECTOR_BYTES * on_disk if on_disk else 0


class KeySpill(KeyBuckets):
    """Collects segments from several threads of this process. Memory: ``allowance_bytes`` at most."""

    is_shared = False

    def __init__(self, path: Path, num_buckets: int, *, allowance_bytes: int) -> None:
        super().__init__(num_buckets)
        self.written_bytes = 0
        self._path = path
        self._allowance_bytes = allowance_bytes
        self._lock = threading.Lock()
        self._descriptor = -1

    def append(self, index: int, keys: Keys, offsets: NDArray[np.int64]) -> bool:  # noqa: ARG002 - any order will do
        """Add a segment, to memory while the allowance lasts."""
        num_keys = int(offsets[-1])
        if num_keys == 0:
            return False
        padded = round_up(num_keys * KEY_BYTES, SECTOR_BYTES)
        with self._lock:
            self.counts += np.diff(offsets)
            if padded <= self._allowance_bytes:
                self._allowance_bytes -= padded
                self._segments.append(Segment(offsets, keys[:num_keys], self._path))
                return True
            # From here on nothing is kept: a small segment could lie in a large array that a thread uses again.
            self._allowance_bytes = 0
            if self._descriptor < 0:
                with storage_errors(self._path):
                    self._descriptor = open_direct(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            with storage_errors(self._path, needed_bytes=padded):
                # In order and under the lock: the file then needs no holes, and the disk is the limit anyway.
                write_all(self._descriptor, keys.view(np.uint8)[:padded])
            self._segments.append(Segment(offsets, None, self._path, self.written_bytes))
            self.written_bytes += padded
            return False

    def _open(self, segment: Segment) -> AbstractContextManager[int]:  # noqa: ARG002 - all are in one file
        return nullcontext(self._descriptor)

    def describe(self) -> Json:
        """Memory cannot be described: an executor that shares none is never given it."""
        raise EcglError("keys in memory cannot be sent to another process")

    def close(self) -> None:
        """Forget the keys and remove the scratch file."""
        self._segments.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._path.unlink(missing_ok=True)


def key_array(memory: ReusableBytes, num_keys: int) -> Keys:
    """A key array that ``append`` accepts: with room up to the next sector."""
    return memory.take(round_up(num_keys * KEY_BYTES, SECTOR_BYTES)).view(np.uint64)

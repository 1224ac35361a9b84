"""Keys parted by bucket, a file for each piece of edges, so that any process can write one and read its slice of all.

    keys, up to the next sector | offsets of buckets, int64 | crc32c of each bucket's keys | crc32c of the two tables

Piece ``i`` is ``<i>.keys``: whole under another name, then renamed. A piece that is done twice leaves the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.buffers import ReusableBytes
from ecgl_scale.base.direct import SECTOR_BYTES, open_direct, round_up
from ecgl_scale.base.durable import DurableWriter, atomic_file, crc32c_of, storage_errors
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.errors import CorruptStoreError, EcglError
from ecgl_scale.store.edges.spill import KEY_BYTES, KeyBuckets, Keys, Segment

CRC_BYTES = 4
CHECK_BYTES = 8 << 20


class KeySegments(KeyBuckets):
    """Segments in ``directory``. Memory: 12 bytes for each bucket of each segment, once they are loaded."""

    is_shared = True

    def __init__(self, directory: Path, num_buckets: int) -> None:
        super().__init__(num_buckets)
        self.directory = directory

    @classmethod
    def make(cls, directory: Path, num_buckets: int) -> KeySegments:
        """Make a directory for segments, or find that of a build that goes on."""
        with storage_errors(directory):
            directory.mkdir(exist_ok=True)
        return cls(directory, num_buckets)

    def append(self, index: int, keys: Keys, offsets: NDArray[np.int64]) -> bool:
        """Write the segment of a piece; the array stays the caller's."""
        num_keys = int(offsets[-1])
        padded = keys.view(np.uint8)[: round_up(num_keys * KEY_BYTES, SECTOR_BYTES)]
        padded[num_keys * KEY_BYTES :] = 0  # the same bytes, whatever was there
        bounds = offsets.tolist()
        crcs = [crc32c_of(keys[start:stop]) for start, stop in pairwise(bounds)]
        tables = offsets.astype("<i8").tobytes() + np.array(crcs, "<u4").tobytes()
        with atomic_file(self._path(index), is_shared=True) as partial, DurableWriter(partial) as writer:
            writer.write(padded)
            writer.write(tables + crc32c_of(tables).to_bytes(CRC_BYTES, "little"))
            writer.finish()
        return False

    def is_whole(self, index: int, memory: ReusableBytes) -> bool:
        """Whether a segment is there as it was written, to the last key. Memory: ``CHECK_BYTES``."""
        try:
            segment = self._load(index)
            buffer = memory.take(CHECK_BYTES)
            crcs = [self._crc_of(segment, start, stop, buffer) for start, stop in pairwise(segment.offsets.tolist())]
        except (OSError, EcglError):
            return False
        return segment.crcs is not None and crcs == segment.crcs.tolist()

    def _crc_of(self, segment: Segment, start: int, stop: int, buffer: NDArray[np.uint8]) -> int:
        crc, step = 0, (buffer.size - 2 * SECTOR_BYTES) // KEY_BYTES
        for first in range(start, stop, step):
            keys, _ = self._read_slice(segment, first, min(first + step, stop), buffer, 0)
            crc = crc32c_of(keys, crc)
        return crc

    def load(self, num_segments: int) -> None:
        """Look at the tables of all segments, so that buckets can be read."""
        self._segments = [self._load(index) for index in range(num_segments)]
        self.counts = sum((np.diff(segment.offsets) for segment in self._segments), np.zeros_like(self.counts))

    def _load(self, index: int) -> Segment:
        path, num_buckets = self._path(index), self.counts.size
        tables_bytes = (num_buckets + 1) * 8 + num_buckets * CRC_BYTES
        with storage_errors(path), path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            file.seek(max(size_bytes - tables_bytes - CRC_BYTES, 0))
            found = file.read()
        tables = found[:tables_bytes]
        offsets = np.frombuffer(tables[: (num_buckets + 1) * 8], "<i8")
        whole = len(found) == tables_bytes + CRC_BYTES and crc32c_of(tables).to_bytes(CRC_BYTES, "little") == found[-4:]
        if not whole or round_up(int(offsets[-1]) * KEY_BYTES, SECTOR_BYTES) != size_bytes - len(found):
            raise CorruptStoreError("a segment of keys is not as it was written", where=path)
        return Segment(offsets, None, path, crcs=np.frombuffer(tables[offsets.nbytes :], "<u4"))

    @contextmanager
    def _open(self, segment: Segment) -> Iterator[int]:
        """Anew for each slice: there may be more segments than a process may have files open."""
        descriptor = open_direct(segment.path, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _path(self, index: int) -> Path:
        return self.directory / f"{index}.keys"

    def describe(self) -> Json:
        """Say where the directory is, and how many segments and buckets there are."""
        sizes = {"num_buckets": self.counts.size, "num_segments": len(self._segments)}
        return {"directory": str(self.directory), **sizes}

    @classmethod
    def open(cls, description: Json) -> KeySegments:
        """Find the segments again in another process."""
        segments = cls(Path(description["directory"]), description["num_buckets"])
        segments.load(description["num_segments"])
        return segments


@dataclass(frozen=True)
class Checked:
    """What was found of a segment."""

    is_whole: bool


class SegmentCheck(Work[ReusableBytes, Checked]):
    """Compares segments that an earlier build has left with what it wrote; block i is segment i."""

    name: ClassVar[str] = "ingest.check"
    record: ClassVar[type[Any]] = Checked
    has_small_records: ClassVar[bool] = True

    def __init__(self, keys: KeySegments) -> None:
        self._keys = keys

    def describe(self) -> Json:
        """Where the segments are."""
        return self._keys.describe()

    @classmethod
    def open(cls, description: Json, resources: Resources) -> SegmentCheck:
        """Make the work again, in another process."""
        del resources
        return cls(KeySegments.open(description))

    def scratch(self) -> ReusableBytes:
        """Memory that a thread reads into."""
        return ReusableBytes()

    def run(self, block: Block, given: Json, scratch: ReusableBytes) -> Checked:
        """Read one segment."""
        del given
        return Checked(self._keys.is_whole(block.index, scratch))

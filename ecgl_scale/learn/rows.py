"""The rows a task trains on, gathered once, side by side, and then read block by block in every epoch.

    memory   dense rows as stored (float32 or float16), where they fit the memory given
    disk     a raw float32 file, where they do not: written once, found again by a resumed run
    sparse   CSR rows that are smaller than dense ones, where they fit; larger ones are held as dense ones
    stored   where they do not fit they are taken from the store's own mapped files

Blocks are read ahead by threads into memory that is used again; a block's numbers and their order never depend on
how far ahead. Memory: what is held, and ``read_ahead + 1`` blocks where rows are not held as float32 or CSR.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.buffers import aligned_bytes
from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.base.events import BlockFinished, EventSink, StageStarted, ignore_events
from ecgl_scale.engine.block import Block, split_blocks, stream_blocks
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.errors import UsageError
from ecgl_scale.learn.row_sources import (
    ID_BYTES,
    PIECE_BYTES,
    ArraySource,
    CsrSource,
    Dense,
    Features,
    FileSource,
    Source,
    StoredSource,
    csr_bytes,
    gather_pieces,
    piece_rows,
    stays_sparse,
)
from ecgl_scale.store.checked import checked_ids
from ecgl_scale.store.features.dense import GATHER_BYTES
from ecgl_scale.store.features.face import FeatureStore
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.units import format_bytes

STAGE = "gather training rows"
Kind = Literal["memory", "sparse", "disk", "stored"]


def plan_rows(
    num_rows: int, num_features: int, *, memory_bytes: int, itemsize: int = 4, num_values: int | None = None
) -> StagePlan:
    """What gathering and then holding the rows takes; ``num_values`` where they are sparse.

    ``held + 2 * 16 MiB of pieces + its ids (32 bytes each) + 16 MiB of chunks``; sparse ``held + 32 bytes an id``.
    Held is ``rows * features * itemsize``, or sparse ``8 (rows + 1) + 8 values`` where that is less, or nothing where
    all of this together exceeds ``memory_bytes``.
    """
    dense_bytes = num_rows * num_features * itemsize
    if num_values is not None and not stays_sparse(num_rows, num_features, num_values):
        num_values = None
    needed = dense_bytes if num_values is None else csr_bytes(num_rows, num_values)
    passing = _dense_passing(num_rows, num_features) if num_values is None else ID_BYTES * num_rows
    held = needed if needed + passing <= memory_bytes else 0
    written = num_rows * num_features * 4 if num_values is None and not held else 0
    what = "sparse rows" if num_values is not None else "dense rows"
    formula = f"{format_bytes(held)} of {what} held + {format_bytes(passing)} for pieces on their way"
    return StagePlan(
        STAGE,
        held + passing,
        formula,
        read_bytes=needed,
        written_bytes=written,
        passes=1,
        blocks=-(-dense_bytes // PIECE_BYTES),
        setting="memory",
    )


def _dense_passing(num_rows: int, num_features: int) -> int:
    """What gathering dense rows takes besides the rows."""
    return 2 * PIECE_BYTES + GATHER_BYTES + ID_BYTES * min(piece_rows(num_features), num_rows)


def gathering_bytes(num_rows: int, num_features: int) -> int:
    """What gathering rows takes at most where they are not held, whether dense or sparse."""
    return max(_dense_passing(num_rows, num_features), ID_BYTES * num_rows)


class RowCache:
    """Rows to train on, in a fixed order."""

    def __init__(self, kind: Kind, num_rows: int, num_features: int, source: Source) -> None:
        self.kind: Kind = kind
        self.num_rows = num_rows
        self.num_features = num_features
        self._source = source

    @classmethod
    def from_array(cls, x: NDArray[Any]) -> RowCache:
        """Rows that are in memory already; float32 and float16 in row order are used where they are."""
        array = np.asarray(x)
        if array.ndim != 2 or array.dtype.kind not in "fiub":
            raise UsageError(
                f"rows are {array.dtype} of shape {array.shape}", expected="numbers of shape [rows, columns]"
            )
        if array.dtype not in (np.float32, np.float16):
            array = array.astype(np.float32)
        return cls("memory", array.shape[0], array.shape[1], ArraySource(np.ascontiguousarray(array)))

    @classmethod
    def from_csr(cls, rows: CsrBlock, num_features: int) -> RowCache:
        """Sparse rows that are in memory already."""
        clean = CsrBlock(
            np.ascontiguousarray(rows.indptr, np.int64),
            np.ascontiguousarray(rows.indices, np.uint32),
            np.ascontiguousarray(rows.values, np.float32),
        )
        return cls("sparse", clean.indptr.size - 1, num_features, CsrSource(clean, num_features))

    @classmethod
    def collect(
        cls,
        pieces: Iterator[NDArray[np.float32]],
        shape: tuple[int, int],
        *,
        memory_bytes: int,
        directory: Path,
        name: str,
    ) -> RowCache:
        """Rows that come piece by piece: in memory where they need ``memory_bytes`` or less, else in a file."""
        if 4 * shape[0] * shape[1] <= memory_bytes:
            held = np.empty(shape, np.float32)
            start = 0
            for piece in pieces:
                held[start : start + len(piece)] = piece
                start += len(piece)
            return cls.from_array(held)
        return cls("disk", *shape, FileSource.write(directory / f"{name}.rows", {"shape": list(shape)}, pieces))

    @classmethod
    def gather(
        cls,
        features: Features,
        local: NDArray[Any],
        *,
        memory_bytes: int,
        directory: Path,
        name: str,
        identity: str = "",
        threads: int = 2,
        on_event: EventSink = ignore_events,
    ) -> RowCache:
        """Gather rows ``local`` of ``features``, in that order.

        Parameters
        ----------
        memory_bytes
            What the rows may take with all that gathering them takes; dense ones that need more go to
            ``directory / name``.
        identity
            Says what the features are, such as the crc32c of their store's manifest. With it a file of an earlier
            run is used again after its bytes are checked; without it rows are always gathered anew.

        Memory
        ------
        See ``plan_rows``.
        """
        ids = np.ascontiguousarray(local)
        ids = checked_ids(ids, features.shape[0] if isinstance(features, np.ndarray) else features.num_rows)
        if not isinstance(features, np.ndarray) and features.is_sparse:
            num_values = features.count_values(ids)
            if stays_sparse(ids.size, features.num_features, num_values):
                needed = csr_bytes(ids.size, num_values) + ID_BYTES * ids.size
                return cls._gather_sparse(features, ids, is_held=needed <= memory_bytes)
        num_features = features.shape[1] if isinstance(features, np.ndarray) else features.num_features
        dtype = np.dtype(np.float16 if features.dtype == np.float16 else np.float32)
        shape = (ids.size, num_features)
        on_event(StageStarted(STAGE, ids.size, "rows"))

        def pieces() -> Iterator[NDArray[Any]]:
            done = 0
            for piece in gather_pieces(features, ids, threads=threads):
                yield piece
                done += len(piece)
                on_event(BlockFinished(STAGE, done))

        if ids.size * num_features * dtype.itemsize + _dense_passing(*shape) <= memory_bytes:
            held: NDArray[Any] = aligned_bytes(ids.size * num_features * dtype.itemsize).view(dtype).reshape(shape)
            start = 0
            for piece in pieces():
                held[start : start + len(piece)] = piece
                start += len(piece)
            return cls("memory", *shape, ArraySource(held))
        about = {"identity": identity, "ids_crc32c": crc32c_of(ids), "shape": list(shape)}
        path = directory / f"{name}.rows"
        source = FileSource.find(path, about) if identity else None
        return cls("disk", *shape, source or FileSource.write(path, about, pieces()))

    @classmethod
    def _gather_sparse(cls, features: FeatureStore, ids: NDArray[np.int64], *, is_held: bool) -> RowCache:
        if not is_held:
            return cls("stored", ids.size, features.num_features, StoredSource(features, ids))
        return cls("sparse", ids.size, features.num_features, CsrSource(features.rows_csr(ids), features.num_features))

    @property
    def is_sparse(self) -> bool:
        """Whether rows are kept sparse, so that ``read_sparse`` works."""
        return self.kind in ("sparse", "stored")

    @property
    def held_bytes(self) -> int:
        """Memory the rows themselves take."""
        return self._source.held_bytes

    @property
    def needs_buffers(self) -> bool:
        """Whether a dense block is made in memory of its own; else it is a view."""
        return not (isinstance(self._source, ArraySource) and self._source.array.dtype == np.float32)

    def blocks(self, block_rows: int) -> list[Block]:
        """Fixed blocks, in row order."""
        return split_blocks(self.num_rows, block_rows)

    def read(self, start: int, stop: int, out: Dense | None = None) -> Dense:
        """Rows from ``start`` up to ``stop``, dense; a view where float32 rows are held, else in ``out`` if given."""
        self._check(start, stop)
        return self._source.read(start, stop, out)

    def read_sparse(self, start: int, stop: int) -> CsrBlock:
        """Rows from ``start`` up to ``stop`` as CSR, whose offsets may start past 0: views where they are held."""
        self._check(start, stop)
        return self._source.read_sparse(start, stop)

    def take(self, positions: NDArray[np.int64]) -> Dense:
        """The rows at ``positions``, dense, in that order; on disk each costs a read of its own. Memory: the result."""
        return self._source.take(checked_ids(positions, self.num_rows))

    def take_sparse(self, positions: NDArray[np.int64]) -> CsrBlock:
        """The rows at ``positions`` as CSR, in that order. Memory: the result + 32 bytes a row."""
        return self._source.take_sparse(checked_ids(positions, self.num_rows))

    def select(self, positions: NDArray[np.int64]) -> RowCache:
        """Some of the rows as rows of their own: a view of held rows that follow each other, else a copy in memory."""
        wanted = checked_ids(positions, self.num_rows)
        in_a_row = wanted.size > 0 and bool(np.all(np.diff(wanted) == 1))
        if self.is_sparse:
            first, stop = (int(wanted[0]), int(wanted[-1]) + 1) if in_a_row else (0, 0)
            part = self._source.read_sparse(first, stop) if in_a_row else self._source.take_sparse(wanted)
            return RowCache.from_csr(part, self.num_features)
        if isinstance(self._source, ArraySource):
            array = self._source.array
            return RowCache.from_array(array[wanted[0] : wanted[-1] + 1] if in_a_row else array[wanted])
        return RowCache.from_array(self.take(wanted))

    def buffers(self, block_rows: int, count: int) -> list[Dense]:
        """Buffers for ``stream(into=...)``. Memory: ``count`` dense blocks."""
        shape = (min(block_rows, self.num_rows), self.num_features)
        return [aligned_bytes(shape[0] * shape[1] * 4).view(np.float32).reshape(shape) for _ in range(count)]

    def stream(
        self,
        block_rows: int,
        *,
        read_ahead: int = 1,
        threads: int = 1,
        into: Sequence[Dense] | None = None,
        wanted: Sequence[Block] | None = None,
    ) -> Iterator[tuple[Block, Dense]]:
        """All blocks in order, dense, the next few being read meanwhile; valid until the next one is asked for.

        Whoever streams many times gives the same ``into = buffers(block_rows, read_ahead + 1)`` each time; whoever
        wants some of ``blocks(block_rows)`` only says which.
        """
        blocks = self.blocks(block_rows) if wanted is None else wanted
        if not self.needs_buffers:
            return ((block, self._source.read(block.start, block.stop, None)) for block in blocks)
        memory = self.buffers(block_rows, read_ahead + 1) if into is None else into

        def read(block: Block, slot: int) -> Dense:
            return self._source.read(block.start, block.stop, memory[slot][: block.num_rows])

        return stream_blocks(blocks, read, ahead=len(memory) - 1, threads=threads)

    def stream_sparse(
        self, block_rows: int, *, read_ahead: int = 1, threads: int = 1, wanted: Sequence[Block] | None = None
    ) -> Iterator[tuple[Block, CsrBlock]]:
        """All blocks in order as CSR, or those ``wanted``."""
        blocks = self.blocks(block_rows) if wanted is None else wanted
        if self.kind == "sparse":
            return ((block, self._source.read_sparse(block.start, block.stop)) for block in blocks)

        def read(block: Block, _: int) -> CsrBlock:
            return self._source.read_sparse(block.start, block.stop)

        return stream_blocks(blocks, read, ahead=read_ahead, threads=threads)

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.num_rows:
            raise UsageError(f"no rows {start} to {stop}", expected=f"0 <= start <= stop <= {self.num_rows}")

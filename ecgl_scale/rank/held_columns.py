"""Slices of the feature columns that are held in memory for all nodes at once: what diversity gathers from.

A distance is a sum over columns, so a few columns of everybody are enough to work on at a time; how many fit decides
how often features and edges are read. Loading streams the stored rows and keeps the wanted columns. The first loading
checks every byte; later ones read without checking.

Memory: dense ``num_nodes * columns * itemsize`` and, where not all columns fit, a stored chunk a reader; sparse
``8 bytes a value + 8 a node`` and 10 bytes a column and thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.diversity import (
    UNIT_COLUMNS,
    add_distances,
    add_sparse_distances,
    copy_columns,
    count_columns,
    cut_columns,
)
from ecgl_scale.base.buffers import aligned_bytes
from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.rank.feature_files import Features
from ecgl_scale.rank.sizes import IN_PLACE_DTYPES, FeatureSizes, Need
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.units import format_bytes

STAGE = "the diversity ranking"
LINE_BYTES = 64
"""Rows of whole cache lines are gathered fastest: slices are as wide as that, where there is a choice."""
COPY_ROWS = 1 << 16
SPARSE_VALUE_BYTES, SPARSE_ROW_BYTES, SPARSE_SCRATCH_BYTES = 8, 8, 10


@dataclass(frozen=True)
class EdgeRange:
    """Edges into the nodes from ``first_row`` on: CSR rows of a block."""

    indptr: NDArray[np.int64]
    indices: NDArray[Any]
    first_row: int

    @property
    def num_bytes(self) -> int:
        """The bytes that its edges and offsets take."""
        return int(self.indptr.nbytes + (self.indptr[-1] - self.indptr[0]) * self.indices.itemsize)


class Columns(Protocol):
    """Features of all nodes, some columns at a time."""

    num_columns: int

    def plan(self, budget: MemoryBudget, base_bytes: int, num_nodes: int, threads: int, first: int) -> list[int]:
        """Where slices begin, and the end; refuses a budget that has no room for the smallest one."""
        ...

    def load(self, first: int, stop: int, *, threads: int) -> int:
        """Hold columns ``first`` up to ``stop``; returns the bytes read."""
        ...

    def add(self, edges: EdgeRange, include_self: bool, squared: NDArray[np.float64]) -> None:
        """Add the squared distances over the held columns to ``squared``, a number for each node of the range."""
        ...


def columns_of(features: Features) -> Columns:
    """Choose the kind that these features need."""
    if isinstance(features, SparseFeatures):
        return SparseColumns(features)
    return DenseColumns(features)


def columns_need(sizes: FeatureSizes, threads: int) -> Need:
    """Plan the smallest slice and all columns at once; features that are used where they are cost nothing."""
    num_rows, num_columns = sizes.num_rows, sizes.num_columns
    if sizes.num_values is not None:
        fixed = SPARSE_ROW_BYTES * num_rows + threads * SPARSE_SCRATCH_BYTES * num_columns
        # No column has more values than there are nodes.
        fullest = min(num_rows, sizes.num_values)
        return Need(fixed + SPARSE_VALUE_BYTES * fullest, fixed + SPARSE_VALUE_BYTES * sizes.num_values)
    whole = 0 if sizes.is_in_place else sizes.itemsize * num_rows * num_columns
    slice_bytes = UNIT_COLUMNS * sizes.itemsize * num_rows + threads * sizes.chunk_bytes
    return Need(min(slice_bytes, whole), whole)


def _refuse_unless(budget: MemoryBudget, base_bytes: int, smallest: int, what: str) -> None:
    formula = f"{format_bytes(base_bytes)} held already, scores and buffers + {format_bytes(smallest)} for {what}"
    budget.require(base_bytes + smallest, stage=STAGE, formula=formula)


class DenseColumns:
    """Columns of a dense matrix; an array of the right kind is used where it is and costs nothing."""

    def __init__(self, features: DenseFeatures | NDArray[Any]) -> None:
        self.num_columns = features.num_features if isinstance(features, DenseFeatures) else features.shape[1]
        self._features = features
        self._dtype = features.dtype if features.dtype in IN_PLACE_DTYPES else np.dtype(np.float32)
        self._in_place: NDArray[Any] | None = None
        if isinstance(features, np.ndarray) and features.dtype == self._dtype and features.flags.c_contiguous:
            self._in_place = _as_seen(features)
        self._memory = aligned_bytes(0)
        self._is_checked = False
        self._held = _as_seen(np.empty((0, 1), self._dtype))

    def plan(self, budget: MemoryBudget, base_bytes: int, num_nodes: int, threads: int, first: int) -> list[int]:
        """Take whole cache lines of columns where that fits, else groups of four."""
        if self._in_place is not None:
            return [first, self.num_columns]
        wanted = self.num_columns - first
        column_bytes = num_nodes * self._dtype.itemsize
        room = budget.total_bytes - base_bytes
        reader_bytes = 0
        if isinstance(self._features, DenseFeatures) and (first or wanted * column_bytes > room):
            # Else whole rows go straight to their places.
            reader_bytes = threads * self._features.chunk_buffer_bytes
        smallest = min(UNIT_COLUMNS, wanted) * column_bytes + reader_bytes
        what = f"{min(UNIT_COLUMNS, wanted)} columns of {num_nodes:,} nodes and read buffers"
        _refuse_unless(budget, base_bytes, smallest, what)
        width = self._widest((room - reader_bytes) // column_bytes, wanted)
        return [*range(first, self.num_columns, width), self.num_columns]

    def _widest(self, fitting: int, wanted: int) -> int:
        if fitting >= wanted:
            return wanted
        multiple = LINE_BYTES // self._dtype.itemsize
        multiple = multiple if fitting >= multiple else UNIT_COLUMNS
        return fitting // multiple * multiple

    def load(self, first: int, stop: int, *, threads: int) -> int:
        """Read all rows, keep these columns."""
        if self._in_place is not None:
            self._held = self._in_place
            return 0
        num_rows = len(self)
        needed = num_rows * (stop - first) * self._dtype.itemsize
        if self._memory.size < needed:
            self._memory = aligned_bytes(needed)
        held = self._memory[:needed].view(self._dtype).reshape(num_rows, stop - first)
        features = self._features
        if isinstance(features, np.ndarray):
            for start in range(0, num_rows, COPY_ROWS):
                held[start : start + COPY_ROWS] = features[start : start + COPY_ROWS, first:stop]
        elif stop - first == self.num_columns:
            for _ in map_bounded(
                lambda b: features.read(b, held[b.start : b.stop]), features.blocks(), threads=threads
            ):
                pass
        else:
            self._read_columns(features, first, held, threads)
        self._held = _as_seen(held)
        return num_rows * self.num_columns * features.dtype.itemsize

    def _read_columns(self, features: DenseFeatures, first: int, held: NDArray[Any], threads: int) -> None:
        """Let every reader take every so many-th block."""
        blocks, bits = features.blocks(), f"u{self._dtype.itemsize}"

        def keep(start: int, rows: NDArray[Any]) -> None:
            copy_columns(rows.view(bits), first, held[start : start + len(rows)].view(bits))

        def read(reader: int) -> None:
            buffer = features.chunk_buffer()
            for block in blocks[reader::threads]:
                for start, rows in features.read_span(block.start, block.stop, buffer, check=not self._is_checked):
                    keep(start, rows)

        for _ in map_bounded(read, range(threads), threads=threads):
            pass
        self._is_checked = True

    def __len__(self) -> int:
        return self._features.num_rows if isinstance(self._features, DenseFeatures) else len(self._features)

    def add(self, edges: EdgeRange, include_self: bool, squared: NDArray[np.float64]) -> None:
        """Add the squared distances over the held columns."""
        add_distances(edges.indptr, edges.indices, self._held, edges.first_row, include_self, squared)


def _as_seen(array: NDArray[Any]) -> NDArray[Any]:
    """View an array as the kernels take it."""
    return array if array.dtype == np.float32 else array.view(np.uint16)


class SparseColumns:
    """Columns of a sparse matrix, as CSR in memory."""

    def __init__(self, features: SparseFeatures) -> None:
        self.num_columns = features.num_features
        self._features = features
        self._counts = np.zeros(self.num_columns, np.int64)
        for _, rows in features.stream():
            count_columns(rows.indices, self._counts)
        self._indptr = np.zeros(1, np.int64)
        self._columns = np.empty(0, np.uint32)
        self._values = np.empty(0, np.float32)
        self._width = 0

    def plan(self, budget: MemoryBudget, base_bytes: int, num_nodes: int, threads: int, first: int) -> list[int]:
        """Take as many columns as their values fit."""
        base_bytes += num_nodes * SPARSE_ROW_BYTES + threads * SPARSE_SCRATCH_BYTES * self.num_columns
        counts = self._counts[first:]
        smallest = int(counts.max(initial=0)) * SPARSE_VALUE_BYTES
        _refuse_unless(budget, base_bytes, smallest, f"the fullest column of {num_nodes:,} sparse rows")
        room = (budget.total_bytes - base_bytes) // SPARSE_VALUE_BYTES
        starts = [first]
        ends = np.cumsum(counts)
        while starts[-1] < self.num_columns:
            done = int(ends[starts[-1] - first - 1]) if starts[-1] > first else 0
            starts.append(first + int(np.searchsorted(ends, done + room, side="right")))
        return starts

    def load(self, first: int, stop: int, *, threads: int) -> int:
        """Read all rows, keep the values of these columns."""
        num_values = int(self._counts[first:stop].sum())
        if self._columns.size < num_values:
            self._columns, self._values = (
                np.empty(0, np.uint32),
                np.empty(0, np.float32),
            )  # first, or both generations would be there at once
            self._columns = aligned_bytes(4 * num_values).view(np.uint32)
            self._values = aligned_bytes(4 * num_values).view(np.float32)
        self._indptr = np.zeros(self._features.num_rows + 1, np.int64)
        self._width = stop - first
        used = read_bytes = 0
        for block, rows in self._features.stream(threads=threads):
            part = self._indptr[block.start : block.stop + 1]
            used = cut_columns(
                rows.indptr, rows.indices, rows.values, first, stop, used, part, self._columns, self._values
            )
            read_bytes += rows.indptr.nbytes + rows.indices.nbytes + rows.values.nbytes
        return read_bytes

    def add(self, edges: EdgeRange, include_self: bool, squared: NDArray[np.float64]) -> None:
        """Add the squared distances over the held columns."""
        add_sparse_distances(
            edges.indptr, edges.indices, self._indptr, self._columns, self._values,
            edges.first_row, include_self, self._width, squared,
        )  # fmt: skip

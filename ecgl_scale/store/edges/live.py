"""The rows of a block without the edges of nodes that were dropped.

They are filtered as far as somebody asks for them, so a block is never held as a whole. How many edges each row has
left is counted once, where somebody asks for places and not for rows; that reads the whole block.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.live import copy_live, count_live
from ecgl_scale.engine.block import Block
from ecgl_scale.errors import CorruptStoreError
from ecgl_scale.store.compose import StoredBlock
from ecgl_scale.store.dropped import Dropped
from ecgl_scale.store.edges.older import PART_EDGES, BlockRows, merge_bytes
from ecgl_scale.store.ragged import Ragged

ROW_BYTES = 24
"""A row's node, its offset, and the count that the offset is made of."""


class LiveRows(BlockRows):
    """As ``BlockRows``, but for the edges that went with a dropped node."""

    def __init__(self, rows: BlockRows, block: Block, dropped: Dropped, num_edges: int) -> None:
        self._rows = rows
        self._block = block
        self._bits = dropped.bits
        self._num_nodes = dropped.num_nodes
        self.num_rows = rows.num_rows
        self.num_edges = num_edges

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        offsets = np.zeros(self.num_rows + 1, np.int64)
        for first, rows in self._rows.parts(0, self.num_rows):
            self._count(rows, np.arange(first, first + rows.offsets.size - 1), offsets[first + 1 :])
        return np.cumsum(offsets, out=offsets)

    def _count(self, rows: Ragged, local: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        count_live(rows.offsets, rows.values, local + self._block.start, self._bits, counts)

    def merge(self) -> None:
        """Merge all rows once, and keep them so; edges are left out as before, whenever rows are asked for."""
        self._rows.merge()
        _ = self._offsets

    def degrees(self) -> NDArray[np.int64]:
        """Edges into every row."""
        return self._offsets[1:] - self._offsets[:-1]

    def before(self, row: int) -> int:
        """Edges into the block's rows below ``row``."""
        return int(self._offsets[row])

    def row_at(self, edge: float) -> int:
        """The first row before which there are at least so many edges."""
        return int(np.searchsorted(self._offsets, edge))

    def part(self, first: int, stop: int) -> Ragged:
        """Rows ``first`` up to ``stop``, as a copy."""
        return self._filtered(self._rows.part(first, stop), np.arange(first, stop))

    def parts(self, first: int, stop: int) -> Iterator[tuple[int, Ragged]]:
        """First row and rows of ``first`` up to ``stop``, cut where a copy would be large."""
        while first < stop:
            end = min(max(self._rows.row_at(self._rows.before(first) + PART_EDGES), first + 1), stop)
            yield first, self.part(first, end)
            first = end

    def counts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Edges into each of some rows."""
        counts = np.empty(rows.size, np.int64)
        self._count(self._selected(rows), rows, counts)
        return counts

    def find_bad_offsets(self, rows: NDArray[np.int64]) -> int:
        """Position of the first of some rows whose offsets, in the block's own file, make no sense; -1 if none."""
        return self._rows.find_bad_offsets(rows)

    def select(self, rows: NDArray[np.int64]) -> Ragged:
        """Some rows, in the order asked for, as a copy."""
        return self._filtered(self._selected(rows), rows)

    def _selected(self, rows: NDArray[np.int64]) -> Ragged:
        """Some rows as they are stored. Nobody may have looked at their ids so far, and bits are found by them."""
        found = self._rows.select(rows)
        if found.values.size and found.values.max() >= self._num_nodes:
            raise CorruptStoreError(
                f"a row of nodes {self._block.start:,} to {self._block.stop - 1:,} has a source that is no node",
                fix="run ecgl verify, and copy the store again from a good one",
            )
        return found

    def _filtered(self, rows: Ragged, local: NDArray[np.int64]) -> Ragged:
        offsets = np.empty(local.size + 1, np.int64)
        values: NDArray[Any] = np.empty(int(rows.offsets[-1] - rows.offsets[0]), rows.values.dtype)
        live = copy_live(rows.offsets, rows.values, local + self._block.start, self._bits, offsets, values)
        offsets.setflags(write=False)
        values.setflags(write=False)
        return Ragged(offsets, values[:live])


def live_bytes(stored: StoredBlock, id_dtype: np.dtype[Any]) -> int:
    """The most memory that a whole block takes while edges are left out of it."""
    merged = merge_bytes(stored, id_dtype)
    return merged + (stored.num_edges + stored.num_older) * id_dtype.itemsize + ROW_BYTES * (stored.block.num_rows + 1)


def live_part_bytes(stored: StoredBlock, id_dtype: np.dtype[Any]) -> int:
    """The most memory that a part of a block takes while edges are left out of it, merged and then copied."""
    copied = min(stored.num_edges + stored.num_older, PART_EDGES) * id_dtype.itemsize
    return 2 * copied + 2 * ROW_BYTES * stored.block.num_rows

"""A block of rows with everything they are summed from: what backends are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.halo import add_source_scales, localise, mark_sources
from ecgl_scale.engine.block import Block
from ecgl_scale.graph.adjacency import Adjacency, CsrRows, Scale, Scales
from ecgl_scale.graph.partition import Partitions
from ecgl_scale.infer.chunks import PackedChunk
from ecgl_scale.infer.settings import Matrix


@dataclass(frozen=True, eq=False)
class SourceBlock:
    """Rows of a block over a source matrix: of all nodes, or of the block's halo, its own rows first.

    The source's rows have their scale already; ``source_scale`` is only for the row sums.
    """

    num_rows: int
    first_row: int
    """The number of the first row, by which rows are cut into chunks; 0 where rows are packed."""
    source: Matrix
    first_own: int
    """Place of the block's first row in ``source``; the others follow it."""
    cut: Callable[[int, int], CsrRows]
    """Rows by position in the block; their ids are places in ``source``."""
    adds_self: bool
    row_scale: Scale
    source_scale: Scale
    packed: tuple[PackedChunk, ...] = ()
    """How rows that are no run are packed into chunks, where each is to keep its place."""

    def row_sums(self, rows: CsrRows, start: int, stop: int) -> Matrix:
        """Row sums of P for positions ``start`` up to ``stop``, whose edges are ``rows``."""
        if self.source_scale is None:
            sums = np.diff(rows.indptr).astype(np.float64) + self.adds_self
        else:
            own = self.source_scale[self.first_own + start : self.first_own + stop]
            sums = own.astype(np.float64) if self.adds_self else np.zeros(stop - start)
            add_source_scales(rows.indptr, rows.indices, self.source_scale, sums)
        if self.row_scale is not None:
            sums *= self.row_scale[start:stop]
        return sums.astype(np.float32)


def held_block(adjacency: Adjacency, scales: Scales, block: Block, source: Matrix) -> SourceBlock:
    """A run of rows over a source that has a row for every node."""
    first = block.start
    return SourceBlock(
        block.num_rows,
        first,
        source,
        first,
        lambda start, stop: adjacency.range(first + start, first + stop),
        adjacency.adds_self,
        None if scales.row is None else scales.row[first : block.stop],
        scales.source,
    )


class Halos:
    """Makes blocks whose source is what a partition reaches. Memory: 5 bytes a node, and the block."""

    def __init__(self, adjacency: Adjacency, scales: Scales, partitions: Partitions) -> None:
        self._adjacency = adjacency
        self._scales = scales
        self._partitions = partitions
        self._marks = np.zeros(adjacency.num_nodes, np.uint8)
        self._places = np.empty(adjacency.num_nodes, np.int32)

    def block(self, block: Block, gather: Callable[[NDArray[np.int64]], Matrix]) -> SourceBlock:
        """``gather`` gets node ids (the block's own first, then the others ascending) and returns their rows."""
        where, scales = self._partitions.where(block), self._scales
        rows = self._partitions.edges(self._adjacency, block)
        self._marks[:] = 0
        mark_sources(rows.indices, int(rows.indptr[0]), int(rows.indptr[-1]), self._marks)
        self._marks[where] = 0
        ids = np.concatenate([self._partitions.ids(block), np.flatnonzero(self._marks)])
        self._places[ids] = np.arange(ids.size, dtype=np.int32)
        indices = np.empty(rows.num_edges, np.int32)
        localise(rows.indices[rows.indptr[0] : rows.indptr[-1]], self._places, indices)
        local = CsrRows(rows.indptr - rows.indptr[0], indices)
        local.indptr.setflags(write=False)
        local.indices.setflags(write=False)
        return SourceBlock(
            block.num_rows,
            block.start if self._partitions.order is None else 0,
            gather(ids),
            0,
            local.part,
            self._adjacency.adds_self,
            None if scales.row is None else np.ascontiguousarray(scales.row[where]),
            None if scales.source is None else scales.source[ids],
        )

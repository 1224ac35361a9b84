"""A partition with everything its rows are summed from; what backends are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.halo import add_source_scales, localise, mark_sources
from ecgl_scale.graph.adjacency import Adjacency, CsrRows, Scale, Scales
from ecgl_scale.infer.partition import Partition
from ecgl_scale.infer.program import Pass
from ecgl_scale.infer.settings import Matrix


@dataclass(frozen=True)
class SourceBlock:
    """Rows of a partition over a source matrix: of all nodes, or of the partition's halo, its own rows first.

    The source's rows have their scale already; ``source_scale`` is only for the row sums.
    """

    partition: Partition
    source: Matrix
    first_own: int
    """Place of the partition's first row in ``source``; the others follow it."""
    cut: Callable[[int, int], CsrRows]
    """Rows by position in the partition; their ids are places in ``source``."""
    adds_self: bool
    row_scale: Scale
    source_scale: Scale

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


class Worker(Protocol):
    """A backend."""

    name: str

    def begin(self, one: Pass, source_width: int) -> None:
        """The blocks that follow belong to this pass; their sources have so many columns."""
        ...

    def take_source(self, source: Matrix) -> None:
        """The blocks that follow are over this source."""
        ...

    def end(self) -> None:
        """The pass is over: let go of its source."""
        ...

    def aggregate(self, block: SourceBlock, out: Matrix) -> None:
        """P times the source, for the rows of the partition; ``out`` has a row for each of them."""
        ...

    def run(self, block: SourceBlock, next_scale: Scale, out: Matrix) -> None:
        """The same and the dense work on it, times the scale for the next pass, into the rows of all nodes."""
        ...


def held_block(edges: Adjacency, scales: Scales, partition: Partition, source: Matrix) -> SourceBlock:
    """Over a source that has a row for every node; partitions are runs of rows."""
    first = partition.first
    return SourceBlock(
        partition,
        source,
        first,
        lambda start, stop: edges.range(first + start, first + stop),
        edges.adds_self,
        None if scales.row is None else scales.row[partition.where],
        scales.source,
    )


class Halos:
    """Makes blocks whose source is what a partition reaches. Memory: 5 bytes a node, and the block."""

    def __init__(self, edges: Adjacency, scales: Scales) -> None:
        self._edges = edges
        self._scales = scales
        self._marks = np.zeros(edges.num_nodes, np.uint8)
        self._places = np.empty(edges.num_nodes, np.int32)

    def block(self, partition: Partition, gather: Callable[[NDArray[np.int64]], Matrix]) -> SourceBlock:
        """``gather`` gets node ids (the partition's own first, then the others ascending) and returns their rows."""
        edges, where = self._edges, partition.where
        rows = edges.range(partition.first, partition.stop) if partition.ids is None else edges.select(partition.ids)
        own = np.arange(partition.first, partition.stop) if partition.ids is None else partition.ids
        self._marks[:] = 0
        mark_sources(rows.indices, int(rows.indptr[0]), int(rows.indptr[-1]), self._marks)
        self._marks[where] = 0
        ids = np.concatenate([own, np.flatnonzero(self._marks)])
        self._places[ids] = np.arange(ids.size, dtype=np.int32)
        indices = np.empty(rows.num_edges, np.int32)
        localise(rows.indices[rows.indptr[0] : rows.indptr[-1]], self._places, indices)
        local = CsrRows(rows.indptr - rows.indptr[0], indices)
        local.indptr.setflags(write=False)
        local.indices.setflags(write=False)
        return SourceBlock(
            partition,
            gather(ids),
            0,
            lambda start, stop: CsrRows(local.indptr[start : stop + 1], local.indices),
            edges.adds_self,
            None if self._scales.row is None else np.ascontiguousarray(self._scales.row[where]),
            None if self._scales.source is None else self._scales.source[ids],
        )

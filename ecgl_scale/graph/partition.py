"""Rows cut into blocks that are worked on one after the other, together with what each of them reaches.

contiguous  runs of rows with about as many edges each; nothing is read but row offsets
ldg         streaming linear deterministic greedy: one look at every edge, neighbours together, 8 bytes a node
metis       METIS through DGL, in a process of its own; the whole graph in that process's memory; may be kept
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.halo import assign_greedily, mark_sources
from ecgl_scale.engine.block import Block
from ecgl_scale.graph.adjacency import Adjacency, CsrRows, Ints
from ecgl_scale.graph.metis import Metis

Partitioner = Literal["contiguous", "ldg", "metis"]
Where = slice | Ints
"""Index into anything that has a value for each node."""

CHUNK_ROWS = 1024
"""Rows that one thread works on at once; partitions that are large enough are cut at multiples of it."""
ALIGN_FROM_CHUNKS = 4
ROW_WEIGHT = 16.0
"""A row's dense work in edges, about; it only balances."""
LDG_SLACK = 1.05
"""How much fuller than the average a part may get."""


@dataclass(frozen=True, eq=False)
class Partitions:
    """Blocks of positions, which together have every row once. Memory: 8 bytes a node with an order, else nothing."""

    blocks: list[Block]
    order: Ints | None = None
    """The row at each position, ascending within a block; where there is none, positions are row numbers."""

    def where(self, block: Block) -> Where:
        """The rows of a block as an index."""
        return slice(block.start, block.stop) if self.order is None else self.order[block.start : block.stop]

    def ids(self, block: Block) -> Ints:
        """The rows of a block, ascending."""
        return np.arange(block.start, block.stop) if self.order is None else self.order[block.start : block.stop]

    def edges(self, adjacency: Adjacency, block: Block) -> CsrRows:
        """The edges into the rows of a block."""
        if self.order is None:
            return adjacency.range(block.start, block.stop)
        return adjacency.select(self.order[block.start : block.stop])

    @property
    def cuts(self) -> list[int]:
        """Where blocks begin, and the end of the last."""
        return [0, *(block.stop for block in self.blocks)]

    @classmethod
    def from_cuts(cls, cuts: list[int], order: Ints | None = None) -> Partitions:
        """Blocks from each cut to the next."""
        return cls([Block(index, start, stop) for index, (start, stop) in enumerate(pairwise(cuts))], order)


def cut_partitions(
    partitioner: Partitioner, adjacency: Adjacency, count: int, *, row_weight: float = ROW_WEIGHT, metis: Metis
) -> Partitions:
    """About ``count`` partitions by the chosen way."""
    count = min(count, adjacency.num_nodes)
    if partitioner == "contiguous":
        return cut_contiguous(adjacency, count, row_weight)
    if partitioner == "ldg" or count == 1:
        return cut_greedily(adjacency, count)
    return group_rows(metis.parts(count))


def cut_contiguous(adjacency: Adjacency, count: int, row_weight: float = ROW_WEIGHT) -> Partitions:
    """Runs of rows with about equal work, a row counting as ``row_weight`` edges; fewer where rows are few."""
    num_nodes = adjacency.num_nodes
    total = adjacency.edges_before(num_nodes) + row_weight * num_nodes
    align = CHUNK_ROWS if num_nodes >= count * CHUNK_ROWS * ALIGN_FROM_CHUNKS else 1
    cuts = {0, num_nodes}
    for number in range(1, count):
        wanted = total * number / count
        cut = bisect_left(range(num_nodes), wanted, key=lambda row: adjacency.edges_before(row) + row_weight * row)
        cuts.add(min(round(cut / align) * align, num_nodes))
    return Partitions.from_cuts(sorted(cuts))


def cut_greedily(adjacency: Adjacency, count: int) -> Partitions:
    """Linear deterministic greedy over the nodes in order. Memory: 4 bytes a node, 8 while they are sorted."""
    parts = np.full(adjacency.num_nodes, -1, np.int32)
    loads, near = np.zeros(count, np.int64), np.zeros(count, np.int64)
    capacity = float(np.ceil(adjacency.num_nodes / count * LDG_SLACK))
    for first, rows in adjacency.pieces(0, adjacency.num_nodes):
        assign_greedily(rows.indptr, rows.indices, first, capacity, parts, loads, near)
    return group_rows(parts)


def group_rows(parts: NDArray[np.int32]) -> Partitions:
    """Partitions from a part number for each node; empty parts are left out."""
    order = np.argsort(parts, kind="stable")
    inner = np.flatnonzero(np.diff(parts[order])) + 1
    return Partitions.from_cuts([0, *inner.tolist(), parts.size], order)


@dataclass(frozen=True)
class HaloSize:
    """What a partition reaches."""

    num_rows: int
    num_sources: int
    """Distinct nodes: its own rows and where their edges come from."""
    num_edges: int


def measure_halos(adjacency: Adjacency, partitions: Partitions) -> list[HaloSize]:
    """Count what each partition needs. Memory: a byte a node, and a row set's edges."""
    marks = np.zeros(adjacency.num_nodes, np.uint8)
    sizes = []
    for block in partitions.blocks:
        marks[:] = 0
        marks[partitions.where(block)] = 1
        sources, num_edges = block.num_rows, 0
        pieces = (
            (rows for _, rows in adjacency.pieces(block.start, block.stop))
            if partitions.order is None
            else iter([partitions.edges(adjacency, block)])
        )
        for rows in pieces:
            sources += mark_sources(rows.indices, int(rows.indptr[0]), int(rows.indptr[-1]), marks)
            num_edges += rows.num_edges
        sizes.append(HaloSize(block.num_rows, sources, num_edges))
    return sizes

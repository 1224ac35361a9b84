"""The stored edges as inference sees them: every node has exactly one self loop, whatever the store holds.

Stores that keep the self loops they were given are read without them, row range by row range, into a copy; in all
others rows are views of the mapped files. The loop itself is not an edge here: it is added by whoever sums
(``adds_self``), except where the store has one for every node.
Memory: the scales (4 bytes a node each), and for a copy 4 bytes an edge of the range.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.csr import count_sources
from ecgl_kernels.halo import copy_rows, drop_loops
from ecgl_kernels.spmm import invert_degrees
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.infer.settings import Norm
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.ragged import Ragged

Ints = NDArray[np.int64]
Scale = NDArray[np.float32] | None


@dataclass(frozen=True)
class Rows:
    """CSR rows: ``indices[indptr[r]:indptr[r + 1]]`` are the sources of row r."""

    indptr: Ints
    indices: NDArray[Any]

    @property
    def num_edges(self) -> int:
        """Edges of these rows."""
        return int(self.indptr[-1] - self.indptr[0])


class EdgeRows:
    """Rows of in-edges without self loops, or with exactly one each."""

    def __init__(self, graph: GraphStore) -> None:
        section = graph.manifest.edges
        self.num_nodes = graph.num_nodes
        self.adds_self = section.self_loops != "added"
        self.id_dtype = graph.edges.id_dtype
        self.is_symmetric = section.symmetrised
        self._drops = section.self_loops == "kept"
        self._edges = graph.edges
        self._starts = np.array(section.block_starts, np.int64)
        self._edges_before = np.concatenate([[0], np.cumsum(section.block_edges)])
        self._mapped: dict[int, Ragged] = {}

    def blocks(self) -> list[Block]:
        """Blocks as stored."""
        return self._edges.blocks()

    def stored(self, block: Block) -> Ragged:
        """A block as stored; kept mapped, as mapping it anew would fault every page in again."""
        if block.index not in self._mapped:
            self._mapped[block.index] = self._edges.read(block)
        return self._mapped[block.index]

    def read_all(self, *, threads: int) -> None:
        """Map and check every block, several at once."""
        for _ in map_bounded(self.stored, self.blocks(), threads=threads):
            pass

    def edges_before(self, row: int) -> int:
        """Stored edges into the nodes below ``row``."""
        if row >= self.num_nodes:
            return int(self._edges_before[-1])
        index = int(np.searchsorted(self._starts, row, side="right")) - 1
        offsets = self.stored(self.blocks()[index]).offsets
        return int(self._edges_before[index] + offsets[row - self._starts[index]])

    def pieces(self, first: int, stop: int) -> Iterator[tuple[int, Rows]]:
        """Rows ``first`` up to ``stop`` as (first row, rows), cut where blocks are."""
        index = int(np.searchsorted(self._starts, first, side="right")) - 1
        while first < stop:
            block = self.blocks()[index]
            end = min(stop, block.stop)
            ragged = self.stored(block)
            rows = Rows(ragged.offsets[first - block.start : end - block.start + 1], ragged.values)
            yield first, self._without_loops(rows, first) if self._drops else rows
            first, index = end, index + 1

    def range(self, first: int, stop: int) -> Rows:
        """Rows ``first`` up to ``stop``; a view where they lie in one block."""
        parts = [rows for _, rows in self.pieces(first, stop)]
        if len(parts) == 1:
            return parts[0]
        return join_rows(parts, self.id_dtype)

    def select(self, ids: Ints) -> Rows:
        """The rows of some nodes, ascending. Memory: 8 bytes a row, the ids of the edges."""
        parts: list[Rows] = []
        cuts = np.searchsorted(ids, self._starts)
        for block in self.blocks():
            here = ids[cuts[block.index] : cuts[block.index + 1]]
            if not here.size:
                continue
            ragged = self.stored(block)
            local = here - block.start
            counts = ragged.offsets[local + 1] - ragged.offsets[local]
            indptr = np.zeros(here.size + 1, np.int64)
            indices = np.empty(int(counts.sum()), self.id_dtype)
            copy_rows(ragged.offsets, ragged.values, local, 0, indptr, indices)
            if self._drops:
                keep = indices != np.repeat(here, counts)
                indptr = np.concatenate([[0], np.cumsum(keep)])[indptr]
                indices = indices[keep]
            parts.append(Rows(indptr, indices))
        return join_rows(parts, self.id_dtype)

    def _without_loops(self, rows: Rows, first: int) -> Rows:
        indptr = np.empty(rows.indptr.size, np.int64)
        indices = np.empty(rows.num_edges, self.id_dtype)
        kept = drop_loops(rows.indptr, rows.indices, first, indptr, indices)
        indices = indices[:kept]
        indptr.setflags(write=False)  # as the mapped ones, so that kernels are not compiled twice
        indices.setflags(write=False)
        return Rows(indptr, indices)


def join_rows(parts: list[Rows], dtype: np.dtype[Any]) -> Rows:
    """Rows of several pieces, one after the other, as a copy."""
    counts = [part.num_edges for part in parts]
    indices = np.empty(sum(counts), dtype)
    indptr = np.zeros(sum(part.indptr.size - 1 for part in parts) + 1, np.int64)
    row, used = 0, 0
    for part, count in zip(parts, counts, strict=True):
        indices[used : used + count] = part.indices[part.indptr[0] : part.indptr[-1]]
        indptr[row + 1 : row + part.indptr.size] = part.indptr[1:] - part.indptr[0] + used
        row, used = row + part.indptr.size - 1, used + count
    return Rows(indptr, indices)


@dataclass(frozen=True)
class Scales:
    """P[i, u] = row[i] * source[u] for every edge u -> i and the loop of i; None stands for ones."""

    row: Scale
    source: Scale

    @property
    def num_bytes(self) -> int:
        """Memory of the vectors."""
        distinct = {id(one): one.nbytes for one in (self.row, self.source) if one is not None}
        return sum(distinct.values())


def scale_of(edges: EdgeRows, norm: Norm) -> Scales:
    """The normalisation of A with self loops. Memory: 4 bytes a node and scale, 4 more for counting out-edges."""
    if norm == "sum":
        return Scales(None, None)
    row = np.empty(edges.num_nodes, np.float32)
    counts = np.full(edges.num_nodes, edges.adds_self, np.uint32) if norm == "sym" and not edges.is_symmetric else None
    for block in edges.blocks():
        for first, rows in edges.pieces(block.start, block.stop):
            degrees = np.diff(rows.indptr) + edges.adds_self
            invert_degrees(degrees, norm == "sym", row[first : first + degrees.size])
            if counts is not None:
                count_sources(rows.indices, counts)
    if norm == "mean":
        return Scales(row, None)
    if counts is None:
        return Scales(row, row)
    source = np.empty(edges.num_nodes, np.float32)
    invert_degrees(counts, True, source)  # type: ignore[arg-type]
    return Scales(row, source)

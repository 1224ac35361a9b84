"""The stored edges as P sees them: every node has exactly one self loop, whatever the store holds.

    P[i, u] = row_scale[i] * source_scale[u]     for every edge u -> i, and for u = i

    sum   no scales        mean   row_scale = 1 / d_in        sym   source_scale = d_out^-1/2, row_scale = d_in^-1/2

Degrees count the self loop. The loop itself need not be among a row's edges: ``adds_self`` says whether it is added by
whoever sums. Rows of a store that keeps the loops it was given are copied without them; in all others rows are views of
the mapped files, but for those of a store that has grown, which are merged. An edge that is stored twice counts twice.
Memory: the scales, 4 bytes a node each, for a copy the ids of its edges, and ``EdgeStore.reading_bytes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.csr import count_sources
from ecgl_kernels.halo import drop_loops
from ecgl_kernels.spmm import invert_degrees
from ecgl_kernels.transpose import copy_without_loops, transpose_rows
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.graph.convolution import Norm
from ecgl_scale.store.edges.older import BlockRows
from ecgl_scale.store.edges.some_rows import SomeRows
from ecgl_scale.store.graph import GraphStore

Ints = NDArray[np.int64]
Scale = NDArray[np.float32] | None
SELECTED_ROWS = 1 << 14
"""Rows that are read at once where only their lengths without loops are wanted."""


@dataclass(frozen=True, eq=False)
class CsrRows:
    """Edges by the node that receives: ``indices[indptr[r]:indptr[r + 1]]`` are the sources of row r."""

    indptr: Ints
    indices: NDArray[Any]

    @property
    def num_rows(self) -> int:
        """How many nodes receive."""
        return self.indptr.size - 1

    @property
    def num_edges(self) -> int:
        """Edges of these rows."""
        return int(self.indptr[-1] - self.indptr[0])

    def part(self, start: int, stop: int) -> CsrRows:
        """Rows ``start`` up to ``stop``, as views."""
        return CsrRows(self.indptr[start : stop + 1], self.indices)

    def cuts(self, count: int) -> list[int]:
        """Row numbers that share the edges out into about ``count`` parts."""
        targets = np.linspace(0, self.indptr[-1], count + 1)[1:-1]
        inner = np.unique(np.searchsorted(self.indptr, targets)).tolist()
        return [0, *(cut for cut in inner if 0 < cut < self.num_rows), self.num_rows]

    def transposed(self) -> CsrRows:
        """The edges of a whole graph by the node that sends. Memory: as much again."""
        indptr, indices = np.zeros_like(self.indptr), np.empty_like(self.indices)
        transpose_rows(self.indptr, self.indices, indptr, indices)
        return CsrRows(indptr, indices)

    def inverse_degrees(self, norm: Norm, *, adds_self: bool, out: NDArray[np.float32] | None = None) -> Scale:
        """``1 / d``, or ``d^-1/2`` for sym, of every row; None for sum, which has no scales."""
        if norm == "sum":
            return None
        scale = np.empty(self.num_rows, np.float32) if out is None else out
        invert_degrees(np.diff(self.indptr) + adds_self, norm == "sym", scale)
        return scale


@dataclass(frozen=True, eq=False)
class Scales:
    """P[i, u] = row[i] * source[u] for every edge u -> i and the loop of i; None stands for ones."""

    row: Scale
    source: Scale


class Adjacency:
    """Rows of in-edges without self loops, or with exactly one each."""

    def __init__(self, graph: GraphStore, *, without_loops: bool = False) -> None:
        """``without_loops`` leaves the loops of a store that has one a node to ``adds_self`` too."""
        section = graph.manifest.edges
        self.num_nodes = graph.num_nodes
        self.num_edges = graph.num_edges
        self.adds_self = without_loops or section.self_loops != "added"
        self.id_dtype = graph.edges.id_dtype
        self.is_symmetric = section.symmetrised
        self._drops = self.adds_self and section.self_loops != "dropped"
        self._edges = graph.edges
        self._starts = np.array(section.block_starts, np.int64)
        self._edges_before = np.concatenate([[0], np.cumsum(section.block_edges)])
        self._mapped: dict[int, BlockRows] = {}
        self._kept_merged: set[int] = set()

    def blocks(self) -> list[Block]:
        """Blocks as stored."""
        return self._edges.blocks()

    def stored(self, block: Block) -> BlockRows:
        """A block as stored; kept mapped, as mapping it anew would fault every page in again."""
        if block.index not in self._mapped:
            rows = self._edges.rows(block)
            if block.index in self._kept_merged:
                rows.merge()
            self._mapped[block.index] = rows
        return self._mapped[block.index]

    def keep_merged(self, room_bytes: int) -> None:
        """Let rows that edges came into later be merged once, for as many blocks as the room has memory for."""
        for block in self.blocks():
            needed = self._edges.merged_bytes_of(block)
            if 0 < needed <= room_bytes:
                self._kept_merged.add(block.index)
                room_bytes -= needed

    def read_all(self, *, threads: int) -> None:
        """Map and check every block, several at once."""
        for _ in map_bounded(self.stored, self.blocks(), threads=threads):
            pass

    def edges_before(self, row: int) -> int:
        """Stored edges into the nodes below ``row``."""
        if row >= self.num_nodes:
            return int(self._edges_before[-1])
        index = int(np.searchsorted(self._starts, row, side="right")) - 1
        rows = self.stored(self.blocks()[index])
        return int(self._edges_before[index]) + rows.before(int(row - self._starts[index]))

    def pieces(self, first: int, stop: int) -> Iterator[tuple[int, CsrRows]]:
        """Rows ``first`` up to ``stop`` as (first row, rows), cut where blocks are, and where merges would be large."""
        index = int(np.searchsorted(self._starts, first, side="right")) - 1
        while first < stop:
            block = self.blocks()[index]
            end = min(stop, block.stop)
            for row, ragged in self.stored(block).parts(first - block.start, end - block.start):
                rows = CsrRows(ragged.offsets, ragged.values)
                yield block.start + row, self._without_loops(rows, block.start + row) if self._drops else rows
            first, index = end, index + 1

    def range(self, first: int, stop: int) -> CsrRows:
        """Rows ``first`` up to ``stop``; a view where they lie in one block."""
        parts = [rows for _, rows in self.pieces(first, stop)]
        return parts[0] if len(parts) == 1 else _join(parts, self.id_dtype)

    def select(self, ids: Ints) -> CsrRows:
        """The rows of some nodes, ascending. Memory: 8 bytes a row, the ids of the edges."""
        parts: list[CsrRows] = []
        cuts = np.searchsorted(ids, self._starts)
        for block in self.blocks():
            here = ids[cuts[block.index] : cuts[block.index + 1]]
            if not here.size:
                continue
            ragged = self.stored(block).select(here - block.start)
            parts.append(self._keep(here, CsrRows(ragged.offsets, ragged.values)))
        return _join(parts, self.id_dtype)

    def select_sparingly(self, ids: Ints, stored: SomeRows) -> CsrRows:
        """As ``select``, without the rest of the blocks; see ``SomeRows`` for what is checked."""
        rows = stored.read(ids)
        return self._keep(ids, CsrRows(rows.offsets, rows.values))

    def _keep(self, ids: Ints, rows: CsrRows) -> CsrRows:
        """Rows of some nodes as P sees them. Memory: as much again where loops are dropped."""
        if not self._drops:
            return rows
        keep = rows.indices != np.repeat(ids, np.diff(rows.indptr))
        return CsrRows(np.concatenate([[0], np.cumsum(keep)])[rows.indptr], rows.indices[keep])

    def whole(self) -> CsrRows:
        """All rows in memory, without any loop. Memory: 8 bytes a node, the ids of the edges."""
        indptr = np.zeros(self.num_nodes + 1, np.int64)
        indices = np.empty(self.num_edges, self.id_dtype)
        position = 0
        for block in self._edges.blocks():
            for row, rows in self._edges.rows(block).parts(0, block.num_rows):
                position = copy_without_loops(rows.offsets, rows.values, block.start + row, position, indptr, indices)
        return CsrRows(indptr, indices[:position])

    def degrees_sparingly(self, ids: Ints, stored: SomeRows) -> Ints:
        """In-degrees of some nodes as P sees them, the loop included; from offsets alone, unless loops are dropped."""
        if not self._drops:
            return stored.degrees(ids) + self.adds_self
        parts = [ids[start : start + SELECTED_ROWS] for start in range(0, max(ids.size, 1), SELECTED_ROWS)]
        return np.concatenate([np.diff(self.select_sparingly(part, stored).indptr) for part in parts]) + self.adds_self

    def scales(self, norm: Norm) -> Scales:
        """The scales of P. Memory: 4 bytes a node and scale, 4 more while out-edges are counted."""
        if norm == "sum":
            return Scales(None, None)
        row = np.empty(self.num_nodes, np.float32)
        counts = np.full(self.num_nodes, self.adds_self, np.uint32) if norm == "sym" and not self.is_symmetric else None
        for block in self.blocks():
            if not self._drops:
                degrees = self.stored(block).degrees() + self.adds_self
                invert_degrees(degrees, norm == "sym", row[block.start : block.stop])
                if counts is not None:
                    self._edges.count_out_edges(block, counts)
                continue
            for first, rows in self.pieces(block.start, block.stop):
                rows.inverse_degrees(norm, adds_self=self.adds_self, out=row[first : first + rows.num_rows])
                if counts is not None:
                    count_sources(rows.indices, counts)
        if norm == "mean":
            return Scales(row, None)
        if counts is None:
            return Scales(row, row)
        source = np.empty(self.num_nodes, np.float32)
        invert_degrees(counts, True, source)  # type: ignore[arg-type]
        return Scales(row, source)

    def _without_loops(self, rows: CsrRows, first: int) -> CsrRows:
        indptr = np.empty(rows.indptr.size, np.int64)
        indices = np.empty(rows.num_edges, self.id_dtype)
        kept = drop_loops(rows.indptr, rows.indices, first, indptr, indices)
        indices = indices[:kept]
        indptr.setflags(write=False)  # as the mapped ones, so that kernels are not compiled twice
        indices.setflags(write=False)
        return CsrRows(indptr, indices)


def neighbours_of(graph: GraphStore, nodes: Ints) -> tuple[Ints, Ints]:
    """In-neighbours of ``nodes`` (ascending) as CSR rows (offsets, sources), without the nodes themselves."""
    rows = Adjacency(graph, without_loops=True).select(nodes)
    return rows.indptr, rows.indices.astype(np.int64)


def _join(parts: list[CsrRows], dtype: np.dtype[Any]) -> CsrRows:
    """Rows of several pieces, one after the other, as a copy."""
    counts = [part.num_edges for part in parts]
    indices = np.empty(sum(counts), dtype)
    indptr = np.zeros(sum(part.num_rows for part in parts) + 1, np.int64)
    row, used = 0, 0
    for part, count in zip(parts, counts, strict=True):
        indices[used : used + count] = part.indices[part.indptr[0] : part.indptr[-1]]
        indptr[row + 1 : row + part.indptr.size] = part.indptr[1:] - part.indptr[0] + used
        row, used = row + part.num_rows, used + count
    return CsrRows(indptr, indices)

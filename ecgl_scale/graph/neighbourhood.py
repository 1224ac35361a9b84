"""What some nodes are computed from: everything within a few hops against the edges, as a small graph of its own.

Nodes are numbered level by level: those asked for, then those one edge away, and so on, so that the nodes within h hops
are the first ``sizes[h]``. A row's sources keep the order that they have in the store, and with it the order of sums.
The scales of P are those of the whole graph. Where they need the out-degrees of a directed graph (norm sym), which rows
of in-edges do not tell, all edges are read once.
Memory: a bit and a half for each node of the graph (and 12 bytes more for a directed graph's scales), 16 bytes for an
edge of the neighbourhood while it is found and 4 afterwards, and 40 bytes for one of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.halo import copy_rows
from ecgl_kernels.node_set import count_nodes, find_places
from ecgl_kernels.spmm import invert_degrees
from ecgl_scale.graph.adjacency import Adjacency, CsrRows, Ints, Scale, Scales
from ecgl_scale.graph.convolution import Norm
from ecgl_scale.graph.node_set import NodeSet
from ecgl_scale.store.edges.some_rows import SomeRows
from ecgl_scale.store.graph import GraphStore

Arrange = Callable[[Ints], Ints]
"""The order in which the nodes of a level, ascending, are numbered."""
Allow = Callable[[int, int], None]
"""It hears the numbers of nodes and of edges before they are read, and raises where they are too many."""


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """The graph around some nodes."""

    ids: Ints
    """The node of each number."""
    sizes: tuple[int, ...]
    """How many nodes are within 0, 1, 2 ... hops."""
    rows: CsrRows
    """In-edges of all nodes but those of the last level, by number."""
    scales: Scales
    """``row`` of the nodes that have rows, ``source`` of all."""

    def num_edges(self, hops: int) -> int:
        """Edges into the nodes within so many hops."""
        return int(self.rows.indptr[self.sizes[hops]])


class NeighbourhoodReader:
    """Finds neighbourhoods in a store, one after the other."""

    def __init__(self, graph: GraphStore, norm: Norm, *, threads: int = 1) -> None:
        self.adjacency = Adjacency(graph)
        self.stored = SomeRows(graph.edges, threads=threads)
        self._norm = norm
        self._of_all: Scales | None = None

    @property
    def reads_all_edges(self) -> bool:
        """Whether the scales cannot be had from the rows of a neighbourhood."""
        return self._norm == "sym" and not self.adjacency.is_symmetric

    def find(self, asked: Ints, hops: int, arrange: Arrange, allow: Allow) -> Neighbourhood:
        """Everything within ``hops`` hops of the nodes ``asked``, which ascend."""
        members = NodeSet(self.adjacency.num_nodes)
        members.add(asked)
        levels, parts, num_nodes, num_edges = [asked], [], asked.size, 0
        for _ in range(hops):
            num_edges += int(self.stored.degrees(levels[-1]).sum())
            allow(num_nodes, num_edges)
            rows = self.adjacency.select_sparingly(levels[-1], self.stored)
            known = members.copy()
            members.add(rows.indices)
            fresh = members.ids(known)
            levels.append(fresh)
            parts.append(rows)
            num_nodes += fresh.size
            allow(num_nodes, num_edges)
        orders = [arrange(level) for level in levels]
        ids = np.concatenate([level[order] for level, order in zip(levels, orders, strict=True)])
        sizes = tuple(np.cumsum([level.size for level in levels]).tolist())
        rows = _join(parts, orders, ids, members.words)
        return Neighbourhood(ids, sizes, rows, self._scales(ids, rows))

    def _scales(self, ids: Ints, rows: CsrRows) -> Scales:
        if self.reads_all_edges:
            self._of_all = self._of_all or self.adjacency.scales(self._norm)
            row, source = self._of_all.row, self._of_all.source
            if row is not None and source is not None:
                return Scales(row[ids[: rows.num_rows]], source[ids])
        row = rows.inverse_degrees(self._norm, adds_self=self.adjacency.adds_self)
        if self._norm != "sym" or row is None:
            return Scales(row, None)
        outermost = ids[rows.num_rows :]
        order = np.argsort(outermost)
        degrees = np.empty(outermost.size, np.int64)
        degrees[order] = self.adjacency.degrees_sparingly(outermost[order], self.stored)
        last = np.empty(outermost.size, np.float32)
        invert_degrees(degrees, True, last)
        source_scale: Scale = np.concatenate([row, last])
        return Scales(row, source_scale)


def _join(parts: list[CsrRows], orders: list[Ints], ids: Ints, members: NDArray[np.uint64]) -> CsrRows:
    """The rows of all levels in the order of their numbers, with numbers for ids; ``parts`` are given up."""
    before = np.empty(members.size, np.uint32)
    count_nodes(members, before)
    places, numbers = np.empty(ids.size, np.int32), np.arange(ids.size, dtype=np.int32)
    find_places(ids, members, before, numbers, places)
    number_at = np.empty(ids.size, np.int32)
    number_at[places] = numbers
    num_rows = sum(part.num_rows for part in parts)
    indptr, indices = np.zeros(num_rows + 1, np.int64), np.empty(sum(part.num_edges for part in parts), np.int32)
    row = used = 0
    for order in orders[: len(parts)]:
        part = parts.pop(0)
        ends, sources = np.zeros(part.num_rows + 1, np.int64), np.empty(part.num_edges, part.indices.dtype)
        copy_rows(part.indptr, part.indices, order, 0, ends, sources)
        find_places(sources, members, before, number_at, indices[used : used + sources.size])
        indptr[row + 1 : row + ends.size] = ends[1:] + used
        row, used = row + part.num_rows, used + sources.size
    for array in (indptr, indices):
        array.setflags(write=False)  # as mapped ones, so that kernels are compiled once
    return CsrRows(indptr, indices)

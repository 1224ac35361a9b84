"""Edges out of every node: a vector of this process, or, where workers share no memory, files that they fill.

In a symmetrised store the degrees of a block's rows follow from its offsets. In a directed one a part, a run of blocks,
counts the sources of all its edges, and the counts of all parts are then added up stripe by stripe; so nobody holds
more than one vector of 4 bytes a node, and the driver none. Parts follow from the graph alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.place import FilePlace, HeldPlace, make_place, open_place
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.rounds import Rounds, make_rounds, open_rounds
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.store.edges.plan import RANGE_ROWS
from ecgl_scale.store.graph import GraphStore

MAX_PARTS = 64
PART_EDGES_PER_NODE = 4
"""A part reads at least four times as much as it writes."""
OWN, COUNT, ADD = "own", "count", "add"
"""What a round does: degrees of a block's own rows; sources of a part counted; counts of all parts added up."""


def out_degrees(graph: GraphStore) -> NDArray[np.uint32]:
    """Edges out of every node, padded to whole ranges. Memory: 4 bytes a node.

    In a symmetrised store they equal the in-degrees, which the row offsets tell without reading an edge.
    """
    degrees = np.zeros(-(-graph.num_nodes // RANGE_ROWS) * RANGE_ROWS, np.uint32)
    for block in graph.edges.blocks():
        if graph.manifest.edges.symmetrised:
            graph.edges.count_in_edges(block, degrees[block.start : block.stop])
        else:
            graph.edges.count_out_edges(block, degrees)
    return degrees


def keep_degrees(graph: GraphStore, resources: Resources, name: str, cuts: Sequence[int]) -> HeldPlace | FilePlace:
    """The degrees in a place that all workers see; the driver holds them only where it shares its memory."""
    if resources.executor.shares_memory:
        return HeldPlace(out_degrees(graph))
    degrees = make_place(resources, f"{name}/all", cuts, "uint32")
    parts = [] if graph.manifest.edges.symmetrised else cut_parts(graph)
    counts = make_rounds(resources, f"{name}/parts/0", cuts, "uint32", in_memory=1)
    with resources.executor.open(DegreeWork(graph, degrees, counts, len(parts)), resources) as workers:
        stripes = graph.tiles.blocks()
        rounds: list[tuple[str, list[Block]]] = [(COUNT, parts), (ADD, stripes)] if parts else [(OWN, stripes)]
        for given, blocks in rounds:
            for _ in workers.run(blocks, given):
                pass
    for part in parts:
        counts.forget(part.index)
    return degrees


def cut_parts(graph: GraphStore) -> list[Block]:
    """Runs of stored blocks, by their numbers, with about equally many edges."""
    before = np.cumsum([0, *graph.manifest.edges.block_edges])
    wanted = graph.num_edges // (PART_EDGES_PER_NODE * graph.num_nodes)
    targets = np.linspace(0, before[-1], min(max(wanted, 1), MAX_PARTS) + 1)[1:-1]
    cuts = sorted({0, *np.searchsorted(before, targets).tolist(), len(before) - 1})
    return [Block(index, *bounds) for index, bounds in enumerate(pairwise(cuts))]


@dataclass(frozen=True)
class Counted:
    """Degrees are in their place."""

    num_edges: int


class DegreeWork(Work[None, Counted]):
    """Counts edges; ``given`` says what of. Memory: 4 bytes a node for a part, else rows of a stripe."""

    name: ClassVar[str] = "rank.degrees"
    record: ClassVar[type[Any]] = Counted
    uses_all_threads: ClassVar[bool] = True
    has_small_records: ClassVar[bool] = True

    def __init__(self, graph: GraphStore, degrees: HeldPlace | FilePlace, counts: Rounds, num_parts: int) -> None:
        self._graph = graph
        self._degrees = degrees
        self._counts = counts
        self._num_parts = num_parts

    def describe(self) -> Json:
        """Say where the store, the degrees and the counts of parts are."""
        places = {"degrees": self._degrees.describe(), "counts": self._counts.describe()}
        return {"store": self._graph.address, **places, "num_parts": self._num_parts}

    @classmethod
    def open(cls, description: Json, resources: Resources) -> DegreeWork:
        """Open the work on a worker that has only files."""
        del resources
        degrees, counts = open_place(description["degrees"]), open_rounds(description["counts"])
        return cls(GraphStore.open(description["store"]), degrees, counts, description["num_parts"])

    def run(self, block: Block, given: Json, scratch: None) -> Counted:
        """Count the edges of a part, or find the degrees of a stripe."""
        del scratch
        edges = self._graph.edges
        if given == COUNT:
            counted = np.zeros(-(-self._graph.num_nodes // RANGE_ROWS) * RANGE_ROWS, np.uint32)
            for stored in edges.blocks()[block.start : block.stop]:
                edges.count_out_edges(stored, counted)
            self._counts.at(block.index).write(0, counted)
            return Counted(int(counted.sum(dtype=np.int64)))
        start, stop = block.start, block.start + self._graph.tiles.width(block) * RANGE_ROWS
        if given == OWN:
            found = np.zeros(stop - start, np.uint32)
            edges.count_in_edges(block, found)
        else:
            found = self._counts.at(0).read(start, stop)
            for part in range(1, self._num_parts):
                found += self._counts.at(part).read(start, stop)
        self._degrees.write(start, found)
        return Counted(int(found.sum(dtype=np.int64)))

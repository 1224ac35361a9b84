"""How large the graphs of tasks are with their context, before any is extracted; each is counted once.

The nodes are found as they are for the extraction. Edges are bounded by those that go into them.
Memory: a bitmap of the nodes of the largest graph, or their ids, whichever is less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.context import ContextFinder, ContextRule
from ecgl_scale.tasks.members import Members
from ecgl_scale.tasks.split import Ids
from ecgl_scale.tasks.stream import Task, TaskStream


@dataclass(frozen=True)
class GraphSizes:
    """A task's graph before it is extracted: the edges into its nodes, so never too few."""

    num_nodes: int
    num_edges: int


@dataclass(frozen=True, eq=False)
class CountedGraphs:
    """The graphs of some tasks, with context."""

    sizes: tuple[GraphSizes, ...]
    likely_edges: tuple[int, ...]
    """About how many edges each has: all that go into nodes which context was looked for at, and of the others' the
    share that the graph has of the store's nodes."""
    largest: Members
    """Nodes of the largest graph."""


class ContextSizes:
    """The graphs of a run's tasks, counted for each rule of context that is planned with."""

    def __init__(self) -> None:
        self._counted: dict[tuple[int | None, str], CountedGraphs] = {}

    def own(
        self, graph: GraphStore, stream: TaskStream, rule: ContextRule, degrees: NDArray[np.int64], threads: int
    ) -> CountedGraphs:
        """The graph of each task. ``degrees`` are edges into every node of the store."""
        if (rule.hops, "own") not in self._counted:
            seeds = ((task, task.node_ids) for task in stream)
            self._counted[rule.hops, "own"] = _count(graph, seeds, rule, degrees, threads)
        return self._counted[rule.hops, "own"]

    def seen(
        self, graph: GraphStore, stream: TaskStream, rule: ContextRule, degrees: NDArray[np.int64], threads: int
    ) -> CountedGraphs:
        """The graph of all tasks: those up to earlier ones are in it, and are not counted by themselves."""
        if (rule.hops, "seen") not in self._counted:
            everything = np.sort(np.concatenate([task.node_ids for task in stream]))
            counted = _count(graph, [(stream[-1], everything)], rule, degrees, threads)
            self._counted[rule.hops, "seen"] = counted
        return self._counted[rule.hops, "seen"]


def _count(
    graph: GraphStore,
    seeds: Iterable[tuple[Task, Ids]],
    rule: ContextRule,
    degrees: NDArray[np.int64],
    threads: int,
) -> CountedGraphs:
    finder = ContextFinder(graph, threads)
    sizes, likely, largest = [], [], np.empty(0, np.int64)
    for task, ids in seeds:
        levels = list(finder.levels(ids, rule.hops, task.generation)) if rule.hops is not None else []
        nodes = np.sort(np.concatenate(levels)) if levels else finder.nodes(ids, rule, task.generation)
        num_edges, inner = int(degrees[nodes].sum()), sum(int(degrees[level].sum()) for level in levels[:-1])
        sizes.append(GraphSizes(int(nodes.size), num_edges))
        likely.append(inner + int((num_edges - inner) * nodes.size / graph.num_nodes))
        if nodes.size > largest.size:
            largest = nodes
    return CountedGraphs(tuple(sizes), tuple(likely), Members.of(largest))

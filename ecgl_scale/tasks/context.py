"""Context nodes: nodes without a label that come into the graph of a task as neighbours.

    none      the task's labelled nodes alone
    hops:L    and every unlabelled node that a path of at most L edges leads from to one of them, on which all nodes in
              between are unlabelled too, or the task's: within L layers only these can reach a node of the task
    all       and every unlabelled node of the store

A node with a label of another task, or of a class in no task, is never context, nor does a path lead through it; nor is
a node that was dropped. Context nodes have features and edges, and no part in the split: they are passed along and
ranked with, and are never trained on, remembered or scored.
Memory: a few bits a node, 8 bytes a node that is found, and the in-edges of ``ROWS_AT_ONCE`` nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.errors import StoreError
from ecgl_scale.graph.node_set import NodeSet
from ecgl_scale.store.edges.some_rows import SomeRows
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.nodes import LABEL
from ecgl_scale.tasks.split import Ids
from ecgl_scale.tasks.subset import NODE
from ecgl_scale.tasks.task_nodes import Task, at_generation

ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class ContextRule:
    """Which unlabelled nodes come into a task's graph."""

    hops: int | None = 0
    """Within so many edges of the task's nodes; None: all that there are."""

    @classmethod
    def parse(cls, text: str) -> ContextRule:
        """The rule of a config's ``tasks.context``, which has been checked."""
        if text == "all":
            return cls(None)
        return cls(0 if text == "none" else int(text.partition(":")[2]))

    @property
    def is_none(self) -> bool:
        """Whether graphs of tasks have labelled nodes alone."""
        return self.hops == 0


NO_CONTEXT = ContextRule()


class ContextFinder:
    """Finds the context nodes of tasks in a store, as it was at each task's generation; it holds a bit a node."""

    def __init__(self, graph: GraphStore, threads: int) -> None:
        self._graph = graph
        self._threads = threads
        self._found: tuple[int | None, GraphStore, NodeSet] | None = None

    def nodes(self, seeds: Ids, rule: ContextRule, generation: int | None) -> Ids:
        """The nodes ``seeds`` of a task, or of several, with their context: ids, ascending."""
        if rule.is_none or not seeds.size:
            return seeds
        graph, unlabelled = self._at(generation)
        if rule.hops is None:
            members = unlabelled.copy()
            members.add(seeds)
            return members.ids()
        members = NodeSet(graph.num_nodes)
        for level in self._levels(graph, unlabelled, seeds, rule.hops):
            members.add(level)
        return members.ids()

    def levels(self, seeds: Ids, hops: int, generation: int | None) -> Iterator[Ids]:
        """The nodes themselves, then their context that is 1, 2, ... up to ``hops`` edges away."""
        return self._levels(*self._at(generation), seeds, hops)

    def unlabelled(self, generation: int | None) -> NodeSet:
        """All nodes that may be context."""
        return self._at(generation)[1]

    def _levels(self, graph: GraphStore, unlabelled: NodeSet, seeds: Ids, hops: int) -> Iterator[Ids]:
        rows, left, level = SomeRows(graph.edges, threads=self._threads), unlabelled.copy(), seeds
        yield level
        for _ in range(hops):
            sources = NodeSet(graph.num_nodes)
            for start in range(0, level.size, ROWS_AT_ONCE):
                sources.add(rows.read(level[start : start + ROWS_AT_ONCE]).values)
            level = (sources & left).ids()
            left = left.without(sources)
            yield level

    def _at(self, generation: int | None) -> tuple[GraphStore, NodeSet]:
        """The store as it was, and its nodes without a label. The last one stays, as for ``TaskGraphs``."""
        if self._found is None or self._found[0] != generation:
            graph = at_generation(self._graph, generation)
            self._found = generation, graph, unlabelled_nodes(graph)
        return self._found[1:]


def unlabelled_nodes(graph: GraphStore) -> NodeSet:
    """The nodes of a store that have no label and were not dropped, from a pass over the labels."""
    found = NodeSet(graph.num_nodes)
    for start, labels in graph.nodes.blocks(LABEL) if graph.nodes is not None else ():
        found.add(np.flatnonzero(labels < 0) + start)
    if graph.dropped is None:
        return found
    gone = NodeSet(graph.num_nodes)
    gone.add(graph.dropped.ids)
    return found.without(gone)


def open_kept(path: AnyPath, task: Task) -> GraphStore | None:
    """The graph of a task that is kept at ``path``, with the context that it had; None where it is another's."""
    try:
        graph = GraphStore.open(path)
        return graph if np.isin(task.node_ids, graph.column(NODE)).all() else None
    except StoreError:
        return None

"""How many edges the graphs of tasks will have, from a sample of rows: most graphs lose some between their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.session.predict import needs_seen
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.context import ContextRule
from ecgl_scale.tasks.stream import Task

SAMPLE_ROWS = 512
"""Rows that are sampled evenly from each block of rows; all tasks' nodes are found in most blocks."""


@dataclass(frozen=True)
class TaskEdges:
    """About how many edges the graphs of tasks have."""

    own: tuple[int, ...]
    """Between nodes of each task."""
    seen: tuple[int, ...]
    """Between nodes of all tasks up to each."""


def count_task_edges(graph: GraphStore, tasks: Sequence[Task]) -> TaskEdges:
    """Scale up what a sample of every block shows.  Memory: 4 bytes a node, and the sample."""
    task_of = np.full(graph.num_nodes, -1, np.int32)
    for task in tasks:
        task_of[task.node_ids] = task.index
    own, arriving = np.zeros(len(tasks)), np.zeros(len(tasks))
    for block in graph.edges.blocks():
        step = max(block.num_rows // SAMPLE_ROWS, 1)
        local = np.arange(step // 2, block.num_rows, step)
        rows = graph.edges.rows(block).select(local)
        counts, sources = np.diff(rows.offsets), rows.values
        if not sources.size:
            continue
        into, out_of = np.repeat(task_of[block.start + local], counts), task_of[sources]
        share = graph.edges.num_edges_of(block) / sources.size
        own += share * _count(into[into == out_of], len(tasks))
        arriving += share * _count(np.maximum(into, out_of)[(into >= 0) & (out_of >= 0)], len(tasks))
    return TaskEdges(tuple(own.astype(int).tolist()), tuple(np.cumsum(arriving).astype(int).tolist()))


@dataclass(frozen=True)
class LikelyGraphs:
    """About how large the graphs of tasks are, with their context."""

    own_nodes: list[int]
    own_edges: list[int]
    seen_nodes: list[int]
    """Nodes of all tasks up to each, and their context."""
    seen_edges: list[int]

    @classmethod
    def of(cls, setup: RunSetup) -> LikelyGraphs:
        """Nodes as they are counted, of several tasks the share that their own nodes are; edges as they are likely."""
        own = [task.num_nodes for task in setup.stream]
        together = list(accumulate(own))
        rule = ContextRule.parse(setup.config.tasks.context)
        if rule.is_none:
            edges = count_task_edges(setup.graph, setup.stream)
            return cls(own, list(edges.own), together, list(edges.seen))
        about = (setup.graph, setup.stream, rule, setup.graph.edges.in_degrees(), setup.resources.threads)
        counted = setup.context_sizes.own(*about)
        nodes, edges_of_all = sum(one.num_nodes for one in counted.sizes), sum(counted.likely_edges)
        if needs_seen(setup.config, 0, 1):
            seen = setup.context_sizes.seen(*about)
            nodes, edges_of_all = seen.sizes[0].num_nodes, seen.likely_edges[0]
        shares = [1.0 if rule.hops is None else done / together[-1] for done in together]
        return cls(
            [one.num_nodes for one in counted.sizes],
            list(counted.likely_edges),
            [int(share * nodes) for share in shares],
            [int(share * edges_of_all) for share in shares],
        )


def _count(tasks: NDArray[np.int32], num_tasks: int) -> NDArray[np.int64]:
    return np.bincount(tasks[tasks >= 0], minlength=num_tasks)

"""How many edges the graphs of tasks will have, from a sample of rows: most graphs lose some between their tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.store.graph import GraphStore
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


def _count(tasks: NDArray[np.int32], num_tasks: int) -> NDArray[np.int64]:
    return np.bincount(tasks[tasks >= 0], minlength=num_tasks)

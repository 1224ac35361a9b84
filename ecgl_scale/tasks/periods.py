"""Tasks by time: the values of an arrival column, and from which of them on each class counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.split import Ids, missing_column
from ecgl_scale.tasks.task_nodes import label_blocks

MAX_PERIODS = 1000
"""More distinct arrival values are time stamps, not periods."""


@dataclass(frozen=True, eq=False)
class Periods:
    """The periods of a node column in which nodes of classes with enough nodes have arrived."""

    values: NDArray[Any]
    """What the column has in each, ascending."""
    counts: Ids
    """Labelled nodes with an arrival, by label id."""
    begins: NDArray[Any]
    min_class_nodes: int
    batches: dict[int, NDArray[Any]]
    """Arrivals by the first row of each batch, as views of the mapped file."""

    @classmethod
    def find(cls, graph: GraphStore, column: str, min_class_nodes: int) -> Periods:
        """Look at labels and arrivals twice.

        Raises
        ------
        UsageError
            The column is missing or has too many values.
        """
        counts, begins = find_beginnings(graph, column, min_class_nodes)
        batches = {} if graph.nodes is None else dict(graph.nodes.blocks(column))
        found = cls(np.empty(0), counts, begins, min_class_nodes, batches)
        values: NDArray[Any] = np.empty(0)
        for start, labels in label_blocks(graph):
            arrivals = batches[start]
            new = np.unique(arrivals[(labels >= 0) & found.has_begun(labels, arrivals)])
            values = np.union1d(values, new) if values.size else new
            if values.size > MAX_PERIODS:
                raise UsageError(
                    f"column {column!r} has more than {MAX_PERIODS:,} distinct values",
                    where=graph.path,
                    expected="one value a period",
                    fix="add a column of years, months or other periods",
                )
        return cls(values, counts, begins, min_class_nodes, batches)

    def has_begun(self, labels: NDArray[Any], arrivals: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether the class of each node had enough nodes when it arrived."""
        return np.asarray((self.counts[labels] >= self.min_class_nodes) & (arrivals >= self.begins[labels]))

    def of_rows(self, start: int, labels: NDArray[Any]) -> Ids:
        """The period of each node of a batch, -1 for none."""
        arrivals = self.batches[start]
        periods = np.minimum(np.searchsorted(self.values, arrivals), max(self.values.size - 1, 0))
        return np.where(self.has_begun(labels, arrivals) & (self.values[periods] == arrivals), periods, -1)


def find_beginnings(graph: GraphStore, column: str, min_class_nodes: int) -> tuple[Ids, NDArray[Any]]:
    """Labelled nodes with an arrival, by label id; and the arrival at which each class has ``min_class_nodes`` of them.

    For a class that never has so many it is its last. Nodes that come later play no part, so a stream that ends
    earlier has the same tasks up to its end. Memory: 16 bytes for each of the first such nodes of a class.
    """
    if graph.nodes is None or column not in graph.nodes.names:
        raise missing_column(graph, column)
    counts: Ids = np.zeros(0, np.int64)
    firsts: list[tuple[Ids, NDArray[Any]]] = []
    for (_, labels), (_, arrivals) in zip(label_blocks(graph), graph.nodes.blocks(column), strict=True):
        has_come = (labels >= 0) & ~np.isnan(arrivals)
        more = np.bincount(labels[has_come], minlength=max(counts.size, int(labels.max(initial=-1)) + 1))
        more[: counts.size] += counts
        counts = more
        firsts.append((labels[has_come].astype(np.int64), arrivals[has_come]))
        of, at = (np.concatenate(parts) for parts in zip(*firsts, strict=True))
        order = np.lexsort((at, of))
        of, at = of[order], at[order]
        is_first = np.arange(of.size) - np.searchsorted(of, of) < min_class_nodes
        firsts = [(of[is_first], at[is_first])]
    if not counts.size:
        raise InvalidInputError("no node has a label", where=graph.path)
    [(of, at)] = firsts
    begins = np.zeros(counts.size, at.dtype)
    begins[of] = at  # those of a class ascend: the last one stays
    return counts, begins

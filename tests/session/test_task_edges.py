"""Edges of task graphs, from a sample: exact where every row is looked at, near where not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.session.setup import open_store, task_stream
from ecgl_scale.session.time import task_edges
from ecgl_scale.session.time.task_edges import count_task_edges
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.stream import TaskStream
from tests.session.streams import config_of


@pytest.fixture
def opened(store: Path) -> tuple[GraphStore, TaskStream]:
    config = config_of(store, None)
    graph = open_store(config)
    return graph, task_stream(graph, config)


def by_hand(graph: GraphStore, stream: TaskStream, last: int, first: int) -> int:
    """Edges between nodes of the tasks from ``first`` to ``last``."""
    inside = {int(node) for task in stream[first : last + 1] for node in task.node_ids}
    return sum(int(source) in inside for node in inside for source in graph.edges.in_neighbours(node))


def test_where_every_row_is_looked_at_the_counts_are_exact(
    opened: tuple[GraphStore, TaskStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, stream = opened
    monkeypatch.setattr(task_edges, "SAMPLE_ROWS", graph.num_nodes)
    found = count_task_edges(graph, stream)
    assert list(found.own) == [by_hand(graph, stream, task.index, task.index) for task in stream]
    assert list(found.seen) == [by_hand(graph, stream, task.index, 0) for task in stream]


def test_a_sample_is_near(opened: tuple[GraphStore, TaskStream], monkeypatch: pytest.MonkeyPatch) -> None:
    graph, stream = opened
    exact = count_task_edges(graph, stream)
    monkeypatch.setattr(task_edges, "SAMPLE_ROWS", 100)
    found = count_task_edges(graph, stream)
    np.testing.assert_allclose(found.own, exact.own, rtol=0.4)
    np.testing.assert_allclose(found.seen, exact.seen, rtol=0.4)

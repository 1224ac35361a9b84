"""A stream that is built task by task is the one that is drawn at once; a condition chooses what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.base.events import Note
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.stream import TaskStream
from ecgl_scale.tasks.where import Where

LABELS = np.array([0, 1, 2, -1, 0, 1, 2, 2, 0, 1, 3, 0, 1, 2, 0, 1, 2, 0, 1, 2])
YEARS = np.array([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
HEAT = np.where(np.arange(20) == 4, np.nan, np.arange(20) / 2)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    path = tmp_path_factory.mktemp("store") / "graph"
    columns = {"year": YEARS, "heat": HEAT, "is new": YEARS == 2}
    return GraphStore.from_edge_index(np.zeros((2, 0), np.int64), None, LABELS, path, num_nodes=20, columns=columns)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("year == 1", YEARS == 1),
        ("year!=1", YEARS != 1),
        (" heat <= 2.5 ", HEAT <= 2.5),
        ("heat < 2.5", HEAT < 2.5),
        ("heat>=8", HEAT >= 8),
        ("heat > 8", HEAT > 8),
        ("heat != 1", (HEAT != 1) & ~np.isnan(HEAT)),
        ("label in 0, 3", np.isin(LABELS, [0, 3])),
        ("label == '3'", LABELS == 3),
        ("is new == true", YEARS == 2),
    ],
)
def test_a_condition_chooses_the_nodes_that_meet_it(graph: GraphStore, text: str, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(Where.parse(text).select(graph), np.flatnonzero(wanted))


@pytest.mark.parametrize("text", ["", "year", "== 3", "year ==", "year = 3", "year == soon", "month == 3"])
def test_what_is_no_condition_is_refused(graph: GraphStore, text: str) -> None:
    with pytest.raises(UsageError):
        Where.parse(text).select(graph)


def test_tasks_that_are_added_are_those_of_the_whole_stream(graph: GraphStore, tmp_path: Path) -> None:
    whole = TaskStream.class_incremental(graph, classes_per_task=2, min_class_nodes=1, seed=3)
    grown = TaskStream.class_incremental(graph, classes_per_task=2, min_class_nodes=1, seed=3, class_order=[0, 1])
    grown.save(tmp_path / "tasks.parquet")
    grown = TaskStream.load(tmp_path / "tasks.parquet", graph).add(graph, "label in 2, 3")
    assert [(task.name, task.classes) for task in grown] == [(task.name, task.classes) for task in whole]
    assert (grown.split_hash, grown.classes) == (whole.split_hash, whole.classes)
    np.testing.assert_array_equal(grown.labels, whole.labels)
    by_time = TaskStream.time_incremental(graph, column="year")
    first = by_time.until(graph, 1)
    assert (len(first), first.split_hash) == (1, by_time.hash_of(1))
    again = first.add(graph, "year == 2")
    assert again.split_hash == by_time.split_hash
    assert again[1].name == by_time[1].name == "year 2"


def test_classes_that_are_too_small_wait_for_more_nodes(graph: GraphStore) -> None:
    notes: list[str] = []
    stream = TaskStream.empty(graph).add(
        graph, "year == 1", on_event=lambda event: notes.append(event.text) if isinstance(event, Note) else None
    )
    stream = stream.add(graph, [10, 11, 12, 13], "more")
    assert [task.classes for task in stream] == [(0, 1, 2), (0, 1, 2)]
    assert 10 not in stream[1].node_ids
    assert stream[1].name == "more"


@pytest.mark.parametrize(
    ("nodes", "error", "words"),
    [
        ([0, 1], UsageError, "node 0 is in a task already"),
        ([25], UsageError, "25"),
        ([3], InvalidInputError, "1 have no label"),
        ("year == 1", InvalidInputError, "9 are in a task already"),
        ("label == 3", InvalidInputError, "1 are of classes with fewer than 2 nodes"),
    ],
)
def test_nodes_that_cannot_be_a_task_are_refused(
    graph: GraphStore, nodes: object, error: type[Exception], words: str
) -> None:
    stream = TaskStream.empty(graph).add(graph, "year == 1")
    with pytest.raises(error, match=words):
        stream.add(graph, nodes)
    assert len(stream) == 1


def test_a_stream_is_loaded_for_a_store_that_has_grown_or_lost_nodes_but_not_for_another(tmp_path: Path) -> None:
    edges = np.zeros((2, 0), np.int64)
    graph = GraphStore.from_edge_index(edges, None, LABELS, tmp_path / "graph", num_nodes=20)
    stream = TaskStream.class_incremental(graph)
    stream.save(tmp_path / "tasks.parquet")
    grown = graph.append(y=np.array([5, 4, 0]), num_nodes=3)
    with pytest.raises(InvalidInputError, match="of another store"):
        TaskStream.load(tmp_path / "tasks.parquet", grown)
    lost = np.where(np.arange(20) < 3, -1, LABELS)
    fewer = GraphStore.from_edge_index(edges, None, lost, tmp_path / "fewer", num_nodes=20)
    for other in (grown, fewer):
        found = TaskStream.load(tmp_path / "tasks.parquet", other, may_have_grown=True)
        np.testing.assert_array_equal(found.labels[:20], stream.labels)
    other = GraphStore.from_edge_index(edges, None, np.roll(LABELS, 1), tmp_path / "other", num_nodes=20)
    with pytest.raises(InvalidInputError, match="of another store"):
        TaskStream.load(tmp_path / "tasks.parquet", other, may_have_grown=True)


def test_each_generation_is_a_task(tmp_path: Path) -> None:
    edges = np.zeros((2, 0), np.int64)
    graph = GraphStore.from_edge_index(edges, None, LABELS[:10], tmp_path / "graph", num_nodes=10)
    graph = graph.append(y=np.array([-1, -1]), num_nodes=2).append(y=LABELS[10:], num_nodes=10)
    stream = TaskStream.of_generations(graph)
    assert [(task.name, task.generation) for task in stream] == [("generation 0", 0), ("generation 2", 2)]
    assert [task.node_ids.tolist() for task in stream] == [
        [0, 1, 2, 4, 5, 6, 7, 8, 9],
        [13, 14, 15, 16, 17, 18, 19, 20, 21],
    ]
    assert stream.num_nodes == graph.num_nodes
    earlier = GraphStore.open(graph.path, generation=0)
    assert TaskStream.of_generations(earlier).split_hash == stream.hash_of(1)

"""Tasks hold the classes, nodes and parts that the protocol gives them; a saved stream comes back, or is refused."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecgl_scale.base.events import Note
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store import build_nodes
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.nodes import write_columns
from ecgl_scale.tasks.split import part_counts
from ecgl_scale.tasks.stream import DroppedClass, TaskStream

SHARED = Path(__file__).parents[3] / "shared" / "data"
NO_EDGES = np.zeros((2, 0), np.int64)
USUAL = (0.6, 0.2, 0.2)


def store_of(path, labels, **columns):
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    return GraphStore.from_edge_index(NO_EDGES, None, labels, path, num_nodes=len(labels), columns=arrays)


@pytest.fixture(scope="module")
def labels():
    """Seven classes of 3 to 40 nodes, some nodes without a label."""
    random = np.random.default_rng(5)
    drawn = np.repeat([-1, 0, 1, 2, 3, 4, 5, 6], [9, 40, 3, 17, 20, 5, 8, 30])
    return random.permutation(drawn)


@pytest.fixture(scope="module")
def graph(tmp_path_factory, labels):
    """Its columns come in batches of 50 rows."""
    random = np.random.default_rng(6)
    year = random.choice([2018, 2019, 2021], labels.size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_nodes, "write_columns", partial(write_columns, batch_rows=50))
        path = tmp_path_factory.mktemp("tasks") / "store"
        return store_of(path, labels, year=year, split=random.integers(-1, 3, labels.size).astype(np.int8))


def naive_split(ids_by_class, seed, fractions=USUAL, extra=()):
    """The documented split, class by class."""
    parts = {}
    for label, ids in ids_by_class.items():
        counts = part_counts(len(ids), fractions)
        shuffled = np.random.default_rng([seed, label, *extra]).permutation(len(ids))
        for place, position in enumerate(shuffled.tolist()):
            parts[ids[position]] = 0 if place < counts[0] else 1 if place < counts[0] + counts[1] else 2
    return parts


def parts_of(task):
    """Part by id; also checks that parts and ids fit each other."""
    found = {}
    for part, name in enumerate(("train", "valid", "test")):
        ids = task.part_ids(name)
        assert np.all(np.diff(ids) > 0)
        assert not found.keys() & set(ids.tolist())
        found.update(dict.fromkeys(ids.tolist(), part))
    assert found.keys() <= set(task.node_ids.tolist())
    assert [found.get(node, -1) for node in task.node_ids.tolist()] == task.parts.tolist()
    return found


def notes_of(events):
    return [event.text for event in events if isinstance(event, Note)]


# --- class by class


def test_blocks_of_classes_become_tasks_and_a_class_alone_at_the_end_is_dropped(graph, labels):
    events = []
    tasks = TaskStream.class_incremental(graph, classes_per_task=2, on_event=events.append)
    assert [task.classes for task in tasks] == [(0, 1), (2, 3), (4, 5)]
    assert [task.index for task in tasks] == [0, 1, 2]
    assert tasks.dropped == (DroppedClass(6, 30, "alone in the last task"),)
    assert notes_of(events) == ["class 6 (30 nodes) is in no task: alone in the last task"]
    for task in tasks:
        np.testing.assert_array_equal(task.node_ids, np.flatnonzero(np.isin(labels, task.classes)))
        assert parts_of(task).keys() == set(task.node_ids.tolist())


@pytest.mark.parametrize(("k", "wanted"), [(1, [1] * 7), (3, [3, 3]), (4, [4, 3]), (5, [5, 2]), (7, [7]), (50, [7])])
def test_a_last_block_of_several_classes_is_kept(graph, k, wanted):
    assert [len(task.classes) for task in TaskStream.class_incremental(graph, classes_per_task=k)] == wanted


def test_the_split_is_the_documented_one(graph, labels):
    for task in TaskStream.class_incremental(graph, classes_per_task=3, seed=7):
        by_class = {label: np.flatnonzero(labels == label).tolist() for label in task.classes}
        assert parts_of(task) == naive_split(by_class, 7)


def test_the_split_of_a_class_does_not_depend_on_the_tasks(graph):
    parts = []
    for settings in ({"classes_per_task": 2}, {"classes_per_task": 6}, {"class_order": [5, 3, 1, 4, 2, 0]}):
        stream = TaskStream.class_incremental(graph, seed=3, **settings)
        parts.append({node: part for task in stream for node, part in parts_of(task).items()})
    assert parts[0].keys() == parts[2].keys()
    assert parts[0] == parts[2] == {node: parts[1][node] for node in parts[0]}


def test_a_seed_gives_one_hash_and_another_seed_another(graph):
    hashes = [TaskStream.class_incremental(graph, seed=seed).split_hash for seed in (0, 0, 1)]
    assert hashes[0] == hashes[1] != hashes[2]
    digest = hashlib.sha256()
    for task in TaskStream.class_incremental(graph, seed=0):
        digest.update(len(task.node_ids).to_bytes(8, "little"))
        digest.update(b"".join(node.to_bytes(8, "little") for node in task.node_ids.tolist()))
        digest.update(bytes(part % 256 for part in task.parts.tolist()))
    assert hashes[0] == digest.hexdigest()


def test_a_class_order_decides_which_classes_come_together(graph, labels):
    events = []
    tasks = TaskStream.class_incremental(graph, class_order=[6, 1, 0, 5], on_event=events.append)
    assert [task.classes for task in tasks] == [(1, 6), (0, 5)]
    assert tasks.classes == (1, 6, 0, 5)
    assert {gone.label for gone in tasks.dropped} == {2, 3, 4}
    assert len(notes_of(events)) == 3
    assert [task.positions.tolist() for task in tasks] == [[0, 1], [2, 3]]
    wanted = [tasks.classes.index(label) if label in tasks.classes else -1 for label in labels.tolist()]
    assert tasks.labels.tolist() == wanted
    assert tasks.labels.dtype == tasks.labels_of(np.arange(3)).dtype == np.int64
    assert tasks.labels_of(np.array([7, 3])).tolist() == [wanted[7], wanted[3]]


def test_classes_with_too_few_nodes_are_left_out_before_blocks_are_cut(graph):
    tasks = TaskStream.class_incremental(graph, classes_per_task=2, min_class_nodes=8)
    assert [task.classes for task in tasks] == [(0, 2), (3, 5)]
    assert [(gone.label, gone.num_nodes) for gone in tasks.dropped] == [(1, 3), (4, 5), (6, 30)]
    assert tasks.dropped[0].reason == "fewer than 8 labelled nodes"


def test_seen_are_the_tasks_up_to_one(graph):
    tasks = TaskStream.class_incremental(graph, classes_per_task=3)
    assert (len(tasks), tasks.num_classes, tasks[-1].index) == (2, 6, 1)
    assert tasks.seen(tasks[0]) == [tasks[0]]
    assert tasks.seen(tasks[1]) == list(tasks) == list(tasks[:2])
    assert tasks.seen_positions(tasks[0]).tolist() == [0, 1, 2]
    assert tasks.seen_positions(tasks[1]).tolist() == [0, 1, 2, 3, 4, 5]
    other = TaskStream.class_incremental(graph, classes_per_task=3)
    with pytest.raises(UsageError, match="not of this stream"):
        tasks.seen(other[0])
    with pytest.raises(UsageError, match="no part 'all'"):
        tasks[0].part_ids("all")


# --- parts


@given(num_nodes=st.integers(0, 400), shares=st.tuples(*[st.integers(0, 20)] * 3).filter(lambda shares: shares[0] > 0))
def test_parts_add_up_are_near_their_share_and_not_empty(num_nodes, shares):
    fractions = tuple(share / sum(shares) for share in shares)
    counts = part_counts(num_nodes, fractions)
    assert sum(counts) == num_nodes
    used = sum(share > 0 for share in shares)
    for count, fraction in zip(counts, fractions, strict=True):
        assert count >= 0
        assert (count == 0) or fraction > 0
        if num_nodes >= used and fraction:
            assert count >= 1
        if all(fraction * num_nodes >= 1 for fraction in fractions if fraction):
            assert abs(count - fraction * num_nodes) < 1 + 1e-6


@pytest.mark.parametrize(
    ("num_nodes", "wanted"),
    [
        (1, (1, 0, 0)),
        (2, (1, 0, 1)),
        (3, (1, 1, 1)),
        (4, (2, 1, 1)),
        (5, (3, 1, 1)),
        (10, (6, 2, 2)),
        (93, (56, 18, 19)),
    ],
)
def test_small_classes_are_split_so_that_they_can_be_scored(num_nodes, wanted):
    assert part_counts(num_nodes, USUAL) == wanted


def test_fractions_may_leave_a_part_empty(graph):
    events = []
    tasks = TaskStream.class_incremental(graph, fractions=[0.8, 0, 0.2], on_event=events.append)
    assert all(task.valid_ids.size == 0 < task.test_ids.size for task in tasks)
    assert sum("has no valid node" in text for text in notes_of(events)) == 3


def test_the_stores_own_split_is_taken_as_it_is(graph, labels):
    column = graph.column("split")
    tasks = TaskStream.class_incremental(graph, split="store", seed=0)
    for task in tasks:
        np.testing.assert_array_equal(task.node_ids, np.flatnonzero(np.isin(labels, task.classes)))
        np.testing.assert_array_equal(task.parts, column[task.node_ids])
        assert len(parts_of(task)) < task.node_ids.size


def test_a_split_that_lacks_something_says_so(tmp_path):
    labels = [0, 0, 1, 1, 2, 2, 3, 3]
    graph = store_of(tmp_path / "a", labels, split=np.array([0, 1, 1, 1, 0, 0, 0, 0], np.int8))
    events = []
    TaskStream.class_incremental(graph, split="store", on_event=events.append)
    assert notes_of(events) == [
        "task 0 (classes 0, 1) has no test node",
        "task 0 (classes 0, 1) has no train node of the classes [1]",
        "task 1 (classes 2, 3) has no valid node",
        "task 1 (classes 2, 3) has no test node",
    ]
    graph = store_of(tmp_path / "b", labels, split=np.array([0, 1, 1, 1, 2, 2, 2, 2], np.int8))
    with pytest.raises(InvalidInputError, match=r"task 1 \(classes 2, 3\) has no node to train on"):
        TaskStream.class_incremental(graph, split="store")


# --- period by period


def test_periods_become_tasks_and_classes_may_return(tmp_path):
    labels = [3, 1, 1, 3, 0, 0, 1, 1, 2, -1]
    year = [2020, 2020, 2019, 2019, 2020, 2021, 2021, 2021, 2021, 2019]
    graph = store_of(tmp_path / "store", labels, year=year)
    tasks = TaskStream.time_incremental(graph, column="year", min_class_nodes=1)
    assert [task.name for task in tasks] == ["year 2019", "year 2020", "year 2021"]
    assert [task.classes for task in tasks] == [(1, 3), (0, 1, 3), (0, 1, 2)]
    assert tasks.classes == (1, 3, 0, 2)
    assert [task.positions.tolist() for task in tasks] == [[0, 1], [2, 0, 1], [2, 0, 3]]
    assert [task.node_ids.tolist() for task in tasks] == [[2, 3], [0, 1, 4], [5, 6, 7, 8]]
    assert tasks.seen_positions(tasks[1]).tolist() == [0, 1, 2]
    assert tasks.labels.tolist() == [1, 0, 0, 1, 2, 2, 0, 0, 3, -1]


def test_periods_are_split_class_by_class(graph, labels):
    year = graph.column("year")
    tasks = TaskStream.time_incremental(graph, column="year", seed=4)
    assert len(tasks) == 3
    for task, value in zip(tasks, (2018, 2019, 2021), strict=True):
        so_far = np.bincount(labels[(year <= value) & (labels >= 0)], minlength=labels.max() + 1)
        ids = np.flatnonzero((year == value) & (labels >= 0) & (so_far[labels] >= 2))
        np.testing.assert_array_equal(task.node_ids, ids)
        by_class = {label: [i for i in ids.tolist() if labels[i] == label] for label in task.classes}
        assert parts_of(task) == naive_split(by_class, 4, extra=[1 + task.index])


def test_small_classes_and_nodes_without_a_period_are_in_no_task(tmp_path):
    labels = [0, 0, 1, 0, 2, 2]
    graph = store_of(tmp_path / "store", labels, when=[1.5, np.nan, 7.0, 1.5, 0.5, 1.5])
    tasks = TaskStream.time_incremental(graph, column="when")
    assert [task.node_ids.tolist() for task in tasks] == [[0, 3, 5]]
    assert [task.name for task in tasks] == ["when 1.5"]
    assert tasks.dropped == (DroppedClass(1, 1, "fewer than 2 labelled nodes"),)
    assert 5 in tasks[0].train_ids
    tasks = TaskStream.time_incremental(graph, column="when", min_class_nodes=1)
    assert [task.node_ids.tolist() for task in tasks] == [[4], [0, 3, 5], [2]]
    assert tasks[0].train_ids.tolist() == [4]


@pytest.mark.parametrize("min_class_nodes", [1, 2, 5])
def test_tasks_of_a_time_stream_do_not_depend_on_what_comes_later(tmp_path, graph, labels, min_class_nodes):
    year = graph.column("year")
    whole = TaskStream.time_incremental(graph, column="year", seed=4, min_class_nodes=min_class_nodes)
    earlier = store_of(tmp_path / "store", np.where(year < 2021, labels, -1), year=year)
    first = TaskStream.time_incremental(earlier, column="year", seed=4, min_class_nodes=min_class_nodes)
    assert len(first) == len(whole) - 1
    assert whole.classes[: len(first.classes)] == first.classes
    assert whole.num_seen_classes(whole[1]) == len(first.classes)
    for one, other in zip(first, whole, strict=False):
        assert (one.name, one.classes, one.positions.tolist()) == (other.name, other.classes, other.positions.tolist())
        np.testing.assert_array_equal(one.node_ids, other.node_ids)
        np.testing.assert_array_equal(one.parts, other.parts)


def test_time_stamps_are_not_periods(tmp_path):
    graph = store_of(tmp_path / "store", np.zeros(1500, np.int64), when=np.arange(1500))
    with pytest.raises(UsageError, match="more than 1,000 distinct values"):
        TaskStream.time_incremental(graph, column="when")


# --- what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes_per_task": 0}, "0 classes a task"),
        ({"seed": -1}, "the seed is -1"),
        ({"min_class_nodes": 0}, "min_class_nodes is 0"),
        ({"split": "random"}, "the split is 'random'"),
        ({"fractions": (0.5, 0.5)}, "the fractions are"),
        ({"fractions": (0.5, 0.4, 0.2)}, "the fractions are"),
        ({"fractions": (1.2, -0.1, -0.1)}, "the fractions are"),
        ({"fractions": (0, 0.5, 0.5)}, "the fractions are"),
        ({"fractions": (float("nan"), 0.5, 0.5)}, "the fractions are"),
        ({"class_order": [0, 9]}, "no node has label 9"),
        ({"class_order": [0, -1]}, "no node has label -1"),
        ({"class_order": [0, 1, 0]}, "label 0 is in the class order more than once"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(graph, settings, message):
    with pytest.raises(UsageError, match=message):
        TaskStream.class_incremental(graph, **settings)


def test_a_store_without_what_is_needed_is_refused(tmp_path):
    bare = GraphStore.from_edge_index(NO_EDGES, path=tmp_path / "bare", num_nodes=4)
    with pytest.raises(UsageError, match="no node column 'label'"):
        TaskStream.class_incremental(bare)
    only_labels = store_of(tmp_path / "labels", [0, 0, 1, 1])
    with pytest.raises(UsageError, match="no node column 'split'"):
        TaskStream.class_incremental(only_labels, split="store")
    with pytest.raises(UsageError, match="no node column 'year'"):
        TaskStream.time_incremental(only_labels, column="year")
    unlabelled = store_of(tmp_path / "none", [-1, -1])
    with pytest.raises(InvalidInputError, match="no node has a label"):
        TaskStream.class_incremental(unlabelled)
    one_class = store_of(tmp_path / "one", [0, 0])
    with pytest.raises(InvalidInputError, match="there is no task"):
        TaskStream.class_incremental(one_class)


# --- kept in a file


def test_a_saved_stream_comes_back_the_same(tmp_path, graph):
    streams = [
        TaskStream.class_incremental(graph, seed=2, class_order=[4, 0, 6, 5, 1]),
        TaskStream.time_incremental(graph, column="year", split="store"),
    ]
    for stream in streams:
        stream.save(tmp_path / "tasks.parquet")
        again = TaskStream.load(tmp_path / "tasks.parquet", graph)
        assert (again.classes, again.dropped, again.seed) == (stream.classes, stream.dropped, stream.seed)
        assert again.split_hash == stream.split_hash
        np.testing.assert_array_equal(again.labels, stream.labels)
        for one, other in zip(again, stream, strict=True):
            assert (one.index, one.name, one.classes) == (other.index, other.name, other.classes)
            for name in ("positions", "node_ids", "train_ids", "valid_ids", "test_ids"):
                found, wanted = getattr(one, name), getattr(other, name)
                assert found.dtype == wanted.dtype
                np.testing.assert_array_equal(found, wanted)
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.parquet"]


def test_the_file_is_plain_parquet(tmp_path, graph):
    stream = TaskStream.class_incremental(graph)
    stream.save(tmp_path / "tasks.parquet")
    table = pq.read_table(tmp_path / "tasks.parquet")
    assert table.column_names == ["node", "task", "part", "position"]
    assert json.loads(table.schema.metadata[b"ecgl.tasks"])["split_hash"] == stream.split_hash


def test_tasks_of_another_store_are_refused(tmp_path, graph, labels):
    TaskStream.class_incremental(graph).save(tmp_path / "tasks.parquet")
    larger = store_of(tmp_path / "larger", [*labels.tolist(), 0])
    renamed = np.where(labels == 0, 1, np.where(labels == 1, 0, labels))
    for other in (
        larger,
        store_of(tmp_path / "renamed", renamed),
        store_of(tmp_path / "none", np.where(labels == 3, -1, 0)),
    ):
        with pytest.raises(InvalidInputError, match="of another store"):
            TaskStream.load(tmp_path / "tasks.parquet", other)


def rewrite(path, change_head=None, change_rows=None):
    table = pq.read_table(path)
    head = json.loads(table.schema.metadata[b"ecgl.tasks"])
    columns = {name: table[name].to_numpy().copy() for name in table.column_names}
    if change_head:
        change_head(head)
    if change_rows:
        change_rows(columns)
    changed = pa.table({name: pa.array(values) for name, values in columns.items()})
    pq.write_table(changed.replace_schema_metadata({b"ecgl.tasks": json.dumps(head).encode()}), path)


def move_one(columns):
    columns["part"][0] = (columns["part"][0] + 1) % 3


def swap_two(columns):
    columns["node"][[0, 1]] = columns["node"][[1, 0]]


def scatter_tasks(columns):
    columns["task"][:] = columns["task"][::-1].copy()


@pytest.mark.parametrize(
    ("change_head", "change_rows", "message"),
    [
        (None, move_one, "own hash"),
        (None, swap_two, "own hash"),
        (None, scatter_tasks, "order of tasks"),
        (lambda head: head.update(version=2), None, "version 2"),
        (lambda head: head.update(split_hash="0" * 64), None, "own hash"),
        (lambda head: head.pop("classes"), None, "no file of tasks"),
        (lambda head: head.pop("tasks"), None, "no file of tasks"),
        (lambda head: head["tasks"].pop(), None, "order of tasks"),
        (lambda head: head["tasks"][0].update(classes=[99]), None, "no file of tasks"),
        (lambda head: head.update(classes=head["classes"][::-1]), None, "other labels"),
    ],
)
def test_a_changed_file_is_refused(tmp_path, graph, change_head, change_rows, message):
    path = tmp_path / "tasks.parquet"
    TaskStream.class_incremental(graph).save(path)
    rewrite(path, change_head, change_rows)
    with pytest.raises(InvalidInputError, match=message):
        TaskStream.load(path, graph)


def test_what_is_no_file_of_tasks_is_refused(tmp_path, graph):
    (tmp_path / "text").write_text("hello")
    pq.write_table(pa.table({"node": [1]}), tmp_path / "other")
    TaskStream.class_incremental(graph).save(tmp_path / "cut")
    (tmp_path / "cut").write_bytes((tmp_path / "cut").read_bytes()[:-10])
    for name in ("text", "other", "cut", "missing"):
        with pytest.raises(InvalidInputError, match="no file of tasks"):
            TaskStream.load(tmp_path / name, graph)


# --- real graphs


@pytest.mark.realdata
@pytest.mark.parametrize(("name", "k", "num_tasks"), [("coauthor_cs", 3, 5), ("amazon_computers", 2, 5)])
def test_the_fixed_split_of_a_real_graph_is_60_20_20_in_every_class(tmp_path, name, k, num_tasks):
    if not (SHARED / f"{name}.npz").is_file():
        pytest.skip("the real data is not here")
    with np.load(SHARED / f"{name}.npz", allow_pickle=False) as content:
        labels = content["y"]
    with np.load(SHARED / "splits" / f"{name}.npz", allow_pickle=False) as content:
        graph = store_of(tmp_path / "store", labels, split=content["split"])
    tasks = TaskStream.class_incremental(graph, classes_per_task=k, split="store")
    assert (len(tasks), len(tasks.dropped)) == (num_tasks, 0)
    seeded = TaskStream.class_incremental(graph, classes_per_task=k)
    for fixed, drawn in zip(tasks, seeded, strict=True):
        for part in ("train", "valid", "test"):
            assert abs(fixed.part_ids(part).size - drawn.part_ids(part).size) <= k

"""An append writes what is new, to the store's own rules, and the graph is that of one ingest of everything."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import sparse

from ecgl_scale import GraphStore
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import DoesNotFitError, InvalidInputError, StoreError, UsageError
from ecgl_scale.store import append
from ecgl_scale.store.append import append_store
from ecgl_scale.store.build import MemoryShares, build_store
from ecgl_scale.store.edges import write_older
from ecgl_scale.store.edges.plan import BuildOptions, EdgePlan
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.verify import verify_store
from ecgl_scale.store.view import read_view
from ecgl_scale.units import MIB
from tests.resources import at
from tests.store.graphs import KEEP_ALL, bytes_of, random_edges
from tests.store.growth import assert_grown, files_of_generation, grow_store, pairs_in, parts_of, stored_edges

DROP = BuildOptions()
SYMMETRIC = BuildOptions(symmetrise=True)
WITH_LOOPS = BuildOptions(self_loops="add")
OPTIONS = pytest.mark.parametrize(
    "options", [DROP, SYMMETRIC, WITH_LOOPS, KEEP_ALL], ids=["drop", "symmetric", "with loops", "keep all"]
)
STEPS = {
    "into the last block": (1_000, 1_400, 1_900),
    "past the last block": (65_530, 65_545, 200_000),
    "at its end": (65_536, 65_600, 131_072, 131_080),
    "edges alone": (150_000, 150_000, 150_000),
    "one node": (1, 2, 70_000),
}


@OPTIONS
@pytest.mark.parametrize("num_nodes", STEPS.values(), ids=STEPS)
def test_a_store_that_grew_has_the_edges_of_one_ingest(tmp_path, num_nodes, options):
    parts = parts_of(num_nodes, 1_500)
    view = grow_store(tmp_path / "g", num_nodes, parts, options)
    assert view.generation == len(num_nodes) - 1
    assert [entry.num_nodes for entry in view.head.generations] == [*num_nodes]
    assert_grown(tmp_path / "g", parts, num_nodes[-1], options)
    verify_store(tmp_path / "g", at())


def test_an_append_leaves_every_older_byte_where_it_was(tmp_path):
    grow_store(tmp_path / "g", [70_000], parts_of([70_000], 500), DROP)
    before = bytes_of(tmp_path / "g")
    append_store(array_source(random_edges(80_000, 500, 3), num_nodes=10_000), tmp_path / "g", at())
    after = bytes_of(tmp_path / "g")
    assert after.pop("generations/0000.json") == before.pop("manifest.json")
    assert {name: after[name] for name in before} == before
    head = json.loads(after["manifest.json"])
    assert (head["format_version"], len(head["generations"])) == (2, 2)
    assert not list(tmp_path.glob(".*"))


@OPTIONS
def test_the_bytes_depend_on_neither_memory_nor_threads_nor_who_works(tmp_path, monkeypatch, options):
    num_nodes = [90_000, 200_000, 210_000]
    parts = parts_of(num_nodes, 6_000)
    stores = []
    small = MemoryShares(threads=3, block_edges=4_000, kept_bytes=0, share_bytes=1 << 15)
    for name, shares, executor in (
        ("roomy", None, None),
        ("small", small, None),
        ("workers", small, ScriptedExecutor(tmp_path / "counts")),
    ):
        if shares is not None:
            monkeypatch.setattr(append.MemoryShares, "of", lambda *_, **__: small)
            monkeypatch.setattr(write_older, "READ_BYTES", 1 << 14)
        monkeypatch.setattr(write_older, "FILE_EDGES", 2_000)
        resources = at() if executor is None else at(executor=executor)
        grow_store(tmp_path / name, num_nodes, parts, options, resources)
        stores.append(bytes_of(tmp_path / name))
    assert stores[0] == stores[1] == stores[2]
    assert list((tmp_path / "counts").glob("append.older/*"))
    assert "generations/0002/older/00001.arrow" in stores[0]


def test_files_are_cut_between_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(write_older, "FILE_EDGES", 300)
    num_nodes = [400_000, 400_000]
    view = grow_store(tmp_path / "g", num_nodes, [random_edges(400_000, 10), random_edges(400_000, 1_000, 1)], KEEP_ALL)
    older = view.manifest.appended[0].older
    assert len(older.blocks) == 7
    assert len(older.file_blocks) > 2
    assert sum(older.block_edges) == 1_000
    first = pairs_in(tmp_path / "g/generations/0001/older/00000.arrow")
    assert len(first) == sum(older.block_edges[: older.file_blocks[0]])


def test_an_append_of_edges_that_are_all_there_has_no_files(tmp_path):
    edges = random_edges(1_000, 300)
    view = grow_store(tmp_path / "g", [1_000, 1_000], [edges, edges[:, ::-1]], DROP)
    assert view.manifest.appended[0].edges.num_edges == 0
    assert [*files_of_generation(tmp_path / "g", 1)] == ["manifest.json"]
    assert_grown(tmp_path / "g", [edges, edges], 1_000, DROP)


def test_an_append_of_nothing_is_a_generation_without_files(tmp_path):
    grow_store(tmp_path / "g", [100], [random_edges(100, 50)], WITH_LOOPS)
    append_store(array_source(adds=True), tmp_path / "g", at())
    assert [*files_of_generation(tmp_path / "g", 1)] == ["manifest.json"]
    assert GraphStore.open(tmp_path / "g").generation == 1
    verify_store(tmp_path / "g", at())


def test_a_store_that_has_grown_can_be_replaced_as_a_whole(tmp_path):
    grow_store(tmp_path / "g", [100, 200], parts_of([100, 200], 50), DROP)
    build_store(array_source(random_edges(10, 5), num_nodes=10), tmp_path / "g", at(), overwrite=True)
    graph = GraphStore.open(tmp_path / "g")
    assert (graph.num_nodes, graph.generation) == (10, 0)
    assert not (tmp_path / "g/generations").exists()


def test_buckets_end_where_blocks_of_new_rows_may_begin():
    assert EdgePlan.of(2**30).bucket_bits == 21
    assert EdgePlan.of_growth(2**30).bucket_bits == 16
    assert EdgePlan.of_growth(1_000) == EdgePlan.of(1_000)
    plan = EdgePlan.of_growth(70_000 + 65_536)
    blocks = plan.cut_blocks(np.zeros(plan.num_buckets, np.int64), 131_072)
    assert [(block.index, block.start, block.stop) for block in blocks] == [(0, 131_072, 135_536)]
    assert plan.cut_blocks(np.zeros(plan.num_buckets, np.int64), 196_608) == []


def columns_store(path, *, x=None, columns=None, y=None, num_nodes=50):
    build_store(array_source(random_edges(num_nodes, 80), x=x, y=y, num_nodes=num_nodes, columns=columns), path, at())
    return path


def numbers(rows, columns=3, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


@pytest.mark.parametrize("as_sparse", [False, True])
@pytest.mark.parametrize("stored", ["dense", "sparse"])
def test_features_go_to_the_stores_kind(tmp_path, stored, as_sparse):
    old, new = numbers(50), numbers(20, seed=1) * (np.arange(20) % 5 == 0)[:, None]
    build_store(array_source(num_nodes=50, x=old), tmp_path / "g", at(), features_as=stored)
    append_store(
        array_source(x=sparse.csr_matrix(new) if as_sparse else new.astype(np.float64), adds=True), tmp_path / "g", at()
    )
    graph = GraphStore.open(tmp_path / "g")
    assert graph.manifest.features.kind == stored
    np.testing.assert_array_equal(graph.features.rows_dense(np.arange(70)), np.concatenate([old, new]))


def test_columns_are_those_of_the_store_and_labels_may_be_missing(tmp_path):
    year = np.arange(50)
    split = np.zeros(50, np.int8)
    store = columns_store(tmp_path / "g", y=np.arange(50) % 3, columns={"year": year, "split": split})
    append_store(array_source(columns={"year": np.full(4, 7.0)}, adds=True), store, at())
    append_store(array_source(y=[3, 1], columns={"year": np.array([8, 9], np.int8)}, adds=True), store, at())
    graph = GraphStore.open(store)
    assert graph.num_classes == 4
    assert graph.column("label")[50:].tolist() == [-1, -1, -1, -1, 3, 1]
    assert graph.column("split")[50:].tolist() == [-1] * 6
    assert graph.column("year")[50:].tolist() == [7, 7, 7, 7, 8, 9]
    assert graph.column("year").dtype == np.int64


BAD_NODES = {
    "no features": ({"num_nodes": 2, "columns": {"year": [1, 2]}}, "have no features"),
    "other features": ({"x": numbers(2, 4), "columns": {"year": [1, 2]}}, "4 features each"),
    "strings": ({"x": np.array([["a"] * 3] * 2), "columns": {"year": [1, 2]}}, "strings"),
    "a column less": ({"x": numbers(2)}, "no column 'year'"),
    "a column more": ({"x": numbers(2), "columns": {"year": [1, 2], "month": [1, 2]}}, "no node column 'month'"),
    "other values": ({"x": numbers(2), "columns": {"year": [1, 2.5]}}, r"2.5 cannot be stored as int64[\s\S]*row 1"),
    "not a number": ({"x": numbers(2), "columns": {"year": [1, np.nan]}}, r"nan cannot be stored"),
    "no class": ({"x": numbers(2), "y": [1, -4], "columns": {"year": [1, 2]}}, r"label -4 is not a class[\s\S]*row 1"),
    "an unknown node": (
        {"edge_index": [[0, 1], [52, 7]], "x": numbers(2), "columns": {"year": [1, 2]}},
        r"edge 0 -> 52 names a node that does not exist[\s\S]*row 0[\s\S]*ids from 0 to 51",
    ),
    "a negative node": ({"edge_index": [[0, -1], [2, 7]]}, r"edge -1 -> 7[\s\S]*row 1[\s\S]*ids from 0 to 49"),
}


@pytest.mark.parametrize(("given", "message"), BAD_NODES.values(), ids=BAD_NODES)
def test_what_does_not_fit_is_refused_and_nothing_is_written(tmp_path, given, message):
    store = columns_store(tmp_path / "g", x=numbers(50), y=np.arange(50) % 3, columns={"year": np.arange(50)})
    before = bytes_of(store)
    with pytest.raises(InvalidInputError, match=message):
        append_store(array_source(given.pop("edge_index", None), **given, adds=True), store, at())
    assert bytes_of(store) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g"]
    assert not (store / "generations").exists()


def test_a_store_without_features_refuses_them(tmp_path):
    store = columns_store(tmp_path / "g")
    with pytest.raises(InvalidInputError, match="the store has none"):
        append_store(array_source(x=numbers(2), adds=True), store, at())


def test_a_store_without_columns_refuses_labels(tmp_path):
    store = columns_store(tmp_path / "g")
    with pytest.raises(InvalidInputError, match=r"no node column 'label'[\s\S]*its columns: none"):
        append_store(array_source(y=[1], adds=True), store, at())


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"symmetrise": True}, "symmetrise is True"),
        ({"keep_duplicates": True}, "keep_duplicates is True"),
        ({"self_loops": "add"}, "self_loops is add"),
        ({"features_as": "sparse"}, "features_as is sparse"),
        ({"feature_dtype": "float16"}, "feature_dtype is float16"),
    ],
)
def test_an_option_that_contradicts_the_store_is_refused(tmp_path, given, word):
    store = columns_store(tmp_path / "g", x=numbers(50))
    with pytest.raises(UsageError, match=word):
        append_store(array_source([[0], [1]], adds=True), store, at(), **given)


def test_options_of_the_store_may_be_repeated(tmp_path):
    grow_store(tmp_path / "g", [100], [random_edges(100, 50)], SYMMETRIC)
    append_store(array_source([[0], [1]], adds=True), tmp_path / "g", at(), symmetrise=True, self_loops="drop")
    assert {(0, 1), (1, 0)} <= set(stored_edges(tmp_path / "g"))


def test_added_loops_go_to_new_nodes_alone(tmp_path):
    view = grow_store(tmp_path / "g", [10, 13], [np.empty((2, 0), int), np.array([[0, 12], [0, 12]])], WITH_LOOPS)
    assert view.manifest.appended[0].edges.num_edges == 3
    assert view.manifest.appended[0].edges.dropped_self_loops == 2
    assert sorted(stored_edges(tmp_path / "g")) == [(node, node) for node in range(13)]


def test_an_append_costs_what_is_new_whatever_the_store_has(tmp_path):
    """Files of the generation and the head, against 8 bytes an edge and a node, features and columns."""
    num_new, num_edges, num_features = 2_700, 20_000, 100  # a little more than a chunk of features
    written = []
    for num_nodes in (70_000, 400_000):
        edges = random_edges(num_nodes, 3 * num_nodes)
        store = tmp_path / f"g{num_nodes}"
        x = np.ones((num_nodes, num_features), np.float32)
        build_store(array_source(edges, x=x, y=np.arange(num_nodes) % 5), store, at())
        before = bytes_of(store)
        rng = np.random.default_rng(1)
        fresh = np.stack([rng.integers(0, num_nodes, num_edges), num_nodes + rng.integers(0, num_new, num_edges)])
        new_x = numbers(num_new, num_features)
        append_store(array_source(fresh[::-1], x=new_x, y=np.arange(num_new) % 5), store, at())
        after = bytes_of(store)
        written.append(
            sum(
                len(data)
                for name, data in after.items()
                if before.get(name) != data and name != "generations/0000.json"
            )
        )
    new = 8 * num_edges + 8 * num_new + new_x.nbytes + 4 * num_new
    assert max(written) <= 1.2 * new
    assert abs(written[0] - written[1]) < 0.02 * new


def test_an_append_from_an_older_generation_is_refused(tmp_path):
    grow_store(tmp_path / "g", [100], [random_edges(100, 50)], DROP)
    first = GraphStore.open(tmp_path / "g")
    second = first.append([[0], [1]])
    assert (first.generation, second.generation) == (0, 1)
    with pytest.raises(StoreError, match=r"append to generation 0[\s\S]*its newest one, 1"):
        first.append([[2], [3]])
    with pytest.raises(StoreError, match="append to generation 0"):
        append_store(array_source([[2], [3]], adds=True), f"{tmp_path / 'g'}#generation=0", at())
    assert read_view(tmp_path / "g").generation == 1


def test_python_appends_as_it_builds(tmp_path):
    graph = GraphStore.from_edge_index(
        [[0, 1], [1, 2]], numbers(3), [0, 1, 0], tmp_path / "g", columns={"year": [1, 2, 3]}
    )
    new = numbers(2, seed=5)
    grown = graph.append([[0, 4, 0], [4, 3, 1]], new, [2, 1], columns={"year": [4, 4]})
    assert graph.num_nodes == 3
    assert (grown.num_nodes, grown.num_edges, grown.num_classes) == (5, 5, 3)
    assert grown.to_edge_index().tolist() == [[0, 0, 1, 4, 0], [1, 1, 2, 3, 4]]
    np.testing.assert_array_equal(grown.features.rows_dense([3, 4]), new)
    assert grown.column("year").tolist() == [1, 2, 3, 4, 4]


def test_too_little_memory_is_refused_with_the_formula(tmp_path):
    grow_store(tmp_path / "g", [100], [random_edges(100, 50)], DROP)
    with pytest.raises(DoesNotFitError, match="to work in"):
        append_store(array_source([[0], [1]], adds=True), tmp_path / "g", at(memory="60MiB"))


def test_an_append_keeps_to_its_budget(tmp_path):
    num_nodes, num_edges = 300_000, 10_000_000  # 180 MiB where there is room
    grow_store(tmp_path / "g", [num_nodes], [random_edges(num_nodes, 1_000)], DROP)
    edges = np.random.default_rng(2).integers(0, num_nodes, (2, num_edges), dtype=np.int32)
    source = array_source(edges, num_nodes=10)
    budget = own_memory_bytes() + 100 * MIB
    with PeakSampler() as sampler:
        append_store(source, tmp_path / "g", at(memory=budget))
    assert sampler.peak_bytes <= budget


def test_a_full_disk_is_seen_before_the_first_byte(tmp_path, monkeypatch):
    grow_store(tmp_path / "g", [100], [random_edges(100, 50)], DROP)
    monkeypatch.setattr("ecgl_scale.store.build.free_bytes", lambda _: 1_000)
    before = bytes_of(tmp_path / "g")
    with pytest.raises(DoesNotFitError, match="the disk is short"):
        append_store(array_source([[0], [1]], adds=True), tmp_path / "g", at())
    assert bytes_of(tmp_path / "g") == before

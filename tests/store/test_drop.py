"""A dropped node is gone for every reader at once, and from the disk when the store is compacted."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import scipy.sparse

from ecgl_scale import GraphStore
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import CorruptStoreError, InvalidInputError
from ecgl_scale.store import drop
from ecgl_scale.store.append import append_store
from ecgl_scale.store.build import build_store
from ecgl_scale.store.compact import compact_store
from ecgl_scale.store.compose import generations_of
from ecgl_scale.store.drop import drop_nodes
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.features.files import dense_matrix
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.sources.npz import open_npz_source
from ecgl_scale.store.verify import verify_store
from ecgl_scale.tasks.graphs import extract_graph
from tests import naive
from tests.resources import at
from tests.store.graphs import KEEP_ALL, bytes_of, random_edges

OPTIONS = {
    "drop": BuildOptions(),
    "symmetric": BuildOptions(symmetrise=True),
    "with loops": BuildOptions(self_loops="add"),
    "keep all": KEEP_ALL,
}


class Twin:
    """What a store that grows and loses nodes must hold, kept in the plainest way."""

    def __init__(self, options: BuildOptions, kind: str, seed: int) -> None:
        self.options, self.kind = options, kind
        self.random = np.random.default_rng(seed)
        self.edges = np.empty((2, 0), np.int64)
        self.x = np.empty((0, 5), np.float32)
        self.y = np.empty(0, np.int64)
        self.year = np.empty(0, np.int64)
        self.dropped: set[int] = set()

    def arrive(self, num_nodes: int, num_edges: int):
        """New nodes, and edges between those that are there."""
        x = self.random.standard_normal((num_nodes, 5)).astype(np.float32)
        x[self.random.random(x.shape) < 0.7] = 0
        y = self.random.integers(-1, 4, num_nodes)
        if not self.y.size:
            y[:4] = range(4)
        year = self.random.integers(1990, 2020, num_nodes)
        total = self.y.size + num_nodes
        edges = random_edges(total, num_edges, int(self.random.integers(1 << 30)))
        gone = np.array(sorted(self.dropped), np.int64)
        edges = edges[:, ~np.isin(edges, gone).any(axis=0)]
        self.edges = np.concatenate([self.edges, edges], axis=1)
        self.x, self.y = np.concatenate([self.x, x]), np.concatenate([self.y, y])
        self.year = np.concatenate([self.year, year])
        return self._source(edges, x, y, year)

    def _source(self, edges, x, y, year):
        features = scipy.sparse.csr_array(x) if self.kind == "sparse" else x
        return array_source(edges, x=features, y=y, num_nodes=y.size, columns={"year": year}, adds=True)

    def build(self, source, path) -> None:
        build_store(source, path, at(), options=self.options, features_as=self.kind)

    def drop(self, count: int) -> np.ndarray:
        ids = np.unique(self.random.choice(self.y.size, count))
        self.dropped.update(ids.tolist())
        return ids

    @property
    def live(self) -> np.ndarray:
        return np.setdiff1d(np.arange(self.y.size), sorted(self.dropped))

    def rest(self):
        """A source of what is left, numbered anew."""
        new = np.full(self.y.size, -1)
        new[self.live] = np.arange(self.live.size)
        edges = new[self.edges]
        return self._source(
            edges[:, (edges >= 0).all(axis=0)], self.x[self.live], self.y[self.live], self.year[self.live]
        )

    def live_edges(self) -> list[tuple[int, int]]:
        """Edges that the store must show, with the numbers of its rows."""
        options = self.options
        found, _, _ = naive.stored_edges(
            [*zip(*self.edges.tolist(), strict=True)],
            self.y.size,
            symmetrise=options.symmetrise,
            keep_duplicates=options.keep_duplicates,
            self_loops=options.self_loops,
        )
        return sorted(edge for edge in found if not self.dropped.intersection(edge))

    def assert_shown(self, path) -> GraphStore:
        """Every reader sees the graph without the dropped nodes."""
        graph = GraphStore.open(path)
        edges = graph.to_edge_index()
        assert sorted(zip(*edges.tolist(), strict=True)) == self.live_edges()
        assert (graph.num_edges, graph.num_dropped) == (edges.shape[1], len(self.dropped))
        np.testing.assert_array_equal(graph.edges.in_degrees(), np.bincount(edges[1], minlength=self.y.size))
        np.testing.assert_array_equal(graph.edges.out_degrees(), np.bincount(edges[0], minlength=self.y.size))
        gone = sorted(self.dropped)
        x, y = self.x.copy(), self.y.copy()
        x[gone], y[gone] = 0, -1
        features = graph.require_features()
        np.testing.assert_array_equal(dense_matrix(features), x)
        some = self.random.integers(0, self.y.size, 50)
        np.testing.assert_array_equal(features.rows_dense(some), x[some])
        assert features.rows_csr(some).values.size == np.count_nonzero(x[some])
        columns = np.concatenate([np.empty((0, 2), np.float32), *self._column_pairs(features)])
        np.testing.assert_array_equal(columns, x[:, 1:3])
        np.testing.assert_array_equal(graph.column("label"), y)
        np.testing.assert_array_equal(graph.column("year"), self.year)
        verify_store(path, at())
        return graph

    @staticmethod
    def _column_pairs(features):
        for block in features.blocks():
            out = np.empty((block.num_rows, 2), np.float32)
            features.read_columns(block, 1, 3, out)
            yield out

    def assert_compacts(self, path) -> None:
        """Compacted, the store has the bytes of one ingest of what is left; but for what manifests say of the past."""
        once = path.with_name("once")
        self.build(self.rest(), once)
        compact_store(path, at())
        ours, theirs = bytes_of(path), bytes_of(once)
        ours.pop("manifest.json")
        theirs.pop("manifest.json")
        assert ours == theirs
        assert manifest_of(path) == manifest_of(once)
        assert GraphStore.open(path).identity == GraphStore.open(once).identity
        verify_store(path, at())


def manifest_of(path):
    manifest = GraphStore.open(path).manifest
    edges = dataclasses.replace(manifest.edges, input_edges=0, dropped_self_loops=0, dropped_duplicates=0)
    return dataclasses.replace(manifest, edges=edges, provenance={}, written_by="")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_any_sequence_of_appends_and_drops_shows_and_compacts_to_what_is_left(tmp_path, options, kind):
    twin, path = Twin(options, kind, seed=len(kind)), tmp_path / "store"
    twin.build(twin.arrive(66_000, 900), path)
    for step, num_nodes in enumerate([40, 0, 1_000]):
        drop_nodes(path, twin.drop(120), at())
        append_store(twin.arrive(num_nodes, 500), path, at())
        twin.assert_shown(path)
        assert GraphStore.open(path).generation == 2 * step + 2
    report = drop_nodes(path, twin.drop(300), at())
    graph = twin.assert_shown(path)
    assert report.manifest == graph.manifest
    assert graph.generations[-1].num_edges == graph.num_edges
    del graph
    twin.assert_compacts(path)


def test_a_drop_writes_its_ids_and_nothing_else_and_changes_the_identity(tmp_path):
    twin, path = Twin(BuildOptions(), "dense", 3), tmp_path / "store"
    twin.build(twin.arrive(500, 900), path)
    before, identity = bytes_of(path), GraphStore.open(path).identity
    ids = twin.drop(40)
    report = drop_nodes(path, ids, at(), provenance={"file": "ids.npy"})
    after = bytes_of(path)
    assert (report.num_nodes, report.num_already) == (ids.size, 0)
    assert report.num_edges == generations_of(report.manifest)[0].edges.num_edges - report.manifest.edges.num_edges
    assert after.pop("generations/0000.json") == before["manifest.json"]
    new = set(after) - set(before)
    assert new == {"generations/0001/dropped.arrow", "generations/0001/manifest.json"}
    assert GraphStore.open(path).identity != identity
    assert GraphStore.open(path, 0).identity == identity
    assert GraphStore.open(path, 0).num_dropped == 0
    assert generations_of(report.manifest)[1][0].provenance == {"kind": "drop", "file": "ids.npy"}


def test_a_node_may_be_dropped_twice_and_only_new_ones_are_written(tmp_path):
    twin, path = Twin(BuildOptions(), "sparse", 4), tmp_path / "store"
    twin.build(twin.arrive(300, 900), path)
    drop_nodes(path, np.array([3, 7]), at())
    report = drop_nodes(path, np.array([3, 5, 7]), at())
    assert (report.num_nodes, report.num_already) == (1, 2)
    again = drop_nodes(path, np.array([5, 7]), at())
    assert (again.num_nodes, again.num_already, GraphStore.open(path).generation) == (0, 2, 2)
    twin.dropped = {3, 5, 7}
    twin.assert_shown(path)
    assert not list(tmp_path.glob(".*"))


def test_the_last_node_cannot_be_dropped(tmp_path):
    twin, path = Twin(BuildOptions(), "dense", 5), tmp_path / "store"
    twin.build(twin.arrive(30, 40), path)
    drop_nodes(path, np.arange(20), at())
    before = bytes_of(path)
    with pytest.raises(InvalidInputError, match="no node would be left"):
        drop_nodes(path, np.arange(30), at())
    assert bytes_of(path) == before


def test_edges_that_go_are_counted_by_any_worker(tmp_path):
    manifests = []
    for name, executor in (("here", None), ("elsewhere", ScriptedExecutor(tmp_path / "counts"))):
        twin, path = Twin(BuildOptions(), "dense", 6), tmp_path / name
        twin.build(twin.arrive(66_000, 4_000), path)
        drop_nodes(path, twin.drop(3_000), at())
        append_store(twin.arrive(10, 2_000), path, at())
        manifests.append(drop_nodes(path, twin.drop(3_000), at(executor=executor)).manifest)
    assert manifests[0] == manifests[1]


def test_verify_finds_a_drop_that_counts_wrongly(tmp_path, monkeypatch):
    twin, path = Twin(KEEP_ALL, "dense", 7), tmp_path / "store"
    twin.build(twin.arrive(300, 900), path)
    count = drop._count_lost
    monkeypatch.setattr(drop, "_count_lost", lambda *of: {block: lost - 1 for block, lost in count(*of).items()})
    drop_nodes(path, twin.drop(30), at())
    with pytest.raises(CorruptStoreError, match="edges without those of dropped nodes"):
        verify_store(path, at())


def test_a_damaged_list_of_dropped_nodes_is_refused(tmp_path):
    twin, path = Twin(KEEP_ALL, "dense", 8), tmp_path / "store"
    twin.build(twin.arrive(300, 900), path)
    drop_nodes(path, twin.drop(30), at())
    file = path / "generations/0001/dropped.arrow"
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(CorruptStoreError):
        GraphStore.open(path)


@pytest.mark.parametrize("executor", ["threads", "workers"])
def test_an_append_that_names_a_dropped_node_is_refused_with_its_row(tmp_path, executor):
    twin, path = Twin(KEEP_ALL, "dense", 9), tmp_path / "store"
    twin.build(twin.arrive(300, 900), path)
    drop_nodes(path, np.array([7]), at())
    before = bytes_of(path)
    np.savez(tmp_path / "new.npz", edge_index=np.array([[1, 2, 3], [4, 7, 5]]))
    resources = at(executor=ScriptedExecutor(tmp_path / "counts")) if executor == "workers" else at()
    with pytest.raises(InvalidInputError, match=r"2 -> 7 names a node that was dropped\n.*row 1"):
        append_store(open_npz_source(tmp_path / "new.npz", adds=True), path, resources)
    assert bytes_of(path) == before


def test_the_graph_of_some_nodes_is_extracted_without_the_edges_of_dropped_ones(tmp_path):
    twin, path = Twin(BuildOptions(), "sparse", 10), tmp_path / "store"
    twin.build(twin.arrive(400, 3_000), path)
    append_store(twin.arrive(50, 1_000), path, at())
    drop_nodes(path, twin.drop(60), at())
    graph, ids = GraphStore.open(path), np.arange(0, 450, 2)
    found = extract_graph(graph, ids, tmp_path / "part", at())
    wanted = [(s // 2, d // 2) for s, d in twin.live_edges() if s % 2 == d % 2 == 0]
    assert sorted(zip(*found.to_edge_index().tolist(), strict=True)) == wanted
    np.testing.assert_array_equal(found.column("label"), graph.column("label")[::2])


@pytest.mark.parametrize("kind", ["string", "int64"])
def test_keys_of_dropped_nodes_are_unknown_may_come_again_and_are_erased(tmp_path, kind):
    def names(numbers):
        return np.array([f"n{number}" for number in numbers]) if kind == "string" else np.array(numbers) * 7

    def source(edges, numbers, labels):
        np.savez(tmp_path / "new.npz", edge_index=edges, y=labels, id=names(numbers))
        return open_npz_source(tmp_path / "new.npz", id_column="id", adds=True)

    path, words = tmp_path / "store", np.array(["pear", "fig", "plum"])
    build_store(source(random_edges(90, 300, 1), range(90), words[np.arange(90) % 3]), path, at())
    append_store(source(random_edges(100, 200, 2), range(90, 100), words[np.arange(10) % 3]), path, at())
    drop_nodes(path, np.array([3, 95]), at())
    keys = GraphStore.open(path).keys
    assert keys.rows_of(names([2, 3, 95, 96])).tolist() == [2, -1, -1, 96]
    assert keys.with_dropped().rows_of(names([2, 3, 95])).tolist() == [2, 3, 95]
    append_store(source(np.array([[100], [4]]), [95], words[:1]), path, at())
    keys = GraphStore.open(path).keys
    assert keys.rows_of(names([3, 95])).tolist() == keys.with_dropped().rows_of(names([200, 95])).tolist() == [-1, 100]
    del keys
    verify_store(path, at())
    compact_store(path, at())
    graph = GraphStore.open(path)
    left = [number for number in range(100) if number not in (3, 95)] + [95]
    assert graph.keys.rows_of(names(left)).tolist() == list(range(99))
    assert graph.keys.keys_of(range(99)).to_pylist() == names(left).tolist()
    assert graph.class_names == ("pear", "fig", "plum")

    once = tmp_path / "once"
    everything = source(graph.to_edge_index(), left, words[graph.column("label")])
    build_store(everything, once, at(), options=KEEP_ALL)
    ours, theirs = bytes_of(path), bytes_of(once)
    assert {name for name in ours if ours[name] != theirs[name]} == {"manifest.json"}

"""Diversity of a store: equal to the twin and to DGL, the same bits for any threads and budget, resumable, refused."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.engine import journal
from ecgl_scale.errors import CorruptStoreError, DoesNotFitError, InvalidInputError, UsageError
from ecgl_scale.rank import distances
from ecgl_scale.rank.diversity import rank_diversity
from ecgl_scale.rank.held_columns import SPARSE_ROW_BYTES, SPARSE_SCRATCH_BYTES, DenseColumns, SparseColumns
from ecgl_scale.rank.ranking import Ranking
from ecgl_scale.store.build import build_store
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.sources.npz import open_npz_source
from ecgl_scale.units import parse_bytes
from tests import naive
from tests.resources import at
from tests.store.graphs import KEEP_ALL, random_edges

SHARED = Path(__file__).parents[3] / "shared" / "data"


def store_of(path, edge_index, x, features="dense"):
    source = array_source(edge_index, x=x, num_nodes=len(x))
    build_store(source, path, at(), options=KEEP_ALL, features_as=features, feature_dtype=str(x.dtype))
    return GraphStore.open(path)


def matrix(num_nodes, num_columns, seed=0, density=1.0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(num_nodes, num_columns)).astype(np.float32)
    x[random.random(x.shape) >= density] = 0
    return x


def slices_of(monkeypatch, kind, *bounds):
    monkeypatch.setattr(
        kind, "plan", lambda self, budget, base, nodes, threads, first: [b for b in bounds if b >= first]
    )


@settings(max_examples=25)
@given(
    num_nodes=st.integers(1, 9),
    edges=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=40),
    kind=st.sampled_from(["dense", "sparse", "float16", "array", "float64 array", "column-major array"]),
    include_self=st.booleans(),
    seed=st.integers(0, 50),
)
def test_scores_equal_the_twin(tmp_path_factory, num_nodes, edges, kind, include_self, seed):
    edges = [(s % num_nodes, d % num_nodes) for s, d in edges]
    x = matrix(num_nodes, 7, seed, density=0.5)
    if kind == "float16":
        x = x.astype(np.float16)
    edge_index = np.array(edges, np.int64).reshape(-1, 2).T
    graph = store_of(tmp_path_factory.mktemp("store") / "g", edge_index, x, "sparse" if kind == "sparse" else "dense")
    given_array = {"array": x, "float64 array": x.astype(float), "column-major array": np.asfortranarray(x)}.get(kind)
    found = rank_diversity(graph, at(), features=given_array, include_self=include_self)
    wanted = naive.diversity(edges, x.astype(float).tolist(), include_self=include_self)
    np.testing.assert_allclose(found.scores, wanted, rtol=1e-5, atol=1e-5)
    assert found.passes == 1


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs")
    edge_index = random_edges(3000, 60_000)
    dense, sparse = matrix(3000, 52), matrix(3000, 52, density=0.1)
    return {
        "dense": (store_of(folder / "dense", edge_index, dense), dense),
        "float16": (store_of(folder / "half", edge_index, dense.astype(np.float16)), dense.astype(np.float16)),
        "sparse": (store_of(folder / "sparse", edge_index, sparse, "sparse"), sparse),
    }


@pytest.mark.parametrize("kind", ["dense", "float16", "sparse"])
def test_the_bits_do_not_depend_on_threads(graphs, kind, monkeypatch):
    monkeypatch.setattr(distances, "RANGE_EDGES", 1000)
    graph, _ = graphs[kind]
    one, two, three = (rank_diversity(graph, at(threads=threads)).scores for threads in (1, 2, 3))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize("kind", ["dense", "float16"])
@pytest.mark.parametrize("bounds", [(0, 28, 52), (0, 12, 28, 32, 52), (0, 4, 8, 52)])
def test_the_bits_do_not_depend_on_slices(graphs, kind, bounds, monkeypatch):
    graph, x = graphs[kind]
    whole = rank_diversity(graph, at())
    in_memory = rank_diversity(graph, at(), features=x)
    slices_of(monkeypatch, DenseColumns, *bounds)
    cut = rank_diversity(graph, at())
    assert (whole.passes, cut.passes) == (1, len(bounds) - 1)
    assert cut.read_bytes == whole.read_bytes * cut.passes
    np.testing.assert_array_equal(whole.scores, cut.scores)
    np.testing.assert_array_equal(whole.scores, in_memory.scores)


@pytest.mark.parametrize("cuts", [(10, 31), (1,), (26, 27, 28)])
def test_sparse_slices_change_no_bit(graphs, monkeypatch, cuts):
    graph, x = graphs["sparse"]
    whole = rank_diversity(graph, at()).scores
    np.testing.assert_allclose(whole, rank_diversity(graph, at(), features=x).scores, rtol=1e-6)
    slices_of(monkeypatch, SparseColumns, 0, *cuts, 52)
    np.testing.assert_array_equal(whole, rank_diversity(graph, at()).scores)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_small_budget_is_refused_with_one_that_works(graphs, kind):
    graph, _ = graphs[kind]
    with pytest.raises(DoesNotFitError, match="at least --memory") as refused:
        rank_diversity(graph, at(memory="1MiB"))
    enough = parse_bytes(re.search(r"--memory (\d+MiB)", str(refused.value)).group(1))
    # Some slack, as the process may have grown since.
    assert rank_diversity(graph, at(memory=enough + (16 << 20))).scores.size == graph.num_nodes


def test_slices_are_as_wide_as_the_budget_allows(graphs, monkeypatch):
    readers, column = 2 * 20_000, 3000 * 4
    monkeypatch.setattr(DenseFeatures, "chunk_buffer_bytes", 20_000)
    columns = DenseColumns(graphs["dense"][0].features)

    def widths(columns_that_fit, read_bytes):
        budget = MemoryBudget(1000 + columns_that_fit * column + read_bytes, "test")
        starts = columns.plan(budget, 1000, 3000, 2, 0)
        assert (starts[0], starts[-1]) == (0, 52)
        return np.diff(starts).tolist()

    assert widths(52, 0) == [52]
    assert widths(4, readers) == [4] * 13
    assert widths(15, readers) == [12, 12, 12, 12, 4]
    assert widths(16, readers - 1) == [12, 12, 12, 12, 4]
    assert widths(20, readers) == [16, 16, 16, 4]
    with pytest.raises(DoesNotFitError):
        widths(3, readers)


def test_columns_read_again_from_the_page_cache_are_those_read_first(graphs):
    graph, x = graphs["dense"]
    columns = DenseColumns(graph.features)
    for first, stop in ((0, 8), (8, 20), (48, 52)):
        columns.load(first, stop, threads=2)
        np.testing.assert_array_equal(columns._held, x[:, first:stop])


def test_damage_is_found_when_columns_are_first_read(tmp_path):
    graph = GraphStore.from_edge_index(np.array([[0], [1]]), np.ones((40, 8), np.float32), path=tmp_path / "g")
    shard = tmp_path / "g" / "features.zarr" / "c.0.0"
    assert graph.features is not None
    content = bytearray(shard.read_bytes())
    content[3] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CorruptStoreError, match="differs from the manifest"):
        DenseColumns(graph.features).load(0, 4, threads=1)


def test_sparse_slices_hold_no_more_values_than_fit(graphs):
    features = graphs["sparse"][0].features
    columns = SparseColumns(features)
    counts = (graphs["sparse"][1] != 0).sum(axis=0)
    base = 3000 * SPARSE_ROW_BYTES + 2 * SPARSE_SCRATCH_BYTES * 52
    room = int(counts.max()) * 2
    starts = columns.plan(MemoryBudget(base + room * 8, "test"), 0, 3000, 2, 0)
    assert (starts[0], starts[-1]) == (0, 52)
    assert all(counts[a:b].sum() <= room for a, b in pairwise(starts))
    with pytest.raises(DoesNotFitError, match="fullest column"):
        columns.plan(MemoryBudget(base + int(counts.max()) * 8 - 1, "test"), 0, 3000, 2, 0)


def test_a_killed_ranking_goes_on_with_the_same_bits(graphs, tmp_path, monkeypatch):
    graph, _ = graphs["dense"]
    whole = rank_diversity(graph, at()).scores
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
    slices_of(monkeypatch, DenseColumns, 0, 16, 32, 48, 52)
    load = DenseColumns.load

    def fail(self, first, stop, *, threads):
        if first == 32:
            raise KeyboardInterrupt
        return load(self, first, stop, threads=threads)

    monkeypatch.setattr(DenseColumns, "load", fail)

    def rank(include_self=False):
        return Ranking(graph, at(), journal=tmp_path / "journal").diversity(None, include_self=include_self)

    with pytest.raises(KeyboardInterrupt):
        rank()
    monkeypatch.setattr(DenseColumns, "load", load)
    resumed = rank()
    assert (resumed.resumed_columns, resumed.passes) == (32, 2)
    np.testing.assert_array_equal(resumed.scores, whole)
    # Finished: nothing is left to do, and another question is not answered with it.
    again = rank()
    assert (again.resumed_columns, again.passes) == (52, 0)
    np.testing.assert_array_equal(again.scores, whole)
    assert rank(include_self=True).resumed_columns == 0


def test_bad_features_are_refused(graphs, tmp_path):
    graph, x = graphs["dense"]
    for wrong in (x[:-1], x[:, 0], x[:, :0], x.astype(str)):
        with pytest.raises(UsageError, match="features are"):
            rank_diversity(graph, at(), features=wrong)
    spoiled = x.copy()
    spoiled[7, 3] = np.nan
    with pytest.raises(InvalidInputError, match="has no finite distance"):
        rank_diversity(graph, at(), features=spoiled)
    bare = GraphStore.from_edge_index(np.zeros((2, 1), np.int64), path=tmp_path / "bare", num_nodes=2)
    with pytest.raises(UsageError, match="no features"):
        rank_diversity(bare, at())


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["cora_ml", "pubmed_planetoid", "amazon_photo"])
@pytest.mark.parametrize("features_as", ["dense", "sparse"])
def test_equal_to_mean_and_norm_of_dgl(tmp_path, name, features_as):
    dgl = pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    torch = pytest.importorskip("torch")
    path = SHARED / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"the real data is not here: {path}")
    options = BuildOptions(symmetrise=True)
    build_store(open_npz_source(path), tmp_path / "store", at(), options=options, features_as=features_as)
    store = GraphStore.open(tmp_path / "store")
    x = torch.from_numpy(store.features.rows_dense(np.arange(store.num_nodes)))
    source, target = store.to_edge_index()
    graph = dgl.graph((torch.from_numpy(source), torch.from_numpy(target)), num_nodes=store.num_nodes)
    graph.ndata["x"] = x
    graph.update_all(dgl.function.copy_u("x", "m"), dgl.function.mean("m", "mean"))
    wanted = torch.linalg.vector_norm(x - graph.ndata["mean"], dim=1).numpy()
    np.testing.assert_allclose(rank_diversity(store, at()).scores, wanted, rtol=1e-5, atol=1e-5)

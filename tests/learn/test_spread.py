"""Messages of graphs that stay on disk: the formulas' values, in any memory, and the neighbours of a few nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.errors import DoesNotFitError, UsageError
from ecgl_scale.learn import spread
from ecgl_scale.learn.message import Norm
from ecgl_scale.learn.spread import StreamedPropagation, neighbours_of, propagate_features
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB
from tests.resources import at
from tests.store.graphs import random_edges

NUM_NODES, NUM_FEATURES = 300, 12
GRAPHS = {
    "directed": BuildOptions(),
    "symmetric": BuildOptions(symmetrise=True),
    "with loops": BuildOptions(self_loops="add"),
}
NORMS: list[Norm] = ["sym", "sum", "mean"]


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(NUM_NODES, NUM_FEATURES)).astype(np.float32)


@pytest.fixture(scope="module", params=GRAPHS)
def graph(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, x: np.ndarray) -> GraphStore:
    edges = random_edges(NUM_NODES - 20, 1500, seed=3)
    path = tmp_path_factory.mktemp("graph") / "store"
    return GraphStore.from_edge_index(edges, x=x, path=path, num_nodes=NUM_NODES, options=GRAPHS[request.param])


def dense_p(graph: GraphStore, norm: Norm) -> np.ndarray:
    source, target = graph.to_edge_index()
    found = np.zeros((NUM_NODES, NUM_NODES))
    found[target, source] = 1
    np.fill_diagonal(found, 1)
    if norm == "sym":
        return np.asarray(found / np.sqrt(found.sum(1)[:, None] * found.sum(0)[None]))
    return np.asarray(found / found.sum(1, keepdims=True)) if norm == "mean" else found


@pytest.mark.parametrize("norm", NORMS)
def test_blocks_are_the_rows_of_p_x(
    graph: GraphStore, norm: Norm, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = (sent for _, sent in StreamedPropagation(graph, at(threads=1), norm).blocks(x))
    assert np.allclose(whole, dense_p(graph, norm) @ x, atol=1e-5)
    monkeypatch.setattr(spread, "BLOCK_BYTES", 4 * NUM_FEATURES * 37)
    blocks = list(StreamedPropagation(graph, at(threads=2), norm).blocks(x))
    assert len(blocks) > 5
    assert [first for first, _ in blocks] == np.cumsum([0, *(len(sent) for _, sent in blocks[:-1])]).tolist()
    assert np.array_equal(np.concatenate([sent for _, sent in blocks]), whole)


def test_one_number_a_node_spreads_hop_by_hop(graph: GraphStore) -> None:
    values = np.random.default_rng(1).random(NUM_NODES)
    p = dense_p(graph, "mean")
    found = StreamedPropagation(graph, at(), "mean").spread(values, 3)
    assert np.allclose(found, p @ p @ p @ values, atol=1e-6)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_propagated_rows_have_the_same_bits_in_any_memory(
    tmp_path: Path, x: np.ndarray, is_sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = scipy.sparse.csr_matrix(np.where(x > 0.8, x, 0)) if is_sparse else x
    edges = random_edges(NUM_NODES, 1500, seed=3)
    graph = GraphStore.from_edge_index(edges, x=held, path=tmp_path / "g", options=BuildOptions())
    local = np.flatnonzero(np.arange(NUM_NODES) % 3 == 1)
    wanted = propagate_features(graph, local, at(), path=tmp_path / "unused")
    assert not (tmp_path / "unused").exists()
    dense = np.asarray(held.todense()) if is_sparse else x
    assert np.allclose(wanted.read(0, local.size), (dense_p(graph, "sym") @ dense)[local], atol=1e-5)
    monkeypatch.setattr("ecgl_scale.engine.resources.own_memory_bytes", lambda: 0)
    smallest = 12 * NUM_NODES + 48 * MIB + 16 * NUM_NODES
    narrow = propagate_features(graph, local, at(memory=smallest), path=tmp_path / "deep" / "rows")
    assert (tmp_path / "deep" / "rows").stat().st_size == 4 * local.size * NUM_FEATURES
    assert np.array_equal(narrow.read(0, local.size), wanted.read(0, local.size))
    with pytest.raises(DoesNotFitError):
        propagate_features(graph, local, at(memory=smallest - 1), path=tmp_path / "b")


def test_the_plan_counts_what_is_held(tmp_path: Path, graph: GraphStore) -> None:
    with pytest.raises(DoesNotFitError, match="pass features along the edges"):
        propagate_features(graph, np.arange(4), at(memory=own_memory_bytes()), path=tmp_path / "x")


def test_neighbours_are_the_sources_of_in_edges_without_loops(graph: GraphStore) -> None:
    nodes = np.array([0, 7, 8, 150, 299])
    offsets, sources = neighbours_of(graph, nodes)
    for row, node in enumerate(nodes.tolist()):
        wanted = [source for source in graph.edges.in_neighbours(node).tolist() if source != node]
        assert sources[offsets[row] : offsets[row + 1]].tolist() == wanted
    assert [array.size for array in neighbours_of(graph, np.empty(0, np.int64))] == [1, 0]


def test_a_graph_with_some_loops_is_refused(tmp_path: Path) -> None:
    graph = GraphStore.from_edge_index(np.array([[0, 1], [0, 2]]), path=tmp_path / "g", num_nodes=3)
    with pytest.raises(UsageError, match="self loops were kept"):
        StreamedPropagation(graph, at())

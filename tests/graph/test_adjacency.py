"""The stored edges have exactly one self loop a node, whatever the store holds; every norm has its scales."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.graph.adjacency import Adjacency, CsrRows, neighbours_of
from ecgl_scale.store.graph import GraphStore
from tests.graph.matrices import GRAPHS, NORMS, NUM_NODES, dense_matrix, stored_graph


@pytest.fixture(scope="module", params=GRAPHS)
def graph(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> GraphStore:
    return stored_graph(tmp_path_factory.mktemp("graph") / "store", None, request.param)


def dense(rows: CsrRows, nodes: np.ndarray, adds_self: bool) -> np.ndarray:
    found = np.zeros((len(nodes), NUM_NODES))
    for row, node in enumerate(nodes.tolist()):
        np.add.at(found[row], rows.indices[rows.indptr[row] : rows.indptr[row + 1]].astype(int), 1.0)
        found[row, node] += adds_self
    return found


@pytest.mark.parametrize("without_loops", [False, True])
def test_rows_have_one_loop_whatever_the_store_holds(graph: GraphStore, without_loops: bool) -> None:
    edges, wanted = Adjacency(graph, without_loops=without_loops), dense_matrix(graph, "sum")
    assert edges.adds_self or not without_loops
    everything, some = np.arange(NUM_NODES), np.array([0, 3, 17, 18, 299])
    np.testing.assert_array_equal(dense(edges.range(0, NUM_NODES), everything, edges.adds_self), wanted)
    np.testing.assert_array_equal(dense(edges.range(13, 60), everything[13:60], edges.adds_self), wanted[13:60])
    np.testing.assert_array_equal(dense(edges.select(some), some, edges.adds_self), wanted[some])
    np.testing.assert_array_equal(dense(edges.whole(), everything, True), wanted)
    np.testing.assert_array_equal(dense(edges.whole().transposed(), everything, True), wanted.T)


def test_scales_are_those_of_the_norm(graph: GraphStore) -> None:
    edges, ones = Adjacency(graph), np.ones(NUM_NODES)
    for norm in NORMS:
        scales = edges.scales(norm)
        row, source = (ones if scale is None else scale for scale in (scales.row, scales.source))
        weighed = dense_matrix(graph, "sum") * row[:, None] * source
        np.testing.assert_allclose(weighed, dense_matrix(graph, norm), rtol=1e-6)


def test_neighbours_are_the_sources_of_in_edges_without_loops(graph: GraphStore) -> None:
    nodes = np.array([0, 7, 8, 150, 299])
    offsets, sources = neighbours_of(graph, nodes)
    for row, node in enumerate(nodes.tolist()):
        wanted = [source for source in graph.edges.in_neighbours(node).tolist() if source != node]
        assert sources[offsets[row] : offsets[row + 1]].tolist() == wanted
    assert [array.size for array in neighbours_of(graph, np.empty(0, np.int64))] == [1, 0]


def test_edges_are_shared_out_at_rows(tmp_path: Path) -> None:
    whole = Adjacency(stored_graph(tmp_path / "g", None, "directed")).whole()
    for count in (1, 3, 16, 1000):
        cuts = whole.cuts(count)
        assert (cuts[0], cuts[-1]) == (0, NUM_NODES)
        assert cuts == sorted(set(cuts))
        assert len(cuts) <= count + 1

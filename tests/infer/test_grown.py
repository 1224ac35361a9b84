"""Inference, propagation and task graphs of a store that has grown: the bits of one ingest, whoever computes them."""

from __future__ import annotations

import numpy as np
import pytest

from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.graph.adjacency import Adjacency, neighbours_of
from ecgl_scale.graph.propagate import StreamedPropagation
from ecgl_scale.infer.hops import k_hop_features
from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.settings import InferSettings
from ecgl_scale.store.edges import older
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.graphs import extract_graph
from ecgl_scale.tasks.scaling import fit_standard
from tests.grown_stores import ACROSS_RANGES, make_both
from tests.infer.networks import layers_of
from tests.resources import at
from tests.store.graphs import bytes_of

WIDTH = 6
LAYERS = layers_of(WIDTH, 9, 5)
CASES = {
    "dense": ("dense", BuildOptions(symmetrise=True)),
    "sparse": ("sparse", BuildOptions()),
    "loops kept": ("dense", BuildOptions(keep_duplicates=True, self_loops="keep")),
    "loops added": ("dense", BuildOptions(self_loops="add")),
}


@pytest.fixture(scope="module", params=CASES)
def both(request, tmp_path_factory):
    kind, options = CASES[request.param]
    path = tmp_path_factory.mktemp("both")
    return make_both(path, ACROSS_RANGES, num_edges=20_000, kind=kind, options=options, width=WIDTH)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(older, "PART_EDGES", 300)


def infer(graph, work, executor=None, threads=2, **chosen):
    settings = InferSettings(**{"backend": "numba", "partitions": 3, **chosen})
    return infer_logits(graph, LAYERS, at(threads=threads, executor=executor), settings=settings, work_directory=work)


@pytest.mark.parametrize(
    "chosen", [{}, {"encoder": "sage"}, {"sources": "halo"}, {"partitioner": "ldg", "backend": "torch"}], ids=str
)
def test_logits_have_the_same_bits(both, tmp_path, chosen):
    wanted = infer(both.whole, tmp_path / "whole", **chosen).logits
    assert infer(both.grown, tmp_path / "grown", **chosen).logits.tobytes() == wanted.tobytes()


def test_logits_have_the_same_bits_by_workers_that_share_nothing(both, tmp_path):
    wanted = infer(both.whole, tmp_path / "whole").logits
    script = ScriptedExecutor(tmp_path / "counts")
    assert infer(both.grown, tmp_path / "grown", script).logits.tobytes() == wanted.tobytes()


@pytest.mark.usefixtures("small_parts")
def test_logits_have_the_same_bits_where_few_rows_are_merged_at_once(both, tmp_path):
    wanted = infer(both.whole, tmp_path / "whole").logits
    assert infer(both.grown, tmp_path / "grown", threads=1).logits.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("norm", ["sum", "mean", "sym"])
@pytest.mark.usefixtures("small_parts")
def test_propagation_has_the_same_bits(both, norm, tmp_path):
    x = np.random.default_rng(0).random((both.grown.num_nodes, 3), dtype=np.float32)
    found, wanted = (
        np.concatenate([rows for _, rows in StreamedPropagation(graph, at(), norm).blocks(x)])
        for graph in (both.grown, both.whole)
    )
    assert found.tobytes() == wanted.tobytes()
    hops = [
        k_hop_features(graph, 2, at(), norm=norm, backend="numba", work_directory=tmp_path)
        for graph in (both.grown, both.whole)
    ]
    assert hops[0].tobytes() == hops[1].tobytes()


@pytest.mark.usefixtures("small_parts")
def test_an_adjacency_gives_the_same_rows_in_every_way(both):
    grown, whole = Adjacency(both.grown), Adjacency(both.whole)
    ids = np.unique(np.random.default_rng(3).integers(0, both.grown.num_nodes, 4000))
    for found, wanted in [
        (grown.whole(), whole.whole()),
        (grown.range(59_000, 66_000), whole.range(59_000, 66_000)),
        (grown.select(ids), whole.select(ids)),
    ]:
        np.testing.assert_array_equal(np.diff(found.indptr), np.diff(wanted.indptr))
        parts = [rows.indices[rows.indptr[0] : rows.indptr[-1]] for rows in (found, wanted)]
        np.testing.assert_array_equal(*parts)
    for row in (0, 59_999, 60_001, 65_536, 140_001):
        assert grown.edges_before(row) == whole.edges_before(row)
    for found, wanted in zip(neighbours_of(both.grown, ids), neighbours_of(both.whole, ids), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("by", ["threads", "a worker"])
def test_a_task_graph_has_the_same_bytes(both, tmp_path, by):
    ids = np.flatnonzero(np.random.default_rng(5).random(both.grown.num_nodes) < 0.3)
    where = at(executor=ScriptedExecutor(tmp_path / "counts") if by == "a worker" else None, threads=2)
    extracted = []
    for name, graph, resources in (("grown", both.grown, where), ("whole", both.whole, at())):
        extract_graph(graph, ids, tmp_path / name, resources, scaling=fit_standard(graph.features, ids))
        found = bytes_of(tmp_path / name)
        del found["manifest.json"]  # it says which store the nodes are of
        extracted.append((found, GraphStore.open(tmp_path / name)))
    assert extracted[0][0] == extracted[1][0]
    np.testing.assert_array_equal(extracted[0][1].to_edge_index(), extracted[1][1].to_edge_index())

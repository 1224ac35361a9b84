"""Rows of some nodes are those of a whole inference, and only their neighbourhood is read."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.infer.feature_reader import FeatureReader
from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.program import write_program
from ecgl_scale.infer.settings import InferSettings, read_layers
from ecgl_scale.infer.some_nodes import NeighbourhoodTooLargeError, NodeInference
from ecgl_scale.store import graph as graph_module
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.scaling import Scaling, fit_standard
from ecgl_scale.units import MIB
from tests.infer.networks import (
    ADD_LOOPS,
    BACKENDS,
    KEEP_LOOPS,
    assert_close,
    build_graph,
    layers_of,
    matrix,
    random_graph,
)
from tests.resources import at
from tests.store.graphs import KEEP_ALL
from tests.store.test_some_rows import touched_bytes

SYMMETRIC = BuildOptions(symmetrise=True)
SYMMETRIC_LOOPS = BuildOptions(symmetrise=True, self_loops="keep")


def inference_of(graph, layers, chosen, resources=None, scaling=None, **more):
    features = FeatureReader(graph, scaling)
    program = write_program(read_layers(layers, features.width), chosen, sparse=features.is_sparse)
    return NodeInference(program, features, chosen, resources or at(), **more)


def rows_of_nodes(graph, layers, chosen, ids, resources=None, scaling=None):
    inference = inference_of(graph, layers, chosen, resources, scaling, whole_from_share=2.0)
    found = np.full((ids.size, len(layers[-1][0])), np.nan, np.float32)
    for start, rows in inference.run(ids):
        found[start : start + len(rows)] = rows
    return found


@settings(max_examples=60)
@given(
    num_nodes=st.integers(1, 12),
    edges=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=50),
    options=st.sampled_from([None, KEEP_LOOPS, ADD_LOOPS, KEEP_ALL, SYMMETRIC, SYMMETRIC_LOOPS]),
    asked=st.sets(st.integers(0, 11)),
    widths=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    features=st.sampled_from(["dense", "sparse", "float16"]),
    encoder=st.sampled_from(["gcn", "sage", "sgc"]),
    norm=st.sampled_from(["sym", "sum", "mean"]),
    place=st.sampled_from(["inside", "outside"]),
    bias=st.booleans(),
)
def test_any_nodes_of_any_graph_have_the_bits_of_a_whole_inference(
    tmp_path_factory, num_nodes, edges, options, asked, widths, features, encoder, norm, place, bias
):
    folder = tmp_path_factory.mktemp("any")
    edge_index = np.array([(s % num_nodes, d % num_nodes) for s, d in edges], np.int64).reshape(-1, 2).T
    x = matrix(num_nodes, widths[0], density=0.6).astype(np.float16 if features == "float16" else np.float32)
    kind = "sparse" if features == "sparse" else "dense"
    graph = build_graph(folder / "g", num_nodes, edge_index, x, options=options, features=kind, dtype=str(x.dtype))
    layers, ids = layers_of(*widths, bias=bias), np.array(sorted(node for node in asked if node < num_nodes), np.int64)
    chosen = InferSettings(encoder, norm, place, "numba")
    whole = infer_logits(graph, layers, at(), settings=chosen, work_directory=folder / "w").logits
    np.testing.assert_array_equal(rows_of_nodes(graph, layers, chosen, ids), whole[ids])


@pytest.fixture(scope="module", params=[None, SYMMETRIC, SYMMETRIC_LOOPS], ids=["directed", "symmetric", "loops"])
def wide(request, tmp_path_factory):
    """More rows than a few chunks, with hubs and nodes that no edge touches."""
    return random_graph(tmp_path_factory.mktemp("wide") / "g", 9000, 30_000, 20, options=request.param)


@pytest.mark.parametrize("widths", [(20, 33, 7), (20, 12, 5)], ids=["aggregated first", "multiplied first"])
def test_rows_keep_their_place_in_products_of_many_chunks(wide, tmp_path, widths):
    layers = layers_of(*widths)
    random = np.random.default_rng(0)
    for encoder, norm in product(("gcn", "sgc"), ("sym", "mean")):
        chosen = InferSettings(encoder, norm, backend="numba")
        whole = infer_logits(wide, layers, at(), settings=chosen, work_directory=tmp_path).logits
        for ids in (np.array([8999]), np.sort(random.choice(9000, 300, replace=False)), np.arange(9000)):
            np.testing.assert_array_equal(rows_of_nodes(wide, layers, chosen, ids), whole[ids])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("features", ["dense", "sparse"])
def test_every_backend_agrees_with_its_whole_inference(tmp_path, backend, features):
    if backend == "dgl":
        pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    graph = random_graph(tmp_path / "g", 500, 3000, 30, density=0.1, features=features, options=SYMMETRIC)
    layers, ids = layers_of(30, 40, 5), np.arange(3, 500, 7)
    chosen = InferSettings(backend=backend)
    whole = infer_logits(graph, layers, at(), settings=chosen, work_directory=tmp_path / "w").logits
    assert_close(rows_of_nodes(graph, layers, chosen, ids), whole[ids])


@pytest.mark.parametrize("kind", ["row_sum", "row_l2", "standard"])
@pytest.mark.parametrize("features", ["dense", "sparse"])
@pytest.mark.parametrize("hidden", [4, 20])
def test_features_are_scaled_as_in_a_whole_inference(tmp_path, kind, features, hidden):
    graph = random_graph(tmp_path / "g", density=0.5, features=features)
    layers, ids = layers_of(10, hidden, 5), np.array([0, 7, 31, 59])
    scaling = Scaling(kind) if kind != "standard" else fit_standard(graph.features, np.arange(60))
    chosen = InferSettings(backend="numba")
    whole = infer_logits(graph, layers, at(), settings=chosen, scaling=scaling, work_directory=tmp_path / "w").logits
    np.testing.assert_array_equal(rows_of_nodes(graph, layers, chosen, ids, scaling=scaling), whole[ids])


def test_batches_that_fit_give_the_same_bits_as_one(wide, tmp_path):
    layers, ids, chosen = layers_of(20, 64, 7), np.arange(0, 9000, 3), InferSettings(backend="numba", norm="mean")
    whole = infer_logits(wide, layers, at(), settings=chosen, work_directory=tmp_path).logits
    need = inference_of(wide, layers, chosen, whole_from_share=100.0).plan(ids).host_bytes
    inference = inference_of(wide, layers, chosen, at(need), whole_from_share=100.0)
    inference._room_bytes = need - MIB // 2  # to the byte: what this process holds already changes with every test
    plan = inference.plan(ids)
    assert plan.blocks > 1
    assert plan.host_bytes <= need - MIB // 2
    found = np.concatenate([rows for _, rows in inference.run(ids)])
    assert inference.num_batches >= plan.blocks
    np.testing.assert_array_equal(found, whole[ids])


def test_the_whole_graph_is_inferred_where_that_is_no_more_work_or_nothing_less_fits(wide):
    layers, chosen = layers_of(20, 64, 7), InferSettings(backend="numba")
    with pytest.raises(NeighbourhoodTooLargeError):
        inference_of(wide, layers, chosen).plan(np.arange(9000))
    with pytest.raises(NeighbourhoodTooLargeError):  # as all memory is for something else
        inference_of(wide, layers, chosen, besides_bytes=1 << 50).plan(np.arange(2))
    with pytest.raises(NeighbourhoodTooLargeError):
        inference_of(wide, layers, chosen, at(own_memory_bytes() + 20 * MIB)).plan(np.array([1]))


def test_nodes_without_edges_need_nobody_else(tmp_path):
    graph = random_graph(tmp_path / "g")
    inference = inference_of(graph, layers_of(10, 16, 5), InferSettings(norm="mean", backend="numba"))
    assert [len(rows) for _, rows in inference.run(np.array([57, 58]))] == [2]  # which no edge of the graph touches
    assert inference.num_sources == 2
    assert [*inference.run(np.empty(0, np.int64))] == []


def read_by_calls() -> int:
    """Bytes that this process has read by system calls; pages of mapped files are not among them."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("norm", ["sym", "mean"])
def test_of_a_large_store_only_the_neighbourhood_is_read(tmp_path, monkeypatch, norm):
    """A ring: every node hears the four before and behind it."""
    num_nodes, width = 120_000, 64
    nodes = np.arange(num_nodes)
    edges = np.concatenate([np.stack([nodes, (nodes + step) % num_nodes]) for step in (1, 2, 3, 4)], axis=1)
    x = np.random.default_rng(0).normal(size=(num_nodes, width)).astype(np.float32)
    build_graph(tmp_path / "g", num_nodes, edges, x, options=SYMMETRIC)
    monkeypatch.setattr(graph_module, "READ_WHOLE_BELOW_BYTES", 0)
    graph, layers = GraphStore.open(tmp_path / "g"), layers_of(width, 80, 7)
    chosen, ids = InferSettings(norm=norm, backend="numba"), np.array([70_000, 70_001])
    inference = inference_of(graph, layers, chosen)
    before = read_by_calls()
    (_, found), *_ = inference.run(ids)
    assert inference.num_sources == 18
    files = {
        name: sum(path.stat().st_size for path in (tmp_path / "g" / name).rglob("*") if path.is_file())
        for name in ("edges", "features.zarr")
    }
    assert read_by_calls() - before < files["features.zarr"] / 10
    assert 0 < touched_bytes(tmp_path / "g") < files["edges"] / 10
    whole = infer_logits(graph, layers, at(), settings=chosen, work_directory=tmp_path / "w").logits
    np.testing.assert_array_equal(found, whole[ids])

"""Logits of every backend and partitioning: equal to products of dense matrices."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.errors import UsageError
from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.settings import InferSettings
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.scaling import Scaling, fit_standard
from tests.infer.networks import (
    ADD_LOOPS,
    BACKENDS,
    KEEP_LOOPS,
    MODES,
    assert_close,
    build_graph,
    layers_of,
    matrix,
    naive_logits,
    random_graph,
)
from tests.resources import at
from tests.store.graphs import KEEP_ALL, random_edges


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return random_graph(tmp_path_factory.mktemp("graph") / "g")


def test_layers_equal_dense_matrices_for_all_maths(graph, tmp_path):
    x = matrix(60, 10)
    for encoder, norm, place in product(("gcn", "sage", "sgc"), ("sym", "sum", "mean"), ("inside", "outside")):
        for widths in ((10, 16, 5), (10, 6, 12, 3), (10, 4)):
            layers = layers_of(*widths)
            chosen = InferSettings(encoder=encoder, norm=norm, bias_place=place, backend="numba", partitions=3)
            found = infer_logits(graph, layers, at(), settings=chosen, work_directory=tmp_path)
            assert_close(found.logits, naive_logits(graph, x, layers, encoder=encoder, norm=norm, bias_place=place))
            assert found.logits.shape == (60, widths[-1])
    assert not list(tmp_path.iterdir())


@settings(max_examples=30)
@given(
    num_nodes=st.integers(1, 12),
    edges=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=50),
    options=st.sampled_from([None, KEEP_LOOPS, ADD_LOOPS, KEEP_ALL]),
    widths=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    features=st.sampled_from(["dense", "sparse", "float16"]),
    encoder=st.sampled_from(["gcn", "sage", "sgc"]),
    norm=st.sampled_from(["sym", "sum", "mean"]),
    place=st.sampled_from(["inside", "outside"]),
    bias=st.booleans(),
    mode=st.sampled_from(MODES),
)
def test_any_graph_equals_dense_matrices(
    tmp_path_factory, num_nodes, edges, options, widths, features, encoder, norm, place, bias, mode
):
    folder = tmp_path_factory.mktemp("any")
    edge_index = np.array([(s % num_nodes, d % num_nodes) for s, d in edges], np.int64).reshape(-1, 2).T
    x = matrix(num_nodes, widths[0], density=0.6).astype(np.float16 if features == "float16" else np.float32)
    kind = "sparse" if features == "sparse" else "dense"
    graph = build_graph(folder / "g", num_nodes, edge_index, x, options=options, features=kind, dtype=str(x.dtype))
    layers = layers_of(*widths, bias=bias)
    partitioner, sources, partitions = mode
    chosen = InferSettings(
        encoder, norm, place, "numba", partitioner=partitioner, partitions=partitions, sources=sources
    )
    found = infer_logits(graph, layers, at(), settings=chosen, work_directory=folder / "w")
    if options is KEEP_ALL:  # an edge kept twice counts twice, a loop never more than once
        assert graph.num_edges == len(edges)
    assert_close(found.logits, naive_logits(graph, x, layers, encoder=encoder, norm=norm, bias_place=place))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """More rows than a few chunks."""
    return random_graph(tmp_path_factory.mktemp("wide") / "g", 9000, 60_000, 20)


def test_the_bits_depend_on_neither_partitions_nor_threads_nor_halos(wide, tmp_path):
    layers = layers_of(20, 33, 7)
    found = [
        infer_logits(
            wide, layers, at(threads=threads), settings=InferSettings(**chosen), work_directory=tmp_path
        ).logits
        for chosen, threads in [
            ({"backend": "numba", "partitions": 1}, 1),
            ({"backend": "numba", "partitions": 1}, 3),
            ({"backend": "numba", "partitions": 2}, 2),
            ({"backend": "numba", "partitions": 7}, 2),
            ({"backend": "numba", "partitions": 1000}, 2),
            ({"backend": "numba", "partitions": 5, "sources": "halo"}, 2),
        ]
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_ldg_partitions_agree_to_rounding_with_contiguous_ones(wide, tmp_path):
    layers = layers_of(20, 33, 7)
    one = infer_logits(wide, layers, at(), settings=InferSettings(backend="numba"), work_directory=tmp_path).logits
    ldg = InferSettings(backend="numba", partitioner="ldg", partitions=5)
    assert_close(infer_logits(wide, layers, at(), settings=ldg, work_directory=tmp_path).logits, one)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sparse_features_are_multiplied_first(tmp_path, backend):
    graph = random_graph(tmp_path / "g", num_features=30, density=0.1, features="sparse")
    x, layers = matrix(60, 30, density=0.1), layers_of(30, 40, 5)
    chosen = InferSettings(backend=backend, partitions=2)
    found = infer_logits(graph, layers, at(), settings=chosen, work_directory=tmp_path / "w")
    assert found.order == ("features 30 -> 40", "aggregate 40", "40 -> 5", "aggregate 5")
    assert_close(found.logits, naive_logits(graph, x, layers))


def test_the_narrower_side_goes_through_the_graph(graph, tmp_path):
    def order(*widths, **chosen):
        chosen = InferSettings(backend="numba", **chosen)
        return infer_logits(graph, layers_of(*widths), at(), settings=chosen, work_directory=tmp_path).order

    assert order(10, 256, 4) == ("aggregate 10", "10 -> 256", "256 -> 4", "aggregate 4")
    assert order(10, 4, 8) == ("features 10 -> 4", "aggregate 4", "aggregate 4", "4 -> 8")
    assert order(10, 4, 8, encoder="sgc") == ("features 10 -> 4", "aggregate 4", "aggregate 4", "4 -> 8")
    assert order(10, 12, 8, encoder="sgc") == ("aggregate 10", "aggregate 10", "10 -> 12", "12 -> 8")


@pytest.mark.parametrize("kind", ["row_sum", "row_l2", "standard"])
@pytest.mark.parametrize("features", ["dense", "sparse"])
@pytest.mark.parametrize("hidden", [4, 20])
def test_features_are_scaled_as_they_are_read(tmp_path, kind, features, hidden):
    graph = random_graph(tmp_path / "g", density=0.5, features=features)
    x, layers = matrix(60, 10, density=0.5), layers_of(10, hidden, 5)
    scaling = Scaling(kind) if kind != "standard" else fit_standard(graph.features, np.arange(60))
    for sources in ("held", "halo"):
        chosen = InferSettings(backend="numba", partitions=2, sources=sources)
        found = infer_logits(graph, layers, at(), settings=chosen, scaling=scaling, work_directory=tmp_path / "w")
        assert_close(found.logits, naive_logits(graph, scaling.apply(x), layers))


def test_tensors_and_arrays_are_the_same_weights(graph, tmp_path):
    torch = pytest.importorskip("torch")
    layers = layers_of(10, 16, 5)
    tensors = [(torch.nn.Parameter(torch.from_numpy(w)), torch.from_numpy(b)) for w, b in layers]
    one, two = (infer_logits(graph, given, at(), work_directory=tmp_path).logits for given in (layers, tensors))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("features", ["dense", "sparse"])
def test_weights_that_lie_by_columns_are_the_same_weights(tmp_path, features):
    graph = random_graph(tmp_path / "g", features=features)
    by_rows = layers_of(10, 16, 5)
    by_columns = [(np.asfortranarray(weight), bias) for weight, bias in by_rows]
    chosen = InferSettings(backend="numba", partitions=2)
    first, second = (
        infer_logits(graph, layers, at(), settings=chosen, work_directory=tmp_path / "work").logits
        for layers in (by_rows, by_columns)
    )
    assert first.tobytes() == second.tobytes()


def test_progress_counts_partitions_of_all_steps(graph, tmp_path):
    events = []
    chosen = InferSettings(backend="numba", partitions=3)
    infer_logits(graph, layers_of(10, 16, 5), at(on_event=events.append), settings=chosen, work_directory=tmp_path)
    assert events == [StageStarted("infer", 6, "partitions"), *[BlockFinished("infer", n) for n in range(1, 7)]]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "no layers"),
        (layers_of(11, 5), r"shape \[5, 11\]\n.*\[out, 10\], as there are 10 features"),
        ([*layers_of(10, 16), *layers_of(15, 5)], r"layer 1 has shape \[5, 15\]\n.*\[out, 16\].* outputs of layer 0"),
        ([(matrix(5, 10), np.zeros(4))], r"bias of layer 0 has shape \[4\]\n.*\[5\]"),
        ([(np.full((5, 10), np.nan), None)], "not finite"),
    ],
)
def test_weights_that_do_not_fit_are_refused(graph, tmp_path, layers, message):
    with pytest.raises(UsageError, match=message):
        infer_logits(graph, layers, at(), work_directory=tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"encoder": "gat"},
        {"norm": "l2"},
        {"bias_place": "none"},
        {"backend": "jax"},
        {"partitioner": "random"},
        {"sources": "disk"},
        {"partitions": 0},
        {"partitions": True},
        {"partitions": "many"},
        {"device": "gpu"},
        {"device": "cpu:1"},
        {"device": "cuda", "backend": "numba"},
        {"device": "cuda:0", "backend": "dgl"},
        {"sources": "held", "partitioner": "ldg"},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError):
        InferSettings(**wrong)


def test_a_device_that_is_not_there_is_refused(graph, tmp_path):
    torch = pytest.importorskip("torch")
    chosen = InferSettings(backend="torch", device=f"cuda:{torch.cuda.device_count()}")
    with pytest.raises(UsageError, match="no device"):
        infer_logits(graph, layers_of(10, 5), at(), settings=chosen, work_directory=tmp_path)


def test_a_store_without_features_is_refused(tmp_path):
    graph = GraphStore.from_edge_index(random_edges(20, 40), path=tmp_path / "g", num_nodes=20)
    with pytest.raises(UsageError, match="no features"):
        infer_logits(graph, layers_of(10, 5), at(), work_directory=tmp_path / "w")

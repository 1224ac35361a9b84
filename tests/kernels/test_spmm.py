"""Sums, means and symmetric-normalised sums of in-neighbours, equal to the twin and to DGL's GraphConv."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_kernels.spmm import find_wrong_row, invert_degrees, propagate_rows
from tests import naive
from tests.kernels.lazy import lazy_array


def csr(edges, num_nodes):
    stored = sorted(((s % num_nodes, d % num_nodes) for s, d in edges), key=lambda edge: (edge[1], edge[0]))
    indptr, indices = naive.csr_of(stored, num_nodes)
    return stored, np.array(indptr, np.int64), np.array(indices, np.uint32)


def scales_of(kind, indptr, indices, include_self):
    num_nodes = indptr.size - 1
    if kind == "sum":
        return None, None
    source, row = np.empty(num_nodes, np.float32), np.empty(num_nodes, np.float32)
    invert_degrees(np.diff(indptr) + include_self, kind == "symmetric", row)
    if kind == "mean":
        return None, row
    invert_degrees(np.bincount(indices, minlength=num_nodes) + include_self, True, source)
    return source, row


@settings(max_examples=80)
@given(
    num_nodes=st.integers(1, 9),
    edges=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=60),
    num_columns=st.sampled_from([1, 3, 4, 6, 12, 37, 100]),
    kind=st.sampled_from(["sum", "mean", "symmetric"]),
    include_self=st.booleans(),
    half=st.booleans(),
    row_cut=st.integers(0, 9),
    seed=st.integers(0, 100),
)
def test_messages_equal_the_twin_for_any_block(num_nodes, edges, num_columns, kind, include_self, half, row_cut, seed):
    stored, indptr, indices = csr(edges, num_nodes)
    x = np.random.default_rng(seed).normal(size=(num_nodes, num_columns)).astype(np.float16 if half else np.float32)
    source, row = scales_of(kind, indptr, indices, include_self)
    out = np.full((num_nodes, num_columns), np.nan, np.float32)
    cut = min(row_cut, num_nodes)
    for first, stop in ((0, cut), (cut, num_nodes)):
        own = None if row is None else row[first:stop]
        seen = x.view(np.uint16) if half else x
        propagate_rows(indptr[first : stop + 1], indices, seen, first, include_self, source, own, out[first:stop])
    ones = [1.0] * num_nodes
    wanted = naive.propagate(
        stored,
        x.astype(float).tolist(),
        include_self=include_self,
        source_scale=ones if source is None else source.astype(float).tolist(),
        row_scale=ones if row is None else row.astype(float).tolist(),
    )
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
    direction = np.random.default_rng(seed).normal(size=num_columns)
    projected, found = x.astype(np.float64) @ direction, out.astype(np.float64) @ direction
    assert find_wrong_row(indptr, indices, projected, 0, include_self, source, row, found) == -1
    found[-1] += 0.5
    assert find_wrong_row(indptr, indices, projected, 0, include_self, source, row, found) in (-1, num_nodes - 1)


def test_the_verifier_finds_a_wrong_row():
    indptr, indices = np.array([0, 2, 2]), np.array([0, 1], np.uint32)
    projected = np.array([1.0, 2.0])
    assert find_wrong_row(indptr, indices, projected, 0, False, None, None, np.array([3.0, 0.0])) == -1
    assert find_wrong_row(indptr, indices, projected, 0, False, None, None, np.array([3.1, 0.0])) == 0
    assert find_wrong_row(indptr, indices, projected, 0, False, None, None, np.array([3.0, np.nan])) == 1


def test_nodes_without_edges_send_and_receive_nothing():
    out = np.empty(3, np.float32)
    invert_degrees(np.array([0, 1, 4]), True, out)
    assert out.tolist() == [0.0, 1.0, 0.5]
    invert_degrees(np.array([0, 1, 4]), False, out)
    assert out.tolist() == [0.0, 1.0, 0.25]


def test_offsets_past_two_to_the_31_are_followed():
    past = 2**31 + 5
    indices = lazy_array(past + 2, np.uint32)
    indices[past : past + 2] = [1, 2]
    x = np.array([[10.0], [1.0], [3.0]], np.float32)
    out = np.empty((1, 1), np.float32)
    propagate_rows(np.array([past, past + 2]), indices, x, 0, False, None, None, out)
    assert out[0, 0] == 4.0


@pytest.mark.parametrize("norm", ["none", "right", "both"])
def test_equal_to_graph_convolution_of_dgl(norm):
    dgl = pytest.importorskip("dgl", reason="DGL has no wheel for this Python")
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    source, target = random.integers(0, 500, (2, 6000))
    graph = dgl.graph((source, target), num_nodes=500)
    x = random.normal(size=(500, 100)).astype(np.float32)
    layer = dgl.nn.GraphConv(100, 100, norm=norm, weight=False, bias=False, allow_zero_in_degree=True)
    with torch.no_grad():
        wanted = layer(graph, torch.from_numpy(x)).numpy()
    _, indptr, indices = csr([*zip(source.tolist(), target.tolist(), strict=True)], 500)
    kind = {"none": "sum", "right": "mean", "both": "symmetric"}[norm]
    sources, rows = scales_of(kind, indptr, indices, False)
    out = np.empty((500, 100), np.float32)
    propagate_rows(indptr, indices, x, 0, False, sources, rows, out)
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)

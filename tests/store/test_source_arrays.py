"""Graphs held in memory become sources without copies."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.source import DenseSource, SparseSource
from ecgl_scale.store.sources.arrays import array_source

EDGES = np.array([[0, 1, 2], [1, 2, 0]])


def edges_of(source, max_edges=2):
    blocks = list(source.edges.stream(max_edges))
    assert all(len(block.src) == len(block.dst) <= max_edges for block in blocks)
    assert [block.first_row for block in blocks] == list(np.cumsum([0] + [len(b.src) for b in blocks])[:-1])
    rows = ([block.src for block in blocks], [block.dst for block in blocks])
    return np.array([np.concatenate(row) for row in rows]) if blocks else np.zeros((2, 0), int)


def column_of(source, name, max_rows=2):
    column = next(column for column in source.columns if column.name == name)
    values = np.concatenate(list(column.blocks(max_rows)))
    assert values.dtype == column.dtype
    return values


@settings(max_examples=50, deadline=None)
@given(
    edges=st.sampled_from([np.int32, np.uint32, np.int64]).flatmap(
        lambda dtype: hnp.arrays(dtype, st.tuples(st.just(2), st.integers(0, 40)), elements=st.integers(0, 9))
    ),
    x=hnp.arrays(np.float32, st.tuples(st.just(10), st.integers(0, 5)), elements=st.integers(-3, 3)),
    size=st.integers(1, 50),
)
def test_any_block_size_gives_edges_and_features_back(edges, x, size):
    dense = array_source(edges, x=x)
    sparse = array_source(edges, x=scipy.sparse.csr_matrix(x))
    np.testing.assert_array_equal(edges_of(dense, size), edges)
    assert isinstance(dense.features, DenseSource)
    assert isinstance(sparse.features, SparseSource)
    np.testing.assert_array_equal(np.concatenate(list(dense.features.blocks(size))), x)
    rows = [
        scipy.sparse.csr_matrix((b.values, b.indices, b.indptr), shape=(len(b.indptr) - 1, x.shape[1])).toarray()
        for b in sparse.features.blocks(size)
    ]
    np.testing.assert_array_equal(np.concatenate(rows), x)
    assert sparse.features.num_values == np.count_nonzero(x)
    assert dense.num_nodes == sparse.num_nodes == 10
    assert dense.num_edges_hint == edges.shape[1]


def test_blocks_are_views():
    x = np.zeros((3, 2), np.float32)
    source = array_source(EDGES, x=x)
    assert np.shares_memory(source.edges.read(0, 2).src, EDGES)
    assert np.shares_memory(next(source.features.blocks(2)), x)


def test_labels_and_columns_come_by_name():
    source = array_source((EDGES[0], EDGES[1]), y=np.array([[1.0], [np.nan], [0.0]]), columns={"year": [1, 2, 3]})
    assert source.num_nodes == 3
    np.testing.assert_array_equal(column_of(source, "label"), [1, -1, 0])
    np.testing.assert_array_equal(column_of(source, "year"), [1, 2, 3])
    np.testing.assert_array_equal(edges_of(source), EDGES)
    assert column_of(array_source(EDGES, y=np.array([True, False, True])), "label").dtype == np.int8


def test_tensors_are_taken_through_their_methods():
    class Tensor:
        def __init__(self, array):
            self.array, self.steps = array, []

        def detach(self):
            self.steps.append("detach")
            return self

        def cpu(self):
            self.steps.append("cpu")
            return self

        def numpy(self):
            assert self.steps == ["detach", "cpu"]
            return self.array

    np.testing.assert_array_equal(edges_of(array_source(Tensor(EDGES), num_nodes=3)), EDGES)


def test_a_graph_may_have_no_edges():
    assert edges_of(array_source([[], []], num_nodes=3)).shape == (2, 0)


@pytest.mark.parametrize(
    ("edges", "options", "message"),
    [
        (EDGES, {}, r"number of nodes is not known[\s\S]*give num_nodes"),
        (EDGES.T, {"num_nodes": 3}, r"edge_index has shape \(3, 2\)"),
        (EDGES.astype(float), {"num_nodes": 3}, r"edge ids have dtype float64"),
        ((EDGES[0], EDGES[1][:2]), {"num_nodes": 3}, r"shapes \(3,\) and \(2,\)"),
        (EDGES.astype(object), {"num_nodes": 3}, r"dtype object"),
        (EDGES, {"x": np.zeros((4, 2)), "num_nodes": 3}, r"shape \(4, 2\), but the graph has 3 nodes"),
        (EDGES, {"x": np.zeros(3)}, r"features have shape \(3,\)"),
        (EDGES, {"x": np.zeros((3, 2), complex)}, r"features have dtype complex"),
        (EDGES, {"x": scipy.sparse.eye(4, format="coo"), "num_nodes": 3}, r"shape \(4, 4\), but"),
        (EDGES, {"y": np.zeros(2), "num_nodes": 3}, r"label array has shape \(2,\)"),
        (EDGES, {"y": np.zeros((3, 2))}, r"labels have shape \(3, 2\)"),
        (EDGES, {"y": [0, 1, 2], "columns": {"label": [0, 1, 2]}}, r"given twice"),
        (EDGES, {"y": [0, 1, 2], "columns": {"year": [0, 1]}}, r"'year' has shape \(2,\)"),
        (EDGES, {"y": [0, 1, 2], "columns": {"pair": np.zeros((3, 2))}}, r"'pair' has shape \(3, 2\)"),
        ([[1, 2], [3]], {"num_nodes": 3}, r"shapes \(2,\) and \(1,\)"),
        (EDGES, {"x": [[1], [2, 3], [4]]}, r"cannot be seen as an array"),
    ],
)
def test_wrong_arrays_are_refused(edges, options, message):
    with pytest.raises(InvalidInputError, match=message):
        array_source(edges, **options)


def test_labels_that_are_not_whole_numbers_are_refused_with_their_row():
    source = array_source(EDGES, y=np.array([0.0, 1.0, 1.5]))
    with pytest.raises(InvalidInputError, match=r"label 1.5 is not a whole number[\s\S]*row 2"):
        column_of(source, "label", 1)


def test_sparse_rows_out_of_range_are_refused():
    matrix = scipy.sparse.csr_matrix(np.eye(3))
    matrix.indices = np.array([0, 1, 7], np.int32)
    with pytest.raises(InvalidInputError, match="feature numbers run from 0 to 7"):
        list(array_source(EDGES, x=matrix).features.blocks(3))

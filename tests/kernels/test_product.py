"""Products of sparse rows equal scipy's, and every number is written by one thread in the order of the rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from ecgl_kernels.product import add_outer_rows, multiply_rows


@st.composite
def cases(draw):
    num_rows, num_columns, width = (draw(st.integers(1, 20)) for _ in range(3))
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    dense = random.normal(size=(num_rows, num_columns)) * (random.random((num_rows, num_columns)) < 0.3)
    matrix = sparse.csr_matrix(dense.astype(np.float32))
    rows = matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32), matrix.data
    w = random.normal(size=(num_columns, width)).astype(np.float32)
    g = random.normal(size=(num_rows, width)).astype(np.float32)
    first = draw(st.integers(0, num_rows))
    return dense, rows, w, g, first


@given(case=cases())
def test_rows_are_multiplied_whatever_was_in_the_output(case):
    dense, (indptr, indices, values), w, _, first = case
    out = np.full((len(dense), w.shape[1]), np.nan, np.float32)
    multiply_rows(indptr[: first + 1], indices, values, w, out[:first])
    multiply_rows(indptr[first:], indices, values, w, out[first:])
    np.testing.assert_allclose(out, dense @ w, rtol=1e-4, atol=1e-5)


@given(case=cases())
def test_outer_products_are_added_in_any_cut_of_the_columns(case):
    dense, rows, w, g, _ = case
    whole, cut = np.ones_like(w), np.ones_like(w)
    add_outer_rows(*rows, g, 0, w.shape[1], whole)
    for column in range(w.shape[1]):
        add_outer_rows(*rows, g, column, column + 1, cut)
    np.testing.assert_allclose(whole, 1 + dense.T @ g, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(cut, whole, rtol=1e-6, atol=1e-6)


@given(case=cases())
def test_rows_that_start_inside_the_values_use_only_theirs(case):
    dense, (indptr, indices, values), w, g, first = case
    found = np.zeros_like(w)
    add_outer_rows(indptr[first:], indices, values, g[first:], 0, w.shape[1], found)
    np.testing.assert_allclose(found, dense[first:].T @ g[first:], rtol=1e-4, atol=1e-5)

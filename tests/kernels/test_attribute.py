"""The kernels of the attribute vector give what the formulas say, for any shape, strip and place of the rows."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from ecgl_kernels.attribute import (
    accumulate_csr,
    add_scaled,
    evaluate_csr,
    evaluate_rows,
    weigh_csr,
    weigh_rows,
)
from tests import naive
from tests.kernels.lazy import PAST_INT32, lazy_array

shapes = {"num_rows": st.integers(1, 20), "num_features": st.integers(1, 27), "seed": st.integers(0, 2**32 - 1)}


def noise(num_rows, num_features, seed):
    return np.random.default_rng(seed).normal(size=(num_rows, num_features)).astype(np.float32)


def weigh(x, gamma):
    exponents, scaled, linear = np.empty(len(x)), np.empty_like(x), np.empty(x.shape[1])
    least, total = weigh_rows(x, gamma, exponents, scaled, linear)
    return least, total, exponents, scaled, linear


def triangle_of(matrix):
    return matrix[np.tril_indices(len(matrix))]


def csr_of(num_rows, num_features, seed):
    matrix = sparse.random(num_rows, num_features, 0.3, format="csr", dtype=np.float32, rng=seed)
    matrix.sort_indices()
    return matrix, (matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32), matrix.data)


@settings(max_examples=60)
@given(**shapes, gamma=st.sampled_from([1e-3, 0.1, 1.0]))
def test_weighing_rows_is_what_the_formula_says(num_rows, num_features, seed, gamma):
    x = noise(num_rows, num_features, seed)
    least, total, exponents, scaled, linear = weigh(x, gamma)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(exponents, gamma * (wide**2).sum(axis=1), rtol=1e-14)
    weights = np.exp(exponents.min() - exponents)
    assert least == exponents.min()
    assert total == pytest.approx(weights.sum(), rel=1e-14)
    np.testing.assert_allclose(linear, weights @ wide, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(scaled, np.sqrt(weights)[:, None] * wide, rtol=3e-7)


def test_weights_beyond_the_range_of_float32_keep_their_ratio():
    # exp(-400) is no float32, and its square no float64.
    x = np.array([[20.0], [20.01]], np.float32)
    _, total, _, scaled, _ = weigh(x, 1.0)
    assert total == pytest.approx(1 + math.exp(400 - float(x[1, 0]) ** 2))
    assert scaled[0, 0] == 20.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("num_rows", [1, 5])
def test_what_is_not_finite_shows_in_the_sums(bad, num_rows):
    x = noise(num_rows, 9, 0)
    x[0, 4] = bad
    _, total, _, _, linear = weigh(x, 0.1)
    assert not (math.isfinite(total) and np.isfinite(linear).all())


@settings(max_examples=60)
@given(**shapes)
def test_evaluated_rows_are_the_expansion_pair_by_pair(num_rows, num_features, seed):
    x, gamma = noise(num_rows, num_features, seed), 0.5 / num_features
    least, total, exponents, scaled, linear = weigh(x, gamma)
    quadratic = np.zeros((num_features, num_features))
    add_scaled(quadratic, scaled.T @ scaled, 2 * gamma**2 / total)
    linear *= 2 * gamma / total
    factor = np.abs(quadratic).max()
    product = x @ (quadratic / factor).astype(np.float32)
    evaluate_rows(x, product, factor, linear / factor, least, exponents)
    wanted = naive.expanded_similarities(x.tolist(), gamma)
    np.testing.assert_allclose(exponents / exponents.sum(), np.array(wanted) / sum(wanted), rtol=2e-6)


def test_a_row_gives_the_same_bits_wherever_it_lies():
    x = noise(50, 100, 3)
    _, _, exponents, _, linear = weigh(x, 0.01)
    padded = np.empty(50 * 100 + 3, np.float32)[3:].reshape(50, 100)
    padded[:] = x
    assert np.array_equal(weigh(padded, 0.01)[2], exponents)
    whole, single = exponents.copy(), exponents.copy()
    evaluate_rows(x, x, 0.5, linear, 0.0, whole)
    for i in range(50):
        evaluate_rows(x[i : i + 1], x[i : i + 1], 0.5, linear, 0.0, single[i : i + 1])
    assert np.array_equal(whole, single)


@settings(max_examples=60)
@given(**shapes, cuts=st.lists(st.integers(0, 27), max_size=3))
def test_sparse_rows_give_the_dense_sums_and_strips_the_same_bits(num_rows, num_features, seed, cuts):
    matrix, csr = csr_of(num_rows, num_features, seed)
    wide, gamma = matrix.toarray().astype(np.float64), 0.7
    exponents = np.empty(num_rows)
    weigh_csr(csr[0], csr[2], gamma, exponents)
    np.testing.assert_allclose(exponents, gamma * (wide**2).sum(axis=1), rtol=1e-14)
    weights = np.exp(-exponents)
    results = []
    for bounds in ([0, num_features], [0, *sorted(min(cut, num_features) for cut in cuts), num_features]):
        linears, strips, totals = [], [], np.zeros(num_rows)
        for first, last in itertools.pairwise(bounds):
            linear, strip = np.zeros(last - first), np.zeros((last * (last + 1) - first * (first + 1)) // 2)
            accumulate_csr(*csr, exponents, first, last, linear, strip)
            evaluate_csr(*csr, (first, last), (1.0, 1.0), linear, strip, totals)
            linears.append(linear)
            strips.append(strip)
        results.append((np.concatenate(linears), np.concatenate(strips), totals))
    linear, triangle, totals = results[0]
    np.testing.assert_allclose(linear, weights @ wide, rtol=1e-12)
    quadratic = (wide.T * weights) @ wide
    np.testing.assert_allclose(triangle, triangle_of(quadratic), rtol=1e-12)
    np.testing.assert_allclose(totals, wide @ (weights @ wide) + ((wide @ quadratic) * wide).sum(axis=1), rtol=1e-12)
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)


def test_sparse_rows_may_lie_past_two_to_the_31_values():
    values, indices = lazy_array(PAST_INT32 + 2, np.float32), lazy_array(PAST_INT32 + 2, np.uint32)
    values[-2:], indices[-2:] = [1.0, 2.0], [0, 2]
    indptr = np.array([PAST_INT32, PAST_INT32 + 2])
    exponents, linear, strip, totals = np.empty(1), np.zeros(3), np.zeros(6), np.zeros(1)
    weigh_csr(indptr, values, 0.1, exponents)
    accumulate_csr(indptr, indices, values, exponents, 0, 3, linear, strip)
    evaluate_csr(indptr, indices, values, (0, 3), (1.0, 1.0), linear, strip, totals)
    weight = math.exp(-0.5)
    assert exponents[0] == pytest.approx(0.5)
    np.testing.assert_allclose(linear, [weight, 0, 2 * weight])
    np.testing.assert_allclose(strip, [weight, 0, 0, 2 * weight, 0, 4 * weight])
    assert totals[0] == pytest.approx(5 * weight + 25 * weight)

"""The attribute vector: how alike a node is to all others, by a second-order expansion (paper: A.2, "Simplify r").

    r_i ~ w_i (a + x_i.b + x_i^T C x_i)                 w_i = exp(-gamma |x_i|^2)
    a = sum_j w_j       b = 2 gamma sum_j w_j x_j       C = 2 gamma^2 sum_j w_j x_j x_j^T

Dense rows: C is a rank-k update, which BLAS does on ``sqrt(w) x``; the kernels here do what stands around it, one
pass over rows that are still in cache. ``w`` is taken relative to the heaviest row of the call, as ``sqrt(w) x`` is
float32, whose range ends where gamma |x|^2 reaches 180; the driver multiplies the common factor back in float64.
Dot products write their terms down and then sum them in eight lanes: both loops vectorise (3 times as fast as one
running sum), and the order is fixed, so a row gives the same bits wherever it lies.

Sparse rows: m values touch m (m + 1) / 2 places of C, so BLAS would mostly multiply zeros. Row k of the lower triangle
holds C[k, 0..k]; a strip is some of these rows end to end. Every place is summed in the order of the matrix's rows and
belongs to one call, so neither strips, blocks nor threads change a bit. All of it is float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel
from ecgl_kernels._sum import sum_lanes

Columns = NDArray[np.integer[Any]]
Vector = NDArray[np.float64]
Matrix = NDArray[np.float32]


@kernel
def weigh_rows(x: Matrix, gamma: float, exponents: Vector, scaled: Matrix, linear: Vector) -> tuple[float, float]:
    """Fill ``exponents = gamma |x|^2``, ``scaled = sqrt(w) x`` and ``linear = sum w x``; return their least and sum w.

    Here w = exp(least - exponent): the true weights are exp(-least) times as large. Needs at least one row.
    Anything that is not finite in ``x`` shows as such in the sum or in ``linear``.
    """
    num_rows, width = x.shape
    terms = np.empty(width, np.float64)
    least = math.inf
    for i in range(num_rows):
        for j in range(width):
            terms[j] = np.float64(x[i, j]) * np.float64(x[i, j])
        exponents[i] = gamma * sum_lanes(terms)
        least = min(least, exponents[i])
    total = 0.0
    for j in range(width):
        linear[j] = 0.0
    for i in range(num_rows):
        weight = math.exp(least - exponents[i])
        root = np.float32(math.sqrt(weight))
        total += weight
        for j in range(width):
            scaled[i, j] = root * x[i, j]
            linear[j] += weight * np.float64(x[i, j])
    return least, total


@kernel
def add_scaled(total: NDArray[np.float64], part: Matrix, factor: float) -> None:
    """total += factor part, both [K, K]: in float64 and without the float64 copy of ``part`` that numpy would make."""
    for i in range(total.shape[0]):
        for j in range(total.shape[1]):
            total[i, j] += factor * np.float64(part[i, j])


@kernel
def evaluate_rows(x: Matrix, product: Matrix, factor: float, linear: Vector, least: float, values: Vector) -> None:
    """values = exp(least - values) (1 + factor x.(linear + product)), where ``values`` held gamma |x|^2.

    ``product`` is x times C / factor in float32, ``linear`` is b / factor; a, b and C have all been divided by a, which
    the final division by the sum of r undoes. The bracket is a mean of 1 + t + t^2/2 >= 1/2: it cannot vanish.
    """
    num_rows, width = x.shape
    terms = np.empty(width, np.float64)
    for i in range(num_rows):
        for j in range(width):
            terms[j] = np.float64(x[i, j]) * (linear[j] + np.float64(product[i, j]))
        values[i] = math.exp(least - values[i]) * (1.0 + factor * sum_lanes(terms))


@kernel
def weigh_csr(indptr: NDArray[np.int64], values: NDArray[np.float32], gamma: float, exponents: Vector) -> None:
    """exponents = gamma |x|^2 of sparse rows."""
    for i in range(indptr.size - 1):
        norm = 0.0
        for p in range(indptr[i], indptr[i + 1]):
            norm += np.float64(values[p]) * np.float64(values[p])
        exponents[i] = gamma * norm


@kernel
def accumulate_csr(
    indptr: NDArray[np.int64],
    indices: Columns,
    values: NDArray[np.float32],
    exponents: Vector,
    first: int,
    last: int,
    linear: Vector,
    strip: Vector,
) -> None:
    """Add rows to ``linear[k - first] = sum w x_k`` and to the strip's ``sum w x_k x_j``, j <= k, first <= k < last.

    Columns of a row ascend, so the places of one k are written from left to right.
    """
    start = first * (first + 1) // 2
    for i in range(indptr.size - 1):
        weight = math.exp(-exponents[i])
        begin, end = indptr[i], indptr[i + 1]
        for p in range(begin, end):
            k = np.int64(indices[p])
            if k < first:
                continue
            if k >= last:
                break
            weighted = weight * np.float64(values[p])
            linear[k - first] += weighted
            place = k * (k + 1) // 2 - start
            for q in range(begin, p + 1):
                strip[place + np.int64(indices[q])] += weighted * np.float64(values[q])


@kernel
def evaluate_csr(
    indptr: NDArray[np.int64],
    indices: Columns,
    values: NDArray[np.float32],
    columns: tuple[int, int],
    factors: tuple[float, float],
    linear: Vector,
    strip: Vector,
    totals: Vector,
) -> None:
    """Add to ``totals`` the terms of x.b + x^T C x whose larger column k is in the strip, k ascending.

    ``columns`` are the strip's first k and the one after its last; b and C are ``linear`` and ``strip`` times their
    ``factors``. C is symmetric: what lies left of its diagonal counts twice. Strips that follow each other go on with
    the same sum, so the bits do not depend on where they are cut.
    """
    first, last = columns
    of_linear, of_strip = factors
    start = first * (first + 1) // 2
    for i in range(indptr.size - 1):
        begin, end = indptr[i], indptr[i + 1]
        total = totals[i]
        for p in range(begin, end):
            k = np.int64(indices[p])
            if k < first:
                continue
            if k >= last:
                break
            value = np.float64(values[p])
            place = k * (k + 1) // 2 - start
            left = 0.0
            for q in range(begin, p):
                left += strip[place + np.int64(indices[q])] * np.float64(values[q])
            total += value * (of_linear * linear[k - first] + of_strip * (2.0 * left + strip[place + k] * value))
        totals[i] = total

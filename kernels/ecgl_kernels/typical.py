"""Rows that stand for a group of rows: by the group's mean (herding), or by centres within it (k-means).

    best     argmax over the rows i of group g of f_i.t_g - w_g |f_i|^2 / 2
    nearest  argmax over the centres c of the row's group of f_i.c - |c|^2 / 2

Both are distances without the part that all that are compared share. Each row is one dot product in float64, summed in
a fixed order (``_sum``): equal rows have equal scores wherever they lie, and the first of them wins, so neither threads
nor blocks can be seen in the answer. BLAS does not promise that. Groups below 0 are of rows that do not take part.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline, kernel
from ecgl_kernels._sum import sum_lanes

Rows = NDArray[np.float32]
Vector = NDArray[np.float64]
Numbers = NDArray[np.int64]


@inline
def _product(row: NDArray[Any], other: Vector, terms: Vector) -> float:
    for j in range(terms.size):
        terms[j] = np.float64(row[j]) * other[j]
    return sum_lanes(terms)


@kernel
def halve_squares(rows: Rows, halves: Vector) -> None:
    """halves = |f|^2 / 2 of each row."""
    terms = np.empty(rows.shape[1], np.float64)
    for i in range(rows.shape[0]):
        for j in range(terms.size):
            terms[j] = np.float64(rows[i, j]) * np.float64(rows[i, j])
        halves[i] = 0.5 * sum_lanes(terms)


@kernel
def add_to_groups(rows: Rows, groups: Numbers, sums: NDArray[np.float64]) -> None:
    """sums[g] += the rows of each group g, in their order."""
    for i in range(rows.shape[0]):
        if groups[i] >= 0:
            into = sums[groups[i]]
            for j in range(into.size):
                into[j] += np.float64(rows[i, j])


@kernel
def find_best(
    rows: Rows, groups: Numbers, halves: Vector, targets: NDArray[np.float64], weights: Vector, found: Numbers
) -> Vector:
    """Fill ``found`` with the best row of each group, the first of equals, and return the scores; -1 for none.

    Groups of weight 0 are passed over.
    """
    terms = np.empty(rows.shape[1], np.float64)
    best = np.full(found.size, -math.inf)
    found[:] = -1
    for i in range(rows.shape[0]):
        g = groups[i]
        if g < 0 or weights[g] == 0.0:
            continue
        score = _product(rows[i], targets[g], terms) - weights[g] * halves[i]
        if score > best[g]:
            best[g] = score
            found[g] = i
    return best


@kernel
def lower_distances(rows: Rows, groups: Numbers, centres: NDArray[np.float64], distances: Vector) -> None:
    """distances = the smaller of what they are and |f - c|^2, c being the one centre of the row's group."""
    terms = np.empty(rows.shape[1], np.float64)
    for i in range(rows.shape[0]):
        if groups[i] >= 0:
            centre = centres[groups[i]]
            for j in range(terms.size):
                difference = np.float64(rows[i, j]) - centre[j]
                terms[j] = difference * difference
            distances[i] = min(distances[i], sum_lanes(terms))


@kernel
def find_nearest(
    rows: Rows, groups: Numbers, centres: NDArray[np.float64], centre_halves: Vector, offsets: Numbers, nearest: Numbers
) -> None:
    """Fill ``nearest`` with the nearest centre of each row, the first of equals; -1 for rows without a group.

    The centres of group g are those from ``offsets[g]`` up to ``offsets[g + 1]``; ``centre_halves`` are |c|^2 / 2.
    """
    terms = np.empty(rows.shape[1], np.float64)
    for i in range(rows.shape[0]):
        nearest[i] = -1
        if groups[i] < 0:
            continue
        best = -math.inf
        for c in range(offsets[groups[i]], offsets[groups[i] + 1]):
            score = _product(rows[i], centres[c], terms) - centre_halves[c]
            if score > best:
                best = score
                nearest[i] = c

"""A layer on sparse rows (bags of words): only values that exist are multiplied, a row of the weights for each.

    forward    out[i] = sum over the values (k, v) of row i of v * w[k]           w: [columns, width], row by row
    backward   grad[k] += v * g[i] for every value (k, v) of every row i

Forward is cut by rows, backward by columns of ``grad``: each number is written by one thread, in the order of the
rows, so the result does not depend on the number of threads. Dense products would do columns / values-a-row times the
work; a general sparse library transposes the rows first for the backward.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel

Numbers = NDArray[np.float32]


@kernel
def multiply_rows(indptr: NDArray[np.int64], indices: NDArray[Any], values: Numbers, w: Numbers, out: Numbers) -> None:
    """out = rows @ w, for the rows that ``indptr`` delimits; the values before ``indptr[0]`` are other rows'."""
    width = w.shape[1]
    for row in range(indptr.size - 1):
        into = out[row]
        into[:] = 0
        for p in range(indptr[row], indptr[row + 1]):
            value, weights = values[p], w[indices[p]]
            for c in range(width):
                into[c] += value * weights[c]


@kernel
def add_outer_rows(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    values: Numbers,
    g: Numbers,
    first: int,
    stop: int,
    grad: Numbers,
) -> None:
    """grad += rows^T @ g, for the columns of ``g`` and ``grad`` from ``first`` up to ``stop``."""
    for row in range(indptr.size - 1):
        given = g[row, first:stop]
        for p in range(indptr[row], indptr[row + 1]):
            value, into = values[p], grad[indices[p], first:stop]
            for c in range(stop - first):
                into[c] += value * given[c]

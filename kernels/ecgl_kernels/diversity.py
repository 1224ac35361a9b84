"""How far every node is from the mean of its neighbours (paper: Eq. divrank, pi_Div), without storing any mean.

    squared[i] += sum over the columns c of (x[i, c] - mean over u in N(i) of x[u, c])**2

N(i) are the sources of the edges into i, as stored: an edge kept twice counts twice, a stored self loop counts; with
``include_self`` the node itself is added once more. A node without neighbours has the mean 0, so it gets its own norm.

Pull over rows: one thread writes a row, so there are no atomics, and the sum of a row's neighbours stays in registers
(``_vector``). 64 neighbours at a time are added in float32 and then to float64, so a hub's million terms do not drown
each other. A column's sum has the same bits wherever its slice begins, and the squares are added four columns at a
time, in the order of the columns: ``x`` may be any slice of the features that starts at a multiple of four columns.

Dense: 4 bytes of index and ``columns * itemsize`` of gathered row per edge and slice. Sparse: a row of sums per thread,
with a list of the columns that were touched, so only values that exist are ever looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline, kernel
from ecgl_kernels._vector import sum_rows

UNIT_COLUMNS = 4
"""Slices start at multiples of this."""
MAX_WIDTH = 64
"""Columns summed at once: eight registers of eight float32 each."""
FLOAT32_TERMS = 64
"""Neighbours added in float32 before the sum goes to float64."""

Dense = NDArray[np.float32] | NDArray[np.uint16]
"""float32, or float16 seen as uint16: numba has no float16."""


@inline
def sum_columns(
    indices: NDArray[Any], start: int, stop: int, x: Any, column: int, width: int, scale: Any, sums: NDArray[np.float32]
) -> None:
    """``sum_rows`` with a width that is known only now."""
    if width == 64:
        sum_rows(indices, start, stop, x, column, 64, scale, sums)
    elif width == 32:
        sum_rows(indices, start, stop, x, column, 32, scale, sums)
    elif width == 16:
        sum_rows(indices, start, stop, x, column, 16, scale, sums)
    elif width == 12:
        sum_rows(indices, start, stop, x, column, 12, scale, sums)
    elif width == 8:
        sum_rows(indices, start, stop, x, column, 8, scale, sums)
    elif width == 4:
        sum_rows(indices, start, stop, x, column, 4, scale, sums)
    else:
        sum_rows(indices, start, stop, x, column, 1, scale, sums)


@inline
def next_width(num_columns: int) -> int:
    """The widest piece that the remaining columns fill: 64, 32, 16, 12, 8, 4 or 1.

    Twelve saves a slice of that width, which is what little memory often has room for, a second walk of the edges.
    """
    if 12 <= num_columns < 16:
        return 12
    width = MAX_WIDTH
    while width > num_columns:
        width = width // 2 if width > UNIT_COLUMNS else 1
    return width


@kernel
def add_distances(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    x: Dense,
    first_row: int,
    include_self: bool,
    squared: NDArray[np.float64],
) -> None:
    """Add the squared distances over the columns of ``x`` to ``squared``, for the nodes from ``first_row`` on.

    ``indptr`` are the offsets of those nodes into ``indices``; ``x`` has a row for every node of the graph.
    """
    num_columns = x.shape[1]
    part = np.empty(MAX_WIDTH, np.float32)
    own = np.empty(MAX_WIDTH, np.float32)
    total = np.empty(MAX_WIDTH, np.float64)
    node = np.empty(1, np.int64)
    for row in range(indptr.size - 1):
        start, stop = indptr[row], indptr[row + 1]
        node[0] = first_row + row
        degree = stop - start + include_self
        column = 0
        unit = 0.0
        while column < num_columns:
            width = next_width(num_columns - column)
            sum_columns(node, 0, 1, x, column, width, None, own)
            for c in range(width):
                total[c] = own[c] if include_self else 0.0
            for first in range(start, stop, FLOAT32_TERMS):
                sum_columns(indices, first, min(first + FLOAT32_TERMS, stop), x, column, width, None, part)
                for c in range(width):
                    total[c] += part[c]
            for c in range(width):
                difference = own[c] - (total[c] / degree if degree else 0.0)
                unit += difference * difference
                if (column + c) % UNIT_COLUMNS == UNIT_COLUMNS - 1:
                    squared[row] += unit
                    unit = 0.0
            column += width
        squared[row] += unit


@kernel
def add_sparse_distances(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    x_indptr: NDArray[np.int64],
    x_indices: NDArray[np.uint32],
    x_values: NDArray[np.float32],
    first_row: int,
    include_self: bool,
    num_columns: int,
    squared: NDArray[np.float64],
) -> None:
    """The same for features in CSR, whose columns lie below ``num_columns``.

    The squares are added in the order in which the row first meets a column, so another cut of the columns may change
    the last bits. Memory: 13 bytes a column.
    """
    totals = np.zeros(num_columns, np.float64)
    seen = np.zeros(num_columns, np.bool_)
    touched = np.empty(num_columns, np.uint32)
    for row in range(indptr.size - 1):
        node = first_row + row
        start, stop = indptr[row], indptr[row + 1]
        degree = stop - start + include_self
        num_touched = 0
        for p in range(start, stop):
            u = indices[p]
            for k in range(x_indptr[u], x_indptr[u + 1]):
                c = x_indices[k]
                totals[c] += x_values[k]
                if not seen[c]:
                    seen[c] = True
                    touched[num_touched] = c
                    num_touched += 1
        divisor = max(degree, 1)
        total = 0.0
        for k in range(x_indptr[node], x_indptr[node + 1]):
            c = x_indices[k]
            mean = (totals[c] + (x_values[k] if include_self else 0.0)) / divisor
            total += (x_values[k] - mean) ** 2
            totals[c] = 0.0  # this column is done; below, only those that the node itself does not have count
        for t in range(num_touched):
            c = touched[t]
            total += (totals[c] / divisor) ** 2
            totals[c] = 0.0
            seen[c] = False
        squared[row] += total


@kernel
def count_columns(columns: NDArray[Any], counts: NDArray[np.int64]) -> None:
    """Add the number of values in each column."""
    for k in range(columns.size):
        counts[columns[k]] += 1


@kernel
def cut_columns(
    indptr: NDArray[np.int64],
    columns: NDArray[Any],
    values: NDArray[Any],
    first: int,
    stop: int,
    used: int,
    out_indptr: NDArray[np.int64],
    out_columns: NDArray[np.uint32],
    out_values: NDArray[np.float32],
) -> int:
    """Append the columns from ``first`` up to ``stop`` of sparse rows, numbered from 0; returns the values now used.

    ``out_indptr`` is the part that belongs to these rows: place r + 1 becomes the end of row r.
    """
    for row in range(indptr.size - 1):
        for k in range(indptr[row], indptr[row + 1]):
            if first <= columns[k] < stop:
                out_columns[used] = columns[k] - first
                out_values[used] = values[k]
                used += 1
        out_indptr[row + 1] = used
    return used


@kernel
def copy_columns(rows: Dense, first_column: int, out: Dense) -> None:
    """Copy the columns of ``rows`` from ``first_column`` on that ``out`` has room for."""
    for row in range(out.shape[0]):
        for c in range(out.shape[1]):
            out[row, c] = rows[row, first_column + c]


@kernel
def find_bad_distance(
    indptr: NDArray[np.int64], indices: NDArray[Any], norms: NDArray[np.float64], scores: NDArray[np.float64]
) -> int:
    """First node (row) whose score no mean of its neighbours can give; -1 if none. All nodes; ``norms`` are |x_u|.

    By the triangle inequality |x_i| - m <= score <= |x_i| + m, where m is the mean of |x_u|; and 0 <= score.
    """
    for row in range(scores.size):
        degree = indptr[row + 1] - indptr[row]
        mean = 0.0
        for p in range(indptr[row], indptr[row + 1]):
            mean += norms[indices[p]] / degree
        slack = 1e-5 * (norms[row] + mean)
        if not max(norms[row] - mean, 0.0) - slack <= scores[row] <= norms[row] + mean + slack:
            return row
    return -1

"""How far every node is from the mean of its neighbours (paper: Eq. divrank, pi_Div), without storing any mean.

    squared[i] += sum over the columns c of (x[i, c] - mean over u in N(i) of x[u, c])**2

N(i) are the sources of the edges into i, as stored: an edge kept twice counts twice, a stored self loop counts; with
``include_self`` the node itself is added once more. A node without neighbours has the mean 0, so it gets its own norm.

Pull over rows: one thread writes a row, so there are no atomics (``_gather`` adds a row's neighbours up). A column's
sum has the same bits wherever its slice begins, and the squares are added four columns at a time, in the order of the
columns: ``x`` may be any slice of the features that starts at a multiple of four columns.

Dense: 4 bytes of index and ``columns * itemsize`` of gathered row per edge and slice. Sparse: a row of sums per thread,
with a bit for each column that was met, so only values that exist are ever looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._bits import lowest_bit
from ecgl_kernels._gather import MAX_WIDTH, Dense, add_rows
from ecgl_kernels._jit import kernel

UNIT_COLUMNS = 4
"""Slices start at multiples of this."""


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
    own = np.empty(num_columns, np.float64)
    total = np.empty(num_columns, np.float64)
    node = np.empty(1, np.int64)
    for row in range(indptr.size - 1):
        start, stop = indptr[row], indptr[row + 1]
        node[0] = first_row + row
        own[:] = 0.0
        add_rows(node, 0, 1, x, None, part, own)
        for c in range(num_columns):
            total[c] = own[c] if include_self else 0.0
        add_rows(indices, start, stop, x, None, part, total)
        degree = stop - start + include_self
        share = 1.0 / degree if degree else 0.0
        for c in range(num_columns):
            difference = own[c] - total[c] * share
            total[c] = difference * difference
        # Each four are a sum of their own: a processor adds several of them at once.
        distance = squared[row]
        whole = num_columns // UNIT_COLUMNS * UNIT_COLUMNS
        for c in range(0, whole, UNIT_COLUMNS):
            distance += total[c] + total[c + 1] + total[c + 2] + total[c + 3]
        unit = 0.0
        for c in range(whole, num_columns):
            unit += total[c]
        squared[row] = distance + unit


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
    """Add the squared distances to ``squared`` as ``add_distances`` does, for features ``x`` in CSR.

    Columns lie below ``num_columns``; ``x`` may be any slice of them. A bit for each column that a row meets tells them
    in ascending order at the end, and the squares are added one by one to what ``squared`` has: the same additions
    wherever the columns are cut. Memory: 9 bytes a column.
    """
    totals = np.zeros(num_columns, np.float64)
    is_own = np.zeros(num_columns, np.bool_)
    met = np.zeros((num_columns >> 6) + 1, np.uint64)
    one = np.uint64(1)
    for row in range(indptr.size - 1):
        node = first_row + row
        start, stop = indptr[row], indptr[row + 1]
        divisor = max(stop - start + include_self, 1)
        for p in range(start, stop):
            u = indices[p]
            for k in range(x_indptr[u], x_indptr[u + 1]):
                c = x_indices[k]
                totals[c] += x_values[k]
                met[c >> 6] |= one << np.uint64(c & 63)
        for k in range(x_indptr[node], x_indptr[node + 1]):
            c = x_indices[k]
            mean = (totals[c] + (x_values[k] if include_self else 0.0)) / divisor
            totals[c] = x_values[k] - mean
            is_own[c] = True
            met[c >> 6] |= one << np.uint64(c & 63)
        distance = squared[row]
        for word in range(met.size):
            bits = met[word]
            while bits:
                c = (word << 6) + lowest_bit(bits)
                difference = totals[c] if is_own[c] else totals[c] / divisor
                distance += difference * difference
                totals[c] = 0.0
                is_own[c] = False
                bits &= bits - one
            met[word] = 0
        squared[row] = distance


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

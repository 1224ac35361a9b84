"""A graph held whole for training on it: rows without their self loops, and the same edges by their sources.

Both are one walk of the edges; the transposed rows come out ascending, as the walk goes by ascending rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel


@kernel
def copy_without_loops(
    offsets: NDArray[np.int64],
    values: NDArray[Any],
    first_row: int,
    position: int,
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
) -> int:
    """Append the rows from ``first_row`` on to a CSR that holds ``position`` edges so far; returns how many it holds.

    ``offsets`` are those of a block's rows into its ``values``; ``indptr`` and ``indices`` are the whole graph's.
    """
    for row in range(offsets.size - 1):
        node = first_row + row
        for p in range(offsets[row], offsets[row + 1]):
            if values[p] != node:
                indices[position] = values[p]
                position += 1
        indptr[node + 1] = position
    return position


@kernel
def transpose_rows(
    indptr: NDArray[np.int64], indices: NDArray[Any], out_indptr: NDArray[np.int64], out_indices: NDArray[Any]
) -> None:
    """Edges u -> row become rows of u. ``out_indptr`` is zero at first and as long as ``indptr``."""
    num_rows = indptr.size - 1
    for p in range(indptr[num_rows]):
        out_indptr[np.int64(indices[p]) + 1] += 1
    total = 0
    for row in range(num_rows):
        count = out_indptr[row + 1]
        out_indptr[row + 1] = total  # where the row's next edge goes
        total += count
    for row in range(num_rows):
        for p in range(indptr[row], indptr[row + 1]):
            slot = np.int64(indices[p]) + 1
            out_indices[out_indptr[slot]] = row
            out_indptr[slot] += 1

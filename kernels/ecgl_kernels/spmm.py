"""Messages from in-neighbours, row block by row block (paper: the graph convolution of the learner's inference).

    out[i] = row_scale[i] * (sum over u in N(i) of source_scale[u] * x[u]  [+ source_scale[i] * x[i]])

    sum        no scales
    mean       row_scale[i] = 1 / |N(i)|, 0 without neighbours
    symmetric  source_scale[u] = 1 / sqrt(d_u), row_scale[i] = 1 / sqrt(d_i): GCN, with the degrees of the caller

Pull: a row is written once, by one thread, from sums in registers; 64 neighbours at a time are added in float32 and
then to float64. An edge kept twice counts twice. The last term is a self loop of every node; its degrees must then
count it, as GCN's do. The result does not depend on how rows are cut into blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._gather import MAX_WIDTH, Dense, add_rows
from ecgl_kernels._jit import kernel

Scale = NDArray[np.float32] | None


@kernel
def propagate_rows(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    x: Dense,
    first_row: int,
    include_self: bool,
    source_scale: Scale,
    row_scale: Scale,
    out: NDArray[np.float32],
) -> None:
    """Write the rows of the nodes from ``first_row`` on; ``row_scale`` and ``out`` are theirs, ``x`` is everyone's."""
    num_columns = x.shape[1]
    part = np.empty(MAX_WIDTH, np.float32)
    total = np.empty(num_columns, np.float64)
    node = np.empty(1, np.int64)
    for row in range(indptr.size - 1):
        node[0] = first_row + row
        total[:] = 0.0
        add_rows(node, 0, int(include_self), x, source_scale, part, total)
        add_rows(indices, indptr[row], indptr[row + 1], x, source_scale, part, total)
        for c in range(num_columns):
            if row_scale is not None:
                out[row, c] = total[c] * row_scale[row]
            else:
                out[row, c] = total[c]


@kernel
def invert_degrees(degrees: NDArray[np.int64], square_root: bool, out: NDArray[np.float32]) -> None:
    """out = 1 / degree (mean) or 1 / sqrt(degree) (symmetric); 0 where the degree is 0: nothing is sent or received."""
    for i in range(degrees.size):
        if degrees[i] == 0:
            out[i] = 0.0
        else:
            out[i] = 1.0 / np.sqrt(degrees[i]) if square_root else 1.0 / degrees[i]


@kernel
def find_wrong_row(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    projected: NDArray[np.float64],
    first_row: int,
    include_self: bool,
    source_scale: Scale,
    row_scale: Scale,
    found: NDArray[np.float64],
) -> int:
    """First row whose result, projected on a random vector v, is not the sum of projected neighbours; -1 if none.

    Freivalds: ``projected`` = x v, ``found`` = out v. One number an edge instead of K. The tolerance is for float32.
    """
    for row in range(indptr.size - 1):
        total = magnitude = 0.0
        for p in range(indptr[row] - 1 if include_self else indptr[row], indptr[row + 1]):
            u = np.int64(indices[p]) if p >= indptr[row] else first_row + row
            term = projected[u]
            if source_scale is not None:
                term *= source_scale[u]
            total += term
            magnitude += abs(term)
        if row_scale is not None:
            total *= row_scale[row]
            magnitude *= row_scale[row]
        if not abs(total - found[row]) <= 1e-4 * magnitude + 1e-6:
            return row
    return -1

"""Message passing by partitions: rows of edges without loops, the sources a partition needs, greedy assignment.

Serial; callers run them in threads where rows are independent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel

Ints = NDArray[np.int64]


@kernel
def drop_loops(indptr: Ints, indices: NDArray[Any], first_row: int, out_indptr: Ints, out_indices: NDArray[Any]) -> int:
    """Copy rows without the edges of a node to itself; returns the edges kept. ``out_indptr`` starts at 0."""
    kept = 0
    out_indptr[0] = 0
    for row in range(indptr.size - 1):
        for p in range(indptr[row], indptr[row + 1]):
            if np.int64(indices[p]) != first_row + row:
                out_indices[kept] = indices[p]
                kept += 1
        out_indptr[row + 1] = kept
    return kept


@kernel
def copy_rows(
    indptr: Ints, indices: NDArray[Any], rows: Ints, used: int, out_indptr: Ints, out_indices: NDArray[Any]
) -> int:
    """Append the edges of some rows, in order; place r + 1 of ``out_indptr`` becomes the end of the r-th of them."""
    for r in range(rows.size):
        for p in range(indptr[rows[r]], indptr[rows[r] + 1]):
            out_indices[used] = indices[p]
            used += 1
        out_indptr[r + 1] = used
    return used


@kernel
def mark_sources(indices: NDArray[Any], start: int, stop: int, marks: NDArray[np.uint8]) -> int:
    """Set the mark of every source of edges ``start`` up to ``stop``; returns how many were not set before."""
    new = 0
    for p in range(start, stop):
        new += 1 - marks[indices[p]]
        marks[indices[p]] = 1
    return new


@kernel
def localise(indices: NDArray[Any], places: NDArray[np.int32], out: NDArray[np.int32]) -> None:
    """Replace node ids by their places in a halo."""
    for p in range(indices.size):
        out[p] = places[indices[p]]


@kernel
def add_source_scales(
    indptr: Ints, indices: NDArray[Any], scale: NDArray[np.float32], out: NDArray[np.float64]
) -> None:
    """Add the scales of a row's sources to ``out``."""
    for row in range(indptr.size - 1):
        total = 0.0
        for p in range(indptr[row], indptr[row + 1]):
            total += scale[indices[p]]
        out[row] += total


@kernel
def assign_greedily(
    indptr: Ints,
    indices: NDArray[Any],
    first_row: int,
    capacity: float,
    parts: NDArray[np.int32],
    loads: Ints,
    near: Ints,
) -> None:
    """Linear deterministic greedy (Stanton and Kliot 2012): rows, in order, join the part that has most neighbours.

    score(p) = neighbours already in p * (1 - load(p) / capacity); ties go to the lighter part, then the smaller one.
    ``parts`` has -1 for nodes not yet seen; ``near`` is zeroed scratch, one a part.
    """
    for row in range(indptr.size - 1):
        for p in range(indptr[row], indptr[row + 1]):
            part = parts[indices[p]]
            if part >= 0:
                near[part] += 1
        best, best_score = -1, -1.0
        for part in range(loads.size):
            if loads[part] < capacity:
                score = near[part] * (1.0 - loads[part] / capacity)
                if best < 0 or score > best_score or (score == best_score and loads[part] < loads[best]):
                    best, best_score = part, score
            near[part] = 0
        parts[first_row + row] = best
        loads[best] += 1

"""Sorted keys -> CSR rows, and the check that CSR rows are what they promise."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline, kernel


@kernel
def emit_rows(
    keys: NDArray[np.uint64],
    source_bits: int,
    previous: np.uint64,
    keep_duplicates: bool,
    degrees: NDArray[np.int64],
    sources: NDArray[Any],
) -> int:
    """Split sorted ``keys`` into row lengths and source ids; return how many were kept.

    ``degrees[r]`` grows by the kept edges of the bucket's row ``r``. ``previous`` is the last key of the chunk before
    (any larger number for none), so that a duplicate across the border is seen too.
    """
    high = np.uint64(source_bits)
    mask = (np.uint64(1) << high) - np.uint64(1)
    kept = 0
    for i in range(keys.size):
        key = keys[i]
        if key == previous and not keep_duplicates:
            continue
        previous = key
        sources[kept] = key & mask
        kept += 1
        degrees[key >> high] += 1
    return kept


@inline
def _steps_down(before: Any, after: Any, allow_duplicates: bool) -> bool:
    return bool(after < before or (after == before and not allow_duplicates))


@inline
def _has_good_rows(indptr: NDArray[np.int64], indices: NDArray[Any], limit: Any, allow_duplicates: bool) -> bool:
    """Only the start of a row may step down: as many steps down among all ids as at the starts.

    The loop over all ids has no way out, so it is vectorised: four times as fast as looking row by row.
    """
    num_at_starts = 0
    for row in range(indptr.size - 1):
        start, stop = indptr[row], indptr[row + 1]
        if stop < start or stop > indices.size:
            return False
        if stop > start:
            if np.uint64(indices[stop - 1]) >= limit:  # the largest, if they ascend
                return False
            if start > 0:
                num_at_starts += _steps_down(indices[start - 1], indices[start], allow_duplicates)
    num_steps_down = 0
    if allow_duplicates:
        for i in range(1, indices.size):
            num_steps_down += indices[i] < indices[i - 1]
    else:
        for i in range(1, indices.size):
            num_steps_down += indices[i] <= indices[i - 1]
    return num_steps_down == num_at_starts


@kernel
def find_bad_row(indptr: NDArray[np.int64], indices: NDArray[Any], num_nodes: int, allow_duplicates: bool) -> int:
    """First row that is unsorted, has a forbidden duplicate, an id >= num_nodes or a bad offset; -1 if none."""
    limit = np.uint64(num_nodes)
    if indptr[0] != 0 or indptr[-1] != indices.size:
        return 0
    if _has_good_rows(indptr, indices, limit, allow_duplicates):
        return -1
    for row in range(indptr.size - 1):
        start, stop = indptr[row], indptr[row + 1]
        if stop < start or stop > indices.size:
            return row
        for i in range(start, stop):
            if np.uint64(indices[i]) >= limit:
                return row
            if i > start and _steps_down(indices[i - 1], indices[i], allow_duplicates):
                return row
    return -1


@kernel
def count_sources(indices: NDArray[Any], out_degrees: NDArray[Any]) -> None:
    """Add each source's number of edges to ``out_degrees``."""
    for i in range(indices.size):
        out_degrees[indices[i]] += 1

"""Edges in any order -> 64-bit keys grouped by destination bucket.

A bucket is ``2**bucket_bits`` consecutive destination rows. The key of edge ``s -> d`` inside its bucket is

    key = (d mod 2**bucket_bits) << source_bits | s

so that sorting a bucket's keys gives its CSR rows, each with sorted sources. Two passes over the block (count, then
scatter to the counted places) instead of growing lists: every output byte is written once, in about as many
sequential streams as there are buckets. A reversed copy of each edge is made here, where it costs no extra read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel

DROP_LOOPS = 1
"""Flag: leave out edges ``i -> i``."""
SYMMETRISE = 2
"""Flag: also emit ``d -> s`` for every ``s -> d`` that is not a loop."""


@kernel
def count_edges(
    src: NDArray[Any], dst: NDArray[Any], num_nodes: int, bucket_bits: int, flags: int, counts: NDArray[np.int64]
) -> int:
    """Count keys by bucket, and in the last place of ``counts`` the self loops, dropped or not.

    Returns the first edge with an id outside [0, num_nodes), or -1.
    """
    shift = np.uint64(bucket_bits)
    limit = np.uint64(num_nodes)
    for i in range(src.size):
        # A negative id wraps to a huge one, so one comparison catches both ends of the range.
        s = np.uint64(src[i])
        d = np.uint64(dst[i])
        if s >= limit or d >= limit:
            return i
        if s != d:
            counts[d >> shift] += 1
            if flags & SYMMETRISE:
                counts[s >> shift] += 1
        else:
            counts[-1] += 1
            if not flags & DROP_LOOPS:
                counts[d >> shift] += 1
    return -1


@kernel
def scatter_edges(
    src: NDArray[Any],
    dst: NDArray[Any],
    bucket_bits: int,
    source_bits: int,
    flags: int,
    cursors: NDArray[np.int64],
    keys: NDArray[np.uint64],
) -> None:
    """Write each edge's key at its bucket's cursor; the same edges must have been counted first."""
    shift = np.uint64(bucket_bits)
    mask = np.uint64((1 << bucket_bits) - 1)
    high = np.uint64(source_bits)
    for i in range(src.size):
        s = np.uint64(src[i])
        d = np.uint64(dst[i])
        if s == d and flags & DROP_LOOPS:
            continue
        bucket = d >> shift
        keys[cursors[bucket]] = (d & mask) << high | s
        cursors[bucket] += 1
        if s != d and flags & SYMMETRISE:
            bucket = s >> shift
            keys[cursors[bucket]] = (s & mask) << high | d
            cursors[bucket] += 1


@kernel
def count_keys(keys: NDArray[np.uint64], base: np.uint64, shift: np.uint64, counts: NDArray[np.int64]) -> None:
    """Count keys by ``(key - base) >> shift``: a finer cut of a bucket that is too large to sort at once."""
    for i in range(keys.size):
        counts[(keys[i] - base) >> shift] += 1


@kernel
def scatter_keys(
    keys: NDArray[np.uint64], base: np.uint64, shift: np.uint64, cursors: NDArray[np.int64], out: NDArray[np.uint64]
) -> None:
    """Move keys to their part's cursor; the same keys must have been counted first."""
    for i in range(keys.size):
        part = (keys[i] - base) >> shift
        out[cursors[part]] = keys[i]
        cursors[part] += 1

"""Edges that came later, into rows that were there: checked, made rows of their own, merged into rows, swept.

    merged row r = own row r and older row r, ascending            sums[dst] += contributions[src] for every edge

Edges of a block lie as pairs in the order of tiles: by range of 2**16 sources, then destination, then source. So the
sources of one destination ascend, and so does a sweep's gather. Pairs of several generations become rows by counting
and scattering, in time that is linear in them; only rows that got edges of more than one generation are sorted. Rows
that got none are copied in runs, so a merge is a copy with little between. Merging and sorting keep what is equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline, kernel
from ecgl_kernels._search import count_below
from ecgl_kernels.tiles import RANGE_BITS

UNIT_EDGES = 1 << 14
"""Four places of so many edges are swept at once, as those of a long tile are: see ``pagerank``."""

SHORT_ROW = 48
"""Up to so many sources are put in their places one by one."""

Ints = NDArray[np.int64]
Ids = NDArray[Any]


@kernel
def find_bad_pair(dst: Ids, src: Ids, first_row: int, stop_row: int, num_nodes: int, allow_duplicates: bool) -> int:
    """First pair outside rows [first_row, stop_row) and sources below num_nodes, or out of order; -1 if none."""
    shift = np.uint64(RANGE_BITS)
    low, high, limit = np.uint64(first_row), np.uint64(stop_row), np.uint64(num_nodes)
    for i in range(dst.size):
        row, source = np.uint64(dst[i]), np.uint64(src[i])
        if row < low or row >= high or source >= limit:
            return i
        if i == 0:
            continue
        row_before, source_before = np.uint64(dst[i - 1]), np.uint64(src[i - 1])
        if source >> shift != source_before >> shift:
            if source < source_before:
                return i
        elif row != row_before:
            if row < row_before:
                return i
        elif source < source_before or (source == source_before and not allow_duplicates):
            return i
    return -1


@kernel
def count_rows(dst: Ids, first_row: int, counts: Ints) -> None:
    """Add the number of edges into every row to ``counts``."""
    for i in range(dst.size):
        counts[np.int64(dst[i]) - first_row] += 1


@kernel
def scatter_rows(dst: Ids, src: Ids, first_row: int, cursors: Ints, sources: Ids) -> None:
    """Put every source to the place of its row, which moves on by one."""
    for i in range(dst.size):
        row = np.int64(dst[i]) - first_row
        sources[cursors[row]] = src[i]
        cursors[row] += 1


@kernel
def sort_rows(starts: Ints, sources: Ids) -> None:
    """Sort the rows ``sources[starts[t]:starts[t + 1]]``, each of which is a few ascending runs."""
    for t in range(starts.size - 1):
        start, stop = starts[t], starts[t + 1]
        if stop - start > SHORT_ROW:
            for p in range(start + 1, stop):
                if sources[p] < sources[p - 1]:
                    sources[start:stop].sort()
                    break
            continue
        for p in range(start + 1, stop):
            source, place = sources[p], p
            while place > start and sources[place - 1] > source:
                sources[place] = sources[place - 1]
                place -= 1
            sources[place] = source


@inline
def _merge_row(own: Ids, own_start: int, own_stop: int, later: Ids, start: int, stop: int, out: Ids, place: int) -> int:
    p = own_start
    for q in range(start, stop):
        source = later[q]
        while p < own_stop and own[p] <= source:
            out[place] = own[p]
            p += 1
            place += 1
        out[place] = source
        place += 1
    while p < own_stop:
        out[place] = own[p]
        p += 1
        place += 1
    return place


@kernel
def merge_range(
    offsets: Ints,
    values: Ids,
    older: tuple[Ints, Ints, Ids],
    first: int,
    stop: int,
    out_offsets: Ints,
    out_values: Ids,
) -> None:
    """Rows ``first`` up to ``stop``, merged; ``older`` has the rows that got edges, their starts, and the sources."""
    touched, starts, later = older
    t = count_below(touched, first)
    row, place = first, 0
    out_offsets[0] = 0
    while row < stop:
        end = stop
        if t < touched.size and touched[t] < stop:
            end = touched[t]
        shift = place - offsets[row]
        for r in range(row, end):
            out_offsets[r - first + 1] = offsets[r + 1] + shift
        for p in range(offsets[row], offsets[end]):
            out_values[p + shift] = values[p]
        place = offsets[end] + shift
        row = end
        if row < stop:
            place = _merge_row(
                values, offsets[row], offsets[row + 1], later, starts[t], starts[t + 1], out_values, place
            )
            row += 1
            out_offsets[row - first] = place
            t += 1


@kernel
def merge_some(
    offsets: Ints, values: Ids, older: tuple[Ints, Ints, Ids], rows: Ints, out_offsets: Ints, out_values: Ids
) -> None:
    """The given rows, merged, in the order asked for."""
    touched, starts, later = older
    place = 0
    out_offsets[0] = 0
    for r in range(rows.size):
        row = rows[r]
        t = count_below(touched, row)
        start = stop = 0
        if t < touched.size and touched[t] == row:
            start, stop = starts[t], starts[t + 1]
        place = _merge_row(values, offsets[row], offsets[row + 1], later, start, stop, out_values, place)
        out_offsets[r + 1] = place


@kernel
def sweep_pairs(
    dst: Ids,
    src: Ids,
    first_row: int,
    contributions: NDArray[np.floating[Any]],
    sums: NDArray[np.floating[Any]],
) -> None:
    """Add the contribution of every source to the sum of its destination; ``sums`` begin at ``first_row``."""
    for first in range(0, dst.size, UNIT_EDGES):
        stop = min(first + UNIT_EDGES, dst.size)
        quarter = (stop - first) >> 2
        for i in range(first, first + quarter):
            j, k, m = i + quarter, i + 2 * quarter, i + 3 * quarter
            sums[np.int64(dst[i]) - first_row] += contributions[src[i]]
            sums[np.int64(dst[j]) - first_row] += contributions[src[j]]
            sums[np.int64(dst[k]) - first_row] += contributions[src[k]]
            sums[np.int64(dst[m]) - first_row] += contributions[src[m]]
        for i in range(first + 4 * quarter, stop):
            sums[np.int64(dst[i]) - first_row] += contributions[src[i]]

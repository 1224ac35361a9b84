"""Edges of induced subgraphs: those of a CSR block with both ends kept, renumbered; of one subgraph, or of several.

``local_of`` holds the new number of every node, -1 for one that is left out. Rows left out are stepped over without
looking at their sources, so that what is read is the kept rows; each kept edge costs one look-up at its source.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel
from ecgl_kernels._search import count_up_to


@kernel
def keep_edges(
    offsets: NDArray[np.int64],
    sources: NDArray[Any],
    first_row: int,
    edges: tuple[int, int],
    local_of: NDArray[Any],
    out_src: NDArray[Any],
    out_dst: NDArray[Any],
) -> int:
    """Write the kept ones of edges ``edges[0]`` to ``edges[1] - 1`` of a block; return how many there are.

    The block's rows are nodes from ``first_row`` on; the outputs have room for all of the edges. A range may begin and
    end inside a row.
    """
    start, stop = edges
    # The last row that begins at or before the first edge; empty rows before it begin there too.
    row = count_up_to(offsets, start) - 1
    kept = 0
    while row < offsets.size - 1 and offsets[row] < stop:
        target = local_of[first_row + row]
        if target >= 0:
            for i in range(max(start, offsets[row]), min(stop, offsets[row + 1])):
                source = local_of[sources[i]]
                if source >= 0:
                    out_src[kept] = source
                    out_dst[kept] = target
                    kept += 1
        row += 1
    return kept


@kernel
def keep_pairs(
    targets: NDArray[Any],
    sources: NDArray[Any],
    local_of: NDArray[Any],
    out_src: NDArray[Any],
    out_dst: NDArray[Any],
) -> int:
    """Write those of the edges ``sources[i] -> targets[i]`` whose ends are both kept; return how many there are."""
    kept = 0
    for i in range(targets.size):
        target = local_of[targets[i]]
        if target >= 0:
            source = local_of[sources[i]]
            if source >= 0:
                out_src[kept] = source
                out_dst[kept] = target
                kept += 1
    return kept


@kernel
def part_edges(
    offsets: NDArray[np.int64],
    sources: NDArray[Any],
    first_row: int,
    edges: tuple[int, int],
    number_of: NDArray[Any],
    firsts: NDArray[np.int64],
    ends: NDArray[np.int64],
    out_src: NDArray[Any],
    out_dst: NDArray[Any],
) -> None:
    """``keep_edges`` for several subgraphs without a common node, in one pass: each edge goes to that of both ends.

    Subgraph ``p`` has the numbers ``firsts[p]`` up to ``firsts[p + 1]`` of ``number_of``, and a part of the outputs for
    as many edges as its rows have here. Its edges are from ``ends[p, 0]`` up to ``ends[p, 1]``. A source costs one
    look-up, whatever the number of subgraphs.
    """
    start, stop = edges
    first = np.searchsorted(offsets, start, side="right") - 1
    ends[:] = 0
    row = first
    while row < offsets.size - 1 and offsets[row] < stop:
        target = number_of[first_row + row]
        if target >= 0:
            part = np.searchsorted(firsts, target, side="right") - 1
            ends[part, 1] += min(stop, offsets[row + 1]) - max(start, offsets[row])
        row += 1
    used = 0
    for part in range(ends.shape[0]):
        used, ends[part, 0], ends[part, 1] = used + ends[part, 1], used, used
    row = first
    while row < offsets.size - 1 and offsets[row] < stop:
        target = number_of[first_row + row]
        if target >= 0:
            part = np.searchsorted(firsts, target, side="right") - 1
            low, high, at = firsts[part], firsts[part + 1], ends[part, 1]
            for i in range(max(start, offsets[row]), min(stop, offsets[row + 1])):
                source = number_of[sources[i]]
                if low <= source < high:
                    out_src[at] = source - low
                    out_dst[at] = target - low
                    at += 1
            ends[part, 1] = at
        row += 1


@kernel
def part_pairs(
    targets: NDArray[Any],
    sources: NDArray[Any],
    number_of: NDArray[Any],
    firsts: NDArray[np.int64],
    ends: NDArray[np.int64],
    out_src: NDArray[Any],
    out_dst: NDArray[Any],
) -> None:
    """Part the edges ``sources[i] -> targets[i]`` as ``part_edges`` does those of rows."""
    ends[:] = 0
    for i in range(targets.size):
        target = number_of[targets[i]]
        if target >= 0:
            ends[np.searchsorted(firsts, target, side="right") - 1, 1] += 1
    used = 0
    for part in range(ends.shape[0]):
        used, ends[part, 0], ends[part, 1] = used + ends[part, 1], used, used
    for i in range(targets.size):
        target = number_of[targets[i]]
        if target >= 0:
            part = np.searchsorted(firsts, target, side="right") - 1
            source = number_of[sources[i]]
            if firsts[part] <= source < firsts[part + 1]:
                out_src[ends[part, 1]] = source - firsts[part]
                out_dst[ends[part, 1]] = target - firsts[part]
                ends[part, 1] += 1

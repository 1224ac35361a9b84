"""Sources in the order of their degrees: which column of the tiles a node has, and what that order is worth.

    group(v) = number of binary digits of outdegree(v)        columns: groups descending, within a group as nodes

A sweep gathers a contribution for every edge. Most edges of a graph with a power law come out of few nodes; where these
share a range, most edges are in few full tiles, and a cache line is fetched for many edges in place of few. Within a
group nodes keep their natural order, which crawled graphs have for a reason (degree-based grouping: Faldu, Diamond,
Grot 2019). Nodes that no edge comes out of are last, where nobody reads. Rows stay as they are: stripes are as even as
they were, and ranks are in node order.

``columns[v]`` is the column of node v; nodes past the end of ``columns``, which came later, keep their own numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline, kernel
from ecgl_kernels.random import mix
from ecgl_kernels.tiles import RANGE_BITS

NUM_GROUPS = 33
"""Degrees of 32, 31, ... 1 and 0 binary digits."""
LINE_BITS = 4
"""Sixteen float32 are a cache line."""

Ints = NDArray[np.int64]
Ids = NDArray[Any]


@inline
def _group(degree: Any) -> int:
    group, left = NUM_GROUPS - 1, np.uint64(degree)
    while left > np.uint64(0):
        left >>= np.uint64(1)
        group -= 1
    return group


@inline
def _column(columns: Ids, node: Any) -> Any:
    return np.uint64(columns[node]) if np.int64(node) < columns.size else np.uint64(node)


@kernel
def count_groups(degrees: NDArray[np.uint32], counts: Ints) -> None:
    """Add the nodes of each group to ``counts``."""
    for node in range(degrees.size):
        counts[_group(degrees[node])] += 1


@kernel
def place_sources(degrees: NDArray[np.uint32], cursors: Ints, columns: Ids) -> None:
    """Give every node the next column of its group; ``cursors`` are those columns."""
    for node in range(degrees.size):
        group = _group(degrees[node])
        columns[node] = cursors[group]
        cursors[group] += 1


@kernel
def map_sources(sources: Ids, columns: Ids, out: Ids) -> None:
    """Turn nodes into columns; ``out`` may be ``sources``."""
    for i in range(sources.size):
        out[i] = _column(columns, sources[i])


@kernel
def scatter_columns(values: NDArray[Any], first_node: int, columns: Ids, out: NDArray[Any]) -> None:
    """Put the values of some nodes, one after the other, into their columns."""
    for i in range(values.size):
        out[_column(columns, first_node + i)] = values[i]


@kernel
def sweep_ordered_pairs(
    dst: Ids,
    src: Ids,
    first_row: int,
    columns: Ids,
    contributions: NDArray[np.floating[Any]],
    sums: NDArray[np.floating[Any]],
) -> None:
    """As ``older.sweep_pairs``, with contributions in the order of columns."""
    for i in range(dst.size):
        sums[np.int64(dst[i]) - first_row] += contributions[_column(columns, src[i])]


@kernel
def count_column_tiles(sources: Ids, columns: Ids, counts: Ints) -> None:
    """As ``tiles.count_tiles``, by the ranges of columns."""
    for i in range(sources.size):
        counts[_column(columns, sources[i]) >> np.uint64(RANGE_BITS)] += 1


@kernel
def checksum_columns(indptr: Ints, sources: Ids, columns: Ids, first_row: int) -> np.uint64:
    """As ``checksum.checksum_rows``, of columns in place of nodes."""
    total = np.uint64(0)
    for row in range(indptr.size - 1):
        destination = np.uint64(first_row + row)
        for i in range(indptr[row], indptr[row + 1]):
            total += mix(destination, _column(columns, sources[i]))
    return total


@kernel
def find_bad_column(columns: Ids, seen: NDArray[np.uint8]) -> int:
    """First node whose column is none, or another's already; -1 if none. ``seen`` has a zero bit for each column."""
    for node in range(columns.size):
        column = np.uint64(columns[node])
        if column >= np.uint64(columns.size):
            return node
        byte, bit = column >> np.uint64(3), np.uint8(1 << (column & np.uint64(7)))
        if seen[byte] & bit:
            return node
        seen[byte] |= bit
    return -1


@kernel
def count_lines(indptr: Ints, sources: Ids, columns: Ids, last_lines: Ints, seen: NDArray[np.uint8]) -> int:
    """Lines that come into the cache when one range of rows is swept: of contributions and of sums, tile by tile.

    ``last_lines`` has -1 for each range of columns, and ``seen`` a zero byte for each line of them.
    """
    fetched = 0
    for row in range(indptr.size - 1):
        line_of_sums = row >> LINE_BITS
        for i in range(indptr[row], indptr[row + 1]):
            column = _column(columns, sources[i])
            tile = column >> np.uint64(RANGE_BITS)
            if last_lines[tile] != line_of_sums:
                last_lines[tile] = line_of_sums
                fetched += 1
            line = column >> np.uint64(LINE_BITS)
            if not seen[line]:
                seen[line] = 1
                fetched += 1
    return fetched

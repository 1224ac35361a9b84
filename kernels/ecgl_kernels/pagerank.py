"""One PageRank sweep over packed tiles, and the vector work between two sweeps (paper: the update of pi_Imp).

    ranks <- d (T ranks + dangling mass * jump) + (1 - d) r        T[i, j] = 1 / outdegree(j) for an edge j -> i

``sweep_tiles`` adds ``contributions[j] = ranks[j] / outdegree(j)`` into ``sums[i]`` for every edge. Tiles come in the
order of their source range, so the gather reads one slice of contributions at a time, and the sums of a stripe stay in
cache too; see ``tiles``. Contributions and sums have one precision. In float64 any tolerance can be reached. In float32
both slices fit the caches that a large graph has too much for; each rounding is at most 2**-24 of its value, in either
direction, so a rank is off by about 1e-7 of itself, and changes below about 1e-9 in all can no longer be seen.

Four places of a long run are walked at once: edges are sorted by destination, so neighbours in the list often add to
the same sum, and each such add would wait for the one before. The order is fixed, so the sums are the same every time.
A stripe is swept by one thread; arrays are padded to whole ranges, so no packed number can point outside them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel
from ecgl_kernels._search import count_up_to
from ecgl_kernels.tiles import RANGE_BITS

L1, L2, DANGLING, TOTAL = 0, 1, 2, 3
"""Places of the partial sums that ``finish_range`` returns."""
UNIT_BITS = 14
"""Tiles are also cut at multiples of this many edges: pieces that begin there change no order of adding."""
LONG_EDGES = 512
"""Shorter runs are walked one by one: four short walks would only cost their set-up. A tile of a billion-edge Kronecker
graph has about 4,000 edges, and gains by it."""


@kernel
def sweep_tiles(
    packed: NDArray[np.uint32],
    first_edge: int,
    offsets: NDArray[np.int64],
    width: int,
    contributions: NDArray[np.floating[Any]],
    sums: NDArray[np.floating[Any]],
) -> None:
    """Sweep the stripe's edges ``first_edge`` to ``first_edge + packed.size``.

    Row ``k * width + d`` of ``offsets`` is tile (k, d); ``sums`` are the stripe's rows, padded to whole ranges.
    """
    shift = np.uint32(RANGE_BITS)
    low = np.uint32((1 << RANGE_BITS) - 1)
    stop = first_edge + packed.size
    tile = count_up_to(offsets, first_edge) - 1
    edge = first_edge
    while edge < stop:
        end = min(offsets[tile + 1], stop, ((edge >> UNIT_BITS) + 1) << UNIT_BITS)
        source_start = (tile // width) << RANGE_BITS
        row_start = (tile % width) << RANGE_BITS
        source = contributions[source_start : source_start + (1 << RANGE_BITS)]
        target = sums[row_start : row_start + (1 << RANGE_BITS)]
        start = edge - first_edge
        quarter = (end - edge) >> 2 if end - edge >= LONG_EDGES else 0
        for i in range(start, start + quarter):
            a = packed[i]
            b = packed[i + quarter]
            c = packed[i + 2 * quarter]
            d = packed[i + 3 * quarter]
            target[a >> shift] += source[a & low]
            target[b >> shift] += source[b & low]
            target[c >> shift] += source[c & low]
            target[d >> shift] += source[d & low]
        for i in range(start + 4 * quarter, end - first_edge):
            target[packed[i] >> shift] += source[packed[i] & low]
        edge = end
        if end == offsets[tile + 1]:
            tile += 1


@kernel
def spread_ranks(ranks: NDArray[np.float64], degrees: NDArray[np.uint32], contributions: NDArray[Any]) -> float:
    """contributions = ranks / outdegree; a dangling node contributes nothing along edges. Returns the dangling mass."""
    dangling = 0.0
    for i in range(ranks.size):
        if degrees[i]:
            contributions[i] = ranks[i] / degrees[i]
        else:
            contributions[i] = 0.0
            dangling += ranks[i]
    return dangling


@kernel
def finish_range(
    ranks: NDArray[np.float64],
    sums: NDArray[np.floating[Any]],
    reset: NDArray[np.float64],
    degrees: NDArray[np.uint32],
    contributions: NDArray[np.floating[Any]],
    weights: tuple[float, float, float],
    partial: NDArray[np.float64],
) -> None:
    """Turn the sums of some rows into their new ranks, all in one pass: it is bound by the bytes of its vectors.

    ``weights`` are damping, constant and reset share: new = damping * sum + constant + reset share * reset, where
    ``reset`` is empty if r = 1/N, which is then in the constant. Contributions are made ready and sums cleared for the
    next sweep. ``partial`` becomes L1 and squared L2 change, dangling mass and total of the new ranks.
    """
    damping, constant, reset_share = weights
    l1 = l2 = dangling = total = 0.0
    for i in range(ranks.size):
        new = damping * sums[i] + constant
        if reset.size:
            new += reset_share * reset[i]
        change = new - ranks[i]
        l1 += abs(change)
        l2 += change * change
        total += new
        if degrees[i]:
            contributions[i] = new / degrees[i]
        else:
            dangling += new
        ranks[i] = new
        sums[i] = 0.0
    partial[L1], partial[L2], partial[DANGLING], partial[TOTAL] = l1, l2, dangling, total

"""The k best scores, block by block (paper: argtopk of pi_Imp and pi_Div).

A heap of k places keeps the worst of the best on top; a score enters only if it beats that. Better means a higher
score, or the same score and a smaller node id: a total order, so the k best are one set whatever order they come in,
and neither blocks nor threads can be seen in the answer. One comparison a score once the heap is full, and
O(log k) for the few that enter. NaN has no place in the order and is an error.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline, kernel


@inline
def is_worse(score: float, node: int, other_score: float, other_node: int) -> bool:
    """Whether the first comes after the second in the ranking."""
    return score < other_score or (score == other_score and node > other_node)


@inline
def push(score: float, node: int, best: NDArray[np.float64], best_ids: NDArray[np.int64], kept: int) -> int:
    """Offer one score to the heap that ``best`` and ``best_ids`` have room for; returns how many it now holds."""
    if kept < best.size:
        place = kept
        kept += 1
        while place > 0:
            parent = (place - 1) // 2
            if not is_worse(score, node, best[parent], best_ids[parent]):
                break
            best[place], best_ids[place] = best[parent], best_ids[parent]
            place = parent
        best[place], best_ids[place] = score, node
    elif kept > 0 and is_worse(best[0], best_ids[0], score, node):
        place = 0
        while 2 * place + 1 < kept:
            child = 2 * place + 1
            right = child + 1
            if right < kept and is_worse(best[right], best_ids[right], best[child], best_ids[child]):
                child = right
            if not is_worse(best[child], best_ids[child], score, node):
                break
            best[place], best_ids[place] = best[child], best_ids[child]
            place = child
        best[place], best_ids[place] = score, node
    return kept


@kernel
def keep_best(
    scores: NDArray[np.float64],
    ids: NDArray[np.int64],
    best: NDArray[np.float64],
    best_ids: NDArray[np.int64],
    kept: int,
) -> tuple[int, int]:
    """Offer the scores of the nodes ``ids``, each offered once in all; returns how many are kept, and -1.

    Where a score is NaN, its position is returned in place of -1; the heap is then no answer to anything.
    """
    for i in range(scores.size):
        if np.isnan(scores[i]):
            return kept, i
        kept = push(scores[i], ids[i], best, best_ids, kept)
    return kept, -1


@kernel
def keep_best_of_classes(
    scores: NDArray[np.float64],
    ids: NDArray[np.int64],
    labels: NDArray[np.int64],
    offsets: NDArray[np.int64],
    kept: NDArray[np.int64],
    best: NDArray[np.float64],
    best_ids: NDArray[np.int64],
) -> int:
    """Offer scores as ``keep_best`` does, each to the heap of its class c: ``offsets[c]`` up to ``offsets[c + 1]``.

    Nodes with a label below 0 are in no class. Returns the position of the first NaN, or -1.
    """
    for i in range(scores.size):
        if np.isnan(scores[i]):
            return i
        c = labels[i]
        if c >= 0:
            start, stop = offsets[c], offsets[c + 1]
            kept[c] = push(scores[i], ids[i], best[start:stop], best_ids[start:stop], kept[c])
    return -1


@kernel
def fill_quotas(counts: NDArray[np.int64], k: int, quotas: NDArray[np.int64]) -> None:
    """Split k places over classes of ``counts`` nodes: as equal as can be, no class more than it has.

    Rounds of one place for every class that still has a node, in the order of the labels, until k are given or all
    nodes are in. So what a small class cannot use goes to the others, and a remainder to the smaller labels.
    """
    quotas[:] = 0
    left = k
    while left > 0:
        num_open = 0
        smallest = left
        for c in range(counts.size):
            room = counts[c] - quotas[c]
            if room > 0:
                num_open += 1
                smallest = min(smallest, room)
        if num_open == 0:
            return
        # As many rounds at once as every open class has room for.
        rounds = min(smallest, left // num_open)
        for c in range(counts.size):
            if counts[c] > quotas[c] and left > 0:
                take = rounds if rounds > 0 else 1
                quotas[c] += take
                left -= take


@kernel
def find_misplaced(scores: NDArray[np.float64], ids: NDArray[np.int64]) -> int:
    """First place of a ranking that should come before the one above it, or repeats it; -1 if none."""
    for place in range(1, ids.size):
        above, here = ids[place - 1], ids[place]
        if not is_worse(scores[here], here, scores[above], above):
            return place
    return -1

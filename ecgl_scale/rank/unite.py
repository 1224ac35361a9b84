"""Uniting two rankings: the best by importance and the best by diversity, each node once, in every class.

    n_div = floor(budget * diversity_ratio)     n_imp = budget - n_div

A node chosen by both takes one place; with refill the places this leaves go, one each in turn, to the next best by
importance and the next best by diversity, until the budget is used up. With a quota for each class the budget is first
shared over the classes as ``topk`` does it, then the n_div places are shared over those shares in the same way; in a
class the rest go by importance, and union and refill stay within it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.topk import fill_quotas
from ecgl_scale.config.choices import Quota
from ecgl_scale.rank.topk import top_nodes

Ids = NDArray[np.int64]
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Picks:
    """Positions in the list of candidates, and how many were chosen why."""

    chosen: Ids
    by_importance: int = 0
    by_diversity: int = 0
    by_both: int = 0
    refilled: int = 0


def pick_best(
    importance: Scores, diversity: Scores, labels: Ids, *, places: tuple[int, int], quota: Quota, refill: bool
) -> Picks:
    """Unite the best of both in every group: in each class, or in all candidates together."""
    num_importance, num_diversity = places
    nothing, budget = np.empty(0, np.int64), sum(places)
    by_importance = top_nodes(importance, budget, labels=labels, quota=quota) if num_importance else nothing
    by_diversity = top_nodes(diversity, budget, labels=labels, quota=quota) if num_diversity else nothing
    groups = labels if quota == "class" else np.zeros_like(labels)
    numbers, sizes = np.unique(groups[by_importance if num_importance else by_diversity], return_counts=True)
    shares = np.zeros(numbers.size, np.int64)
    fill_quotas(sizes.astype(np.int64, copy=False), num_diversity, shares)
    parts = [nothing]
    by_both = 0
    for number, size, share in zip(numbers, sizes.tolist(), shares.tolist(), strict=True):
        part, overlap = unite(
            by_importance[groups[by_importance] == number],
            by_diversity[groups[by_diversity] == number],
            places=(size - share, share),
            refill=refill,
        )
        parts.append(part)
        by_both += overlap
    refilled = by_both if refill else 0
    return Picks(np.concatenate(parts), num_importance, num_diversity, by_both, refilled)


def unite(by_importance: Ids, by_diversity: Ids, *, places: tuple[int, int], refill: bool) -> tuple[Ids, int]:
    """The first ``places`` of two rankings together, each node once; and how many are among the first of both.

    With ``refill`` these places go to the next of the rankings in turn, importance first, passing over nodes that are
    in already. A ranking with places is given as far as there are places in all: it cannot be used up before they are.
    """
    chosen = dict.fromkeys(by_importance[: places[0]].tolist())
    chosen |= dict.fromkeys(by_diversity[: places[1]].tolist())
    overlap = sum(places) - len(chosen)
    waiting = [iter(by_importance[places[0] :].tolist()), iter(by_diversity[places[1] :].tolist())]
    for turn in range(overlap if refill else 0):
        chosen[next(node for node in waiting[turn % 2] if node not in chosen)] = None
    return np.fromiter(chosen, np.int64, len(chosen)), overlap

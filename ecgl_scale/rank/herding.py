"""Herding: each next row of a group brings the mean of those taken nearest to the group's mean (Welling 2009).

    taken j rows with the sum s of a group of n rows with the sum m:
    argmin over free i of |m / n - (s + f_i) / (j + 1)|^2  =  argmax f_i.((j + 1) m - n s) - n |f_i|^2 / 2

A pass takes one row of every group, and is one dot product a row: O(rows x columns), and as many passes as the largest
quota has rows. (Keeping the products up to date instead would cost the same, and drift.) Of equals the first is taken.
Memory: 40 bytes for each column of each group.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.rank.grouped_rows import GroupedRows


def herd(grouped: GroupedRows, *, on_pass: Callable[[int], None] = lambda _: None) -> NDArray[np.int64]:
    """Positions of the rows that are taken, in the order of passes; ``on_pass`` gets how many are done."""
    sums, sizes = grouped.add_up(grouped.groups, grouped.num_groups), grouped.sizes
    taken = np.zeros_like(sums)
    passes = []
    for turn in range(int(grouped.quotas.max(initial=0))):
        targets = (turn + 1) * sums
        targets -= sizes[:, None] * taken
        best = grouped.take_best(targets, np.where(turn < grouped.quotas, sizes, 0.0))
        for group in np.flatnonzero(best >= 0).tolist():
            taken[group] += grouped.rows[best[group]]
        passes.append(best[best >= 0])
        on_pass(turn + 1)
    return np.concatenate([np.empty(0, np.int64), *passes])

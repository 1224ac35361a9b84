"""The head of the closed-form learner: class-balanced ridge regression, from sums alone.

    G = sum over classes of S_c / n_c      Q[:, c] = s_c / n_c      W = (G + ridge * (tr G / width) I)^-1 Q

Every class weighs the same, whatever its number of rows. The same sums over validation rows, V and U, give the balanced
squared error of a head on them without a row being there:

    error(W) = tr(W^T V W) / C - 2 tr(W^T U) / C + 1

so the strength of the ridge is chosen by it, whenever the head is made, and the choice is a function of sums, too: of
all classes so far, in any order. A head costs width^3 / 3 operations (Cholesky). An eigen-decomposition of G would
serve all strengths at once, but costs as much as thirty heads (measured at 2,048: 9.0 against 0.3 s), and three or four
are enough, as the error falls and then rises along the strengths.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.engine.threads import torch_threads
from ecgl_scale.errors import UsageError
from ecgl_scale.learn.cholesky import factor_lower
from ecgl_scale.learn.gram import Square

STRENGTHS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)
"""What ``ridge: auto`` chooses from, relative to the mean of G's diagonal."""
WITHOUT_VALIDATION = 0.1
"""The strength where there is no validation node: near the best on most graphs of bench/README.md."""

Columns = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BalancedSums:
    """Sums over classes, each divided by its number of rows."""

    square: Square
    """Symmetric, [width, width]."""
    means: Columns
    """[width, classes]: a column of zeros where a class has no rows."""
    num_classes: int
    """Classes that have rows."""


def solve_head(train: BalancedSums, strength: float, *, threads: int = 1) -> Columns:
    """W, [width, classes]; the same bits for any threads. Memory: a square.

    Raises
    ------
    UsageError
        The strength is too small for the sums to be inverted in float64.
    """
    scale = float(np.trace(train.square)) / len(train.square) or 1.0  # no feature has a value: any scale will do
    lower = train.square.copy()
    lower.flat[:: len(lower) + 1] += strength * scale
    if not factor_lower(lower, threads=threads):
        raise UsageError(
            f"the sums cannot be inverted with the ridge {strength:g}",
            expected="a larger one: rows that resemble each other need it",
            fix="set analytic.ridge=auto, or a larger number",
        )
    with torch_threads(1):
        found: Columns = torch.cholesky_solve(torch.from_numpy(train.means), torch.from_numpy(lower)).numpy()
    return found


def validation_error(head: Columns, valid: BalancedSums) -> float:
    """The mean over classes of the mean squared error of their rows, from sums."""
    with torch_threads(1):
        sent = torch.from_numpy(valid.square) @ torch.from_numpy(head)
    crossed = float((head * valid.means).sum())
    return (float((head * sent.numpy()).sum()) - 2 * crossed) / max(valid.num_classes, 1) + 1.0


def choose_strength(train: BalancedSums, valid: BalancedSums, *, threads: int = 1) -> tuple[float, Columns]:
    """The strength with the least error on validation rows, and its head.

    From ``WITHOUT_VALIDATION`` on, the way that the error falls, until it rises: which strengths are tried depends on
    the sums alone, not on what was chosen before.
    """
    heads: dict[int, tuple[float, Columns]] = {}

    def error_at(place: int) -> float:
        if not 0 <= place < len(STRENGTHS):
            return math.inf
        if place not in heads:
            head = solve_head(train, STRENGTHS[place], threads=threads)
            heads[place] = validation_error(head, valid), head
        return heads[place][0]

    place = STRENGTHS.index(WITHOUT_VALIDATION)
    if not valid.num_classes:
        return STRENGTHS[place], solve_head(train, STRENGTHS[place], threads=threads)
    step = 1 if error_at(place + 1) < error_at(place) else -1
    while error_at(place + step) < error_at(place):
        place += step
    return STRENGTHS[place], heads[place][1]

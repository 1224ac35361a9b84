"""How long something takes on a machine that others use too."""

from __future__ import annotations

import time
from collections.abc import Callable

LEAST_ROUNDS = 3


def best_seconds(work: Callable[[], object], *, seconds: float) -> float:
    """The shortest of the rounds that fit into ``seconds``, three at least: what it takes where nobody disturbs it.

    A round before them does not count: it compiles, loads and starts threads.
    """
    work()
    best, rounds, began = float("inf"), 0, time.perf_counter()
    while rounds < LEAST_ROUNDS or time.perf_counter() - began < seconds:
        started = time.perf_counter()
        work()
        best, rounds = min(best, time.perf_counter() - started), rounds + 1
    return best

"""How fast this machine sends messages along edges: the kernel of a graph network on a made-up graph, in memory."""

from __future__ import annotations

from itertools import cycle

import numpy as np

from ecgl_kernels.spmm import propagate_rows
from ecgl_scale.base.stopwatch import best_seconds
from ecgl_scale.units import MIB

MOST_BYTES = 32 * MIB
"""The most that the rows may take that are sent; more do not fit a cache either."""
DEGREE = 16
ROUND_ROWS = 256


def measure_messages(width: int, num_nodes: int, *, seconds: float) -> float:
    """Numbers a second of one thread, the best of the rounds that fit into ``seconds``.  Memory: up to 34 MiB.

    Whether the senders' rows fit the cache matters most, so there are as many as the graph has, and every round hears
    others.
    """
    num_rows = max(min(num_nodes, MOST_BYTES // (4 * width)), 1)
    num_receivers = min(ROUND_ROWS, num_rows)
    sources = np.random.default_rng(0).integers(0, num_rows, DEGREE * num_rows, dtype=np.uint32)
    offsets = np.arange(0, DEGREE * num_receivers + 1, DEGREE, dtype=np.int64)
    rounds = cycle(range(0, num_rows - num_receivers + 1, num_receivers))
    rows, out = np.ones((num_rows, width), np.float32), np.empty((num_receivers, width), np.float32)
    scale = np.ones(num_rows, np.float32)

    def send() -> None:
        first = next(rounds)
        heard = sources[DEGREE * first : DEGREE * (first + num_receivers)]
        propagate_rows(offsets, heard, rows, first, True, scale, scale[:num_receivers], out)

    return DEGREE * num_receivers * width / best_seconds(send, seconds=seconds)

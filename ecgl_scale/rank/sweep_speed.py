"""How fast this machine sweeps edges: the kernel of a ranking on a made-up stripe, in memory."""

from __future__ import annotations

import numpy as np

from ecgl_kernels.pagerank import sweep_tiles
from ecgl_scale.base.stopwatch import best_seconds
from ecgl_scale.store.edges.plan import RANGE_ROWS

NUM_EDGES = 1 << 18


def measure_sweeps(*, seconds: float) -> float:
    """Edges a second of one thread, the best of the rounds that fit into ``seconds``.  Memory: 2 MiB."""
    packed = np.random.default_rng(0).integers(0, 1 << 32, NUM_EDGES, dtype=np.uint32)
    offsets = np.array([0, NUM_EDGES], np.int64)
    contributions, sums = np.ones(RANGE_ROWS, np.float32), np.zeros(RANGE_ROWS, np.float32)

    def sweep() -> None:
        sweep_tiles(packed, 0, offsets, 1, contributions, sums)

    return NUM_EDGES / best_seconds(sweep, seconds=seconds)

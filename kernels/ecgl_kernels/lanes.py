"""Gradients of lanes, each a vector of float32, added up in float64, a pass for each lane.

    start_sum    total  = lane             lane = 0        16 bytes a weight
    add_lane     total += lane             lane = 0        24 bytes
    end_sum      lane   = total + lane     rounded once    16 bytes

A pass is bound by the bytes it moves. Setting the lane to zero for the next one belongs to the same pass, as the
number is in a register then; numpy and torch would first make the lane once more in float64. Each weight is added by
itself: neither threads nor cuts change a bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel

Lane = NDArray[np.float32]
Total = NDArray[np.float64]


@kernel
def start_sum(total: Total, lane: Lane) -> None:
    """Make the first lane the sum so far."""
    for i in range(total.size):
        total[i] = lane[i]
        lane[i] = 0


@kernel
def add_lane(total: Total, lane: Lane) -> None:
    """Add one more lane to the sum."""
    for i in range(total.size):
        total[i] += lane[i]
        lane[i] = 0


@kernel
def end_sum(total: Total, lane: Lane) -> None:
    """Add the last lane, which becomes the sum of all; ``total`` stays as it was."""
    for i in range(total.size):
        lane[i] = np.float32(total[i] + lane[i])

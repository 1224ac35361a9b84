"""A step of Adam in one pass over the weights, with the weight decay as L2 inside it.

    g = grad + decay w      m = b1 m + (1 - b1) g   v = b2 v + (1 - b2) g^2      w -= step m / (sqrt(v) / root + eps)

A step is bound by the bytes it moves: read w, g, m and v, write w, m and v, 28 bytes a weight. Written as tensor
operations it moves them four times, and on a wide sparse layer that is most of an epoch. All in float32, each weight by
itself: neither threads nor cuts change a bit.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel

Numbers = NDArray[np.float32]


@kernel
def step_weights(
    weights: Numbers,
    gradient: Numbers,
    means: Numbers,
    squares: Numbers,
    betas: tuple[float, float],
    sizes: tuple[float, float, float, float],
) -> None:
    """Move ``weights`` and both moments; ``sizes`` are decay, step, root and eps, step and root corrected for bias."""
    keep_mean, keep_square = np.float32(betas[0]), np.float32(betas[1])
    new_mean, new_square = np.float32(1.0 - betas[0]), np.float32(1.0 - betas[1])
    decay, step = np.float32(sizes[0]), np.float32(sizes[1])
    root, epsilon = np.float32(sizes[2]), np.float32(sizes[3])
    for i in range(weights.size):
        g = gradient[i] + decay * weights[i]
        mean = keep_mean * means[i] + new_mean * g
        square = keep_square * squares[i] + new_square * (g * g)
        means[i] = mean
        squares[i] = square
        weights[i] -= step * mean / (np.float32(math.sqrt(square)) / root + epsilon)

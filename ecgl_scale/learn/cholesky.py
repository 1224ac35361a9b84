"""L with L L^T = A in float64, in place and in threads, with the same bits for any number of them.

    L_kk = factor of A_kk        L_ik = A_ik L_kk^-T        A_ij -= L_ik L_jk^T        blocks of 512 rows and columns

A library's own threads cut their work by how many they are, and sums come out in another order. Here each block is
the work of one thread, by one thread of BLAS, whichever has time for it.
"""

from __future__ import annotations

import numpy as np
import torch

from ecgl_scale.engine.threads import map_bounded, one_blas_thread, torch_threads
from ecgl_scale.learn.gram import Square

BLOCK = 512


def factor_lower(square: Square, *, threads: int) -> bool:
    """Put L into the lower triangle of a symmetric ``square``; what is above the diagonal means nothing afterwards.

    False where the matrix is not positive definite. Memory: a strip of 512 columns, and a product a thread.
    """
    size = len(square)
    with one_blas_thread(), torch_threads(1):
        for start in range(0, size, BLOCK):
            stop = min(start + BLOCK, size)
            lower, info = torch.linalg.cholesky_ex(torch.from_numpy(square[start:stop, start:stop].copy()))
            if int(info):
                return False
            square[start:stop, start:stop] = lower.numpy()
            _update(square, start, stop, lower, threads)
    return True


def _update(square: Square, start: int, stop: int, lower: torch.Tensor, threads: int) -> None:
    """Columns ``start`` up to ``stop`` below their diagonal block, and what they take off everything after them."""
    strip: Square = np.empty((len(square) - stop, stop - start))

    def divide(first: int) -> None:
        last = min(first + BLOCK, len(square))
        rows = torch.from_numpy(square[first:last, start:stop].copy())
        strip[first - stop : last - stop] = torch.linalg.solve_triangular(lower, rows.T, upper=False).T.numpy()

    def subtract(first: int) -> None:
        last = min(first + BLOCK, len(square))
        square[first:, first:last] -= strip[first - stop :] @ strip[first - stop : last - stop].T

    for work in (divide, subtract):
        for _ in map_bounded(work, range(stop, len(square), BLOCK), threads=threads):
            pass
    square[stop:, start:stop] = strip

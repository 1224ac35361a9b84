"""Sums of the rows that an index list names, over all columns: what diversity and the graph convolution are made of.

    total[c] += sum over p in [start, stop) of scale[u] * x[u, c],  u = indices[p]

64 rows at a time are added in float32, in registers (``_vector``), and then to float64, so a hub's million terms do not
drown each other. All columns of those 64 rows come before the next 64: a row of 400 bytes is fetched once, and the
address of its page is looked up once, however many pieces its columns are added in. A column's sum has the same bits
whatever slice of the columns ``x`` is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline
from ecgl_kernels._vector import sum_rows

MAX_WIDTH = 64
"""Columns summed at once: eight registers of eight float32 each."""
FLOAT32_TERMS = 64
"""Rows added in float32 before the sum goes to float64."""
NARROW_WIDTH = 4
"""Columns of the narrowest piece, but for single ones."""

Dense = NDArray[np.float32] | NDArray[np.uint16]
"""float32, or float16 seen as uint16: numba has no float16."""


@inline
def add_rows(
    indices: NDArray[Any],
    start: int,
    stop: int,
    x: Dense,
    scale: NDArray[np.float32] | None,
    part: NDArray[np.float32],
    total: NDArray[np.float64],
) -> None:
    """Add the rows to ``total``; ``part`` is room for ``MAX_WIDTH`` columns."""
    num_columns = x.shape[1]
    for first in range(start, stop, FLOAT32_TERMS):
        last = min(first + FLOAT32_TERMS, stop)
        column = 0
        while column < num_columns:
            width = next_width(num_columns - column)
            sum_columns(indices, first, last, x, column, width, scale, part)
            for c in range(width):
                total[column + c] += part[c]
            column += width


@inline
def sum_columns(
    indices: NDArray[Any], start: int, stop: int, x: Any, column: int, width: int, scale: Any, sums: NDArray[np.float32]
) -> None:
    """``sum_rows`` with a width that is known only now."""
    if width == 64:
        sum_rows(indices, start, stop, x, column, 64, scale, sums)
    elif width == 32:
        sum_rows(indices, start, stop, x, column, 32, scale, sums)
    elif width == 16:
        sum_rows(indices, start, stop, x, column, 16, scale, sums)
    elif width == 12:
        sum_rows(indices, start, stop, x, column, 12, scale, sums)
    elif width == 8:
        sum_rows(indices, start, stop, x, column, 8, scale, sums)
    elif width == 4:
        sum_rows(indices, start, stop, x, column, 4, scale, sums)
    else:
        sum_rows(indices, start, stop, x, column, 1, scale, sums)


@inline
def next_width(num_columns: int) -> int:
    """The widest piece that the remaining columns fill: 64, 32, 16, 12, 8, 4 or 1.

    Twelve saves a slice of that width, which is what little memory often has room for, a second walk of the edges.
    """
    if 12 <= num_columns < 16:
        return 12
    width = MAX_WIDTH
    while width > num_columns:
        width = width // 2 if width > NARROW_WIDTH else 1
    return width

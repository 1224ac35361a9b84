"""Where a value belongs among values that ascend.

As ``np.searchsorted``, which a kernel could call as well. But loading a kernel that calls it, though it is compiled
already, makes numba import its arraymath, and that scipy.linalg: a third of a second of every command.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ecgl_kernels._jit import inline


@inline
def count_below(ascending: NDArray[Any], value: int) -> int:
    """How many are less than ``value``: the place of the first that is not."""
    low, high = 0, ascending.size
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@inline
def count_up_to(ascending: NDArray[Any], value: int) -> int:
    """How many are not more than ``value``: the place after the last of them."""
    low, high = 0, ascending.size
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low

"""Arrays too large for memory, of which a test touches a few pages: to cross 2**31 entries cheaply."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

PAST_INT32 = 2**31 + 7
MAP_NORESERVE = 0x4000
"""Linux; Python 3.11 has no name for it."""


def lazy_array(size: int, dtype: DTypeLike) -> NDArray[Any]:
    """Zeros that take address space only: a page is there once it is touched."""
    size_bytes = size * np.dtype(dtype).itemsize
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    return np.frombuffer(memory, dtype)

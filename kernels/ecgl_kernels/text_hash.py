"""64 bits for each of many texts, the same on every machine and for ever: what an index of keys is sorted by.

    h_0 = n,   h_{i+1} = mix(h_i, w_i)          for the words w_0, w_1, ... of a text of n bytes
    w_i = bytes 8 i to 8 i + 7, little-endian, with zeros after the end

``mix`` is splitmix64's (see ``random``), a bijection of w for a fixed h: no two texts of the same length up to 8 bytes
have the same hash, and others do with probability 2^-64 a pair. It is no secret, so whoever means harm can make texts
that collide: readers compare the texts themselves. Texts lie as Arrow has them: text i is
``data[offsets[i]:offsets[i + 1]]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import kernel
from ecgl_kernels.random import mix


@kernel
def hash_texts(offsets: NDArray[Any], data: NDArray[np.uint8], out: NDArray[np.uint64]) -> None:
    """Write the hash of every text; ``offsets`` has one more entry than ``out``."""
    for i in range(out.size):
        first = offsets[i]
        last = offsets[i + 1]
        state = np.uint64(last - first)
        for start in range(first, last, 8):
            word = np.uint64(0)
            for k in range(min(8, last - start)):
                word |= np.uint64(data[start + k]) << np.uint64(8 * k)
            state = mix(state, word)
        out[i] = state

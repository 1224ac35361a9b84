"""Sums in a fixed order that a processor can still form several at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline


@inline
def sum_lanes(terms: NDArray[np.float64]) -> float:
    """The sum in eight lanes, which are added up at the end: the same bits wherever the terms come from."""
    whole = terms.size - terms.size % 8
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    for j in range(0, whole, 8):
        s0 += terms[j]
        s1 += terms[j + 1]
        s2 += terms[j + 2]
        s3 += terms[j + 3]
        s4 += terms[j + 4]
        s5 += terms[j + 5]
        s6 += terms[j + 6]
        s7 += terms[j + 7]
    for j in range(whole, terms.size):
        s0 += terms[j]
    return ((s0 + s4) + (s1 + s5)) + ((s2 + s6) + (s3 + s7))

"""Page-aligned memory: for O_DIRECT, for quick copies, and for use again and again."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np

from ecgl_scale.base.direct import SECTOR_BYTES, round_up
from ecgl_scale.units import MIB


def aligned_bytes(num_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Page-aligned memory for O_DIRECT, given back to the system as soon as it is dropped.

    Huge pages, where the system has them: fewer faults at first touch, fewer TLB misses when scattering.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # Python's default is shared memory, which has no huge pages
    memory = mmap.mmap(-1, round_up(max(num_bytes, 1), SECTOR_BYTES), flags=private)
    if num_bytes >= 4 * MIB:
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)[:num_bytes]


class ReusableBytes:
    """Aligned memory kept from one use to the next: touching fresh pages costs more than most uses of them."""

    def __init__(self) -> None:
        self._memory = aligned_bytes(0)

    @property
    def size(self) -> int:
        """Bytes held now."""
        return self._memory.size

    def take(self, num_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """The first ``num_bytes``; what was taken before is overwritten."""
        if num_bytes > self._memory.size:
            self.drop()  # first, or both generations would be there at once
            self._memory = aligned_bytes(num_bytes)
        return self._memory[:num_bytes]

    def drop(self) -> None:
        """Give the memory back."""
        self._memory = aligned_bytes(0)

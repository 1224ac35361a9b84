"""The nodes of a task in little memory: ascending ids as a run, a bitmap, or numbers, whichever takes least.

Ids are made when they are asked for, and belong to whoever asked. A few are kept as they are: making them again would
cost more than it saves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.node_set import list_nodes

Ids = NDArray[np.int64]
KEPT_IDS = 1 << 16


@dataclass(frozen=True, eq=False)
class Members:
    """Ascending ids of some nodes. Memory: at most 4 bytes each (8 past 2^32 nodes), or a bit for each up to the last.

    ``kept`` are ids, ids less the first in four bytes, or words of bits from the first on; None where all from there on
    are members.
    """

    first: int
    size: int
    kept: NDArray[np.int64] | NDArray[np.uint32] | NDArray[np.uint64] | None

    @classmethod
    def of(cls, ids: Ids) -> Members:
        """Those with these ids."""
        if ids.size <= KEPT_IDS:
            return cls(0, ids.size, ids)
        first, span = int(ids[0]), int(ids[-1] - ids[0]) + 1
        if span == ids.size:
            return cls(first, ids.size, None)
        if span <= 8 * 4 * ids.size:
            bits = np.zeros(-(-span // 64) * 64, np.bool_)
            bits[ids - first] = True
            return cls(first, ids.size, np.packbits(bits, bitorder="little").view("<u8"))
        return cls(first, ids.size, (ids - first).astype(np.uint32) if span <= 1 << 32 else ids)

    @property
    def ids(self) -> Ids:
        """Ids of all of them, ascending, made anew where they are many."""
        if self.kept is None:
            return np.arange(self.first, self.first + self.size, dtype=np.int64)
        if self.kept.dtype == np.int64:
            return self.kept.astype(np.int64, copy=False)
        if self.kept.dtype == np.uint32:
            ids = self.kept.astype(np.int64)
        else:
            ids = np.empty(self.size, np.int64)
            list_nodes(self.kept, np.zeros_like(self.kept), ids)
        ids += self.first
        return ids


def position_dtype(num_classes: int) -> np.dtype[Any]:
    """The smallest signed type that has the head positions of so many classes, and -1."""
    return np.dtype(next((kind for kind in (np.int8, np.int16) if num_classes <= np.iinfo(kind).max), np.int32))

"""Which rows of the logits somebody asks for: the last layer is computed for the partitions that have one of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.engine.block import Block
from ecgl_scale.graph.partition import CHUNK_ROWS


@dataclass(frozen=True, eq=False)
class AskedRows:
    """Runs of ``CHUNK_ROWS`` rows that have a row which is asked for. Memory: 8 bytes a run."""

    chunks: NDArray[np.int64]
    """Their numbers, ascending."""

    @classmethod
    def of(cls, *sets: NDArray[np.int64]) -> AskedRows:
        """Those of some rows, in any order; of several sets of them, those of any."""
        return cls(np.unique(np.concatenate([np.unique(rows // CHUNK_ROWS) for rows in sets])))

    def any_in(self, block: Block) -> bool:
        """Whether a run that meets the block has such a row."""
        first, after = np.searchsorted(self.chunks, [block.start // CHUNK_ROWS, -(-block.stop // CHUNK_ROWS)])
        return bool(first < after)

"""How the edges of a graph are cut: buckets to sort by, blocks to store. A function of the graph alone.

Nothing here depends on the memory budget or the number of threads, so the same graph always gives the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.tiles import RANGE_BITS
from ecgl_scale.engine.block import Block
from ecgl_scale.errors import InvalidInputError

RANGE_ROWS = 1 << RANGE_BITS
MAX_NODES = 1 << 40
MAX_BLOCK_RANGES = 16
"""16 ranges of float32 sums are 4 MiB: a stripe's destinations stay in cache while its tiles are swept."""
MIN_BLOCKS = 32
"""Smaller graphs get narrower blocks, so that there is work for many threads."""
MAX_BLOCK_EDGES = 1 << 26
"""A block is closed early at this many edges (256 MiB), unless a single range has more."""
BUCKET_COUNT_BITS = 9
"""About 512 buckets: a scatter to that many streams runs from cache; a bucket of a billion-edge graph is 16 MB."""
MIN_BUCKET_BITS = 8
MAX_KEY_BITS = 63
"""One bit short of the word: no shift ever reaches 64, and the largest number is never a key."""


@dataclass(frozen=True)
class BuildOptions:
    """What happens to the edges on their way in. Direction is kept as given unless ``symmetrise`` is set."""

    symmetrise: bool = False
    keep_duplicates: bool = False
    self_loops: str = "drop"
    """``drop``, ``keep``, or ``add``: drop what there is, then give every node exactly one."""
    is_symmetric: bool = False
    """The source promises that each edge comes with its reverse, as part of a symmetrised graph does; recorded, not
    checked."""
    source_order: str = "auto"
    """The tiles' sources are left as they are by ``none``, put in the order of their degrees by ``degree``, and by
    ``auto`` only where a sweep gains by it."""


@dataclass(frozen=True)
class EdgePlan:
    """Buckets of ``2**bucket_bits`` rows; keys of ``bucket_bits + source_bits`` bits."""

    num_nodes: int
    source_bits: int
    bucket_bits: int

    @classmethod
    def of(cls, num_nodes: int) -> EdgePlan:
        """The plan for a graph of so many nodes."""
        if not 0 < num_nodes <= MAX_NODES:
            raise InvalidInputError(
                f"a graph of {num_nodes} nodes cannot be stored", expected=f"1 to {MAX_NODES:,} nodes"
            )
        source_bits = max(1, (num_nodes - 1).bit_length())
        bucket_bits = min(max(MIN_BUCKET_BITS, source_bits - BUCKET_COUNT_BITS), MAX_KEY_BITS - source_bits)
        return cls(num_nodes, source_bits, bucket_bits)

    @classmethod
    def of_growth(cls, num_nodes: int) -> EdgePlan:
        """The plan for edges that come to a graph of so many nodes.

        No bucket reaches over a multiple of 2**16, where rows of older blocks may end and blocks of new rows begin.
        """
        plan = cls.of(num_nodes)
        return replace(plan, bucket_bits=min(plan.bucket_bits, RANGE_BITS))

    @property
    def num_buckets(self) -> int:
        """Buckets that cover all rows."""
        return ((self.num_nodes - 1) >> self.bucket_bits) + 1

    @property
    def key_bits(self) -> int:
        """Bits of a key: of the row within its bucket, and of the source."""
        return self.bucket_bits + self.source_bits

    @property
    def num_ranges(self) -> int:
        """Ranges of 2**16 nodes that cover the graph."""
        return ((self.num_nodes - 1) >> RANGE_BITS) + 1

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Node ids as stored: four bytes where they fit."""
        return id_dtype_of(self.num_nodes)

    def cut_blocks(self, bucket_counts: NDArray[np.int64], first_row: int = 0) -> list[Block]:
        """Group the rows of whole buckets, from ``first_row`` on, into blocks of whole ranges, by rows and by edges."""
        if first_row >= self.num_nodes:
            return []
        unit = max(1, RANGE_ROWS >> self.bucket_bits)
        max_buckets = max(widest_block(self.num_ranges) * RANGE_ROWS >> self.bucket_bits, unit)
        cuts = [first_row >> self.bucket_bits]
        edges = 0
        for bucket in range(cuts[0], self.num_buckets, unit):
            incoming = int(bucket_counts[bucket : bucket + unit].sum())
            if bucket > cuts[-1] and (edges + incoming > MAX_BLOCK_EDGES or bucket - cuts[-1] >= max_buckets):
                cuts.append(bucket)
                edges = 0
            edges += incoming
        rows = [*(bucket << self.bucket_bits for bucket in cuts), self.num_nodes]
        return [Block(index, *bounds) for index, bounds in enumerate(pairwise(rows))]

    def buckets_of(self, block: Block) -> slice:
        """The buckets of a block's rows."""
        return slice(block.start >> self.bucket_bits, ((block.stop - 1) >> self.bucket_bits) + 1)


def id_dtype_of(num_nodes: int) -> np.dtype[Any]:
    """Dtype of the ids in a graph of so many nodes."""
    return np.dtype(np.uint32 if num_nodes <= 1 << 32 else np.uint64)


def widest_block(num_ranges: int) -> int:
    """The most ranges that a block of a graph of so many has."""
    return min(max(num_ranges // MIN_BLOCKS, 1), MAX_BLOCK_RANGES)

"""Which order the sources of a new store get, by the graph alone: their own, or that of their degrees.

A few ranges of rows are looked at in both orders, and the cache lines counted that a sweep of them fetches. Where
degrees save less than a fifth of the lines, or the graph is so small that it is in cache in any order, sources keep
their own numbers, and the store has no file for it. What depends on nothing but the rows as they are stored is the
same for any memory, threads and workers, and after ``compact``.

Memory: a byte for each cache line of contributions, which is that of sixteen nodes. Degrees and columns are mapped
scratch files of 4 bytes a node each (columns of 8 past 2**32 nodes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.csr import count_sources
from ecgl_kernels.order import LINE_BITS, NUM_GROUPS, count_groups, count_lines, place_sources
from ecgl_scale.base.durable import WrittenFile, storage_errors
from ecgl_scale.engine.block import Block
from ecgl_scale.store.edges.order import write_order
from ecgl_scale.store.edges.plan import RANGE_ROWS, BuildOptions, EdgePlan
from ecgl_scale.store.format import EDGES_DIRECTORY, ORDER_NAME, block_name
from ecgl_scale.store.ragged import Ragged, read_ragged

MIN_EDGES = 1 << 23
"""A sweep over fewer takes some milliseconds in any order."""
SAMPLED_RANGES = 8
WORTH_SHARE = 0.8
"""At scale 20 half of the lines were saved: a sweep gained in float64, and nothing in float32 on two threads."""


@dataclass(frozen=True)
class WrittenRows:
    """The rows of a build, block by block, before there is a manifest."""

    store: Path
    blocks: Sequence[tuple[Block, int]]
    """Blocks, and how many edges each has."""

    @property
    def num_edges(self) -> int:
        """Edges of all blocks."""
        return sum(num_edges for _, num_edges in self.blocks)

    def read(self, block: Block) -> Ragged:
        """The rows of a block, mapped."""
        path = self.store / block_name(EDGES_DIRECTORY, block.index)
        with storage_errors(path):
            return read_ragged(path, WrittenFile(path.stat().st_size, 0), check_crc=False)


def may_order(options: BuildOptions, num_keys: int) -> bool:
    """Whether an order can be chosen at all for so many edges at most: tiles then wait until all rows are there."""
    return options.source_order != "none" and (options.source_order == "degree" or num_keys >= MIN_EDGES)


def choose_order(rows: WrittenRows, plan: EdgePlan, options: BuildOptions) -> WrittenFile | None:
    """Write ``order.arrow`` if the order pays; None if sources keep their own numbers."""
    if not may_order(options, rows.num_edges):
        return None
    target = rows.store / ORDER_NAME
    target.unlink(missing_ok=True)  # of a build that was killed and goes on
    with (
        _mapped_scratch(rows.store / "degrees.scratch", np.dtype(np.uint32), plan.num_nodes) as degrees,
        _mapped_scratch(rows.store / "columns.scratch", plan.id_dtype, plan.num_nodes) as columns,
    ):
        _count_degrees(rows, degrees, is_symmetric=options.symmetrise or options.is_symmetric)
        counts = np.zeros(NUM_GROUPS, np.int64)
        count_groups(degrees, counts)
        place_sources(degrees, np.cumsum(counts) - counts, columns)
        if options.source_order == "auto":
            natural, ordered = (_count_lines(rows, plan, order) for order in (columns[:0], columns))
            if ordered > WORTH_SHARE * natural:
                return None
        return write_order(target, columns)


def _count_degrees(rows: WrittenRows, degrees: NDArray[np.uint32], *, is_symmetric: bool) -> None:
    """Edges out of every node; in a symmetric graph they are those into it, which the offsets tell."""
    for block, _ in rows.blocks:
        stored = rows.read(block)
        if is_symmetric:
            degrees[block.start : block.stop] = stored.offsets[1:] - stored.offsets[:-1]
        else:
            count_sources(stored.values, degrees)


def _count_lines(rows: WrittenRows, plan: EdgePlan, columns: NDArray[Any]) -> int:
    """Cache lines that a sweep of some ranges of rows fetches."""
    total = 0
    for number in sorted(set(np.linspace(0, plan.num_ranges - 1, SAMPLED_RANGES).astype(int).tolist())):
        block = next(block for block, _ in rows.blocks if block.stop > number * RANGE_ROWS)
        stored, first = rows.read(block), number * RANGE_ROWS - block.start
        total += count_lines(
            stored.offsets[first : first + RANGE_ROWS + 1],
            stored.values,
            columns,
            np.full(plan.num_ranges, -1, np.int64),
            np.zeros((plan.num_nodes >> LINE_BITS) + 1, np.uint8),
        )
    return total


@contextmanager
def _mapped_scratch(path: Path, dtype: np.dtype[Any], size: int) -> Iterator[NDArray[Any]]:
    """Zeros in a file that is removed: memory that is the system's to reclaim."""
    try:
        with storage_errors(path, needed_bytes=size * dtype.itemsize):
            yield np.asarray(np.memmap(path, dtype, "w+", shape=(size,)))
    finally:
        path.unlink(missing_ok=True)

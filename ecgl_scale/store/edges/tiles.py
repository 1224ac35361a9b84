"""Tiles of one stripe from its CSR rows: count, then pack in final order, as much at a time as memory allows.

Rows, and so also the block's bounds, are whole ranges (the last one may be short). Passes over the CSR: one to count,
then one for every ``buffer_edges`` edges of the stripe. Memory: 4 bytes for each edge of the buffer, and the counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.tiles import count_tiles, pack_tile, scatter_tiles
from ecgl_scale.base.buffers import ReusableBytes
from ecgl_scale.base.durable import WrittenFile
from ecgl_scale.store.edges.plan import RANGE_ROWS
from ecgl_scale.store.edges.scratch import ScratchValues
from ecgl_scale.store.ragged import Ragged, write_ragged

EDGE_BYTES = 4


@dataclass(frozen=True)
class _Stripe:
    """One block's rows, seen range by range."""

    rows: Ragged

    @property
    def num_ranges(self) -> int:
        return -(-(self.rows.offsets.size - 1) // RANGE_ROWS)

    def range_offsets(self, destination: int) -> NDArray[np.int64]:
        first = destination * RANGE_ROWS
        return self.rows.offsets[first : first + RANGE_ROWS + 1]


def write_tiles(
    path: Path, rows: Ragged, num_ranges: int, *, memory: ReusableBytes, max_bytes: int, metadata: dict[str, str]
) -> WrittenFile:
    """Write the stripe's tiles as a ragged file: row ``k * width + d`` is tile (k, d), ``width`` the stripe's ranges.

    At most ``max_bytes`` of ``memory`` are used.
    """
    stripe = _Stripe(rows)
    counts = np.zeros((num_ranges, stripe.num_ranges), np.int64)
    for d in range(stripe.num_ranges):
        offsets = stripe.range_offsets(d)
        column = np.zeros(num_ranges, np.int64)
        count_tiles(rows.values[offsets[0] : offsets[-1]], column)
        counts[:, d] = column
    tile_offsets = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts.ravel(), out=tile_offsets[1:])
    num_edges = int(tile_offsets[-1])
    buffer = memory.take(min(num_edges * EDGE_BYTES, max_bytes // EDGE_BYTES * EDGE_BYTES)).view(np.uint32)
    if num_edges <= buffer.size:
        packed = buffer[:num_edges]
        _pack(stripe, tile_offsets, 0, num_ranges, packed)
        return write_ragged(path, tile_offsets, packed, metadata)
    with ScratchValues(path.with_suffix(".scratch"), np.dtype(np.uint32)) as scratch:
        _pack_through_scratch(stripe, tile_offsets, num_ranges, buffer, scratch)
        return write_ragged(path, tile_offsets, scratch.mapped(), metadata)


def _pack(stripe: _Stripe, tile_offsets: NDArray[np.int64], first: int, last: int, packed: NDArray[np.uint32]) -> None:
    """Pack the tiles of source ranges [first, last) for all destinations; ``packed`` starts at tile (first, 0)."""
    width = stripe.num_ranges
    base = tile_offsets[first * width]
    for d in range(width):
        cursors = tile_offsets[d:-1:width] - base
        scatter_tiles(stripe.range_offsets(d), stripe.rows.values, first, last, cursors, packed)


def _pack_through_scratch(
    stripe: _Stripe,
    tile_offsets: NDArray[np.int64],
    num_ranges: int,
    buffer: NDArray[np.uint32],
    scratch: ScratchValues,
) -> None:
    width = stripe.num_ranges
    starts = tile_offsets[::width]
    first = 0
    while first < num_ranges:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + buffer.size, side="right")) - 1)
        last = min(last, num_ranges)
        size = int(starts[last] - starts[first])
        if size <= buffer.size:
            _pack(stripe, tile_offsets, first, last, buffer[:size])
            scratch.append(buffer[:size])
        else:
            _pack_heavy_range(stripe, first, buffer, scratch)
        first = last


def _pack_heavy_range(stripe: _Stripe, source_range: int, buffer: NDArray[np.uint32], scratch: ScratchValues) -> None:
    """One source range alone exceeds the buffer: its tiles go out row by row, which is already their order."""
    for d in range(stripe.num_ranges):
        offsets = stripe.range_offsets(d)
        place = np.array([0, offsets[0]], np.int64)
        packed = buffer.size
        while packed == buffer.size:
            packed = pack_tile(offsets, stripe.rows.values, source_range, place, buffer)
            scratch.append(buffer[:packed])

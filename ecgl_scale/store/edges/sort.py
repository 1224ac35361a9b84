"""A bucket's keys, sorted, in chunks that fit the workspace.

A bucket that fits is scattered by its leading bits and sorted part by part in cache. One that does not (a hub, a small
budget) is first cut by its leading bits into a spill of its own, and each cut is handled the same way; a cut whose
keys are all equal needs no sorting at all. So any input can be sorted in any workspace.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.partition import count_keys, scatter_keys
from ecgl_kernels.radix import sort_parts
from ecgl_scale.base.buffers import ReusableBytes
from ecgl_scale.base.direct import SECTOR_BYTES, round_up
from ecgl_scale.store.edges.spill import KEY_BYTES, KeyBuckets, Keys, KeySpill, key_array

PART_KEYS_BITS = 12
"""Parts of about 4,096 keys: twice 32 KiB, half of L1 and well inside L2."""
MAX_PART_BITS = 10
CUT_BITS = 8
BYTES_PER_KEY = 2 * KEY_BYTES
MIN_WORKSPACE_BYTES = 1 << 20

Bytes = NDArray[np.uint8]


class SortWorkspace:
    """Memory of one thread for sorting: keys as read and keys as sorted, never more than ``max_bytes`` in all."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max(max_bytes, MIN_WORKSPACE_BYTES)
        self._raw = ReusableBytes()
        self._sorted = ReusableBytes()

    def fits(self, num_keys: int, read_bytes: int) -> bool:
        """Whether a bucket can be sorted at once."""
        return max(read_bytes, num_keys * KEY_BYTES) + num_keys * KEY_BYTES <= self.max_bytes

    def take(self, num_keys: int, read_bytes: int) -> tuple[Bytes, Keys]:
        """Room for a bucket as read (and for the radix sort's second array), and as sorted."""
        raw_bytes = round_up(max(read_bytes, num_keys * KEY_BYTES), SECTOR_BYTES)
        sorted_bytes = num_keys * KEY_BYTES
        if max(raw_bytes, self._raw.size) + max(sorted_bytes, self._sorted.size) > self.max_bytes + 2 * SECTOR_BYTES:
            self._raw.drop()
            self._sorted.drop()
        return self._raw.take(raw_bytes), key_array(self._sorted, num_keys)


def sorted_chunks(
    spill: KeyBuckets, bucket: int, key_bits: int, workspace: SortWorkspace, scratch: Path, *, prefix: int = 0
) -> Iterator[Keys]:
    """The bucket's keys in ascending order; a chunk is valid until the next one is asked for.

    All keys of the bucket agree with ``prefix`` above their low ``key_bits`` bits.
    """
    num_keys = int(spill.counts[bucket])
    if num_keys == 0:
        return
    read_bytes = spill.read_bytes(num_keys)
    if workspace.fits(num_keys, read_bytes):
        raw, out = workspace.take(num_keys, read_bytes)
        yield _sort_bucket(spill, bucket, key_bits, raw, out[:num_keys], prefix)
    elif key_bits == 0:
        most = workspace.max_bytes // BYTES_PER_KEY
        for start in range(0, num_keys, most):
            yield np.full(min(most, num_keys - start), prefix, np.uint64)
    else:
        yield from _cut_bucket(spill, bucket, key_bits, workspace, scratch, prefix)


def _sort_bucket(spill: KeyBuckets, bucket: int, key_bits: int, raw: Bytes, out: Keys, prefix: int) -> Keys:
    part_bits = min(max(out.size.bit_length() - PART_KEYS_BITS, 0), MAX_PART_BITS, key_bits)
    low_bits = key_bits - part_bits
    base, shift = np.uint64(prefix), np.uint64(low_bits)
    slices = spill.read(bucket, raw)
    offsets = np.zeros((1 << part_bits) + 1, np.int64)
    for keys in slices:
        count_keys(keys, base, shift, offsets[1:])
    np.cumsum(offsets, out=offsets)
    cursors = offsets[:-1].copy()
    for keys in slices:
        scatter_keys(keys, base, shift, cursors, out)
    if low_bits:
        # The raw keys have been moved, so their memory serves as the radix sort's second array.
        sort_parts(out, raw.view(np.uint64), offsets, low_bits)
    return out


def _cut_bucket(
    spill: KeyBuckets, bucket: int, key_bits: int, workspace: SortWorkspace, scratch: Path, prefix: int
) -> Iterator[Keys]:
    cut_bits = min(CUT_BITS, key_bits)
    base, shift = np.uint64(prefix), np.uint64(key_bits - cut_bits)
    cuts = KeySpill(scratch.with_name(f"{scratch.name}-{key_bits}"), 1 << cut_bits, allowance_bytes=0)
    try:
        half = workspace.max_bytes // 2 // SECTOR_BYTES * SECTOR_BYTES
        raw, moved = workspace.take(half // KEY_BYTES, half)
        for slices in spill.batches(bucket, raw):
            offsets = np.zeros((1 << cut_bits) + 1, np.int64)
            for keys in slices:
                count_keys(keys, base, shift, offsets[1:])
            np.cumsum(offsets, out=offsets)
            cursors = offsets[:-1].copy()
            for keys in slices:
                scatter_keys(keys, base, shift, cursors, moved)
            cuts.append(0, moved, offsets)
        for cut in range(1 << cut_bits):
            low_bits = key_bits - cut_bits
            yield from sorted_chunks(cuts, cut, low_bits, workspace, scratch, prefix=prefix | cut << low_bits)
    finally:
        cuts.close()

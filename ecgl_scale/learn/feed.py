"""Blocks of rows on their way to the device that trains on them.

CPU: a block is used where it is, a view of held rows or a buffer that a thread has filled. CUDA: threads fill pinned
buffers, and while one block is worked on the next is copied on a stream of its own.
Memory: ``read_ahead + 1`` buffers of a block, kept for all epochs and segments; none for rows held as float32 or CSR.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.base.durable import aligned_bytes
from ecgl_scale.engine.block import Block
from ecgl_scale.errors import UsageError
from ecgl_scale.learn.model import Rows
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.units import MIB

BLOCK_BYTES = 16 * MIB
"""Bytes of a block's rows and hidden layers: enough for the matrix products, and few enough for the cache."""
SPARSE_BLOCK_BYTES = 64 * MIB
"""Bytes of a block of sparse rows: each costs a pass over the first weight matrix, so there are few of them."""
ROWS_MULTIPLE = 16
"""Blocks have a multiple of so many rows: they then begin at cache lines of a float32 matrix, whatever its width, and
products may round by alignment."""


def block_rows_for(widths: Sequence[int], block_rows: int | None, *, is_sparse: bool) -> int:
    """Rows of a block: as asked for, else by its bytes; a multiple of 16."""
    if block_rows is not None and block_rows < 1:
        raise UsageError(f"block_rows is {block_rows}", expected="at least 1")
    if block_rows is None:
        row_floats = sum(widths[1:]) + (0 if is_sparse else widths[0])
        block_rows = max((SPARSE_BLOCK_BYTES if is_sparse else BLOCK_BYTES) // (4 * row_floats), 1)
    return -(-block_rows // ROWS_MULTIPLE) * ROWS_MULTIPLE


class Feed:
    """Gives out the blocks of any rows, ready for the device, in order."""

    def __init__(self, device: torch.device, block_rows: int | None, *, read_ahead: int, threads: int) -> None:
        if read_ahead < 0 or threads < 1:
            raise UsageError("cannot read ahead like this", where=f"{read_ahead} blocks, {threads} threads")
        self._device = device
        self._block_rows = block_rows
        self._read_ahead = read_ahead
        self._threads = threads
        self._memory: list[NDArray[np.float32]] = []

    def split(self, rows: RowCache, widths: Sequence[int]) -> list[Block]:
        """All blocks of ``rows``."""
        return rows.blocks(block_rows_for(widths, self._block_rows, is_sparse=self.gives_sparse(rows, widths)))

    def blocks(
        self, rows: RowCache, widths: Sequence[int], wanted: Sequence[Block] | None = None
    ) -> Iterator[tuple[Block, Rows]]:
        """All blocks of ``rows``, or those ``wanted`` of ``split``; one is valid until the next is asked for."""
        if rows.num_features != widths[0]:
            raise UsageError(
                f"rows have {rows.num_features} features, the model takes {widths[0]}",
                fix="use the store it was made for",
            )
        is_sparse = self.gives_sparse(rows, widths)
        size = block_rows_for(widths, self._block_rows, is_sparse=is_sparse)
        if is_sparse:
            yield from rows.stream_sparse(size, read_ahead=self._read_ahead, threads=self._threads, wanted=wanted)
            return
        into = self._buffers(min(size, rows.num_rows), rows.num_features) if rows.needs_buffers else None
        stream = rows.stream(size, read_ahead=self._read_ahead, threads=self._threads, into=into, wanted=wanted)
        if self._device.type == "cuda":
            yield from _copied_ahead(stream, self._device)
            return
        for block, x in stream:
            yield block, torch.from_numpy(x)

    def take(
        self, rows: RowCache, widths: Sequence[int], positions: NDArray[np.int64]
    ) -> NDArray[np.float32] | CsrBlock:
        """The rows at ``positions``, in memory of their own."""
        if self.gives_sparse(rows, widths):
            return rows.take_sparse(positions)
        return rows.take(positions)

    def forget_buffers(self) -> None:
        """Give back the memory that is used again for every block."""
        self._memory = []

    def gives_sparse(self, rows: RowCache, widths: Sequence[int]) -> bool:
        """Whether blocks stay sparse: our kernels are for the CPU, and pay where a wide layer is before the head."""
        return rows.is_sparse and self._device.type == "cpu" and len(widths) > 2

    def _buffers(self, num_rows: int, num_features: int) -> list[NDArray[np.float32]]:
        size = num_rows * num_features
        if not self._memory or self._memory[0].size < size:
            self._memory = []
            self._memory = [self._new_buffer(size) for _ in range(self._read_ahead + 1)]
        return [memory[:size].reshape(num_rows, num_features) for memory in self._memory]

    def _new_buffer(self, size: int) -> NDArray[np.float32]:
        if self._device.type == "cuda":
            pinned: NDArray[np.float32] = torch.empty(size, pin_memory=True).numpy()
            return pinned
        return aligned_bytes(4 * size).view(np.float32)


def on_device(rows: NDArray[np.float32] | CsrBlock, device: torch.device) -> Rows:
    """Move rows that were taken to the model's device; sparse ones stay as they are."""
    if isinstance(rows, CsrBlock):
        return rows
    return torch.from_numpy(rows).to(device)


def _copied_ahead(
    stream: Iterator[tuple[Block, NDArray[np.float32]]], device: torch.device
) -> Iterator[tuple[Block, torch.Tensor]]:
    """Copy a block while the one before is worked on; a buffer is given back when its copy has ended."""
    copies = torch.cuda.Stream(device)
    waiting: tuple[Block, torch.Tensor, torch.cuda.Event] | None = None
    for block, rows in stream:
        with torch.cuda.stream(copies):
            moved = torch.from_numpy(rows).to(device, non_blocking=True)
            done = copies.record_event()
        if waiting is not None:
            yield _arrived(*waiting, device)
        done.synchronize()
        waiting = (block, moved, done)
    if waiting is not None:
        yield _arrived(*waiting, device)


def _arrived(
    block: Block, moved: torch.Tensor, done: torch.cuda.Event, device: torch.device
) -> tuple[Block, torch.Tensor]:
    worker = torch.cuda.current_stream(device)
    worker.wait_event(done)
    moved.record_stream(worker)
    return block, moved

"""Second half of the external build: each block's buckets are sorted, written as CSR rows, then packed into tiles.

Threads take whole blocks, largest first, and share nothing but the spill. Memory per thread (``share_bytes``): half for
sorting, half for the block's rows and tiles; a block whose rows do not fit goes through a scratch file instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from threading import local
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.csr import emit_rows
from ecgl_scale.base.buffers import ReusableBytes
from ecgl_scale.base.durable import WrittenFile
from ecgl_scale.base.events import BlockFinished, EventSink, StageStarted
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.store.edges.plan import BuildOptions, EdgePlan
from ecgl_scale.store.edges.scratch import ScratchValues
from ecgl_scale.store.edges.sort import BYTES_PER_KEY, SortWorkspace, sorted_chunks
from ecgl_scale.store.edges.spill import KeySpill
from ecgl_scale.store.edges.tiles import EDGE_BYTES, write_tiles
from ecgl_scale.store.format import EDGES_DIRECTORY, TILES_DIRECTORY
from ecgl_scale.store.ragged import Ragged, read_ragged, write_ragged

STAGE = "write rows and tiles"
MIN_TILE_BUFFER_BYTES = 1 << 20
NO_KEY = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class BlockResult:
    """One finished block."""

    index: int
    rows: tuple[int, int]
    num_edges: int
    files: dict[str, WrittenFile]


@dataclass(frozen=True)
class _Task:
    index: int
    buckets: tuple[int, int]
    num_keys: int


def block_name(directory: str, index: int) -> str:
    """Where block ``index`` lies below the store."""
    return f"{directory}/{index:05d}.arrow"


def write_blocks(
    spill: KeySpill,
    plan: EdgePlan,
    options: BuildOptions,
    store: Path,
    *,
    share_bytes: int,
    threads: int,
    on_event: EventSink,
) -> list[BlockResult]:
    """Write all blocks; the result is in row order and the same for any number of threads and any memory."""
    on_event(StageStarted(STAGE, int(spill.counts.sum()), "edges"))
    (store / EDGES_DIRECTORY).mkdir()
    (store / TILES_DIRECTORY).mkdir()
    tasks = [
        _Task(index, buckets, int(spill.counts[slice(*buckets)].sum()))
        for index, buckets in enumerate(plan.cut_blocks(spill.counts))
    ]
    own = local()

    def write_block(task: _Task) -> BlockResult:
        if not hasattr(own, "writer"):
            own.writer = _BlockWriter(spill, plan, options, store, share_bytes // 2, SortWorkspace(share_bytes // 2))
        return cast("BlockResult", own.writer.write(task))

    done = 0
    results = []
    for result in map_bounded(write_block, sorted(tasks, key=lambda task: -task.num_keys), threads=threads):
        results.append(result)
        done += tasks[result.index].num_keys
        on_event(BlockFinished(STAGE, done))
    return sorted(results, key=lambda result: result.index)


def largest_block_bytes(plan: EdgePlan, bucket_counts: NDArray[np.int64]) -> int:
    """What a thread needs to write the largest block, if its share allows: rows, tiles, and its buckets' keys twice."""
    needed = 0
    for first, last in plan.cut_blocks(bucket_counts):
        first_row, last_row = plan.rows_of((first, last))
        counts = bucket_counts[first:last]
        rows_bytes = int(counts.sum()) * (plan.id_dtype.itemsize + EDGE_BYTES) + 8 * (last_row - first_row + 1)
        needed = max(needed, rows_bytes + BYTES_PER_KEY * int(counts.max()))
    return needed


@dataclass(frozen=True)
class _BlockWriter:
    spill: KeySpill
    plan: EdgePlan
    options: BuildOptions
    store: Path
    memory_bytes: int
    workspace: SortWorkspace
    rows_memory: ReusableBytes = field(default_factory=ReusableBytes)
    tiles_memory: ReusableBytes = field(default_factory=ReusableBytes)

    def write(self, task: _Task) -> BlockResult:
        first_row, last_row = self.plan.rows_of(task.buckets)
        edges_name, tiles_name = block_name(EDGES_DIRECTORY, task.index), block_name(TILES_DIRECTORY, task.index)
        metadata = {"ecgl.version": "1", "ecgl.block": str(task.index), "ecgl.first_row": str(first_row)}
        offsets = np.zeros(last_row - first_row + 1, np.int64)
        rows_bytes = task.num_keys * self.plan.id_dtype.itemsize
        left_bytes = self.memory_bytes - offsets.nbytes
        path = self.store / edges_name
        if rows_bytes + task.num_keys * EDGE_BYTES <= left_bytes:
            memory = self.rows_memory.take(rows_bytes).view(self.plan.id_dtype)
            rows = Ragged(offsets, memory[: self._collect(task, offsets, memory)])
            edges_file = write_ragged(path, rows.offsets, rows.values, metadata | {"ecgl.part": EDGES_DIRECTORY})
        else:
            self.rows_memory.drop()
            with ScratchValues(path.with_suffix(".scratch"), self.plan.id_dtype) as scratch:
                self._collect(task, offsets, scratch)
                edges_file = write_ragged(path, offsets, scratch.mapped(), metadata | {"ecgl.part": EDGES_DIRECTORY})
            rows = read_ragged(path, edges_file, check_crc=False)
        tiles_file = write_tiles(
            self.store / tiles_name,
            rows,
            self.plan.num_ranges,
            memory=self.tiles_memory,
            max_bytes=max(left_bytes, MIN_TILE_BUFFER_BYTES),
            metadata=metadata | {"ecgl.part": TILES_DIRECTORY},
        )
        files = {edges_name: edges_file, tiles_name: tiles_file}
        return BlockResult(task.index, (first_row, last_row), int(offsets[-1]), files)

    def _collect(self, task: _Task, offsets: NDArray[np.int64], target: NDArray[Any] | ScratchValues) -> int:
        """Sort the block's buckets into ``target`` and turn ``offsets`` into the rows' offsets."""
        key_bits = self.plan.bucket_bits + self.plan.source_bits
        scratch = self.store / EDGES_DIRECTORY / f"{task.index:05d}.keys"
        degrees = offsets[1:]
        kept = 0
        for bucket in range(*task.buckets):
            bucket_row = (bucket - task.buckets[0]) << self.plan.bucket_bits
            previous = NO_KEY
            for keys in sorted_chunks(self.spill, bucket, key_bits, self.workspace, scratch):
                # The kept sources go where the sorted keys lie: entry i is read before entry <= i is written.
                sources = target[kept:] if isinstance(target, np.ndarray) else keys.view(self.plan.id_dtype)
                last = keys[-1]
                count = emit_rows(
                    keys, self.plan.source_bits, previous, self.options.keep_duplicates, degrees[bucket_row:], sources
                )
                previous = last
                if isinstance(target, ScratchValues):
                    target.append(sources[:count])
                kept += count
        np.cumsum(offsets, out=offsets)
        return kept

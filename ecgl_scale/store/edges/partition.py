"""First half of the external build: edges in any order -> keys grouped by destination bucket.

One pass over the source. Memory: per thread one edge block (as loaded, and as keys), plus what the spill may keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from threading import local

import numpy as np

from ecgl_kernels.partition import DROP_LOOPS, SYMMETRISE, count_edges, scatter_edges
from ecgl_scale.base.buffers import ReusableBytes
from ecgl_scale.base.events import BlockFinished, EventSink, StageStarted
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edges.plan import BuildOptions, EdgePlan
from ecgl_scale.store.edges.spill import KeySpill, key_array
from ecgl_scale.store.source import EdgeBlock, EdgeLoader, GraphSource

STAGE = "partition edges"
BYTES_PER_EDGE = 72
"""Planned per edge in flight: 16 as int64 pairs, as much again in the loader, 16 as keys, and one block waiting."""


@dataclass(frozen=True)
class PartitionTotals:
    """What came in."""

    input_edges: int
    self_loops: int


@dataclass(frozen=True)
class _Task:
    load: EdgeLoader
    flags: int


def partition_edges(
    source: GraphSource,
    plan: EdgePlan,
    options: BuildOptions,
    spill: KeySpill,
    *,
    block_edges: int,
    threads: int,
    on_event: EventSink,
) -> PartitionTotals:
    """Read every edge once and put its key (two keys when symmetrising) into ``spill``."""
    on_event(StageStarted(STAGE, source.num_edges_hint, "edges"))
    flags = (SYMMETRISE if options.symmetrise else 0) | (0 if options.self_loops == "keep" else DROP_LOOPS)
    tasks: Iterator[_Task] = (_Task(load, flags) for load in source.edge_loaders(block_edges))
    if options.self_loops == "add":
        tasks = chain(tasks, (_Task(load, 0) for load in _loop_loaders(plan.num_nodes, block_edges)))

    own = local()

    def partition_block(task: _Task) -> tuple[int, int, int]:
        block = _native(task.load())
        counts = np.zeros(plan.num_buckets + 1, np.int64)
        bad = count_edges(block.src, block.dst, plan.num_nodes, plan.bucket_bits, task.flags, counts)
        if bad >= 0:
            raise _bad_id(block, bad, plan.num_nodes)
        offsets = np.zeros(plan.num_buckets + 1, np.int64)
        np.cumsum(counts[:-1], out=offsets[1:])
        if not hasattr(own, "memory"):
            own.memory = ReusableBytes()
        keys = key_array(own.memory, int(offsets[-1]))
        scatter_edges(block.src, block.dst, plan.bucket_bits, plan.source_bits, task.flags, offsets[:-1].copy(), keys)
        if spill.append(keys, offsets):
            own.memory.drop()  # it is the spill's now
        return block.src.size, int(counts[-1]), task.flags

    input_edges = self_loops = 0
    for num_edges, num_loops, task_flags in map_bounded(partition_block, tasks, threads=threads):
        if task_flags == flags:
            input_edges += num_edges
            self_loops += num_loops
            on_event(BlockFinished(STAGE, input_edges))
    return PartitionTotals(input_edges, self_loops)


def _loop_loaders(num_nodes: int, block_edges: int) -> Iterator[EdgeLoader]:
    for start in range(0, num_nodes, block_edges):

        def load(start: int = start) -> EdgeBlock:
            ids = np.arange(start, min(start + block_edges, num_nodes), dtype=np.int64)
            return EdgeBlock(ids, ids, "self loops", start)

        yield load


def _native(block: EdgeBlock) -> EdgeBlock:
    """Check a block's ids and give them the byte order and the layout that the kernels are compiled for."""
    _check_block(block)
    src, dst = (np.ascontiguousarray(ids, ids.dtype.newbyteorder("=")) for ids in (block.src, block.dst))
    return EdgeBlock(src, dst, block.origin, block.first_row)


def _check_block(block: EdgeBlock) -> None:
    for ids in (block.src, block.dst):
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise InvalidInputError(
                f"edge ids have dtype {ids.dtype} and {ids.ndim} dimensions",
                where=block.origin,
                expected="one integer an end point",
            )
    if block.src.size != block.dst.size:
        raise InvalidInputError(
            f"{block.src.size} sources but {block.dst.size} destinations",
            where=f"{block.origin}, from row {block.first_row}",
        )


def _bad_id(block: EdgeBlock, index: int, num_nodes: int) -> InvalidInputError:
    source, target = int(block.src[index]), int(block.dst[index])
    return InvalidInputError(
        f"edge {source} -> {target} names a node that does not exist",
        where=f"{block.origin}, row {block.first_row + index}",
        expected=f"ids from 0 to {num_nodes - 1}",
        fix="correct the edge, or give the right number of nodes",
    )

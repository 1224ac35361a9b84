"""First half of the external build: edges in any order -> keys grouped by destination bucket.

One pass over the source. Memory: per thread one edge block (as loaded, and as keys), plus what the spill may keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from ecgl_kernels.partition import DROP_LOOPS, SYMMETRISE, count_edges, scatter_edges
from ecgl_scale.base.buffers import ReusableBytes
from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.engine.executor import run_blocks, run_round
from ecgl_scale.engine.journal import RecordJournal
from ecgl_scale.engine.local import LocalExecutor
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edge_source import EdgeBlock, EdgeSource, describe_edges, open_edges
from ecgl_scale.store.edges.plan import BuildOptions, EdgePlan
from ecgl_scale.store.edges.segments import KeySegments, SegmentCheck
from ecgl_scale.store.edges.spill import KeyBuckets, key_array
from ecgl_scale.store.source import GraphSource

STAGE = "partition edges"
BYTES_PER_EDGE = 72
"""Planned per edge in flight: 16 as int64 pairs, as much again in the loader, 16 as keys, and one block waiting."""

EDGES, LOOPS = "edges", "loops"
"""What the blocks of a round are: numbers of edges, or nodes that get a self loop each."""


@dataclass(frozen=True)
class PieceRecord:
    """What came in with one piece."""

    num_edges: int
    num_loops: int
    crcs: list[int]


@dataclass(frozen=True)
class PartitionTotals:
    """What came in with all pieces."""

    input_edges: int
    self_loops: int


def partition_edges(
    source: GraphSource,
    plan: EdgePlan,
    options: BuildOptions,
    keys: KeyBuckets,
    resources: Resources,
    block_edges: int,
    journal: RecordJournal[PieceRecord] | None = None,
) -> PartitionTotals:
    """Read every edge once and put its key (two keys when symmetrising) into ``keys``.

    Pieces that ``journal`` has are not read again, if their segments are whole.
    """
    resources.on_event(StageStarted(STAGE, source.num_edges_hint, "edges"))
    flags = (SYMMETRISE if options.symmetrise else 0) | (0 if options.self_loops == "keep" else DROP_LOOPS)
    edges: EdgeSource = source.edges
    pieces: Iterable[Block] | None = edges.cut(block_edges)
    executor = resources.executor
    if pieces is None or not (executor.shares_memory or edges.kind):
        executor = LocalExecutor()
    if pieces is None:
        held = _HeldEdges()
        pieces, edges, journal = held.take_in(source.edges.stream(block_edges)), held, None
    if journal is not None and isinstance(keys, KeySegments):
        _forget_damaged(journal, keys, resources)
    input_edges = self_loops = num_pieces = 0
    crcs: list[tuple[Block, list[int]]] = []
    with executor.open(PartitionWork(edges, plan, flags, keys), resources) as workers:
        for piece, record in run_round(workers, pieces, journal, EDGES):
            num_pieces += 1
            input_edges += record.num_edges
            self_loops += record.num_loops
            crcs.append((piece, record.crcs))
            resources.on_event(BlockFinished(STAGE, input_edges))
        source.edges.check(crcs)
        if options.self_loops == "add":
            loops = _loop_pieces(source.num_nodes, plan.num_nodes, block_edges, num_pieces)
            num_pieces += sum(1 for _ in run_round(workers, loops, journal, LOOPS))
    if isinstance(keys, KeySegments):
        keys.load(num_pieces)
    return PartitionTotals(input_edges, self_loops)


def _forget_damaged(journal: RecordJournal[PieceRecord], keys: KeySegments, resources: Resources) -> None:
    finished = [Block(index, index, index + 1) for index in journal.load()]
    for piece, found in run_blocks(SegmentCheck(keys), finished, resources) if finished else ():
        if not found.is_whole:
            journal.forget(piece.index)
    journal.save()


def _loop_pieces(num_new: int, num_nodes: int, block_edges: int, first_index: int) -> list[Block]:
    """The nodes of the source, which are the last of the graph: all of them, unless the graph was there before."""
    first = num_nodes - num_new
    return [
        Block(first_index + piece.index, first + piece.start, first + piece.stop)
        for piece in split_blocks(num_new, block_edges)
    ]


class _HeldEdges(EdgeSource):
    """Blocks of a stream, held from when they are read until a thread takes them: one more than there are threads."""

    def __init__(self) -> None:
        self._blocks: dict[int, EdgeBlock] = {}

    def take_in(self, stream: Iterable[EdgeBlock]) -> Iterator[Block]:
        """Read a block of the stream whenever the next piece is asked for."""
        start = 0
        for index, block in enumerate(stream):
            self._blocks[start] = block
            yield Block(index, start, start + max(block.src.size, 1))
            start += max(block.src.size, 1)

    def cut(self, max_edges: int) -> None:  # noqa: ARG002
        """Blocks stay as they were read."""
        return

    def read(self, start: int, stop: int) -> EdgeBlock:  # noqa: ARG002
        """Hand a block over."""
        return self._blocks.pop(start)


class PartitionWork(Work[ReusableBytes, PieceRecord]):
    """A piece of edges: read, checked, and its keys appended as one segment."""

    name = "ingest.partition"
    record = PieceRecord

    def __init__(self, edges: EdgeSource, plan: EdgePlan, flags: int, keys: KeyBuckets) -> None:
        self._edges = edges
        self._plan = plan
        self._flags = flags
        self._keys = keys

    def describe(self) -> Json:
        """Where edges come from and segments go to."""
        keys = self._keys.describe()
        return {
            "edges": describe_edges(self._edges, Path(keys["directory"])),
            "plan": asdict(self._plan),
            "flags": self._flags,
            "keys": keys,
        }

    @classmethod
    def open(cls, description: Json, resources: Resources) -> PartitionWork:  # noqa: ARG003
        """Make the work again, in another process."""
        edges, plan = open_edges(description["edges"]), EdgePlan(**description["plan"])
        return cls(edges, plan, description["flags"], KeySegments.open(description["keys"]))

    def scratch(self) -> ReusableBytes:
        """Memory that a thread makes keys in."""
        return ReusableBytes()

    def run(self, block: Block, given: Json, scratch: ReusableBytes) -> PieceRecord:
        """Turn one piece into keys."""
        if given == LOOPS:
            nodes = np.arange(block.start, block.stop, dtype=np.int64)
            edges, flags = EdgeBlock(nodes, nodes, "self loops", block.start), 0
        else:
            edges, flags = _native(self._edges.read(block.start, block.stop)), self._flags
        plan = self._plan
        counts = np.zeros(plan.num_buckets + 1, np.int64)
        bad = count_edges(edges.src, edges.dst, plan.num_nodes, plan.bucket_bits, flags, counts)
        if bad >= 0:
            raise _bad_id(edges, bad, plan.num_nodes)
        offsets = np.zeros(plan.num_buckets + 1, np.int64)
        np.cumsum(counts[:-1], out=offsets[1:])
        keys = key_array(scratch, int(offsets[-1]))
        scatter_edges(edges.src, edges.dst, plan.bucket_bits, plan.source_bits, flags, offsets[:-1].copy(), keys)
        if self._keys.append(block.index, keys, offsets):
            scratch.drop()  # it is the spill's now
        return PieceRecord(edges.src.size, int(counts[-1]), list(edges.crcs))


def _native(block: EdgeBlock) -> EdgeBlock:
    """Check a block's ids and give them the byte order and the layout that the kernels are compiled for."""
    _check_block(block)
    src, dst = (np.ascontiguousarray(ids, ids.dtype.newbyteorder("=")) for ids in (block.src, block.dst))
    return replace(block, src=src, dst=dst)


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

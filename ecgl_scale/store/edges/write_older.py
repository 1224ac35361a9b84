"""Edges that an append adds to rows of older blocks: sorted, without those that are there already, in tile order.

A file holds the edges of some blocks of the graph before, one after the other, as two columns ``dst`` and ``src``. Keys
come sorted by (dst, src); a stable counting pass by source range puts those of a block in the order of tiles, through a
scratch file where they do not fit. Threads take whole files. Memory per thread (``share_bytes``): half for sorting, the
other half for keys as they are gathered, moved and kept, and for a file's two columns.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ecgl_kernels.arrivals import drop_repeats, split_tile_keys, to_tile_order
from ecgl_kernels.partition import count_keys, scatter_keys
from ecgl_kernels.tiles import RANGE_BITS
from ecgl_scale.base.arrow import as_arrow
from ecgl_scale.base.buffers import ReusableBytes
from ecgl_scale.base.durable import DurableWriter, WrittenFile, atomic_file
from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.compose import address_of
from ecgl_scale.store.edges.known import KnownEdges
from ecgl_scale.store.edges.plan import MAX_KEY_BITS, EdgePlan
from ecgl_scale.store.edges.scratch import ScratchValues
from ecgl_scale.store.edges.segments import KeySegments
from ecgl_scale.store.edges.sort import SortWorkspace, sorted_chunks
from ecgl_scale.store.edges.spill import KEY_BYTES, KeyBuckets, Keys, KeySpill, key_array
from ecgl_scale.store.edges.write import MAX_SHARE_BYTES, NO_KEY, RESERVE_BYTES
from ecgl_scale.store.format import block_name
from ecgl_scale.store.generation import OLDER_DIRECTORY, OlderEdges
from ecgl_scale.store.remote import files_of
from ecgl_scale.store.view import StoreView, read_view

STAGE = "write edges into older rows"
FILE_EDGES = 1 << 20
"""A file is closed before it has more edges than this, unless a single block has."""
READ_BYTES = 1 << 20
PARTS = 8
"""Into so many parts the share is cut: four for sorting, one for each of the other uses."""


@dataclass(frozen=True)
class OlderRecord:
    """What a finished file holds: blocks that got edges, and how many; without any, there is no file."""

    blocks: list[int]
    block_edges: list[int]
    size_bytes: int
    crc32c: int


@dataclass
class OlderScratch:
    """Memory of one thread, used again for every file."""

    workspace: SortWorkspace
    gathered: ReusableBytes = field(default_factory=ReusableBytes)
    moved: ReusableBytes = field(default_factory=ReusableBytes)
    columns: ReusableBytes = field(default_factory=ReusableBytes)


def older_blocks(block_starts: Sequence[int], last_row: int) -> list[Block]:
    """The blocks of a graph whose last one has become longer: it ends before ``last_row``."""
    stops = [*block_starts[1:-1], last_row]
    return [Block(index, *bounds) for index, bounds in enumerate(zip(block_starts[:-1], stops, strict=True))]


def require_keys_fit(plan: EdgePlan, block_starts: Sequence[int]) -> None:
    """Refuse a graph of which a row of a block and a source do not fit one key: past 2**36 nodes, after much growth."""
    row_bits = max(_row_bits(block) for block in older_blocks(block_starts, block_starts[-1]))
    if max(row_bits, RANGE_BITS) + plan.source_bits > MAX_KEY_BITS:
        raise InvalidInputError(
            f"the blocks of the store are too wide for a graph of {plan.num_nodes:,} nodes", fix="ingest it as a whole"
        )


def write_older(
    keys: KeyBuckets,
    plan: EdgePlan,
    before: StoreView,
    last_row: int,
    generation: Path,
    resources: Resources,
    share_bytes: int,
) -> tuple[OlderEdges, dict[str, WrittenFile]]:
    """Write the edges into rows before ``last_row``; the same bytes for any number of threads and any memory."""
    blocks = older_blocks(before.manifest.edges.block_starts, last_row)
    num_keys = {block: int(keys.counts[plan.buckets_of(block)].sum()) for block in blocks}
    resources.on_event(StageStarted(STAGE, sum(num_keys.values()), "edges"))
    files = _cut_files([block for block in blocks if num_keys[block]], num_keys)
    directory = generation / OLDER_DIRECTORY
    if files:
        directory.mkdir()
    found = OlderEdges([], [], [])
    written: dict[str, WrittenFile] = {}
    done = 0
    work = OlderWork(keys, plan, before, last_row, directory, share_bytes)
    for file, record in run_blocks(work, files, resources) if files else ():
        done += int(keys.counts[plan.buckets_of(file)].sum())
        resources.on_event(BlockFinished(STAGE, done))
        if not record.blocks:
            continue
        name = block_name(OLDER_DIRECTORY, len(written))
        (directory / _unnumbered(file)).rename(generation / name)
        written[name] = WrittenFile(record.size_bytes, record.crc32c)
        found.blocks.extend(record.blocks)
        found.block_edges.extend(record.block_edges)
        found.file_blocks.append(len(record.blocks))
    if files and not written:
        directory.rmdir()
    return found, written


def _cut_files(blocks: Sequence[Block], num_keys: dict[Block, int]) -> list[Block]:
    """Rows of each file: by the keys that came in, so that who wrote which file needs to be known of none of them."""
    files: list[Block] = []
    filled = 0
    for block in blocks:
        if files and filled + num_keys[block] <= FILE_EDGES:
            files[-1] = Block(files[-1].index, files[-1].start, block.stop)
            filled += num_keys[block]
        else:
            files.append(Block(len(files), block.start, block.stop))
            filled = num_keys[block]
    return files


def _unnumbered(file: Block) -> str:
    """The name of a file until it is known which of those before it hold nothing."""
    return f"from-{file.start}.arrow"


class OlderWork(Work[OlderScratch, OlderRecord]):
    """A file of edges into older rows: the new ones of its blocks' keys, in tile order."""

    name: ClassVar[str] = "append.older"
    record: ClassVar[type[Any]] = OlderRecord
    has_small_records: ClassVar[bool] = True

    def __init__(
        self, keys: KeyBuckets, plan: EdgePlan, before: StoreView, last_row: int, directory: Path, share_bytes: int
    ) -> None:
        self._keys = keys
        self._plan = plan
        self._before = before
        self._last_row = last_row
        self._directory = directory
        self._share_bytes = share_bytes
        self._blocks = older_blocks(before.manifest.edges.block_starts, last_row)
        self._known: KnownEdges | None = None
        if not before.manifest.edges.keeps_duplicates:
            self._known = KnownEdges(files_of(before.location, before.manifest, before.hold), before.manifest)

    def describe(self) -> Json:
        """Where keys and the graph before are, and how they are cut."""
        return {
            "keys": self._keys.describe(),
            "plan": asdict(self._plan),
            "before": address_of(self._before.location, self._before.manifest),
            "last_row": self._last_row,
            "directory": str(self._directory),
        }

    @classmethod
    def open(cls, description: Json, resources: Resources) -> OlderWork:
        """Make the work again, in another process, whose memory decides how much is sorted at once."""
        keys, plan = KeySegments.open(description["keys"]), EdgePlan(**description["plan"])
        before = read_view(description["before"])
        share_bytes = min(max(resources.room_bytes - RESERVE_BYTES, 0) // resources.threads, MAX_SHARE_BYTES)
        return cls(keys, plan, before, description["last_row"], Path(description["directory"]), share_bytes)

    def scratch(self) -> OlderScratch:
        """Memory to sort in, and to put sorted keys in the order of tiles."""
        return OlderScratch(SortWorkspace(self._share_bytes // 2))

    def run(self, block: Block, given: Json, scratch: OlderScratch) -> OlderRecord:
        """Write one file."""
        del given
        path = self._directory / _unnumbered(block)
        # Another process may be trying the same file.
        own = self._directory / f".{path.stem}-{socket.gethostname()}-{os.getpid()}"
        found: dict[int, int] = {}
        with _Columns(self._num_keys(block), self._plan.id_dtype, scratch.columns, self._part_bytes, own) as columns:
            for older in self._blocks:
                if not (block.start <= older.start and older.stop <= block.stop and self._num_keys(older)):
                    continue
                kept = columns.num_edges
                for keys in self._in_tile_order(older, scratch, own):
                    columns.append(keys, _row_bits(older), older.start)
                if columns.num_edges > kept:
                    found[older.index] = columns.num_edges - kept
            if not found:
                return OlderRecord([], [], 0, 0)
            with atomic_file(path, is_shared=True) if self._keys.is_shared else nullcontext(path) as target:
                file = _write_file(target, *columns.arrays())
        return OlderRecord([*found], [*found.values()], file.size_bytes, file.crc32c)

    @property
    def _part_bytes(self) -> int:
        return self._share_bytes // PARTS

    def _num_keys(self, block: Block) -> int:
        return int(self._keys.counts[self._plan.buckets_of(block)].sum())

    def _in_tile_order(self, block: Block, scratch: OlderScratch, own: Path) -> Iterator[Keys]:
        """The new keys of a block: gathered, grouped by source range as much as fits at a time, read range by range."""
        most = max(min(self._part_bytes // KEY_BYTES, self._num_keys(block)), 1)
        gathered = scratch.gathered.take(most * KEY_BYTES).view(np.uint64)
        spill = KeySpill(own.with_name(f"{own.name}.tiles"), self._plan.num_ranges, allowance_bytes=self._part_bytes)
        shift = np.uint64(_row_bits(block) + RANGE_BITS)
        filled = 0
        try:
            for keys in self._new_keys(block, scratch.workspace, own):
                for start in range(0, keys.size, most):
                    taken = keys[start : start + most]
                    if filled + taken.size > most:
                        _group(gathered[:filled], shift, spill, scratch.moved)
                        filled = 0
                    gathered[filled : filled + taken.size] = taken
                    filled += taken.size
            _group(gathered[:filled], shift, spill, scratch.moved)
            buffer = scratch.moved.take(READ_BYTES)
            for source_range in np.flatnonzero(spill.counts).tolist():
                for slices in spill.batches(source_range, buffer):
                    yield from slices
        finally:
            spill.close()

    def _new_keys(self, block: Block, workspace: SortWorkspace, own: Path) -> Iterator[Keys]:
        """Sorted keys of a block without those that the graph has, turned into keys in tile order."""
        plan, buckets = self._plan, self._plan.buckets_of(block)
        known = None if self._known is None else self._known.of(block)
        for bucket in (buckets.start + np.flatnonzero(self._keys.counts[buckets])).tolist():
            node = bucket << plan.bucket_bits
            previous = NO_KEY
            for chunk in sorted_chunks(self._keys, bucket, plan.key_bits, workspace, own.with_name(f"{own.name}.keys")):
                keys = chunk
                if known is not None:
                    last = keys[-1]
                    keys = known.drop(keys[: drop_repeats(keys, previous)], plan.source_bits, node)
                    previous = last
                to_tile_order(keys, plan.source_bits, node - block.start, _row_bits(block))
                yield keys


class _Columns:
    """Both ends of a file's edges as they come: in memory where all keys fit, else in two scratch files."""

    def __init__(self, num_keys: int, dtype: np.dtype[Any], memory: ReusableBytes, max_bytes: int, own: Path) -> None:
        self.num_edges = 0
        self._dtype = dtype
        self._scratch: list[ScratchValues] = []
        column_bytes = num_keys * dtype.itemsize
        if 2 * column_bytes <= max_bytes:
            self._memory = memory.take(2 * column_bytes).view(dtype).reshape(2, num_keys)
        else:
            memory.drop()
            self._scratch = [ScratchValues(own.with_name(f"{own.name}.{end}"), dtype) for end in ("dst", "src")]

    def append(self, keys: Keys, row_bits: int, first_node: int) -> None:
        """Add the edges of keys in tile order."""
        stop = self.num_edges + keys.size
        if self._scratch:
            dst, src = np.empty((2, keys.size), self._dtype)
        else:
            dst, src = self._memory[:, self.num_edges : stop]
        split_tile_keys(keys, row_bits, first_node, dst, src)
        for scratch, values in zip(self._scratch, (dst, src), strict=False):
            scratch.append(values)
        self.num_edges = stop

    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """All that came."""
        if self._scratch:
            dst, src = (scratch.mapped() for scratch in self._scratch)
            return dst, src
        return self._memory[0, : self.num_edges], self._memory[1, : self.num_edges]

    def __enter__(self) -> _Columns:
        return self

    def __exit__(self, *failure: object) -> None:
        for scratch in self._scratch:
            scratch.__exit__(None, None, None)


def _row_bits(block: Block) -> int:
    return (block.num_rows - 1).bit_length()


def _group(keys: Keys, shift: np.uint64, spill: KeySpill, memory: ReusableBytes) -> None:
    """Add keys to ``spill`` by source range, in their order."""
    offsets = np.zeros(spill.counts.size + 1, np.int64)
    base = np.uint64(0)
    count_keys(keys, base, shift, offsets[1:])
    np.cumsum(offsets, out=offsets)
    moved = key_array(memory, keys.size)
    scatter_keys(keys, base, shift, offsets[:-1].copy(), moved)
    if spill.append(0, moved, offsets):
        memory.drop()


def _write_file(path: Path, dst: NDArray[Any], src: NDArray[Any]) -> WrittenFile:
    batch = pa.record_batch([as_arrow(dst), as_arrow(src)], names=["dst", "src"])
    with DurableWriter(path) as sink:
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), batch.schema) as writer:
            writer.write_batch(batch)
        return sink.finish()

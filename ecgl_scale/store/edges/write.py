"""Second half of the external build: each block's buckets are sorted, written as CSR rows, then packed into tiles.

Threads take whole blocks, largest first, and share nothing but the keys. Memory per thread (``share_bytes``): half for
sorting, half for the block's rows and tiles; a block whose rows do not fit goes through a scratch file instead.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.csr import emit_rows
from ecgl_scale.base.buffers import ReusableBytes
from ecgl_scale.base.durable import atomic_file
from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.engine.journal import RecordJournal
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.store.edges.plan import BuildOptions, EdgePlan
from ecgl_scale.store.edges.scratch import ScratchValues
from ecgl_scale.store.edges.segments import KeySegments
from ecgl_scale.store.edges.sort import BYTES_PER_KEY, SortWorkspace, sorted_chunks
from ecgl_scale.store.edges.spill import KeyBuckets
from ecgl_scale.store.edges.tiles import EDGE_BYTES, write_tiles
from ecgl_scale.store.format import EDGES_DIRECTORY, TILES_DIRECTORY, block_name
from ecgl_scale.store.ragged import Ragged, read_ragged, write_ragged
from ecgl_scale.units import MIB

STAGE = "write rows and tiles"
MIN_TILE_BUFFER_BYTES = 1 << 20
RESERVE_BYTES = 40 * MIB
"""Set aside for compiled code, write buffers, offsets and Python's own objects."""
MAX_SHARE_BYTES = 1024 * MIB
"""More per thread buys nothing: the largest regular block takes 768 MiB with its sort."""
NO_KEY = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class BlockRecord:
    """What a finished block has written."""

    num_edges: int
    files: dict[str, list[int]]
    """Size and crc32c of each file, by its name below the store."""


@dataclass
class BlockScratch:
    """Memory of one thread, used again for every block."""

    workspace: SortWorkspace
    rows: ReusableBytes = field(default_factory=ReusableBytes)
    tiles: ReusableBytes = field(default_factory=ReusableBytes)


def write_blocks(
    keys: KeyBuckets,
    plan: EdgePlan,
    options: BuildOptions,
    store: Path,
    resources: Resources,
    share_bytes: int,
    journal: RecordJournal[BlockRecord] | None = None,
    first_row: int = 0,
    *,
    with_tiles: bool = True,
) -> list[tuple[Block, BlockRecord]]:
    """Write all blocks, or those from ``first_row`` on; their tiles, too, unless these wait for an order.

    The result is in row order and the same for any number of threads and any memory.
    """
    counts = keys.counts
    num_keys = {block: int(counts[plan.buckets_of(block)].sum()) for block in plan.cut_blocks(counts, first_row)}
    resources.on_event(StageStarted(STAGE, sum(num_keys.values()), "edges"))
    parts = (EDGES_DIRECTORY, TILES_DIRECTORY) if with_tiles else (EDGES_DIRECTORY,)
    for part in parts if num_keys else ():
        (store / part).mkdir(exist_ok=journal is not None)
    largest_first = sorted(num_keys, key=lambda block: -num_keys[block])
    done = 0
    results = []
    work = BlockWork(keys, plan, options, store, share_bytes, with_tiles=with_tiles)
    for block, record in run_blocks(work, largest_first, resources, journal):
        results.append((block, record))
        done += num_keys[block]
        resources.on_event(BlockFinished(STAGE, done))
    return sorted(results, key=lambda result: result[0].index)


def has_files(store: Path, files: dict[str, list[int]]) -> bool:
    """Whether files that were recorded are there, as large as they were."""
    paths = {store / name: size for name, (size, _) in files.items()}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())


def largest_block_bytes(plan: EdgePlan, bucket_counts: NDArray[np.int64]) -> int:
    """What a thread needs to write the largest block, if its share allows: rows, tiles, and its buckets' keys twice."""
    needed = 0
    for block in plan.cut_blocks(bucket_counts):
        counts = bucket_counts[plan.buckets_of(block)]
        rows_bytes = int(counts.sum()) * (plan.id_dtype.itemsize + EDGE_BYTES) + 8 * (block.num_rows + 1)
        needed = max(needed, rows_bytes + BYTES_PER_KEY * int(counts.max()))
    return needed


def block_metadata(block: Block, part: str) -> dict[str, str]:
    """What a file of a block says of itself."""
    about = {"ecgl.version": "1", "ecgl.block": str(block.index), "ecgl.first_row": str(block.start)}
    return about | {"ecgl.part": part}


def block_share_bytes(resources: Resources) -> int:
    """What a thread of a worker may use for a block, by the worker's own memory."""
    return min(max(resources.room_bytes - RESERVE_BYTES, 0) // resources.threads, MAX_SHARE_BYTES)


class BlockWork(Work[BlockScratch, BlockRecord]):
    """A block of rows: its keys, sorted, as a file of rows and, unless those wait for an order, a file of tiles.

    Where keys are in files that other processes see, so are the results: whole under another name, then renamed.
    """

    name = "ingest.block"
    record = BlockRecord

    def __init__(
        self,
        keys: KeyBuckets,
        plan: EdgePlan,
        options: BuildOptions,
        store: Path,
        share_bytes: int,
        *,
        with_tiles: bool,
    ) -> None:
        self._keys = keys
        self._plan = plan
        self._options = options
        self._store = store
        self._share_bytes = share_bytes
        self._with_tiles = with_tiles

    def describe(self) -> Json:
        """Where keys and store are, and how they are cut."""
        return {
            "keys": self._keys.describe(),
            "plan": asdict(self._plan),
            "options": asdict(self._options),
            "store": str(self._store),
            "with_tiles": self._with_tiles,
        }

    @classmethod
    def open(cls, description: Json, resources: Resources) -> BlockWork:
        """Make the work again, in another process, whose memory decides how much is sorted at once."""
        keys, store = KeySegments.open(description["keys"]), Path(description["store"])
        plan, options = EdgePlan(**description["plan"]), BuildOptions(**description["options"])
        with_tiles = description["with_tiles"]
        return cls(keys, plan, options, store, block_share_bytes(resources), with_tiles=with_tiles)

    def scratch(self) -> BlockScratch:
        """Memory to sort in, and for rows and tiles."""
        return BlockScratch(SortWorkspace(self._share_bytes // 2))

    def run(self, block: Block, given: Json, scratch: BlockScratch) -> BlockRecord:  # noqa: ARG002
        """Write the files of a block."""
        num_keys = int(self._keys.counts[self._plan.buckets_of(block)].sum())
        offsets = np.zeros(block.num_rows + 1, np.int64)
        rows_bytes = num_keys * self._plan.id_dtype.itemsize
        left_bytes = self._share_bytes // 2 - offsets.nbytes
        edges_name, tiles_name = (block_name(part, block.index) for part in (EDGES_DIRECTORY, TILES_DIRECTORY))
        about = block_metadata(block, EDGES_DIRECTORY)
        with self._new_file(edges_name) as path:
            if rows_bytes + num_keys * EDGE_BYTES <= left_bytes:
                memory = scratch.rows.take(rows_bytes).view(self._plan.id_dtype)
                kept = self._collect(block, offsets, memory, scratch.workspace, path)
                rows = Ragged(offsets, memory[:kept])
                edges_file = write_ragged(path, rows.offsets, rows.values, about)
            else:
                scratch.rows.drop()
                with ScratchValues(path.with_suffix(".scratch"), self._plan.id_dtype) as values:
                    self._collect(block, offsets, values, scratch.workspace, path)
                    edges_file = write_ragged(path, offsets, values.mapped(), about)
                rows = read_ragged(path, edges_file, check_crc=False)
        written = {edges_name: edges_file}
        if self._with_tiles:
            with self._new_file(tiles_name) as path:
                written[tiles_name] = write_tiles(
                    path,
                    rows,
                    self._plan.num_ranges,
                    memory=scratch.tiles,
                    max_bytes=max(left_bytes, MIN_TILE_BUFFER_BYTES),
                    metadata=block_metadata(block, TILES_DIRECTORY),
                )
        return BlockRecord(int(offsets[-1]), {name: [file.size_bytes, file.crc32c] for name, file in written.items()})

    def _new_file(self, name: str) -> AbstractContextManager[Path]:
        """Where to write a file; by itself in this process, whose failure ends the build, the name it will have."""
        path = self._store / name
        return atomic_file(path, is_shared=True) if self._keys.is_shared else nullcontext(path)

    def _collect(
        self,
        block: Block,
        offsets: NDArray[np.int64],
        target: NDArray[Any] | ScratchValues,
        workspace: SortWorkspace,
        path: Path,
    ) -> int:
        """Sort the block's buckets into ``target`` and turn ``offsets`` into the rows' offsets."""
        plan, buckets = self._plan, self._plan.buckets_of(block)
        degrees = offsets[1:]
        kept = 0
        for bucket in range(buckets.start, buckets.stop):
            bucket_row = (bucket - buckets.start) << plan.bucket_bits
            previous = NO_KEY
            for keys in sorted_chunks(self._keys, bucket, plan.key_bits, workspace, path.with_suffix(".keys")):
                # The kept sources go where the sorted keys lie: entry i is read before entry <= i is written.
                sources = target[kept:] if isinstance(target, np.ndarray) else keys.view(plan.id_dtype)
                last = keys[-1]
                count = emit_rows(
                    keys, plan.source_bits, previous, self._options.keep_duplicates, degrees[bucket_row:], sources
                )
                previous = last
                if isinstance(target, ScratchValues):
                    target.append(sources[:count])
                kept += count
        np.cumsum(offsets, out=offsets)
        return kept

"""Tiles of blocks whose rows are written, in the order of sources that was chosen when all of them were there.

Threads take whole blocks, largest first. Memory per thread: 4 bytes an edge of the block for its rows with columns in
place of nodes (8 past 2**32 nodes) and 4 for its tiles, up to ``share_bytes``; what does not fit goes through scratch
files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.order import map_sources
from ecgl_scale.base.buffers import ReusableBytes
from ecgl_scale.base.durable import WrittenFile, atomic_file
from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.engine.journal import RecordJournal
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.store.edges.choose_order import WrittenRows
from ecgl_scale.store.edges.order import SourceOrder, map_order
from ecgl_scale.store.edges.plan import EdgePlan
from ecgl_scale.store.edges.scratch import ScratchValues
from ecgl_scale.store.edges.tiles import EDGE_BYTES, write_tiles
from ecgl_scale.store.edges.write import MIN_TILE_BUFFER_BYTES, BlockRecord, block_metadata, block_share_bytes
from ecgl_scale.store.format import TILES_DIRECTORY, block_name
from ecgl_scale.store.ragged import Ragged

STAGE = "write tiles"
PIECE_VALUES = 1 << 18
"""Through a scratch file so many sources are turned into columns at once."""


@dataclass(frozen=True)
class OrderFile:
    """Where the order is that tiles are written in."""

    path: Path
    file: WrittenFile
    num_nodes: int

    def map(self) -> SourceOrder:
        """The order, as this process sees it; who wrote it has just done so, or compared it."""
        return map_order(self.path, self.file, self.num_nodes, check_crc=False)

    def describe(self) -> Json:
        """What ``open`` needs in a process that sees the same files."""
        return {"path": str(self.path), "file": [self.file.size_bytes, self.file.crc32c], "num_nodes": self.num_nodes}

    @classmethod
    def open(cls, description: Json) -> OrderFile:
        """The order that another process has described."""
        return cls(Path(description["path"]), WrittenFile(*description["file"]), description["num_nodes"])


@dataclass
class TileScratch:
    """Memory of one thread, used again for every block."""

    rows: ReusableBytes = field(default_factory=ReusableBytes)
    tiles: ReusableBytes = field(default_factory=ReusableBytes)


def write_all_tiles(
    rows: WrittenRows,
    plan: EdgePlan,
    order: OrderFile | None,
    resources: Resources,
    share_bytes: int,
    journal: RecordJournal[BlockRecord] | None = None,
) -> list[BlockRecord]:
    """Write the tiles of all blocks; the result is in row order and the same for any threads and memory."""
    resources.on_event(StageStarted(STAGE, rows.num_edges, "edges"))
    (rows.store / TILES_DIRECTORY).mkdir(exist_ok=journal is not None)
    largest_first = [block for block, _ in sorted(rows.blocks, key=lambda entry: -entry[1])]
    work = TileWork(rows.store, plan, order, share_bytes, is_shared=not resources.executor.shares_memory)
    done, results = 0, []
    for block, record in run_blocks(work, largest_first, resources, journal):
        results.append((block.index, record))
        done += record.num_edges
        resources.on_event(BlockFinished(STAGE, done))
    return [record for _, record in sorted(results, key=lambda result: result[0])]


class TileWork(Work[TileScratch, BlockRecord]):
    """The tiles of one block, from its file of rows."""

    name = "ingest.tiles"
    record = BlockRecord

    def __init__(
        self, store: Path, plan: EdgePlan, order: OrderFile | None, share_bytes: int, *, is_shared: bool
    ) -> None:
        self._rows = WrittenRows(store, [])
        self._plan = plan
        self._order = order
        self._columns: NDArray[Any] | None = None if order is None else order.map().columns
        self._share_bytes = share_bytes
        self._is_shared = is_shared

    def describe(self) -> Json:
        """Where the rows are, and the order."""
        order = None if self._order is None else self._order.describe()
        return {"store": str(self._rows.store), "plan": asdict(self._plan), "order": order}

    @classmethod
    def open(cls, description: Json, resources: Resources) -> TileWork:
        """Make the work again, in another process, whose memory decides how much is packed at once."""
        order = None if description["order"] is None else OrderFile.open(description["order"])
        plan = EdgePlan(**description["plan"])
        return cls(Path(description["store"]), plan, order, block_share_bytes(resources), is_shared=True)

    def scratch(self) -> TileScratch:
        """Memory for rows and tiles."""
        return TileScratch()

    def run(self, block: Block, given: Json, scratch: TileScratch) -> BlockRecord:  # noqa: ARG002
        """Write the tiles of a block."""
        rows, name = self._rows.read(block), block_name(TILES_DIRECTORY, block.index)
        with self._new_file(name) as path, self._ordered(rows, scratch.rows, path) as (ordered, used_bytes):
            file = write_tiles(
                path,
                ordered,
                self._plan.num_ranges,
                memory=scratch.tiles,
                max_bytes=max(self._share_bytes - used_bytes, MIN_TILE_BUFFER_BYTES),
                metadata=block_metadata(block, TILES_DIRECTORY),
            )
        return BlockRecord(rows.values.size, {name: [file.size_bytes, file.crc32c]})

    @contextmanager
    def _ordered(self, rows: Ragged, memory: ReusableBytes, path: Path) -> Iterator[tuple[Ragged, int]]:
        """The rows with columns in place of nodes, and the memory they take."""
        columns, values = self._columns, rows.values
        if columns is None:
            yield rows, 0
        elif values.nbytes + EDGE_BYTES * values.size <= self._share_bytes:
            ordered = memory.take(values.nbytes).view(values.dtype)
            map_sources(values, columns, ordered)
            yield Ragged(rows.offsets, ordered), values.nbytes
        else:
            memory.drop()
            with ScratchValues(path.with_suffix(".columns"), values.dtype) as scratch:
                piece = np.empty(PIECE_VALUES, values.dtype)
                for first in range(0, values.size, PIECE_VALUES):
                    part = values[first : first + PIECE_VALUES]
                    map_sources(part, columns, piece[: part.size])
                    scratch.append(piece[: part.size])
                yield Ragged(rows.offsets, scratch.mapped()), 0

    def _new_file(self, name: str) -> AbstractContextManager[Path]:
        path = self._rows.store / name
        return atomic_file(path, is_shared=True) if self._is_shared else nullcontext(path)

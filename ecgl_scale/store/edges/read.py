"""The edges of an open store: in-edges by destination block, and the same edges as PageRank tiles.

Both are mapped read-only, so they cost no memory of ours; a block's bytes are compared with the manifest's crc32c when
it is first read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.csr import count_sources, find_bad_row
from ecgl_kernels.older import count_rows
from ecgl_scale.base.durable import WrittenFile
from ecgl_scale.engine.block import Block
from ecgl_scale.errors import CorruptStoreError, UsageError
from ecgl_scale.store.checked import corrupt, expected_file
from ecgl_scale.store.compose import StoredBlock, generations_of, stored_blocks
from ecgl_scale.store.dropped import open_dropped
from ecgl_scale.store.edges.live import LiveRows, live_bytes, live_part_bytes
from ecgl_scale.store.edges.older import BlockRows, OlderFiles, Pairs, held_bytes, merge_bytes, part_bytes
from ecgl_scale.store.edges.order import SourceOrder, open_order
from ecgl_scale.store.edges.plan import RANGE_ROWS, id_dtype_of
from ecgl_scale.store.files import StoreFiles
from ecgl_scale.store.format import EDGES_DIRECTORY, TILES_DIRECTORY, Manifest, block_name
from ecgl_scale.store.ragged import Ragged, read_ragged


class _BlockFiles:
    """Ragged files of one directory, one a block, each checked when first read."""

    directory = ""

    def __init__(self, files: StoreFiles, manifest: Manifest) -> None:
        self._files = files
        self._manifest = manifest
        self._checked: set[int] = set()
        self._stored = stored_blocks(manifest)
        self._blocks = [stored.block for stored in self._stored]
        for block in self._blocks:
            expected_file(manifest.files, self._name(block), files.location)
        self.num_nodes = manifest.num_nodes
        self.num_edges = manifest.edges.num_edges

    def blocks(self) -> list[Block]:
        """All blocks, in row order."""
        return self._blocks

    def path(self, block: Block) -> Path:
        """The path of the block's file."""
        return self._files.path(self._name(block))

    def trust_bytes(self) -> None:
        """Skip the crc32c of every block: the caller has compared them all."""
        self._checked.update(block.index for block in self._blocks)

    def expected(self, block: Block) -> WrittenFile:
        """What the manifest says of the block's file."""
        return self._manifest.files[self._name(block)].written

    def _name(self, block: Block) -> str:
        stored = self._stored[block.index]
        return f"{stored.folder}{block_name(self.directory, stored.index)}"

    def _read(self, block: Block) -> Ragged:
        ragged = read_ragged(self.path(block), self.expected(block), check_crc=block.index not in self._checked)
        self._checked.add(block.index)
        return ragged


class EdgeStore(_BlockFiles):
    """In-edges as CSR: row = destination, values = sources, ascending.

    Of a store that has grown, the edges that came later are merged into the rows of a block when it is read.
    """

    directory = EDGES_DIRECTORY

    def __init__(self, files: StoreFiles, manifest: Manifest) -> None:
        super().__init__(files, manifest)
        self.older = OlderFiles(files, manifest, self._stored)
        self.dropped = open_dropped(files, manifest)

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Dtype of the source ids."""
        return np.dtype(self._manifest.edges.id_dtype)

    @cached_property
    def merge_bytes(self) -> int:
        """The most memory that reading one block takes: 0 of a store that never grew, whose rows are views."""
        return max(
            (live_bytes if self._loses(stored) else merge_bytes)(stored, self.id_dtype) for stored in self._stored
        )

    def reading_bytes(self, threads: int) -> int:
        """The memory of those who keep ``rows`` of all blocks and read ``parts`` of them; 0 of a store that never grew.

        It is for what came later, and for a part a thread.
        """
        held = sum(held_bytes(stored, self.id_dtype) for stored in self._stored)
        losing = [stored for stored in self._stored if self._loses(stored)]
        held += 8 * sum(stored.block.num_rows + 1 for stored in losing)
        part = max(part_bytes(stored, self.id_dtype) for stored in self._stored)
        return held + threads * max([part, *(live_part_bytes(stored, self.id_dtype) for stored in losing)])

    def _loses(self, stored: StoredBlock) -> bool:
        """Whether edges of a block go with dropped nodes."""
        num_stored = stored.num_edges + stored.num_older
        return self.dropped is not None and self.num_edges_of(stored.block) != num_stored

    def _read(self, block: Block) -> Ragged:
        """The block's own file."""
        is_first, stored = block.index not in self._checked, self._stored[block.index]
        rows = super()._read(block)
        whole = rows.values.dtype == id_dtype_of(stored.num_nodes) and rows.values.size == stored.num_edges
        whole = whole and rows.offsets.size == stored.num_rows + 1
        if whole and is_first:
            # A checksum shows that nobody damaged the file, not who made it: kernels index memory with these ids.
            whole = find_bad_row(rows.offsets, rows.values, stored.num_nodes, True) < 0
        if not whole:
            self._checked.discard(block.index)
            raise self._no_edges_of(block)
        return rows

    def _no_edges_of(self, block: Block) -> CorruptStoreError:
        return corrupt(self.path(block), f"does not hold the edges into rows {block.start:,} to {block.stop - 1:,}")

    def num_edges_of(self, block: Block) -> int:
        """Edges of a block, without opening it."""
        return self._manifest.edges.block_edges[block.index]

    def merged_bytes_of(self, block: Block) -> int:
        """The memory of the block's rows once they are merged; 0 where nothing came later."""
        if not self._stored[block.index].older:
            return 0
        return self.num_edges_of(block) * self.id_dtype.itemsize + 8 * (block.num_rows + 1)

    def num_own_edges(self, block: Block) -> int:
        """Edges in the block's own file."""
        return self._stored[block.index].num_edges

    def file_bytes(self, block: Block) -> int:
        """Bytes on disk that all edges of a block have."""
        stored = self._stored[block.index]
        return self.expected(block).size_bytes + 2 * stored.num_older * self.id_dtype.itemsize

    def read(self, block: Block) -> Ragged:
        """``offsets`` (int64, one more than rows) and ``values`` (source ids) of a block.

        They are views, not copies, but where edges came later: then they take up to ``merge_bytes``.
        """
        return self.rows(block).whole()

    def rows(self, block: Block) -> BlockRows:
        """The rows of a block, for those who read some of them at a time, or again. Memory: see ``BlockRows``."""
        stored = self._stored[block.index]
        return self._live(BlockRows(self._read(block), self.older_pairs(block), stored, self.id_dtype), stored)

    def _live(self, rows: BlockRows, stored: StoredBlock) -> BlockRows:
        """The rows without the edges of nodes that were dropped."""
        if self.dropped is None or not self._loses(stored):
            return rows
        return LiveRows(rows, stored.block, self.dropped, self.num_edges_of(stored.block))

    def own_rows(self, block: Block) -> Ragged:
        """The rows of a block's own file, without what came later, with edges of nodes that were dropped."""
        return self._read(block)

    def rows_unchecked(self, block: Block) -> BlockRows:
        """As ``rows``, without a look at the block's own file: whoever asks for some rows checks those.

        ``some_rows`` does. Only the offsets and ids of rows that are asked for are read, but in a block that has grown
        longer, of which all offsets are.
        """
        rows = read_ragged(self.path(block), self.expected(block), check_crc=False, is_streamed=True)
        stored = self._stored[block.index]
        sizes = (rows.offsets.size, rows.values.size)
        if sizes != (stored.num_rows + 1, stored.num_edges) or rows.values.dtype != id_dtype_of(stored.num_nodes):
            raise self._no_edges_of(block)
        return self._live(BlockRows(rows, self.older_pairs(block), stored, self.id_dtype), stored)

    def older_since(self, generation: int) -> Iterator[Pairs]:
        """Edges into rows of older blocks that came after a generation; views, not copies."""
        folders = self._folders_since(generation)
        for stored in self._stored:
            if any(piece.file.startswith(folders) for piece in stored.older):
                pairs = zip(stored.older, self.older.pairs(stored), strict=True)
                yield from (found for piece, found in pairs if piece.file.startswith(folders))

    def own_since(self, generation: int) -> Iterator[NDArray[Any]]:
        """Sources of the edges into blocks that came after a generation; views, not copies."""
        folders = self._folders_since(generation)
        for stored in self._stored:
            if stored.folder.startswith(folders):
                yield self._read(stored.block).values

    def _folders_since(self, generation: int) -> tuple[str, ...]:
        appended = generations_of(self._manifest)[1]
        return tuple(f"{later.folder}/" for later in appended if later.number > generation)

    def older_pairs(self, block: Block) -> list[Pairs]:
        """Edges into a block that came later, by generation, in the order of tiles, as they are stored; no copies."""
        return self.older.pairs(self._stored[block.index])

    def older_paths(self, block: Block) -> list[Path]:
        """The files that ``older_pairs`` reads."""
        return [self._files.path(piece.file) for piece in self._stored[block.index].older]

    def stream(self) -> Iterator[tuple[Block, Ragged]]:
        """Every block in row order. Memory: a block, where it is merged from several files."""
        for block in self._blocks:
            yield block, self.read(block)

    def stream_parts(self) -> Iterator[tuple[Block, Ragged]]:
        """Rows in order: a block at a time where it lies in one file, else in parts. Memory: a part that is merged."""
        for block in self._blocks:
            for first, rows in self.rows(block).parts(0, block.num_rows):
                start = block.start + first
                yield Block(block.index, start, start + rows.offsets.size - 1), rows

    def in_neighbours(self, node: int) -> NDArray[Any]:
        """Sources of the edges into one node."""
        if not 0 <= node < self.num_nodes:
            raise UsageError(f"node {node} does not exist", expected=f"0 to {self.num_nodes - 1}")
        index = int(np.searchsorted(self._manifest.edges.block_starts, node, side="right")) - 1
        row = node - self._blocks[index].start
        rows = self.rows(self._blocks[index]).part(row, row + 1)
        return rows.values[rows.offsets[0] : rows.offsets[1]]

    def count_in_edges(self, block: Block, degrees: NDArray[Any]) -> None:
        """Edges into each row of a block, into ``degrees``. Memory: a part where nodes were dropped, else none."""
        if self._loses(self._stored[block.index]):
            for first, rows in self.rows(block).parts(0, block.num_rows):
                degrees[first : first + rows.offsets.size - 1] = rows.offsets[1:] - rows.offsets[:-1]
            return
        offsets = self._read(block).offsets
        degrees[: offsets.size - 1] = offsets[1:] - offsets[:-1]
        degrees[offsets.size - 1 : block.num_rows] = 0
        for pairs in self.older_pairs(block):
            count_rows(pairs.dst, block.start, degrees)

    def count_out_edges(self, block: Block, degrees: NDArray[Any]) -> None:
        """Add the edges of a block to the ``degrees`` of their sources. Memory: as of ``count_in_edges``."""
        if self._loses(self._stored[block.index]):
            for _, rows in self.rows(block).parts(0, block.num_rows):
                count_sources(rows.values, degrees)
            return
        count_sources(self._read(block).values, degrees)
        for pairs in self.older_pairs(block):
            count_sources(pairs.src, degrees)

    def in_degrees(self) -> NDArray[np.int64]:
        """Edges into every node. Memory: 8 bytes a node."""
        degrees = np.empty(self.num_nodes, np.int64)
        for block in self._blocks:
            self.count_in_edges(block, degrees[block.start : block.stop])
        return degrees

    def out_degrees(self) -> NDArray[np.int64]:
        """Edges out of every node. Memory: 8 bytes a node."""
        degrees = np.zeros(self.num_nodes, np.int64)
        for block in self._blocks:
            self.count_out_edges(block, degrees)
        return degrees


class TileStore(_BlockFiles):
    """In-edges once more, packed for the PageRank sweep: see ``ecgl_kernels.tiles``.

    Of a store that has grown these are the edges that came with their rows; later ones are ``EdgeStore.older_pairs``.
    """

    directory = TILES_DIRECTORY

    @cached_property
    def order(self) -> SourceOrder | None:
        """The order of sources; None where they have their own numbers as columns."""
        return open_order(self._files, self._manifest)

    @property
    def num_ranges(self) -> int:
        """Source ranges of 2**16 nodes."""
        return -(-self.num_nodes // RANGE_ROWS)

    def num_ranges_of(self, block: Block) -> int:
        """Source ranges that there were when the block's file was written."""
        return -(-self._stored[block.index].num_nodes // RANGE_ROWS)

    def map_unchecked(self, block: Block) -> Ragged:
        """As ``read``, but the caller compares the bytes, while it reads them."""
        return read_ragged(self.path(block), self.expected(block), check_crc=False, is_streamed=True)

    def width(self, block: Block) -> int:
        """Destination ranges of a stripe."""
        return -(-block.num_rows // RANGE_ROWS)

    def read(self, block: Block) -> Ragged:
        """Row ``k * width + d`` is tile (k, d): edges from range k of columns into the stripe's d-th range."""
        return self._read(block)

"""The edges of an open store: in-edges by destination block, and the same edges as PageRank tiles.

Both are mapped read-only, so they cost no memory of ours; a block's bytes are compared with the manifest's crc32c when
it is first read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.csr import count_sources, find_bad_row
from ecgl_scale.base.durable import WrittenFile
from ecgl_scale.engine.block import Block
from ecgl_scale.errors import CorruptStoreError, UsageError
from ecgl_scale.store.checked import corrupt, expected_file
from ecgl_scale.store.edges.plan import RANGE_ROWS
from ecgl_scale.store.edges.write import block_name
from ecgl_scale.store.files import StoreFiles
from ecgl_scale.store.format import EDGES_DIRECTORY, TILES_DIRECTORY, Manifest
from ecgl_scale.store.ragged import Ragged, read_ragged


class _BlockFiles:
    """Ragged files of one directory, one a block, each checked when first read."""

    directory = ""

    def __init__(self, files: StoreFiles, manifest: Manifest) -> None:
        starts = manifest.edges.block_starts
        self._files = files
        self._manifest = manifest
        self._checked: set[int] = set()
        self._blocks = [Block(i, starts[i], starts[i + 1]) for i in range(len(starts) - 1)]
        for block in self._blocks:
            expected_file(manifest.files, block_name(self.directory, block.index), files.location)
        self.num_nodes = manifest.num_nodes
        self.num_edges = manifest.edges.num_edges

    def blocks(self) -> list[Block]:
        """All blocks, in row order."""
        return self._blocks

    def path(self, block: Block) -> Path:
        """The path of the block's file."""
        return self._files.path(block_name(self.directory, block.index))

    def trust_bytes(self) -> None:
        """Skip the crc32c of every block: the caller has compared them all."""
        self._checked.update(block.index for block in self._blocks)

    def expected(self, block: Block) -> WrittenFile:
        """What the manifest says of the block's file."""
        return self._manifest.files[block_name(self.directory, block.index)].written

    def _read(self, block: Block) -> Ragged:
        name = block_name(self.directory, block.index)
        ragged = read_ragged(
            self._files.path(name), self._manifest.files[name].written, check_crc=block.index not in self._checked
        )
        self._checked.add(block.index)
        return ragged


class EdgeStore(_BlockFiles):
    """In-edges as CSR: row = destination, values = sources, ascending."""

    directory = EDGES_DIRECTORY

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Dtype of the source ids."""
        return np.dtype(self._manifest.edges.id_dtype)

    def _read(self, block: Block) -> Ragged:
        is_first = block.index not in self._checked
        rows = super()._read(block)
        whole = rows.values.dtype == self.id_dtype and rows.values.size == self.num_edges_of(block)
        whole = whole and rows.offsets.size == block.num_rows + 1
        if whole and is_first:
            # A checksum shows that nobody damaged the file, not who made it: kernels index memory with these ids.
            whole = find_bad_row(rows.offsets, rows.values, self.num_nodes, True) < 0
        if not whole:
            self._checked.discard(block.index)
            raise self._no_edges_of(block)
        return rows

    def _no_edges_of(self, block: Block) -> CorruptStoreError:
        return corrupt(self.path(block), f"does not hold the edges into rows {block.start:,} to {block.stop - 1:,}")

    def num_edges_of(self, block: Block) -> int:
        """Edges of a block, without opening it."""
        return self._manifest.edges.block_edges[block.index]

    def read(self, block: Block) -> Ragged:
        """``offsets`` (int64, one more than rows) and ``values`` (source ids) of a block; views, not copies."""
        return self._read(block)

    def map_unchecked(self, block: Block) -> Ragged:
        """As ``read``, without a look at the rows: whoever uses some of them checks those, as ``some_rows`` does."""
        rows = read_ragged(self.path(block), self.expected(block), check_crc=False, is_streamed=True)
        sizes = (rows.offsets.size, rows.values.size)
        if sizes != (block.num_rows + 1, self.num_edges_of(block)) or rows.values.dtype != self.id_dtype:
            raise self._no_edges_of(block)
        return rows

    def stream(self) -> Iterator[tuple[Block, Ragged]]:
        """Every block in row order."""
        for block in self._blocks:
            yield block, self._read(block)

    def in_neighbours(self, node: int) -> NDArray[Any]:
        """Sources of the edges into one node."""
        if not 0 <= node < self.num_nodes:
            raise UsageError(f"node {node} does not exist", expected=f"0 to {self.num_nodes - 1}")
        index = int(np.searchsorted(self._manifest.edges.block_starts, node, side="right")) - 1
        rows = self._read(self._blocks[index])
        row = node - self._blocks[index].start
        return rows.values[rows.offsets[row] : rows.offsets[row + 1]]

    def in_degrees(self) -> NDArray[np.int64]:
        """Edges into every node. Memory: 8 bytes a node."""
        degrees = np.empty(self.num_nodes, np.int64)
        for block, rows in self.stream():
            np.subtract(rows.offsets[1:], rows.offsets[:-1], out=degrees[block.start : block.stop])
        return degrees

    def out_degrees(self) -> NDArray[np.int64]:
        """Edges out of every node. Memory: 8 bytes a node."""
        degrees = np.zeros(self.num_nodes, np.int64)
        for _, rows in self.stream():
            count_sources(rows.values, degrees)
        return degrees


class TileStore(_BlockFiles):
    """In-edges once more, packed for the PageRank sweep: see ``ecgl_kernels.tiles``."""

    directory = TILES_DIRECTORY

    @property
    def num_ranges(self) -> int:
        """Source ranges of 2**16 nodes."""
        return -(-self.num_nodes // RANGE_ROWS)

    def map_unchecked(self, block: Block) -> Ragged:
        """As ``read``, but the caller compares the bytes, while it reads them."""
        return read_ragged(self.path(block), self.expected(block), check_crc=False, is_streamed=True)

    def width(self, block: Block) -> int:
        """Destination ranges of a stripe."""
        return -(-block.num_rows // RANGE_ROWS)

    def read(self, block: Block) -> Ragged:
        """Row ``k * width + d`` is tile (k, d): edges from source range k into the stripe's d-th range."""
        return self._read(block)

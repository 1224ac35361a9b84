"""Which edges a graph has already: asked of the rows that new edges lead to, and of nothing else.

Files are mapped and only what is looked at comes in, so an append costs what it touches. Their sizes are compared with
the manifest; their checksums are not, as that would read whole files: a store that is in doubt is for ``verify``.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from ecgl_kernels.arrivals import drop_known_pairs, drop_known_rows
from ecgl_scale.base.arrow import as_numpy
from ecgl_scale.engine.block import Block
from ecgl_scale.store.checked import corrupt
from ecgl_scale.store.compose import OlderPiece, StoredBlock, stored_blocks
from ecgl_scale.store.edges.spill import Keys
from ecgl_scale.store.files import StoreFiles
from ecgl_scale.store.format import EDGES_DIRECTORY, Manifest, block_name
from ecgl_scale.store.ragged import Ragged, map_checked, read_ragged

Pairs = tuple[NDArray[Any], NDArray[Any]]


class KnownEdges:
    """The edges of a graph. Memory: none of ours; pages of mapped files."""

    def __init__(self, files: StoreFiles, manifest: Manifest) -> None:
        self._files = files
        self._manifest = manifest

    @cached_property
    def _blocks(self) -> list[StoredBlock]:
        return stored_blocks(self._manifest)

    def of(self, block: Block) -> KnownBlock:
        """What is known of a block, which may have more rows now."""
        stored = self._blocks[block.index]
        return KnownBlock(stored, self._rows(stored), [self._pairs(piece) for piece in stored.older])

    def _rows(self, stored: StoredBlock) -> Ragged:
        name = stored.folder + block_name(EDGES_DIRECTORY, stored.index)
        return read_ragged(self._files.path(name), self._manifest.files[name].written, check_crc=False)

    def _pairs(self, piece: OlderPiece) -> Pairs:
        path = self._files.path(piece.file)
        mapped = map_checked(path, self._manifest.files[piece.file].written, check_crc=False)
        try:
            batch = pa.ipc.open_file(mapped).get_batch(0)
            dst, src = (as_numpy(batch.column(name))[piece.first : piece.stop] for name in ("dst", "src"))
        except (pa.ArrowException, IndexError, KeyError) as error:
            raise corrupt(path, f"is not an Arrow file of edges: {error}") from error
        return dst, src


class KnownBlock:
    """The edges into one block: in its own file, and in those of later generations."""

    def __init__(self, stored: StoredBlock, rows: Ragged, pairs: list[Pairs]) -> None:
        self._first_row = stored.block.start
        self._rows = rows
        self._pairs = pairs

    def drop(self, keys: Keys, source_bits: int, node: int) -> Keys:
        """Those of the keys that are new, at the front of ``keys``; row 0 of a key is ``node``."""
        rows = self._rows
        keys = keys[: drop_known_rows(keys, source_bits, node - self._first_row, rows.offsets, rows.values)]
        for dst, src in self._pairs:
            keys = keys[: drop_known_pairs(keys, source_bits, node, dst, src)]
        return keys

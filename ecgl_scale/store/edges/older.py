"""Edges into rows of older blocks: files of pairs beside the blocks, and the rows of a block with all of them.

A file is uncompressed Arrow IPC of one record batch with the columns ``dst`` and ``src``, in the order of tiles (see
``ecgl_kernels.older``); several blocks may share one. It is mapped, and compared with the manifest when first read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ecgl_kernels.halo import copy_rows
from ecgl_kernels.older import count_rows, find_bad_pair, merge_range, merge_some, scatter_rows, sort_rows
from ecgl_kernels.some_rows import find_bad_offsets
from ecgl_scale.base.arrow import as_numpy
from ecgl_scale.store.checked import corrupt, expected_file
from ecgl_scale.store.compose import OlderPiece, StoredBlock
from ecgl_scale.store.edges.plan import id_dtype_of
from ecgl_scale.store.files import StoreFiles
from ecgl_scale.store.format import Manifest
from ecgl_scale.store.ragged import Ragged, map_checked

PART_EDGES = 1 << 21
"""So many edges are merged at once by those who can do with a part of a block."""
TOUCHED_ROW_BYTES = 16
"""A row that got edges, and where they begin."""


@dataclass(frozen=True)
class Pairs:
    """Edges ``src[i] -> dst[i]``, as views of a mapped file."""

    dst: NDArray[Any]
    src: NDArray[Any]


@dataclass(frozen=True)
class OlderSpan:
    """A run of entries of a file."""

    file: str
    first: int
    stop: int
    blocks: tuple[int, ...]
    """The blocks that they lead into, by their numbers."""


class OlderFiles:
    """The pairs of an open store, block by block, in the order of generations."""

    def __init__(self, files: StoreFiles, manifest: Manifest, blocks: list[StoredBlock]) -> None:
        self._files = files
        self._manifest = manifest
        self._blocks = blocks
        names = {piece.file for block in blocks for piece in block.older}
        for name in names:
            expected_file(manifest.files, name, files.location)
        self._num_edges = dict.fromkeys(names, 0)
        for block in blocks:
            for piece in block.older:
                self._num_edges[piece.file] += piece.num_edges
        self._trusts_bytes = False
        self._mapped: dict[str, Pairs] = {}
        self._checked: set[tuple[str, int]] = set()

    def trust_bytes(self) -> None:
        """Skip the crc32c of every file: the caller has compared them all."""
        self._trusts_bytes = True

    def pairs(self, block: StoredBlock) -> list[Pairs]:
        """Edges into a block that came later, one entry a generation that has any; views, not copies."""
        return [self._read(block, piece) for piece in block.older]

    def spans(self, wanted: Sequence[bool]) -> list[OlderSpan]:
        """Runs of edges into the blocks that are ``wanted``, as long as they lie one after the other in one file."""
        pieces = [(piece, block) for block in self._blocks if wanted[block.block.index] for piece in block.older]
        spans: list[OlderSpan] = []
        for piece, block in sorted(pieces, key=lambda found: (found[0].file, found[0].first)):
            last = spans[-1] if spans else None
            if last is not None and (last.file, last.stop) == (piece.file, piece.first):
                spans[-1] = replace(last, stop=piece.stop, blocks=(*last.blocks, block.block.index))
            else:
                spans.append(OlderSpan(piece.file, piece.first, piece.stop, (block.block.index,)))
        return spans

    def read_span(self, span: OlderSpan) -> Pairs:
        """The edges of a run; views, not copies."""
        for index in span.blocks:
            self.pairs(self._blocks[index])
        whole = self._mapped[span.file]
        return Pairs(whole.dst[span.first : span.stop], whole.src[span.first : span.stop])

    def _read(self, block: StoredBlock, piece: OlderPiece) -> Pairs:
        # Maps are kept: many blocks share a file, and are asked for one by one.
        if piece.file not in self._mapped:
            self._mapped[piece.file] = self._map(piece)
        whole = self._mapped[piece.file]
        pairs = Pairs(whole.dst[piece.first : piece.stop], whole.src[piece.first : piece.stop])
        if (piece.file, piece.first) not in self._checked:
            # A checksum shows that nobody damaged the file, not who made it: kernels index memory with these ids.
            rows = block.block.start, min(block.block.stop, piece.num_nodes)
            keeps_duplicates = self._manifest.edges.keeps_duplicates
            if find_bad_pair(pairs.dst, pairs.src, *rows, piece.num_nodes, keeps_duplicates) >= 0:
                where = f"rows {rows[0]:,} to {rows[1] - 1:,}"
                raise corrupt(self._files.path(piece.file), f"does not hold edges into {where}, in their order")
            self._checked.add((piece.file, piece.first))
        return pairs

    def _map(self, piece: OlderPiece) -> Pairs:
        path, expected = self._files.path(piece.file), self._manifest.files[piece.file].written
        mapped = map_checked(path, expected, check_crc=not self._trusts_bytes)
        try:
            batch = pa.ipc.open_file(mapped).get_batch(0)
            dst, src = as_numpy(batch.column("dst")), as_numpy(batch.column("src"))
        except (pa.ArrowException, KeyError, IndexError) as error:
            raise corrupt(path, f"is not a file of edges into older rows: {error}") from error
        is_typed = dst.dtype == src.dtype == id_dtype_of(piece.num_nodes)
        if not is_typed or not dst.size == src.size == self._num_edges[piece.file]:
            raise corrupt(path, "does not hold the edges into older rows that the manifest says")
        return Pairs(dst, src)


class BlockRows:
    """The rows of a block with all edges into them, merged as far as somebody asks for them.

    Memory: none of ours where nothing came later; else 4 bytes (8 past 2**32 nodes) an edge that did, 16 a row that
    got any, and what is asked for.
    """

    def __init__(self, own: Ragged, pairs: list[Pairs], stored: StoredBlock, id_dtype: np.dtype[Any]) -> None:
        self.num_rows = stored.block.num_rows
        self.num_edges = stored.num_edges + stored.num_older
        self._id_dtype = id_dtype
        self._own = own if own.offsets.size == self.num_rows + 1 else _longer(own, self.num_rows)
        self._is_own = not pairs and own.values.dtype == id_dtype
        self._older = _older_rows(pairs, stored, id_dtype)

    def merge(self) -> None:
        """Merge all rows once, and keep them so."""
        self._own = self.whole()
        self._is_own, self._older = True, _no_rows(self._id_dtype)

    def degrees(self) -> NDArray[np.int64]:
        """Edges into each row."""
        touched, starts, _ = self._older
        degrees = np.diff(self._own.offsets)
        degrees[touched] += np.diff(starts)
        return degrees

    def before(self, row: int) -> int:
        """Edges into the block's rows below ``row``."""
        touched, starts, _ = self._older
        return int(self._own.offsets[row]) + int(starts[np.searchsorted(touched, row)])

    def row_at(self, edge: float) -> int:
        """The first row before which there are at least so many edges."""
        if self._is_own:
            return int(np.searchsorted(self._own.offsets, edge))
        return bisect_left(range(self.num_rows + 1), edge, key=self.before)

    def whole(self) -> Ragged:
        """All rows: views where nothing came later, else a merged copy."""
        return self.part(0, self.num_rows)

    def part(self, first: int, stop: int) -> Ragged:
        """Rows ``first`` up to ``stop``; their offsets begin where those of the first row do."""
        if self._is_own:
            return Ragged(self._own.offsets[first : stop + 1], self._own.values, self._own.values_start)
        offsets = np.empty(stop - first + 1, np.int64)
        values = np.empty(self.before(stop) - self.before(first), self._id_dtype)
        merge_range(self._own.offsets, self._own.values, self._older, first, stop, offsets, values)
        return _readonly(offsets, values)

    def parts(self, first: int, stop: int) -> Iterator[tuple[int, Ragged]]:
        """First row and rows of ``first`` up to ``stop``, cut where a merge would take more than ``part_bytes``."""
        while first < stop:
            end = stop
            if not self._is_own:
                end = min(max(self.row_at(self.before(first) + PART_EDGES), first + 1), stop)
            yield first, self.part(first, end)
            first = end

    def counts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Edges into each of some rows."""
        counts = self._own.offsets[rows + 1] - self._own.offsets[rows]
        touched, starts, _ = self._older
        places = np.searchsorted(touched, rows)
        np.minimum(places, max(touched.size - 1, 0), out=places)
        if touched.size:
            counts += np.where(touched[places] == rows, starts[places + 1] - starts[places], 0)
        return counts

    def find_bad_offsets(self, rows: NDArray[np.int64]) -> int:
        """Position of the first of some rows whose offsets, in the block's own file, make no sense; -1 if none."""
        return find_bad_offsets(self._own.offsets, self._own.values.size, rows)

    def select(self, rows: NDArray[np.int64]) -> Ragged:
        """Some rows, in the order asked for, as a copy."""
        offsets = np.zeros(rows.size + 1, np.int64)
        values = np.empty(int(self.counts(rows).sum()), self._id_dtype)
        if self._is_own:
            copy_rows(self._own.offsets, self._own.values, rows, 0, offsets, values)
            return Ragged(offsets, values)
        merge_some(self._own.offsets, self._own.values, self._older, rows, offsets, values)
        return Ragged(offsets, values)


def part_bytes(stored: StoredBlock, id_dtype: np.dtype[Any]) -> int:
    """The most memory that a part of a block's rows takes while it is merged, unless one row has more edges."""
    if merge_bytes(stored, id_dtype) == 0:
        return 0
    merged = min(stored.num_edges + stored.num_older, PART_EDGES) * id_dtype.itemsize
    return merged + 24 * stored.block.num_rows


def merge_bytes(stored: StoredBlock, id_dtype: np.dtype[Any]) -> int:
    """The most memory that the rows of a block take while they are merged whole."""
    is_longer = stored.block.num_rows > stored.num_rows
    if not stored.older and id_dtype_of(stored.num_nodes) == id_dtype:
        return 8 * (stored.block.num_rows + 1) if is_longer else 0
    merged = (stored.num_edges + stored.num_older) * id_dtype.itemsize + 8 * (stored.block.num_rows + 1)
    return merged + held_bytes(stored, id_dtype) + 16 * stored.block.num_rows


def held_bytes(stored: StoredBlock, id_dtype: np.dtype[Any]) -> int:
    """The memory that ``BlockRows`` keeps of what came later."""
    touched = min(stored.num_older, stored.block.num_rows)
    longer = 8 * (stored.block.num_rows + 1) if stored.block.num_rows > stored.num_rows else 0
    return stored.num_older * id_dtype.itemsize + TOUCHED_ROW_BYTES * touched + longer


def _older_rows(
    pairs: list[Pairs], stored: StoredBlock, id_dtype: np.dtype[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
    """Which rows got edges, where those begin, and their sources, ascending."""
    start, sources = stored.block.start, np.empty(stored.num_older, id_dtype)
    if not pairs:
        return _no_rows(id_dtype)
    cursors = np.zeros(stored.block.num_rows, np.int64)
    for piece in pairs:
        count_rows(piece.dst, start, cursors)
    touched = np.flatnonzero(cursors)
    starts = np.zeros(touched.size + 1, np.int64)
    np.cumsum(cursors[touched], out=starts[1:])
    cursors[touched] = starts[:-1]
    for piece in pairs:
        scatter_rows(piece.dst, piece.src, start, cursors, sources)
    if len(pairs) > 1:
        sort_rows(starts, sources)
    return touched, starts, sources


def _no_rows(id_dtype: np.dtype[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
    return np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, id_dtype)


def _longer(own: Ragged, num_rows: int) -> Ragged:
    """Rows that came later have no edges here."""
    offsets = np.full(num_rows + 1, own.offsets[-1], np.int64)
    offsets[: own.offsets.size] = own.offsets
    offsets.setflags(write=False)
    return Ragged(offsets, own.values, own.values_start)


def _readonly(offsets: NDArray[np.int64], values: NDArray[Any]) -> Ragged:
    """Merged rows cannot be written, as mapped ones cannot, so that kernels are compiled once."""
    offsets.setflags(write=False)
    values.setflags(write=False)
    return Ragged(offsets, values)

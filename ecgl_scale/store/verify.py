"""Is this store whole? Quick checks at open, every byte and every row on request.

``check_files`` compares names, kinds, sizes and probes with the manifest: missing, emptied, truncated, swapped, stale
and linked files are found without reading much. ``verify_store`` reads everything: crc32c of all bytes, rows sorted
and in range, tiles holding the same edges, keys leading to their rows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.checksum import checksum_rows, checksum_tiles
from ecgl_kernels.csr import find_bad_row
from ecgl_kernels.order import checksum_columns, count_column_tiles
from ecgl_kernels.tiles import count_tiles, find_bad_tile
from ecgl_scale.base.buffers import ReusableBytes
from ecgl_scale.base.direct import SECTOR_BYTES, open_direct, round_up
from ecgl_scale.base.durable import crc32c_of, storage_errors
from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.base.objects.url import AnyPath, ObjectUrl
from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.engine.cluster.worker_memory import require_workers
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.errors import CorruptStoreError
from ecgl_scale.store.checked import corrupt
from ecgl_scale.store.compose import address_of, is_beside, manifest_names, stored_blocks
from ecgl_scale.store.edges.older import held_bytes, part_bytes
from ecgl_scale.store.edges.order import open_order
from ecgl_scale.store.edges.plan import RANGE_ROWS
from ecgl_scale.store.edges.read import EdgeStore, TileStore
from ecgl_scale.store.features.files import open_features
from ecgl_scale.store.files import StoreFiles
from ecgl_scale.store.format import FileRecord, Manifest, probe_file
from ecgl_scale.store.generation import GENERATIONS_DIRECTORY
from ecgl_scale.store.keys.check import check_keys
from ecgl_scale.store.keys.read import open_keys
from ecgl_scale.store.ragged import Ragged, check_size
from ecgl_scale.store.remote import MirroredFiles, check_objects, check_probes, files_of
from ecgl_scale.store.view import read_view
from ecgl_scale.units import MIB, format_bytes

READ_BYTES = 8 * MIB
TILE_COUNT_BYTES = 48
"""A tile's two ends, as they are compared and counted."""
RESERVE_BYTES = 24 * MIB


@dataclass(frozen=True)
class VerifyReport:
    """What was read and found good."""

    num_files: int
    num_bytes: int
    num_rows: int
    num_edges: int


def check_files(store: AnyPath, manifest: Manifest) -> None:
    """Compare the directory with the manifest: exactly its files, plain, of the right size, with the right probes.

    Of a store at a URL, names and sizes: a probe of every object would take longer than fetching what is needed, which
    compares all its bytes.
    """
    if isinstance(store, ObjectUrl):
        check_objects(store, manifest)
        return
    _refuse_strangers(store, manifest)
    for name, record in manifest.files.items():
        path = store / name
        check_size(path, record.written)
        with storage_errors(path):
            if probe_file(path, record.size_bytes) != record.probe:
                raise corrupt(path, "is not the one that was written (swapped, stale or damaged)")


def _refuse_strangers(store: Path, manifest: Manifest) -> None:
    """A link could lead anywhere, and a file we did not write may be a leftover that some reader takes for ours."""
    known = manifest_names(manifest) | manifest.files.keys()
    folders = {str(parent) for name in known for parent in Path(name).parents} | {GENERATIONS_DIRECTORY}
    pending = [store]
    while pending:
        directory = pending.pop()
        with storage_errors(directory), os.scandir(directory) as entries:
            for entry in entries:
                name = str(Path(entry.path).relative_to(store))
                if entry.is_symlink():
                    raise corrupt(Path(entry.path), "is a symbolic link")
                if is_beside(name, manifest):
                    continue
                if entry.is_dir():
                    if name not in folders:
                        raise _stranger(Path(entry.path))
                    pending.append(Path(entry.path))
                elif name not in known:
                    raise _stranger(Path(entry.path))


def _stranger(path: Path) -> CorruptStoreError:
    return CorruptStoreError(
        "the store holds something its manifest does not name", where=path, fix="remove it, or build the store again"
    )


def check_bytes(store: Path, manifest: Manifest) -> None:
    """Read every file once and compare its crc32c. Memory: one read buffer."""
    buffer = ReusableBytes()
    for name, record in manifest.files.items():
        _check_file(store / name, record, buffer)


def _check_file(path: Path, record: FileRecord, memory: ReusableBytes) -> None:
    # Past the page cache: a check of the disk should read the disk, and not push out what others use.
    check_size(path, record.written)
    crc = position = 0
    buffer = memory.take(min(READ_BYTES, round_up(max(record.size_bytes, 1), SECTOR_BYTES)))
    with storage_errors(path):
        descriptor = open_direct(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            while position < record.size_bytes:
                got = os.preadv(descriptor, [buffer.data], position)
                if got == 0:
                    break
                crc = crc32c_of(buffer[: min(got, record.size_bytes - position)], crc)
                position += got
        finally:
            os.close(descriptor)
    if crc != record.crc32c:
        raise corrupt(path, "does not have the bytes that were written")


def verify_store(store: AnyPath, resources: Resources, *, fast: bool = False) -> VerifyReport:
    """Check files; unless ``fast``, also every byte, every row and every tile, of all generations up to the address."""
    view = read_view(store)
    store, manifest = view.location, view.manifest
    check_files(store, manifest)
    if fast and isinstance(store, ObjectUrl):
        check_probes(store, manifest)
    else:
        files = files_of(store, manifest, view.hold)
        open_features(files, manifest)  # compares their own metadata with the manifest
    require_workers(resources, lambda _, threads: [plan_verify_worker(manifest, threads=threads)])
    if not fast:
        _verify("read every byte", ByteCheck(files, manifest), manifest.total_bytes, "bytes", resources)
        if (order := open_order(files, manifest)) is not None:
            order.require_permutation()
        found = _verify("check rows and tiles", RowCheck(files, manifest), manifest.edges.num_edges, "edges", resources)
        if found != manifest.edges.num_edges:
            expected = f"{manifest.edges.num_edges:,}"
            raise CorruptStoreError(f"the blocks hold {found:,} edges", where=store, expected=expected)
        if (keys := open_keys(files, manifest)) is not None:
            check_keys(keys, resources.on_event)
    return VerifyReport(len(manifest.files), manifest.total_bytes, manifest.num_nodes, manifest.edges.num_edges)


def plan_verify_worker(manifest: Manifest, *, threads: int) -> StagePlan:
    """What a worker needs: a buffer for each thread, and the counts of a row of tiles; edges are mapped."""
    num_ranges = -(-manifest.num_nodes // RANGE_ROWS)
    merged_bytes = _merged_bytes(manifest)
    needed = threads * (max(READ_BYTES, merged_bytes) + TILE_COUNT_BYTES * num_ranges) + RESERVE_BYTES
    return StagePlan("verify", needed, f"{format_bytes(READ_BYTES)} for each of {threads} threads", setting="threads")


def _verify(stage: str, check: ByteCheck | RowCheck, amount: int, unit: str, resources: Resources) -> int:
    """Check all blocks; gives how many bytes or edges were good."""
    resources.on_event(StageStarted(stage, amount, unit))
    done = 0
    for _, record in run_blocks(check, check.blocks(), resources):
        done += record.amount
        resources.on_event(BlockFinished(stage, done))
    return done


@dataclass(frozen=True)
class Checked:
    """What of a block was good: bytes of a file, or edges of rows."""

    amount: int


class _StoreCheck(Work[ReusableBytes, Checked]):
    record = Checked

    def __init__(self, files: StoreFiles, manifest: Manifest) -> None:
        self._files = files
        self._manifest = manifest
        self._records = list(manifest.files.items())

    def describe(self) -> Json:
        """Name the store."""
        return {"store": address_of(self._files.location, self._manifest)}

    @classmethod
    def open(cls, description: Json, resources: Resources) -> Self:  # noqa: ARG003
        """Open the store's manifest again."""
        view = read_view(description["store"])
        return cls(files_of(view.location, view.manifest, view.hold), view.manifest)

    def scratch(self) -> ReusableBytes:
        """A buffer to read files into."""
        return ReusableBytes()


class ByteCheck(_StoreCheck):
    """Compares the crc32c of one file, block ``i`` being the manifest's ``i``-th."""

    name = "store.verify_bytes"

    def blocks(self) -> list[Block]:
        """A block is a file."""
        return split_blocks(len(self._records), 1)

    def run(self, block: Block, given: Json, scratch: ReusableBytes) -> Checked:  # noqa: ARG002
        """Compare one file."""
        name, record = self._records[block.index]
        if isinstance(self._files, MirroredFiles):
            self._files.check(name)
        else:
            _check_file(self._files.path(name), record, scratch)
        return Checked(record.size_bytes)


class RowCheck(_StoreCheck):
    """Looks at the rows of one block, whose bytes are known to be good, and at its tiles."""

    name = "store.verify_rows"

    def __init__(self, files: StoreFiles, manifest: Manifest) -> None:
        super().__init__(files, manifest)
        self._edges, self._tiles = EdgeStore(files, manifest), TileStore(files, manifest)
        self._edges.trust_bytes()
        self._edges.older.trust_bytes()
        self._tiles.trust_bytes()

    def blocks(self) -> list[Block]:
        """Blocks are those of the store."""
        return self._edges.blocks()

    def run(self, block: Block, given: Json, scratch: ReusableBytes) -> Checked:  # noqa: ARG002
        """Check rows, then tiles, then edges that came later: their order, and that they are no edges once more."""
        rows, keeps_duplicates = self._edges.own_rows(block), self._manifest.edges.keeps_duplicates
        bad_row = find_bad_row(rows.offsets, rows.values, self._manifest.num_nodes, keeps_duplicates)
        if bad_row >= 0:
            raise corrupt(self._edges.path(block), f"holds a bad row {block.start + max(bad_row, 0)}")
        _check_tiles(self._tiles, block, rows, keeps_duplicates)
        merged = self._edges.rows(block)
        for first, part in merged.parts(0, block.num_rows) if self._edges.older_pairs(block) else ():
            bad_row = find_bad_row(part.offsets, part.values, self._manifest.num_nodes, keeps_duplicates)
            if bad_row >= 0:
                path = self._edges.older_paths(block)[-1]
                raise corrupt(path, f"holds an edge into row {block.start + first + bad_row} that was there before")
        if merged.before(block.num_rows) != merged.num_edges:
            raise CorruptStoreError(
                f"block {block.index} has {merged.before(block.num_rows):,} edges without those of dropped nodes",
                where=self._files.location,
                expected=f"{merged.num_edges:,}, as the manifests say",
            )
        return Checked(merged.num_edges)


def _merged_bytes(manifest: Manifest) -> int:
    """What a thread holds of the rows of a block that edges came into later, a part of them merged."""
    id_dtype = np.dtype(manifest.edges.id_dtype)
    return max(held_bytes(block, id_dtype) + part_bytes(block, id_dtype) for block in stored_blocks(manifest))


def _check_tiles(tiles: TileStore, block: Block, rows: Ragged, keeps_duplicates: bool) -> None:
    """Same edges, range by range: the number in each tile, their order, their ids, and a checksum of them all."""
    stripe, width = tiles.read(block), tiles.width(block)
    num_ranges, columns = tiles.num_ranges_of(block), None if tiles.order is None else tiles.order.columns
    if stripe.offsets.size != num_ranges * width + 1:
        raise corrupt(tiles.path(block), "has the wrong number of tiles")
    for d in range(width):
        offsets = rows.offsets[d * RANGE_ROWS : (d + 1) * RANGE_ROWS + 1]
        counts = np.zeros(num_ranges, np.int64)
        if columns is None:
            count_tiles(rows.values[offsets[0] : offsets[-1]], counts)
        else:
            count_column_tiles(rows.values[offsets[0] : offsets[-1]], columns, counts)
        bounds: NDArray[Any] = np.column_stack([stripe.offsets[d:-1:width], stripe.offsets[d + 1 :: width]])
        num_rows, first_row = offsets.size - 1, block.start + d * RANGE_ROWS
        bad_tile = find_bad_tile(
            stripe.values, bounds.ravel(), num_rows, tiles.num_nodes, keeps_duplicates, columns is not None
        )
        checksum = (
            checksum_rows(offsets, rows.values, first_row)
            if columns is None
            else checksum_columns(offsets, rows.values, columns, first_row)
        )
        same = (
            bad_tile < 0
            and np.array_equal(bounds[:, 1] - bounds[:, 0], counts)
            and checksum_tiles(stripe.values, bounds.ravel(), first_row) == checksum
        )
        if not same:
            raise corrupt(tiles.path(block), f"differs from the rows in destination range {d}")

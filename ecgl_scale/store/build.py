"""Any source -> a store, within a memory budget.

    keys              copied in row order, and an index sorted out of core            keys/write.py
    partition edges   one pass over the source, keys grouped by destination        edges/partition.py
    write rows, tiles sort each bucket, CSR rows, then tiles                         edges/write.py
    order sources     of a large graph: all rows, the order by them, then tiles      edges/choose_order.py
    features          stream rows into Zarr shards or sparse blocks                  features/files.py
    columns           labels, splits, anything with one value a node                 nodes.py
    manifest          written last; then the staging directory takes the target's name

Edges go through the executor: pieces of the source, then blocks of rows; and so do shards of dense features where
workers share no memory. Other features and columns are streamed by this process.

Everything happens in a staging directory beside the target, so a failure or a kill leaves the target as it was. What
workers that share no memory have finished there is in a journal: the same build goes on with the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import WRITE_BUFFER_BYTES, WrittenFile, free_bytes, storage_errors
from ecgl_scale.base.memory import PeakSampler
from ecgl_scale.base.staging import Staging
from ecgl_scale.engine.clock import StageClock
from ecgl_scale.engine.cluster.worker_memory import require_workers
from ecgl_scale.engine.journal import RecordJournal
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import DoesNotFitError, InvalidInputError, UsageError
from ecgl_scale.store.build_journal import BuildJournal, job_of
from ecgl_scale.store.build_nodes import build_columns, build_features
from ecgl_scale.store.classes import name_classes
from ecgl_scale.store.edges.choose_order import WrittenRows, choose_order, may_order
from ecgl_scale.store.edges.partition import BYTES_PER_EDGE, PieceRecord, partition_edges
from ecgl_scale.store.edges.plan import BuildOptions, EdgePlan
from ecgl_scale.store.edges.segments import KeySegments
from ecgl_scale.store.edges.spill import KEY_BYTES, KeyBuckets, KeySpill
from ecgl_scale.store.edges.write import (
    MAX_SHARE_BYTES,
    RESERVE_BYTES,
    BlockRecord,
    has_files,
    largest_block_bytes,
    write_blocks,
)
from ecgl_scale.store.edges.write_tiles import OrderFile, write_all_tiles
from ecgl_scale.store.features.dense_write import CHUNK_BYTES, PIECE_BYTES
from ecgl_scale.store.format import (
    DEGREE_GROUPS,
    MANIFEST_NAME,
    NODES_NAME,
    ORDER_NAME,
    EdgeSection,
    Manifest,
    record_files,
)
from ecgl_scale.store.keys.write import KEY_DISK_BYTES, write_keys
from ecgl_scale.store.source import GraphSource
from ecgl_scale.units import MIB, format_bytes

MIN_SPARE_BYTES = 48 * MIB
MAX_BLOCK_EDGES_IN_FLIGHT = 1 << 22
SMALL_SHARE_BYTES = 32 * MIB
DISK_MARGIN_BYTES = 64 * MIB
SEGMENT_TABLE_BYTES = 12
ORDER_DISK_BYTES = 12
"""A node's column, and while that is found its degree and its column once more."""
SHARD_BYTES = 2 * PIECE_BYTES + CHUNK_BYTES + 2 * WRITE_BUFFER_BYTES
"""A piece of features as it is read and as it was before that, a chunk, and what is being written."""


@dataclass(frozen=True)
class MemoryShares:
    """How the budget is spent. Peak: reserve + kept + threads x max(edge block, share)."""

    threads: int
    block_edges: int
    kept_bytes: int
    share_bytes: int

    @classmethod
    def of(cls, room_bytes: int, *, threads: int, num_keys_hint: int) -> MemoryShares:
        """Split the room that the budget leaves, which must be at least ``RESERVE_BYTES + MIN_SPARE_BYTES``."""
        spare = room_bytes - RESERVE_BYTES
        threads = max(1, min(threads, spare // SMALL_SHARE_BYTES))
        keys_bytes = num_keys_hint * KEY_BYTES
        # Keys that stay in memory need no scratch file; the threads' shares come first, as they set the speed.
        wanted_share = min(MAX_SHARE_BYTES, max(SMALL_SHARE_BYTES, 4 * keys_bytes // threads))
        share = min(spare // threads, wanted_share)
        kept = max(0, spare - threads * share)
        block_edges = min(share // BYTES_PER_EDGE, MAX_BLOCK_EDGES_IN_FLIGHT)
        return cls(threads, block_edges, kept, share)

    def thread_bytes(self, plan: EdgePlan, bucket_counts: NDArray[np.int64], *, max_read_edges: int) -> int:
        """Most of its share that a thread uses for edges of which each bucket has so many at most."""
        read_bytes = min(self.block_edges, max_read_edges) * BYTES_PER_EDGE
        return min(self.share_bytes, max(read_bytes, largest_block_bytes(plan, bucket_counts)))


def plan_build_worker(
    num_nodes: int, num_keys: int, *, room_bytes: int, driver_threads: int, threads: int
) -> StagePlan:
    """What a worker needs that shares no memory; ``room_bytes`` is what the budget leaves, a worker's or the driver's.

    The driver cuts pieces for its own threads; a worker has as many at once as it has threads. Blocks are sorted in
    what the worker has, whatever that is, and tables of segments are 12 bytes a bucket and segment.
    """
    shares = MemoryShares.of(
        max(room_bytes, RESERVE_BYTES + MIN_SPARE_BYTES), threads=driver_threads, num_keys_hint=num_keys
    )
    pieces = threads * shares.block_edges * BYTES_PER_EDGE
    num_segments = -(-num_keys // max(shares.block_edges, 1))
    tables = SEGMENT_TABLE_BYTES * EdgePlan.of(num_nodes).num_buckets * num_segments
    shards = threads * SHARD_BYTES
    needed = RESERVE_BYTES + max(pieces, tables + MIN_SPARE_BYTES, shards)
    formula = f"40 MiB + {threads} x {format_bytes(shares.block_edges * BYTES_PER_EDGE)} of edges in flight"
    return StagePlan("ingest", needed, f"{formula}, or {format_bytes(tables)} of tables and 48 MiB", setting="memory")


def build_store(
    source: GraphSource,
    target: Path,
    resources: Resources,
    *,
    options: BuildOptions | None = None,
    features_as: str = "auto",
    feature_dtype: str = "float32",
    overwrite: bool = False,
    before_swap: Callable[[], None] = lambda: None,
) -> Manifest:
    """Build ``target`` from ``source``; ``before_swap`` is called when all is written, and may refuse.

    Memory: never more RssAnon than the budget of ``resources``. Disk: about 8 bytes for each stored edge, 8 a node
    and the features; while building also 8 bytes an edge of scratch space where the keys do not fit in memory.
    """
    options = options or BuildOptions()
    if options.self_loops not in ("drop", "keep", "add"):
        raise UsageError(f"self_loops is {options.self_loops!r}", expected="drop, keep or add")
    if source.num_nodes <= 0:
        raise InvalidInputError("the graph is empty: it has no nodes", where=source.name)
    source, class_names = name_classes(source)
    plan = EdgePlan.of(source.num_nodes)
    keys_hint = source.num_edges_hint * (2 if options.symmetrise else 1)
    is_shared = not resources.executor.shares_memory
    require_workers(
        resources,
        lambda room, threads: [
            plan_build_worker(
                source.num_nodes, keys_hint, room_bytes=room, driver_threads=resources.threads, threads=threads
            )
        ],
    )
    job = job_of(source, options, [features_as, feature_dtype]) if is_shared else None
    with (
        PeakSampler() as sampler,
        Staging(target, marker=MANIFEST_NAME, overwrite=overwrite, job=job) as staging,
        storage_errors(staging.path),
    ):
        least_bytes = RESERVE_BYTES + MIN_SPARE_BYTES
        resources.require(least_bytes, stage="the build", formula=f"{format_bytes(least_bytes)} to work in")
        shares = MemoryShares.of(resources.room_bytes, threads=resources.threads, num_keys_hint=keys_hint)
        if is_shared:
            shares = replace(shares, kept_bytes=0)  # keys go through files
        require_disk(source, keys_hint, shares, staging.path)
        on_event = resources.on_event
        clock = StageClock(sampler, on_event)
        own = resources.with_threads(shares.threads)
        journal = BuildJournal(staging.path, job or "") if is_shared else None
        if journal is not None:
            shares = replace(shares, block_edges=journal.block_edges(shares.block_edges))
        names = write_keys(source, staging.path, own)
        if names is not None:
            source = replace(source, edges=source.edges.with_keys(names.keys))  # which may be given by them
        edges, files = _write_edges(source, plan, options, staging.path, own, shares, clock, journal)
        with clock.stage("write features"):
            features, feature_files = build_features(source, staging.path, features_as, feature_dtype, own, journal)
        with clock.stage("write node columns"):
            columns = build_columns(source, staging.path, on_event)
        files.update(feature_files)
        if columns is not None:
            files[NODES_NAME] = columns.file
        files.update({} if names is None else names.files)
        manifest = Manifest(
            num_nodes=source.num_nodes,
            edges=edges,
            features=features,
            columns={} if columns is None else columns.types,
            num_classes=None if columns is None else columns.num_classes,
            provenance=dict(source.provenance),
            files=record_files(staging.path, files),
            keys=None if names is None else names.section,
            class_names=None if class_names is None else list(class_names),
            source_order=DEGREE_GROUPS if ORDER_NAME in files else None,
        )
        if journal is not None:
            journal.remove()
            remove_partial_files(staging.path)
        manifest.write(staging.path)
        staging.commit(before_swap)
    return manifest


def _write_edges(
    source: GraphSource,
    plan: EdgePlan,
    options: BuildOptions,
    store: Path,
    resources: Resources,
    shares: MemoryShares,
    clock: StageClock,
    journal: BuildJournal | None,
) -> tuple[EdgeSection, dict[str, WrittenFile]]:
    def there(record: BlockRecord) -> bool:
        return has_files(store, record.files)

    pieces: RecordJournal[PieceRecord] | None = None
    blocks: RecordJournal[BlockRecord] | None = None
    if journal is not None:
        found = journal.edges()
        if found is not None:
            remove_segments(store)
            return found
        pieces = journal.records("partition", PieceRecord)
        blocks = journal.records("blocks", BlockRecord, there)
    with key_buckets(store, plan.num_buckets, shares, is_shared=journal is not None) as keys:
        with clock.stage("partition edges"):
            totals = partition_edges(source, plan, options, keys, resources, shares.block_edges, pieces)
        num_keys = int(keys.counts.sum())
        is_ordered = may_order(options, num_keys)
        with clock.stage("write rows" if is_ordered else "write rows and tiles"):
            written = write_blocks(
                keys, plan, options, store, resources, shares.share_bytes, blocks, with_tiles=not is_ordered
            )
    block_edges = [record.num_edges for _, record in written]
    section = EdgeSection(
        num_edges=sum(block_edges),
        id_dtype=plan.id_dtype.name,
        symmetrised=options.symmetrise or options.is_symmetric,
        keeps_duplicates=options.keep_duplicates,
        self_loops={"drop": "dropped", "keep": "kept", "add": "added"}[options.self_loops],
        input_edges=totals.input_edges,
        dropped_self_loops=0 if options.self_loops == "keep" else totals.self_loops,
        dropped_duplicates=num_keys - sum(block_edges),
        block_starts=[block.start for block, _ in written] + [plan.num_nodes],
        block_edges=block_edges,
    )
    section = section if source.history is None else replace(section, **asdict(source.history))
    files = {name: WrittenFile(*file) for _, record in written for name, file in record.files.items()}
    if is_ordered:
        rows = WrittenRows(store, [(block, record.num_edges) for block, record in written])
        tiles = None if journal is None else journal.records("tiles", BlockRecord, there)
        files.update(_write_ordered(rows, plan, options, resources, shares.share_bytes, clock, tiles))
    if journal is not None:
        journal.save_edges(section, files)
        remove_segments(store)
    return section, files


def _write_ordered(
    rows: WrittenRows,
    plan: EdgePlan,
    options: BuildOptions,
    resources: Resources,
    share_bytes: int,
    clock: StageClock,
    journal: RecordJournal[BlockRecord] | None,
) -> dict[str, WrittenFile]:
    """Choose the order of sources by the rows, and write the tiles in it."""
    with clock.stage("order sources"):
        order = choose_order(rows, plan, options)
    where = None if order is None else OrderFile(rows.store / ORDER_NAME, order, plan.num_nodes)
    with clock.stage("write tiles"):
        records = write_all_tiles(rows, plan, where, resources, share_bytes, journal)
    files = {name: WrittenFile(*file) for record in records for name, file in record.files.items()}
    return files if order is None else {**files, ORDER_NAME: order}


def remove_segments(store: Path) -> None:
    """Remove the keys of edges that are all written."""
    for directory in store.glob("segments-*"):
        shutil.rmtree(directory, ignore_errors=True)


def remove_partial_files(store: Path) -> None:
    """Remove what workers that were lost while they wrote have left."""
    for left in store.rglob(".*"):
        left.unlink()


@contextmanager
def key_buckets(store: Path, num_buckets: int, shares: MemoryShares, *, is_shared: bool) -> Iterator[KeyBuckets]:
    """Where keys are between the two halves: in memory and a scratch file, or in files that all workers see."""
    if is_shared:
        # Pieces of another size have another place: a worker that nobody has told may still be writing one.
        yield KeySegments.make(store / f"segments-{shares.block_edges}", num_buckets)
        return
    spill = KeySpill(store / "keys.scratch", num_buckets, allowance_bytes=shares.kept_bytes)
    try:
        yield spill
    finally:
        spill.close()


def require_disk(source: GraphSource, keys_hint: int, shares: MemoryShares, where: Path) -> None:
    """Refuse before the first byte if the disk is short of store and scratch together."""
    scratch = max(0, keys_hint * KEY_BYTES - shares.kept_bytes)
    store = 8 * keys_hint + 8 * source.num_nodes
    store += ORDER_DISK_BYTES * source.num_nodes if may_order(BuildOptions(), keys_hint) else 0
    store += 0 if source.features is None else source.features.stored_bytes(source.num_nodes)
    store += sum(column.dtype.itemsize for column in source.number_columns) * source.num_nodes
    store += 0 if source.keys is None else KEY_DISK_BYTES * source.num_nodes
    there = sum(path.stat().st_size for path in where.rglob("*"))  # of a build that goes on
    needed, free = scratch + store + DISK_MARGIN_BYTES, free_bytes(where) + there
    if needed > free:
        raise DoesNotFitError(
            f"the disk is short: about {format_bytes(needed)} needed, {format_bytes(free)} free",
            where=f"{where.parent} (store {format_bytes(store)}, scratch {format_bytes(scratch)})",
            fix="choose a target on a larger disk, or free some space"
            + ("; with more --memory no scratch space is needed" if scratch else ""),
        )

"""New nodes and edges -> one more generation of a store, within a memory budget and for what is new.

    partition edges      the pass of every build, with the ids of the whole graph       edges/partition.py
    edges to older rows  those that are new, in tile order                              edges/write_older.py
    rows and tiles       blocks of rows past the last one that older blocks may hold    edges/write.py
    features, columns    of the new nodes alone                                         build.py
    manifest             of the generation; then the directory gets its name, then the head is replaced

Whatever happens before the last step, a reader finds the store as it was; what a kill leaves, the next append removes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Unpack

from ecgl_scale.base.durable import WrittenFile, storage_errors
from ecgl_scale.base.memory import PeakSampler
from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.engine.clock import StageClock
from ecgl_scale.engine.cluster.worker_memory import require_workers
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import InvalidInputError, StoreError
from ecgl_scale.store.build import (
    MIN_SPARE_BYTES,
    MemoryShares,
    key_buckets,
    plan_build_worker,
    remove_partial_files,
    remove_segments,
    require_disk,
)
from ecgl_scale.store.build_nodes import build_columns, build_features
from ecgl_scale.store.compose import GrownManifest, grow, own_rows_start
from ecgl_scale.store.edges.choose_order import WrittenRows
from ecgl_scale.store.edges.order import open_order
from ecgl_scale.store.edges.partition import partition_edges
from ecgl_scale.store.edges.plan import MAX_NODES, EdgePlan
from ecgl_scale.store.edges.write import RESERVE_BYTES, write_blocks
from ecgl_scale.store.edges.write_older import require_keys_fit, write_older
from ecgl_scale.store.edges.write_tiles import OrderFile, write_all_tiles
from ecgl_scale.store.existing import settle_existing
from ecgl_scale.store.fit_source import GivenOptions, fit_source, refuse_contradiction, store_options
from ecgl_scale.store.format import NODES_NAME, ORDER_NAME, Manifest, record_files
from ecgl_scale.store.generation import GenerationEdges, GenerationManifest, OlderEdges
from ecgl_scale.store.keys.read import StoreKeys, open_keys
from ecgl_scale.store.keys.write import write_keys
from ecgl_scale.store.live_ends import without_dropped
from ecgl_scale.store.new_generation import NewGeneration
from ecgl_scale.store.put_generation import PutGeneration
from ecgl_scale.store.remote import files_of
from ecgl_scale.store.source import GraphSource
from ecgl_scale.store.view import StoreView, checked_generation, split_address
from ecgl_scale.units import format_bytes


def append_store(
    source: GraphSource,
    store: str | AnyPath,
    resources: Resources,
    *,
    generation: int | None = None,
    on_existing: str = "refuse",
    **given: Unpack[GivenOptions],
) -> GrownManifest | None:
    """Add what ``source`` has to a store: its nodes are new ones, its edges lead between any nodes of the whole graph.

    Returns the manifest of the grown store; None where nodes that are there are skipped and nothing else came: then
    the store stays as it is, so that an append that is repeated leaves no trace.

    Parameters
    ----------
    source
        Rows of its features and columns are new nodes, numbered on from those the store has. Ids of edges are numbers
        of old or new nodes.
    generation
        The newest one that the caller knows; if the store has another one by now, the append is refused.
    on_existing
        ``refuse`` a node whose key the store has already, or ``skip`` it: edges then lead to the one that is there.
    given
        Options of the store, repeated; one that contradicts them is refused.

    Memory: never more RssAnon than the budget of ``resources``. Disk: about 8 bytes for each new edge, 8 a new node and
    their features; while building also 8 bytes an edge of scratch space where the keys do not fit in memory.
    """
    location, named = split_address(store)
    generation = named if generation is None else generation
    if isinstance(location, Path):
        place: NewGeneration | PutGeneration = NewGeneration(location, is_shared=not resources.executor.shares_memory)
    else:
        place = PutGeneration(location, resources.on_event)
    with PeakSampler() as sampler, place as new:
        before = new.before
        if checked_generation(generation, before.head, location) != before.generation:
            raise StoreError(
                f"the store has grown since: this is an append to generation {generation}",
                where=location,
                expected=f"its newest one, {before.generation}",
                fix="open the store again, and see what came",
            )
        refuse_contradiction(given, before.manifest, location)
        fitted = fit_source(source, before.manifest, location)
        known = open_keys(files_of(location, before.manifest), before.manifest)
        if known is not None:
            fitted = settle_existing(fitted, known, before, resources.on_event, skip=on_existing == "skip")
        fitted = replace(fitted, edges=without_dropped(fitted.edges, before))
        with storage_errors(new.path):
            clock = StageClock(sampler, resources.on_event)
            written = _write_generation(fitted, before, known, new.path, resources, clock)
        after = grow(before.manifest, written)
        if on_existing == "skip" and not written.num_new_nodes and not written.edges.num_edges:
            return None
        new.commit(written, after)
    return after


def _write_generation(
    source: GraphSource,
    before: StoreView,
    known: StoreKeys | None,
    directory: Path,
    resources: Resources,
    clock: StageClock,
) -> GenerationManifest:
    """Write all files of the generation into ``directory``, but for its manifest."""
    manifest = before.manifest
    plan = _plan_edges(manifest.num_nodes + source.num_nodes, manifest)
    keys_hint = source.num_edges_hint * (2 if manifest.edges.symmetrised else 1)
    is_shared = not resources.executor.shares_memory
    require_workers(
        resources,
        lambda room, threads: [
            plan_build_worker(
                plan.num_nodes, keys_hint, room_bytes=room, driver_threads=resources.threads, threads=threads
            )
        ],
    )
    least_bytes = RESERVE_BYTES + MIN_SPARE_BYTES
    resources.require(least_bytes, stage="the append", formula=f"{format_bytes(least_bytes)} to work in")
    shares = MemoryShares.of(resources.room_bytes, threads=resources.threads, num_keys_hint=keys_hint)
    if is_shared:
        shares = replace(shares, kept_bytes=0)  # keys go through files
    require_disk(source, keys_hint, shares, directory)
    own = resources.with_threads(shares.threads)
    names = write_keys(source, directory, own)
    if known is not None:
        keys = known if names is None else known.joined(names.keys, manifest.num_nodes)
        source = replace(source, edges=source.edges.with_keys(keys))
    edges, older, files = _write_edges(source, before, plan, directory, own, shares, clock)
    with clock.stage("write features"):
        section = manifest.features
        kind, dtype = ("auto", "float32") if section is None else (section.kind, section.dtype)
        features, feature_files = build_features(source, directory, kind, dtype, own, is_even=True)
    with clock.stage("write node columns"):
        columns = build_columns(source, directory, resources.on_event, known_classes=manifest.num_classes or 0)
    files.update(feature_files)
    files.update({} if names is None else names.files)
    if columns is not None:
        files[NODES_NAME] = columns.file
    found_classes = None if columns is None else columns.num_classes
    return GenerationManifest(
        number=before.generation + 1,
        parent_crc32c=before.head.generations[-1].crc32c,
        num_new_nodes=source.num_nodes,
        edges=edges,
        older=older,
        features=features,
        columns={} if columns is None else columns.types,
        num_classes=manifest.num_classes if found_classes is None else found_classes,
        provenance=dict(source.provenance),
        files=record_files(directory, files),
        keys=None if names is None else names.section,
        class_names=None if source.class_names is None else list(source.class_names),
    )


def _plan_edges(num_nodes: int, manifest: Manifest) -> EdgePlan:
    if num_nodes > MAX_NODES:
        raise InvalidInputError(
            f"a graph of {num_nodes} nodes cannot be stored", expected=f"at most {MAX_NODES:,} nodes"
        )
    plan = EdgePlan.of_growth(num_nodes)
    require_keys_fit(plan, manifest.edges.block_starts)
    return plan


def _order_of(before: StoreView) -> OrderFile | None:
    """The order of the first generation, which new tiles have, too; compared with the manifest."""
    order = open_order(files_of(before.location, before.manifest, before.hold), before.manifest)
    if order is None:
        return None
    return OrderFile(order.path, before.manifest.files[ORDER_NAME].written, order.columns.size)


def _write_edges(
    source: GraphSource,
    before: StoreView,
    plan: EdgePlan,
    directory: Path,
    resources: Resources,
    shares: MemoryShares,
    clock: StageClock,
) -> tuple[GenerationEdges, OlderEdges, dict[str, WrittenFile]]:
    options = store_options(before.manifest)
    first_row = own_rows_start(before.manifest.num_nodes)
    is_shared = not resources.executor.shares_memory
    with key_buckets(directory, plan.num_buckets, shares, is_shared=is_shared) as keys:
        with clock.stage("partition edges"):
            totals = partition_edges(source, plan, options, keys, resources, shares.block_edges)
        with clock.stage("write edges into older rows"):
            last_row = min(first_row, plan.num_nodes)
            older, files = write_older(keys, plan, before, last_row, directory, resources, shares.share_bytes)
        with clock.stage("write rows and tiles"):
            order = _order_of(before)
            written = write_blocks(
                keys,
                plan,
                options,
                directory,
                resources,
                shares.share_bytes,
                first_row=first_row,
                with_tiles=order is None,
            )
        num_keys = int(keys.counts.sum())
    block_edges = [record.num_edges for _, record in written]
    num_edges = sum(block_edges) + sum(older.block_edges)
    edges = GenerationEdges(
        num_edges=num_edges,
        id_dtype=plan.id_dtype.name,
        input_edges=totals.input_edges,
        dropped_self_loops=0 if options.self_loops == "keep" else totals.self_loops,
        dropped_duplicates=num_keys - num_edges,
        block_starts=[*(block.start for block, _ in written), plan.num_nodes] if written else [],
        block_edges=block_edges,
    )
    records = [record for _, record in written]
    if order is not None and written:
        with clock.stage("write tiles"):
            rows = WrittenRows(directory, [(block, record.num_edges) for block, record in written])
            records += write_all_tiles(rows, plan, order, resources, shares.share_bytes)
    files.update({name: WrittenFile(*file) for record in records for name, file in record.files.items()})
    if is_shared:
        remove_segments(directory)
        remove_partial_files(directory)
    return edges, older, files

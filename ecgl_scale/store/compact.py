"""All generations of a store in one: the files that a single ingest of everything would have given, byte for byte.

The store is built anew from what its readers see, beside the old one, and takes its place in one step. A kill leaves
the old store or the new one; what it leaves beside it, the next call removes. Whoever has the store open holds it, and
then the new one is not put in its place.

What differs from a single ingest is in the manifest alone: where the graph came from is what the first ingest said,
with ``appended`` (what each append said) and ``dropped_nodes``; how many edges were read and left out are the sums over
the generations, those of dropped nodes included; classes keep their numbers, also those that have lost all nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ecgl_scale.base.objects.url import require_directory
from ecgl_scale.base.staging import remove_leftovers
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import StoreError
from ecgl_scale.store.build import MIN_SPARE_BYTES, build_store
from ecgl_scale.store.compose import ERASED, generations_of, num_dropped_of, num_erased_of
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.edges.write import RESERVE_BYTES
from ecgl_scale.store.format import MANIFEST_NAME, Manifest
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.source import DenseSource, EdgeHistory, GraphSource, Json, SparseSource
from ecgl_scale.store.store_source import StoreEdges, StoreNodes, StoreRows
from ecgl_scale.store.view import read_view

STAGE = "compact"
WAITED_SECONDS = 5.0
"""Workers that have just ended their work let go of the store within moments."""


@dataclass(frozen=True)
class Compacted:
    """What a store was, and what it is now."""

    manifest: Manifest
    num_generations: int
    """Generations that there were; with one there was nothing to do."""
    before_bytes: int


def compact_store(store: Path, resources: Resources) -> Compacted:
    """Make one generation of all that a store has.

    Memory: never more RssAnon than the budget of ``resources``. Disk: the new store beside the old one, and while it is
    built up to 8 bytes an edge of scratch space.

    Raises
    ------
    LockedError
        Somebody has the store open, or writes it.
    """
    require_directory(store, what="a store to compact", fix="compact it on this machine, and put it there again")
    graph = GraphStore.open(store)
    before = graph.manifest
    _, appended = generations_of(before)
    if not appended:
        remove_leftovers(store, marker=MANIFEST_NAME)
        return Compacted(before, 1, before.total_bytes)
    nodes = StoreNodes(graph)
    resources.require(
        nodes.map_bytes + RESERVE_BYTES + MIN_SPARE_BYTES,
        stage=STAGE,
        formula="88 MiB"
        + (f" + {nodes.map_dtype.itemsize} bytes a node, as some were dropped" * bool(nodes.map_bytes)),
    )
    head, hold = read_view(store).head, graph.files.hold

    def take_place() -> None:
        if read_view(store).head != head or graph.generation != len(head.generations) - 1:
            raise StoreError("the store has changed since it was read", where=store, fix="run the same command again")
        if hold is not None:
            hold.take_alone(waited_seconds=WAITED_SECONDS)

    features = before.features
    manifest = build_store(
        _whole_source(graph, nodes, resources.threads),
        store,
        resources,
        options=BuildOptions(
            keep_duplicates=before.edges.keeps_duplicates, self_loops="keep", is_symmetric=before.edges.symmetrised
        ),
        features_as="auto" if features is None else features.kind,
        feature_dtype="float32" if features is None else features.dtype,
        overwrite=True,
        before_swap=take_place,
    )
    return Compacted(manifest, 1 + len(appended), before.total_bytes)


def _whole_source(graph: GraphStore, nodes: StoreNodes, threads: int) -> GraphSource:
    manifest = graph.manifest
    edges = manifest.edges
    return GraphSource(
        name=str(graph.path),
        num_nodes=nodes.size,
        num_edges_hint=edges.num_edges,
        edges=StoreEdges(nodes),
        features=_features(graph, nodes, threads),
        columns=(*(nodes.column(name) for name in manifest.columns), *nodes.keys()),
        id_column=None if manifest.keys is None else manifest.keys.name,
        class_names=graph.class_names,
        num_classes=manifest.num_classes,
        is_part=True,
        provenance=_provenance(manifest),
        history=EdgeHistory(edges.self_loops, edges.input_edges, edges.dropped_self_loops, edges.dropped_duplicates),
    )


def _features(graph: GraphStore, nodes: StoreNodes, threads: int) -> DenseSource | SparseSource | None:
    features = graph.features
    if features is None:
        return None
    if features.is_sparse:
        return nodes.sparse_features()
    rows = StoreRows(nodes, threads)
    return DenseSource(features.num_features, features.dtype, str(graph.path), rows.blocks, rows)


def _provenance(manifest: Manifest) -> dict[str, Json]:
    """That of the first ingest, and what appends said, also those before an earlier compaction."""
    base, appended = generations_of(manifest)
    known = base.provenance.get("appended", [])
    earlier: list[Json] = known if isinstance(known, list) else [known]
    said = [dict(generation.provenance) for generation in appended if generation.dropped is None]
    num_gone = num_dropped_of(manifest) + num_erased_of(manifest)
    gone: dict[str, Json] = {ERASED: num_gone} if num_gone else {}
    return {**base.provenance, "appended": [*earlier, *said], **gone}

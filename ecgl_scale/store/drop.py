"""Nodes that go: a generation with their ids, and how many edges every block loses by it.

All edges are read once, to count; nothing of the store is changed, so this costs a pass and a few kilobytes. The rows
themselves, and the last bytes of what was in them, go when the store is compacted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.live import count_live, count_live_pairs
from ecgl_scale.base.durable import WrittenFile
from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.base.objects.url import require_directory
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.compose import GrownManifest, grow
from ecgl_scale.store.dropped import Dropped, read_dropped, write_dropped
from ecgl_scale.store.format import Manifest, record_files
from ecgl_scale.store.generation import (
    DROPPED_NAME,
    DroppedNodes,
    GenerationEdges,
    GenerationManifest,
    OlderEdges,
)
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.new_generation import NewGeneration
from ecgl_scale.store.source import Json as SourceJson
from ecgl_scale.units import MIB

STAGE = "count edges that go"
RESERVE_BYTES = 16 * MIB
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class DropReport:
    """What a store has lost."""

    manifest: Manifest
    """The graph after it."""
    num_nodes: int
    """Nodes dropped now."""
    num_already: int
    """Nodes that were named too, and had been dropped before."""
    num_edges: int
    """Edges that went with them."""


def drop_nodes(
    store: Path, ids: Ids, resources: Resources, *, provenance: dict[str, SourceJson] | None = None
) -> DropReport:
    """Drop nodes, by their rows in ascending order: one more generation, unless all were dropped before.

    Memory: 16 MiB, 32 bytes for each node that is or was dropped, an eighth of a byte for every node, and for each
    thread 16 bytes a row of a block.
    """
    require_directory(store, what="a store to drop nodes from", fix="drop them on this machine, and put it there again")
    with NewGeneration(store, is_shared=not resources.executor.shares_memory) as new:
        graph = GraphStore.open(store, new.before.generation)
        before, dropped = graph.manifest, graph.dropped
        going = ids if dropped is None else ids[~dropped.among(ids)]
        num_already = ids.size - going.size
        if not going.size:
            return DropReport(before, 0, num_already, 0)
        all_dropped = going if dropped is None else np.sort(np.concatenate([dropped.ids, going]))
        if all_dropped.size >= graph.num_nodes:
            raise InvalidInputError("no node would be left", where=store, expected="a graph that is not empty")
        resources.require(
            RESERVE_BYTES
            + 32 * all_dropped.size
            + graph.num_nodes // 8
            + 16 * resources.threads * max(block.num_rows for block in graph.edges.blocks()),
            stage="the drop",
            formula=f"16 MiB, 32 bytes for each of {all_dropped.size:,} dropped nodes and a bit for every node",
        )
        written = write_dropped(new.path / DROPPED_NAME, going)
        work = LiveEdgesWork(graph, Dropped(all_dropped, graph.num_nodes), new.path / DROPPED_NAME, written)
        lost = _count_lost(work, graph, resources)
        generation = GenerationManifest(
            number=new.before.generation + 1,
            parent_crc32c=new.before.head.generations[-1].crc32c,
            num_new_nodes=0,
            edges=GenerationEdges(0, before.edges.id_dtype, 0, 0, 0, [], []),
            older=OlderEdges([], [], []),
            features=None,
            columns={},
            num_classes=before.num_classes,
            provenance={"kind": "drop", **(provenance or {})},
            files=record_files(new.path, {DROPPED_NAME: written}),
            dropped=DroppedNodes(going.size, list(lost), list(lost.values())),
        )
        after: GrownManifest = grow(before, generation)
        new.commit(generation, after)
    return DropReport(after, going.size, num_already, sum(lost.values()))


def _count_lost(work: LiveEdgesWork, graph: GraphStore, resources: Resources) -> dict[int, int]:
    """Edges that every block loses, of those that lose any."""
    blocks, done = graph.edges.blocks(), 0
    resources.on_event(StageStarted(STAGE, graph.num_edges, "edges"))
    lost: dict[int, int] = {}
    for block, record in run_blocks(work, blocks, resources):
        num_lost = graph.edges.num_edges_of(block) - record.num_edges
        if num_lost:
            lost[block.index] = num_lost
        done += graph.edges.num_edges_of(block)
        resources.on_event(BlockFinished(STAGE, done))
    return lost


@dataclass(frozen=True)
class LiveEdges:
    """Edges of a block that stay."""

    num_edges: int


class LiveEdgesWork(Work[None, LiveEdges]):
    """Counts the edges of a block that have no dropped end."""

    name: ClassVar[str] = "store.live_edges"
    record = LiveEdges
    has_small_records: ClassVar[bool] = True

    def __init__(self, graph: GraphStore, dropped: Dropped, path: Path, written: WrittenFile) -> None:
        self._graph = graph
        self._dropped = dropped
        self._path = path
        self._written = written

    def describe(self) -> Json:
        """The store, and the file of the nodes that go."""
        file = [self._written.size_bytes, self._written.crc32c]
        return {"store": self._graph.address, "going": str(self._path), "file": file}

    @classmethod
    def open(cls, description: Json, resources: Resources) -> LiveEdgesWork:
        """Find store and nodes again."""
        del resources
        graph, path = GraphStore.open(description["store"]), Path(description["going"])
        written = WrittenFile(*description["file"])
        parts = [read_dropped(path, written), *([] if graph.dropped is None else [graph.dropped.ids])]
        return cls(graph, Dropped(np.sort(np.concatenate(parts)), graph.num_nodes), path, written)

    def run(self, block: Block, given: Json, scratch: None) -> LiveEdges:
        """Count one block."""
        del given, scratch
        edges, bits = self._graph.edges, self._dropped.bits
        rows = edges.own_rows(block)
        nodes = np.arange(block.start, block.start + rows.offsets.size - 1)
        counts = np.empty(nodes.size, np.int64)
        count_live(rows.offsets, rows.values, nodes, bits, counts)
        later = sum(count_live_pairs(pairs.dst, pairs.src, bits) for pairs in edges.older_pairs(block))
        return LiveEdges(int(counts.sum()) + later)

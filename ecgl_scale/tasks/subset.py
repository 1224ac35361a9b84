"""Some nodes of a graph and the edges among them, as a source for the build: what ``graphs`` extracts.

Memory: 4 bytes a node of the whole graph, from ``source`` on; none where a pass for many tasks has parted the edges.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_scale.engine.work import Json
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.nodes import LABEL
from ecgl_scale.store.source import (
    AnyArray,
    ColumnSource,
    CsrBlock,
    DenseSource,
    GraphSource,
    SparseSource,
)
from ecgl_scale.store.store_source import StoreEdges, StoreNodes, StoreRows
from ecgl_scale.tasks.part_source import PartEdges, PartRows, TaskPart
from ecgl_scale.tasks.scaling import Scaling
from ecgl_scale.tasks.split import Ids

NODE = "node"
KIND = "task graph"
KEY_VERSION = 2
"""Part of every key: a change in what is extracted makes a new one."""


class Subset:
    """The chosen nodes of a graph: ascending ids."""

    def __init__(
        self, graph: GraphStore, node_ids: Ids, scaling: Scaling, threads: int, part: TaskPart | None = None
    ) -> None:
        """``part`` has what an earlier pass has left of the nodes' edges and rows."""
        self.nodes = StoreNodes(graph, node_ids)
        self.part = part
        self.graph = graph
        self.ids = node_ids
        self.scaling = scaling
        self.threads = threads
        counts = np.diff(self.nodes.before(graph.manifest.edges.block_starts)).tolist()
        self.blocks = [block for block in graph.edges.blocks() if counts[block.index]]
        expected_edges = [
            graph.edges.num_edges_of(block) * counts[block.index] / block.num_rows for block in self.blocks
        ]
        self.num_edges_hint = int(sum(expected_edges))
        """As many as these rows would have, were all rows of a block equal and all sources kept."""
        if part is not None:
            self.num_edges_hint = part.num_edges

    @property
    def map_bytes(self) -> int:
        """Memory of the new numbers of all nodes, where edges still have the old ones."""
        return self.nodes.map_bytes if self.part is None else 0

    def source(self, features: DenseSource | SparseSource | None, provenance: Mapping[str, Json]) -> GraphSource:
        """Edges, columns and the given ``features``. Memory: ``map_bytes``."""
        columns = [ColumnSource(NODE, np.dtype(np.int64), str(self.graph.path), self._node_blocks)]
        if self.graph.nodes is not None and LABEL in self.graph.nodes.names:
            column = self.nodes.column(LABEL)
            columns.append(column if self.part is None else replace(column, blocks=self.part.labels))
        return GraphSource(
            name=f"{self.graph.path.name}, {self.ids.size} nodes",
            num_nodes=self.ids.size,
            num_edges_hint=self.num_edges_hint,
            edges=StoreEdges(self.nodes) if self.part is None else PartEdges(self.part, self.nodes.identity()),
            features=features,
            columns=tuple(columns),
            num_classes=self.graph.num_classes,
            is_part=True,
            provenance={"kind": KIND, "of": self.graph.path.name, **provenance},
        )

    def _node_blocks(self, max_rows: int) -> Iterator[AnyArray]:
        """Ids of the nodes; a part of a task graph keeps the ids that they have in the whole."""
        is_part = self.graph.manifest.provenance.get("kind") == KIND
        ids = self.graph.column(NODE)[self.ids] if is_part else self.ids
        for start in range(0, ids.size, max_rows):
            yield ids[start : start + max_rows]

    def features(self) -> DenseSource | SparseSource | None:
        """The rows of the chosen nodes, scaled as they stream by."""
        features, origin = self.graph.features, str(self.graph.path)
        if features is None:
            return None
        if features.is_sparse and self.scaling.keeps_zeros:
            part, width = self.part, features.num_features
            stored = self.nodes.sparse_features() if part is None else part.sparse_source(width, origin)

            def scaled(max_rows: int) -> Iterator[CsrBlock]:
                return map(self.scaling.apply_sparse, stored.blocks(max_rows))

            return SparseSource(features.num_features, stored.num_values, origin, scaled)
        dtype = features.dtype if self.scaling.kind == "none" else np.dtype(np.float32)
        rows: ScaledRows | PartRows = ScaledRows(self.nodes, self.scaling, self.threads)
        if self.part is not None:
            rows = PartRows(self.part, (self.ids.size, features.num_features), features.dtype, self.scaling)
        return DenseSource(features.num_features, dtype, origin, rows.blocks, rows)

    def feature_bytes(self) -> tuple[int, int]:
        """About how many bytes of features are read and written."""
        features = self.graph.features
        if features is None:
            return 0, 0
        starts = np.arange(0, features.num_rows + features.rows_per_read, features.rows_per_read)
        num_reads = int(np.count_nonzero(np.diff(np.searchsorted(self.ids, starts))))
        stays = self.scaling.kind == "none" or (features.is_sparse and self.scaling.keeps_zeros)
        row_bytes = features.row_bytes if stays else 4 * features.num_features
        return num_reads * features.rows_per_read * features.row_bytes, self.ids.size * row_bytes


class ScaledRows(StoreRows):
    """Feature rows of some nodes, with their zeros, scaled."""

    kind = "scaled"

    def __init__(self, nodes: StoreNodes, scaling: Scaling, threads: int = 1) -> None:
        super().__init__(nodes, threads)
        self._scaling = scaling

    def read(self, start: int, stop: int) -> AnyArray:
        """Gather rows and scale them."""
        rows = super().read(start, stop)
        return rows if self._scaling.kind == "none" else self._scaling.apply(rows)

    def identity(self) -> Json:
        """The store, the nodes and the scaling."""
        return {**super().identity(), "scaling": self._scaling.to_json()}

    def describe(self, work: Path) -> Json:
        """The store, a file of the nodes, and the scaling."""
        return {**super().describe(work), "scaling": self._scaling.to_json()}

    @classmethod
    def open(cls, description: Json) -> ScaledRows:
        """Find the rows again."""
        return cls(StoreNodes.open(description), Scaling.from_json(description["scaling"]))


def graph_key(graph: GraphStore, node_ids: Ids, *, self_loops: bool, scaling: Scaling) -> str:
    """A name for an extracted graph: sha256 of all that its content depends on, 24 hexadecimal digits."""
    identity: dict[str, Any] = {
        "version": KEY_VERSION,
        "store": graph.identity,
        "self_loops": self_loops,
        "scaling": scaling.to_json(),
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    digest.update(np.ascontiguousarray(node_ids, "<i8").data)
    return digest.hexdigest()[:24]

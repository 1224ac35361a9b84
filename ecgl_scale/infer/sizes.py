"""What a plan has to know of a graph, which may be one that is still to be extracted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ecgl_scale.infer.feature_reader import PIECE_BYTES, FeatureReader
from ecgl_scale.store.edges.read import EdgeStore
from ecgl_scale.store.features.dense import DenseLayout
from ecgl_scale.store.graph import GraphStore


@dataclass(frozen=True)
class Sizes:
    """How large a graph is, and how its features are stored."""

    num_nodes: int
    num_edges: int
    edge_bytes: int
    """All edges, as they are read."""
    features: StoredFeatures
    feature_bytes: int
    """All features of so many nodes, as they are read."""
    edges: EdgeStore | None = None
    """They take memory while they are read, where the store has grown; None where they are not stored yet."""

    @classmethod
    def of(
        cls, graph: GraphStore, *, num_nodes: int | None = None, num_edges: int | None = None, made_dense: bool = False
    ) -> Sizes:
        """Sizes of a graph, or of a part of it that has so many nodes and edges.

        ``made_dense`` where the part's features will be dense though the store's are sparse.
        """
        nodes = graph.num_nodes if num_nodes is None else max(num_nodes, 1)
        edges = graph.num_edges if num_edges is None else num_edges
        features, num_rows = StoredFeatures.of(graph), num_nodes or graph.num_nodes
        if made_dense:
            features = StoredFeatures.made_dense(num_rows, features.num_features)
        share = 1.0 if made_dense else num_rows / graph.num_nodes
        edge_bytes = edges * graph.edges.id_dtype.itemsize + 8 * nodes
        stored = graph.edges if num_nodes is None else None
        return cls(nodes, edges, edge_bytes, features, int(features.read_bytes * share), stored)


@dataclass(frozen=True)
class StoredFeatures:
    """How features are stored, as far as a plan has to know."""

    num_features: int
    is_sparse: bool
    read_bytes: int
    """All features, as they are read."""
    block_bytes: int
    """A block of dense rows."""
    is_float32: bool

    @classmethod
    def of(cls, graph: GraphStore) -> StoredFeatures:
        """How a store has its features."""
        rows, section = FeatureReader(graph), graph.manifest.features
        if rows.is_sparse or section is None:
            return cls(rows.width, rows.is_sparse, rows.read_bytes, 0, rows.reads_in_place)
        block_bytes = section.rows_per_block * rows.width * np.dtype(section.dtype).itemsize
        return cls(rows.width, False, rows.read_bytes, block_bytes, rows.reads_in_place)

    @classmethod
    def made_dense(cls, num_rows: int, num_features: int) -> StoredFeatures:
        """How a task graph will have them whose rows are standardised, which leaves no zeros."""
        layout = DenseLayout.plan(num_rows, num_features)
        block_bytes = 4 * min(layout.rows_per_block, num_rows) * num_features
        return cls(num_features, False, 4 * num_rows * num_features, block_bytes, True)

    def reader_bytes(self, *, in_place: bool) -> int:
        """Memory of one reading thread: a stored block where rows are not read in place, and pieces of it."""
        pieces = 4 * max(PIECE_BYTES, self.num_features * 4)
        return pieces + (0 if self.is_sparse or (in_place and self.is_float32) else self.block_bytes)

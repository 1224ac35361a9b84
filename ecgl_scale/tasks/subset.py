"""Some nodes of a graph and the edges among them, as a source for the build: what ``graphs`` extracts.

Memory: 4 bytes a node of the whole graph, from ``source`` on.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_kernels.induced import keep_edges, keep_pairs
from ecgl_scale.base.durable import atomic_file, storage_errors
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import UsageError
from ecgl_scale.store.edge_source import EdgeBlock, EdgeSource
from ecgl_scale.store.edges.older import OlderSpan
from ecgl_scale.store.features.face import FeatureStore
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.nodes import LABEL, NodeColumns
from ecgl_scale.store.row_source import RowSource
from ecgl_scale.store.source import (
    AnyArray,
    ColumnSource,
    CsrBlock,
    DenseSource,
    GraphSource,
    SparseSource,
)
from ecgl_scale.tasks.scaling import Scaling
from ecgl_scale.tasks.split import Ids

NODE = "node"
KIND = "task graph"
IDS_AT_ONCE = 1 << 20


class Subset:
    """The chosen nodes of a graph: ascending ids."""

    def __init__(self, graph: GraphStore, node_ids: Ids, scaling: Scaling, threads: int) -> None:
        if not node_ids.size or node_ids.dtype != np.int64 or not bool((node_ids[1:] > node_ids[:-1]).all()):
            raise UsageError("the nodes of a subgraph make no sense", expected="ids as int64, ascending, at least one")
        if node_ids[0] < 0 or node_ids[-1] >= graph.num_nodes:
            raise UsageError(
                f"nodes {node_ids[0]} to {node_ids[-1]} are asked for", expected=f"0 to {graph.num_nodes - 1}"
            )
        self.graph = graph
        self.ids = node_ids
        self.scaling = scaling
        self.threads = threads
        self.map_dtype = map_dtype(node_ids)
        counts = _nodes_in_blocks(graph, node_ids)
        self.blocks = [block for block in graph.edges.blocks() if counts[block.index]]
        expected_edges = [
            graph.edges.num_edges_of(block) * counts[block.index] / block.num_rows for block in self.blocks
        ]
        self.num_edges_hint = int(sum(expected_edges))
        """As many as these rows would have, were all rows of a block equal and all sources kept."""

    @property
    def map_bytes(self) -> int:
        """Memory of the map from old to new numbers, which ``source`` makes."""
        return self.graph.num_nodes * self.map_dtype.itemsize

    def source(self, features: DenseSource | SparseSource | None, provenance: Mapping[str, Json]) -> GraphSource:
        """Edges, columns and the given ``features``. Memory: ``map_bytes``."""
        origin, nodes = str(self.graph.path), self.graph.nodes
        columns = [ColumnSource(NODE, np.dtype(np.int64), origin, self._node_blocks)]
        if nodes is not None and LABEL in nodes.names:
            columns.append(ColumnSource(LABEL, np.dtype(np.int32), origin, partial(self._label_blocks, nodes)))
        return GraphSource(
            name=f"{self.graph.path.name}, {self.ids.size} nodes",
            num_nodes=self.ids.size,
            num_edges_hint=self.num_edges_hint,
            edges=SubsetEdges(self.graph, self.ids),
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

    def _label_blocks(self, nodes: NodeColumns, max_rows: int) -> Iterator[AnyArray]:
        for first, values in nodes.blocks(LABEL):
            start, stop = np.searchsorted(self.ids, [first, first + values.size]).tolist()
            for row in range(start, stop, max_rows):
                yield values[self.ids[row : min(row + max_rows, stop)] - first]

    def features(self) -> DenseSource | SparseSource | None:
        """The rows of the chosen nodes, scaled as they stream by."""
        features, origin = self.graph.features, str(self.graph.path)
        if features is None:
            return None
        if features.is_sparse and self.scaling.keeps_zeros:
            num_values = features.count_values(self.ids)
            return SparseSource(features.num_features, num_values, origin, partial(self._sparse_blocks, features))
        dtype = features.dtype if self.scaling.kind == "none" else np.dtype(np.float32)
        rows = SubsetRows(self.graph, self.ids, self.scaling, self.threads)
        return DenseSource(features.num_features, dtype, origin, partial(self._dense_blocks, rows), rows)

    def _dense_blocks(self, rows: SubsetRows, max_rows: int) -> Iterator[AnyArray]:
        for start in range(0, self.ids.size, max_rows):
            yield rows.read(start, start + max_rows)

    def _sparse_blocks(self, features: FeatureStore, max_rows: int) -> Iterator[CsrBlock]:
        for start in range(0, self.ids.size, max_rows):
            yield self.scaling.apply_sparse(features.rows_csr(self.ids[start : start + max_rows]))

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


def map_dtype(node_ids: Ids) -> np.dtype[Any]:
    """For the new numbers of the nodes, and -1."""
    return np.dtype(np.int32 if node_ids.size < 1 << 31 else np.int64)


def _nodes_in_blocks(graph: GraphStore, node_ids: Ids) -> list[int]:
    counts: list[int] = np.diff(np.searchsorted(node_ids, graph.manifest.edges.block_starts)).tolist()
    return counts


class SubsetEdges(EdgeSource):
    """Edges among some nodes (ascending ids), with new numbers; a piece is a range of the whole graph's edges.

    Edges that came later follow those of the blocks' own files: the build sorts them, so nobody merges them here.
    Memory: 4 bytes a node of the whole graph, 8 where the subset has 2^31 nodes.
    """

    kind = "subset"

    def __init__(self, graph: GraphStore, node_ids: Ids) -> None:
        self._edges = graph.edges
        self._address = graph.address
        self._identity = graph.identity
        self._ids = node_ids
        wanted = [count > 0 for count in _nodes_in_blocks(graph, node_ids)]
        blocks = [block for block in self._edges.blocks() if wanted[block.index]]
        spans = self._edges.older.spans(wanted)
        self._parts: list[Block | OlderSpan] = [*blocks, *spans]
        sizes = [*map(self._edges.num_own_edges, blocks), *(span.stop - span.first for span in spans)]
        self._starts = [0, *accumulate(sizes)]
        self._local_of = np.full(graph.num_nodes, -1, map_dtype(node_ids))
        for start in range(0, node_ids.size, IDS_AT_ONCE):
            ids = node_ids[start : start + IDS_AT_ONCE]
            self._local_of[ids] = np.arange(start, start + ids.size, dtype=self._local_of.dtype)

    def cut(self, max_edges: int) -> list[Block]:
        """The edges of blocks that hold a chosen node."""
        pieces: list[Block] = []
        for first, last in pairwise(self._starts):
            for start in range(first, last, max_edges):
                pieces.append(Block(len(pieces), start, min(start + max_edges, last)))
        return pieces

    def read(self, start: int, stop: int) -> EdgeBlock:
        """Those of the edges ``start`` up to ``stop``, all of one part, whose ends are both chosen."""
        number = bisect_right(self._starts, start) - 1
        part, first = self._parts[number], self._starts[number]
        # Unsigned, as the build's kernels are compiled for that already; only pages that are written take memory.
        id_dtype: np.dtype[np.unsignedinteger[Any]] = np.dtype(f"u{self._local_of.itemsize}")
        src, dst = np.empty(stop - start, id_dtype), np.empty(stop - start, id_dtype)
        within = (start - first, stop - first)
        if isinstance(part, Block):
            rows, origin = self._edges.own_rows(part), str(self._edges.path(part))
            kept = keep_edges(rows.offsets, rows.values, part.start, within, self._local_of, src, dst)
        else:
            pairs, origin = self._edges.older.read_span(part), part.file
            kept = keep_pairs(pairs.dst[slice(*within)], pairs.src[slice(*within)], self._local_of, src, dst)
        return EdgeBlock(src[:kept], dst[:kept], origin, start - first)

    def identity(self) -> Json:
        """The store and the ids."""
        return {"store": self._identity, "ids": _digest(self._ids)}

    def describe(self, work: Path) -> Json:
        """The store, and a file of the ids."""
        return {"store": self._address, "ids": _write_ids(self._ids, work)}

    @classmethod
    def open(cls, description: Json) -> SubsetEdges:
        """Find the edges again, with a map of this process."""
        return cls(GraphStore.open(description["store"]), _read_ids(description["ids"]))


class SubsetRows(RowSource):
    """Feature rows of some nodes (ascending ids), with their zeros, scaled."""

    kind = "subset"

    def __init__(self, graph: GraphStore, node_ids: Ids, scaling: Scaling, threads: int = 1) -> None:
        self._graph = graph
        self._features = graph.require_features()
        self._ids = node_ids
        self._scaling = scaling
        self._threads = threads

    def read(self, start: int, stop: int) -> AnyArray:
        """Gather rows and scale them."""
        rows = self._features.rows_dense(self._ids[start:stop], threads=self._threads)
        return rows if self._scaling.kind == "none" else self._scaling.apply(rows)

    def identity(self) -> Json:
        """The store, the ids and the scaling."""
        return {"store": self._graph.identity, "ids": _digest(self._ids), "scaling": self._scaling.to_json()}

    def describe(self, work: Path) -> Json:
        """The store, a file of the ids, and the scaling."""
        return {"store": self._graph.address, "ids": _write_ids(self._ids, work), "scaling": self._scaling.to_json()}

    @classmethod
    def open(cls, description: Json) -> SubsetRows:
        """Find the rows again."""
        graph, scaling = GraphStore.open(description["store"]), Scaling.from_json(description["scaling"])
        return cls(graph, _read_ids(description["ids"]), scaling)


def _digest(ids: Ids) -> str:
    return hashlib.sha256(np.ascontiguousarray(ids, "<i8").data).hexdigest()


def _write_ids(ids: Ids, work: Path) -> str:
    path = work / "nodes.npy"
    with atomic_file(path, needed_bytes=ids.nbytes) as partial_path, partial_path.open("wb") as file:
        np.save(file, ids, allow_pickle=False)
    return str(path)


def _read_ids(path: str) -> Ids:
    with storage_errors(Path(path)):
        ids: Ids = np.load(path, mmap_mode="r", allow_pickle=False)
    return ids

"""A store as the source of another one: some of its nodes, or all that it has, and the edges among them.

Edges are read part by part as they are stored, those that a later generation has brought in parts of their own: the
build sorts them, so nothing is merged here. Memory: none of ours for all nodes; 4 bytes a node of the whole graph (8
where 2**31 are chosen) for some, or where some were dropped.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ecgl_kernels.induced import keep_edges, keep_pairs
from ecgl_scale.base.durable import atomic_file, storage_errors
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import UsageError
from ecgl_scale.store.edge_source import EdgeBlock, EdgeSource
from ecgl_scale.store.edges.older import OlderSpan, Pairs
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.row_source import RowSource
from ecgl_scale.store.source import AnyArray, ColumnSource, CsrBlock, NameSource, SparseSource

Ids = NDArray[np.int64]
IDS_AT_ONCE = 1 << 20


class StoreNodes:
    """Which nodes of a store go into another one, in their order: a node's number there is its place here."""

    def __init__(self, graph: GraphStore, ids: Ids | None = None) -> None:
        """``ids`` ascend; without them it is all nodes that were not dropped."""
        if ids is not None:
            _check_ids(ids, graph.num_nodes)
        self.graph = graph
        self.chosen = ids
        self.size = (graph.num_nodes - graph.num_dropped) if ids is None else ids.size

    @property
    def are_all(self) -> bool:
        """Whether every node keeps its number, and its edges."""
        return self.size == self.graph.num_nodes and self.graph.dropped is None

    @property
    def map_dtype(self) -> np.dtype[Any]:
        """For the new numbers of the nodes, and -1."""
        return np.dtype(np.int32 if self.size < 1 << 31 else np.int64)

    @property
    def map_bytes(self) -> int:
        """Memory of the map from old to new numbers."""
        return 0 if self.are_all else self.graph.num_nodes * self.map_dtype.itemsize

    def ids(self, start: int, stop: int) -> Ids:
        """Old numbers of the nodes ``start`` up to ``stop``, or to the last."""
        if self.chosen is not None:
            return self.chosen[start:stop]
        if self.graph.dropped is not None:
            return self.graph.dropped.live(start, stop)
        return np.arange(start, min(stop, self.size), dtype=np.int64)

    def before(self, olds: Any) -> Ids:
        """How many of the nodes have a smaller old number than each of ``olds``."""
        olds = np.asarray(olds, np.int64)
        if self.chosen is not None:
            found: Ids = np.searchsorted(self.chosen, olds)
            return found
        return olds if self.graph.dropped is None else self.graph.dropped.before(olds)

    def new_numbers(self) -> NDArray[Any]:
        """The new number of every node of the graph, -1 for those without edges there. Memory: ``map_bytes``."""
        numbers = np.full(self.graph.num_nodes, -1, self.map_dtype)
        for start in range(0, self.size, IDS_AT_ONCE):
            ids = self.ids(start, start + IDS_AT_ONCE)
            numbers[ids] = np.arange(start, start + ids.size, dtype=self.map_dtype)
        if self.graph.dropped is not None:
            numbers[self.graph.dropped.ids] = -1
        return numbers

    def column(self, name: str) -> ColumnSource:
        """A node column."""
        nodes = self.graph.nodes
        if nodes is None:
            raise UsageError(f"the store has no node column {name!r}", where=self.graph.path)
        dtype = np.dtype(pa.type_for_alias(nodes.types[name]).to_pandas_dtype())

        def blocks(max_rows: int) -> Iterator[AnyArray]:
            for first, values in nodes.blocks(name):
                start, stop = self.before([first, first + values.size]).tolist()
                for row in range(start, stop, max_rows):
                    yield values[self.ids(row, min(row + max_rows, stop)) - first]

        return ColumnSource(name, dtype, str(self.graph.path), blocks)

    def keys(self) -> tuple[NameSource, ...]:
        """The keys of the nodes; none where the store has none."""
        keys = self.graph.keys
        if keys is None:
            return ()

        def blocks(max_rows: int) -> Iterator[pa.Array]:
            for start in range(0, self.size, max_rows):
                yield keys.keys_of(self.ids(start, start + max_rows))

        type_: Literal["string", "int64"] = "string" if keys.type == "string" else "int64"
        return (NameSource(keys.name, type_, str(self.graph.path), blocks),)

    def sparse_features(self) -> SparseSource:
        """The features without their zeros."""
        features = self.graph.require_features()
        cuts = range(0, self.size, IDS_AT_ONCE)
        counts = (features.count_values(self.ids(start, start + IDS_AT_ONCE)) for start in cuts)
        num_values = features.num_values if self.are_all and features.is_sparse else sum(counts)

        def blocks(max_rows: int) -> Iterator[CsrBlock]:
            for start in range(0, self.size, max_rows):
                yield features.rows_csr(self.ids(start, start + max_rows))

        return SparseSource(features.num_features, num_values, str(self.graph.path), blocks)

    def identity(self) -> Json:
        """The store and the nodes."""
        digest = None if self.chosen is None else hashlib.sha256(np.ascontiguousarray(self.chosen, "<i8").data)
        return {"store": self.graph.identity, "ids": None if digest is None else digest.hexdigest()}

    def describe(self, work: Path) -> Json:
        """The store, and a file of the ids."""
        path = None if self.chosen is None else _write_ids(self.chosen, work)
        return {"store": self.graph.address, "ids": path}

    @classmethod
    def open(cls, description: Json) -> StoreNodes:
        """Find the nodes again."""
        ids = None if description["ids"] is None else _read_ids(description["ids"])
        return cls(GraphStore.open(description["store"]), ids)


def _check_ids(ids: Ids, num_nodes: int) -> None:
    if not ids.size or ids.dtype != np.int64 or not bool((ids[1:] > ids[:-1]).all()):
        raise UsageError("the nodes of a subgraph make no sense", expected="ids as int64, ascending, at least one")
    if ids[0] < 0 or ids[-1] >= num_nodes:
        raise UsageError(f"nodes {ids[0]} to {ids[-1]} are asked for", expected=f"0 to {num_nodes - 1}")


class StoreEdges(EdgeSource):
    """Edges among some nodes, with their new numbers; a piece is a range of the edges as they are stored."""

    kind = "store"

    def __init__(self, nodes: StoreNodes) -> None:
        self._nodes = nodes
        self._edges = nodes.graph.edges
        wanted = (np.diff(nodes.before(nodes.graph.manifest.edges.block_starts)) > 0).tolist()
        blocks = [block for block in self._edges.blocks() if wanted[block.index]]
        spans = self._edges.older.spans(wanted)
        self._parts: list[Block | OlderSpan] = [*blocks, *spans]
        sizes = [*map(self._edges.num_own_edges, blocks), *(span.stop - span.first for span in spans)]
        self._starts = [0, *accumulate(sizes)]
        self._numbers = None if nodes.are_all else nodes.new_numbers()

    def cut(self, max_edges: int) -> list[Block]:
        """The edges of blocks that hold a chosen node."""
        pieces: list[Block] = []
        for first, last in pairwise(self._starts):
            for start in range(first, last, max_edges):
                pieces.append(Block(len(pieces), start, min(start + max_edges, last)))
        return pieces

    def read(self, start: int, stop: int) -> EdgeBlock:
        """Those of the edges ``start`` up to ``stop``, all of one part, whose ends are both chosen."""
        index = bisect_right(self._starts, start) - 1
        part, first = self._parts[index], start - self._starts[index]
        within = (first, stop - self._starts[index])
        if isinstance(part, Block):
            (dst, src), origin = self._of_rows(part, within), str(self._edges.path(part))
        else:
            (dst, src), origin = self._of_pairs(self._edges.older.read_span(part), within), part.file
        return EdgeBlock(src, dst, origin, first)

    def _of_pairs(self, pairs: Pairs, within: tuple[int, int]) -> tuple[AnyArray, AnyArray]:
        dst, src = pairs.dst[slice(*within)], pairs.src[slice(*within)]
        if self._numbers is None:
            return dst, src
        kept_src, kept_dst = self._room(src.size)
        kept = keep_pairs(dst, src, self._numbers, kept_src, kept_dst)
        return kept_dst[:kept], kept_src[:kept]

    def _of_rows(self, block: Block, within: tuple[int, int]) -> tuple[AnyArray, AnyArray]:
        rows, (start, stop) = self._edges.own_rows(block), within
        if self._numbers is None:
            first = int(np.searchsorted(rows.offsets, start, side="right")) - 1
            last = int(np.searchsorted(rows.offsets, stop))
            bounds = np.clip(rows.offsets[first : last + 1], start, stop)
            nodes = np.arange(block.start + first, block.start + last, dtype=rows.values.dtype)
            return np.repeat(nodes, bounds[1:] - bounds[:-1]), rows.values[start:stop]
        src, dst = self._room(stop - start)
        kept = keep_edges(rows.offsets, rows.values, block.start, within, self._numbers, src, dst)
        return dst[:kept], src[:kept]

    def _room(self, num_edges: int) -> tuple[AnyArray, AnyArray]:
        # Unsigned, as the build's kernels are compiled for that already; only pages that are written take memory.
        id_dtype = np.dtype(f"u{self._nodes.map_dtype.itemsize}")
        return np.empty(num_edges, id_dtype), np.empty(num_edges, id_dtype)

    def identity(self) -> Json:
        """The store and the nodes."""
        return self._nodes.identity()

    def describe(self, work: Path) -> Json:
        """The store, and a file of the nodes."""
        return self._nodes.describe(work)

    @classmethod
    def open(cls, description: Json) -> StoreEdges:
        """Find the edges again, with a map of this process."""
        return cls(StoreNodes.open(description))


class StoreRows(RowSource):
    """Feature rows of some nodes, with their zeros."""

    kind = "store"

    def __init__(self, nodes: StoreNodes, threads: int = 1) -> None:
        self._nodes = nodes
        self._features = nodes.graph.require_features()
        self._threads = threads

    def read(self, start: int, stop: int) -> AnyArray:
        """Gather the rows of consecutive new numbers."""
        return self._features.rows_dense(self._nodes.ids(start, stop), threads=self._threads)

    def blocks(self, max_rows: int) -> Iterator[AnyArray]:
        """All rows in order."""
        for start in range(0, self._nodes.size, max_rows):
            yield self.read(start, start + max_rows)

    def identity(self) -> Json:
        """The store and the nodes."""
        return self._nodes.identity()

    def describe(self, work: Path) -> Json:
        """The store, and a file of the nodes."""
        return self._nodes.describe(work)

    @classmethod
    def open(cls, description: Json) -> StoreRows:
        """Find the rows again."""
        return cls(StoreNodes.open(description))


def _write_ids(ids: Ids, work: Path) -> str:
    path = work / "nodes.npy"
    with atomic_file(path, needed_bytes=ids.nbytes) as partial_path, partial_path.open("wb") as file:
        np.save(file, ids, allow_pickle=False)
    return str(path)


def _read_ids(path: str) -> Ids:
    with storage_errors(Path(path)):
        ids: Ids = np.load(path, mmap_mode="r", allow_pickle=False)
    return ids

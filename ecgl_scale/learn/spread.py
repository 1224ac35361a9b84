"""P x over a stored graph, row block by row block: for methods that need neighbours of graphs that are not in memory.

    P x = row_scale * (A + I) (source_scale * x)        norms and loops as in ``message``

Edges are read where they are mapped; a block of results is handed out and gone when the next is asked for.
Memory: 12 bytes a node for the scales, ``x``, and 48 MiB of blocks. Same bits for any threads and columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.spmm import invert_degrees, propagate_rows
from ecgl_scale.base.durable import storage_errors
from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.errors import UsageError
from ecgl_scale.learn.message import Norm
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB

BLOCK_BYTES = 16 * MIB
MIN_COLUMNS = 4
STAGE = "pass features along the edges"

Ids = NDArray[np.int64]
Dense = NDArray[np.float32]


class StreamedPropagation:
    """``P`` of a store's graph, whose edges stay on disk."""

    def __init__(self, graph: GraphStore, resources: Resources, norm: Norm = "sym") -> None:
        section = graph.manifest.edges
        if section.self_loops not in ("dropped", "added"):
            raise UsageError(
                f"self loops were {section.self_loops}", where=graph.path, expected="a graph with all of them or none"
            )
        self.num_nodes = graph.num_nodes
        self._edges = graph.edges
        self._threads = resources.threads
        self._adds_self = section.self_loops == "dropped"
        self._row_scale = None if norm == "sum" else self._inverse(graph.edges.in_degrees(), norm)
        self._source_scale: Dense | None = None
        if norm == "sym":
            is_symmetric = section.symmetrised
            self._source_scale = self._row_scale if is_symmetric else self._inverse(graph.edges.out_degrees(), norm)

    def _inverse(self, degrees: NDArray[np.int64], norm: Norm) -> Dense:
        degrees += self._adds_self
        scale = np.empty(degrees.size, np.float32)
        invert_degrees(degrees, norm == "sym", scale)
        return scale

    def blocks(self, x: Dense) -> Iterator[tuple[int, Dense]]:
        """First row and rows of every block of ``P x``, in order; ``x`` is [N, columns]."""
        if x.ndim != 2 or len(x) != self.num_nodes:
            raise UsageError(f"values of shape {list(x.shape)}", expected=f"a row for each of {self.num_nodes} nodes")
        # One being made by each thread, one waiting, and what the caller takes of one: three blocks' bytes in all.
        num_rows = max(3 * BLOCK_BYTES // ((self._threads + 2) * 4 * x.shape[1]), 1)

        def send(part: tuple[Block, int, int]) -> tuple[int, Dense]:
            block, start, stop = part
            rows = self._edges.read(block)
            first = block.start + start
            out = np.empty((stop - start, x.shape[1]), np.float32)
            scale = None if self._row_scale is None else self._row_scale[first : block.start + stop]
            offsets = rows.offsets[start : stop + 1]
            propagate_rows(offsets, rows.values, x, first, self._adds_self, self._source_scale, scale, out)
            return first, out

        parts = (
            (block, inner.start, inner.stop)
            for block in self._edges.blocks()
            for inner in split_blocks(block.num_rows, num_rows)
        )
        return map_bounded(send, parts, threads=self._threads)

    def spread(self, values: NDArray[Any], hops: int) -> NDArray[np.float32]:
        """``P^hops`` of one number a node. Memory: 8 bytes a node."""
        held = np.ascontiguousarray(values, np.float32).reshape(-1, 1)
        for _ in range(hops):
            following = np.empty_like(held)
            for first, sent in self.blocks(held):
                following[first : first + len(sent)] = sent
            held = following
        return held[:, 0]


@dataclass(frozen=True)
class FeatureLayout:
    """How rows of P X are made within a budget."""

    columns: int
    """Columns of X held at once."""
    held_bytes: int
    """Memory of the result; 0 where it goes to a file."""
    peak_bytes: int
    """In all, while it is made."""


def least_bytes(num_nodes: int) -> int:
    """What ``propagate_features`` needs at least: scales, four columns of the features, blocks."""
    return (12 + 4 * MIN_COLUMNS) * num_nodes + 3 * BLOCK_BYTES


def plan_features(num_nodes: int, num_rows: int, num_features: int, *, room_bytes: int) -> FeatureLayout:
    """What ``propagate_features`` does with ``room_bytes`` of memory: ``12 N + 48 MiB + result + 4 N a column``.

    The result is held where it takes at most a third of what is left; then as many columns as fit, at least four.
    """
    fixed = 12 * num_nodes + 3 * BLOCK_BYTES
    room, size = room_bytes - fixed, 4 * num_rows * num_features
    held = size if size <= (room - 4 * MIN_COLUMNS * num_nodes) // 3 else 0
    columns = min(max((room - held) // (4 * num_nodes), MIN_COLUMNS), num_features)
    return FeatureLayout(columns, held, fixed + held + 4 * columns * num_nodes)


def propagate_features(
    graph: GraphStore,
    local: Ids,
    resources: Resources,
    *,
    norm: Norm = "sym",
    path: Path,
) -> RowCache:
    """Rows ``local`` (ascending) of P X, dense: in memory where they fit beside a few columns of X, else at ``path``.

    As many columns of X as fit are held at once, so features and edges are read once for each group of them.

    Memory
    ------
    See ``plan_features``.
    """
    features = graph.require_features()
    formula = f"{graph.num_nodes:,} nodes * {12 + 4 * MIN_COLUMNS} bytes + 48 MiB"
    resources.require(least_bytes(graph.num_nodes), stage=STAGE, formula=formula)
    shape = (local.size, features.num_features)
    layout = plan_features(graph.num_nodes, *shape, room_bytes=resources.room_bytes)
    propagation = StreamedPropagation(graph, resources, norm)
    result: Dense
    if layout.held_bytes or not local.size:
        result = np.empty(shape, np.float32)
    else:
        with storage_errors(path, needed_bytes=4 * shape[0] * shape[1]):
            path.parent.mkdir(parents=True, exist_ok=True)
            result = np.memmap(path, np.float32, mode="w+", shape=shape)
    width = layout.columns
    for column in range(0, shape[1], width):
        stop = min(column + width, shape[1])
        x = _read_columns(graph, column, stop)
        for first, sent in propagation.blocks(x):
            begin, end = np.searchsorted(local, [first, first + len(sent)])
            result[begin:end, column:stop] = sent[local[begin:end] - first]
    return RowCache.from_array(result)


def _read_columns(graph: GraphStore, first: int, stop: int) -> Dense:
    features = graph.require_features()
    x = np.empty((graph.num_nodes, stop - first), np.float32)
    for block in split_blocks(graph.num_nodes, max(BLOCK_BYTES // (4 * features.num_features), 1)):
        x[block.start : block.stop] = features.rows_dense(np.arange(block.start, block.stop))[:, first:stop]
    return x


def neighbours_of(graph: GraphStore, nodes: Ids) -> tuple[Ids, Ids]:
    """In-neighbours of ``nodes`` (ascending) as CSR rows (offsets, sources), self loops left out; each block is opened
    once."""
    lists: list[Ids] = []
    blocks = graph.edges.blocks()
    cuts = np.searchsorted(nodes, [*(block.start for block in blocks), graph.num_nodes])
    for block in blocks:
        wanted = nodes[cuts[block.index] : cuts[block.index + 1]]
        if not wanted.size:
            continue
        rows = graph.edges.read(block)
        for node in wanted.tolist():
            row = node - block.start
            found = rows.values[rows.offsets[row] : rows.offsets[row + 1]].astype(np.int64)
            lists.append(found[found != node])
    offsets = np.concatenate([[0], np.cumsum([found.size for found in lists])]).astype(np.int64)
    return offsets, np.concatenate([np.empty(0, np.int64), *lists])

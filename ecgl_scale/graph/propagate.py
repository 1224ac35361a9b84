"""P x over a stored graph, row block by row block, for graphs that are not in memory.

Edges are read where they are mapped; a block of results is handed out and gone when the next is asked for.
Memory: 12 bytes a node for the scales, ``x``, and 48 MiB of blocks. Same bits for any threads and columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, get_args

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.spmm import propagate_rows
from ecgl_scale.base.durable import storage_errors
from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.engine.place import FilePlace, HeldPlace, Place, make_place, open_place
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.errors import EcglError, UsageError
from ecgl_scale.graph.adjacency import Adjacency, Scales
from ecgl_scale.graph.convolution import Norm
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB

BLOCK_BYTES = 16 * MIB
MIN_COLUMNS = 4
STAGE = "pass features along the edges"

Ids = NDArray[np.int64]
Dense = NDArray[np.float32]


@dataclass(frozen=True)
class SentRows:
    """Rows of P x, or none where they went to their place in a file."""

    rows: Dense


class PropagateWork(Work[None, SentRows]):
    """Rows of P x for a block of rows; every worker holds all of ``x``."""

    name: ClassVar[str] = "graph.propagate"
    record: ClassVar[type[Any]] = SentRows

    def __init__(self, propagation: StreamedPropagation, x: Place, sent: FilePlace | None) -> None:
        """Rows go to ``sent``, or with their record where there is none."""
        self._propagation = propagation
        self._x = x
        self._sent = sent

    def describe(self) -> Json:
        """The store, the norm and two places in files."""
        sent = None if self._sent is None else self._sent.describe()
        about = {"store": self._propagation.graph.address, "norm": self._propagation.norm}
        return {**about, "x": self._x.describe(), "sent": sent}

    @classmethod
    def open(cls, description: Json, resources: Resources) -> PropagateWork:
        """Open the store, count its degrees and read ``x``."""
        propagation = StreamedPropagation(GraphStore.open(description["store"]), resources, description["norm"])
        x = HeldPlace(open_place(description["x"]).read(0, propagation.graph.num_nodes))
        return cls(propagation, x, open_place(description["sent"]))

    def run(self, block: Block, given: Json, scratch: None) -> SentRows:
        """Sum the rows of a block, which lies within a stored one."""
        del given, scratch
        rows = self._propagation.rows(block, self._x.read(0, self._propagation.graph.num_nodes))
        if self._sent is None:
            return SentRows(rows)
        self._sent.write(block.start, rows)
        return SentRows(rows[:0])


class StreamedPropagation:
    """``P`` of a store's graph, whose edges stay on disk."""

    def __init__(self, graph: GraphStore, resources: Resources, norm: Norm = "sym") -> None:
        if norm not in get_args(Norm):
            raise UsageError(f"there is no norm {norm!r}", expected=" or ".join(get_args(Norm)))
        self.graph = graph
        self.norm = norm
        self._resources = resources
        self._adjacency = Adjacency(graph)
        self._scales: Scales = self._adjacency.scales(norm)

    def rows(self, block: Block, x: Dense) -> Dense:
        """Rows of P x."""
        out = np.empty((block.num_rows, x.shape[1]), np.float32)
        scale = self._scales
        for first, rows in self._adjacency.pieces(block.start, block.stop):
            stop = first + rows.num_rows
            row_scale = None if scale.row is None else scale.row[first:stop]
            target = out[first - block.start : stop - block.start]
            adds_self = self._adjacency.adds_self
            propagate_rows(rows.indptr, rows.indices, x, first, adds_self, scale.source, row_scale, target)
        return out

    def blocks(self, x: Dense) -> Iterator[tuple[int, Dense]]:
        """First row and rows of every block of ``P x``, in order; ``x`` is [N, columns]."""
        num_nodes = self.graph.num_nodes
        if x.ndim != 2 or len(x) != num_nodes:
            raise UsageError(f"values of shape {list(x.shape)}", expected=f"a row for each of {num_nodes} nodes")
        blocks = self._cut(x.shape[1])
        with self._places(x, blocks) as (place, sent):
            for block, record in run_blocks(PropagateWork(self, place, sent), blocks, self._resources):
                yield block.start, record.rows if sent is None else sent.read(block.start, block.stop)

    def _cut(self, num_columns: int) -> list[Block]:
        """Parts of stored blocks, so that edges are read where they are."""
        # One being made by each thread, one waiting, and what the caller takes of one: three blocks' bytes in all.
        num_rows = max(3 * BLOCK_BYTES // ((self._resources.threads + 2) * 4 * num_columns), 1)
        starts = [
            stored.start + inner.start
            for stored in self._adjacency.blocks()
            for inner in split_blocks(stored.num_rows, num_rows)
        ]
        return [Block(index, *cut) for index, cut in enumerate(pairwise([*starts, self.graph.num_nodes]))]

    @contextmanager
    def _places(self, x: Dense, blocks: list[Block]) -> Iterator[tuple[Place, FilePlace | None]]:
        """Where ``x`` is and where P x goes: in memory, or in files where workers share none."""
        resources = self._resources
        if resources.executor.shares_memory:
            yield HeldPlace(x), None
            return
        if resources.work is None:
            raise EcglError(f"workers that {STAGE} share no directory", expected="resources with a working directory")
        cuts = [*(block.start for block in blocks), len(x)]
        with storage_errors(resources.work):
            resources.work.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="propagate-", dir=resources.work) as directory:
            own = resources.with_work(Path(directory))
            place, sent = (make_place(own, name, cuts, "<f4", x.shape[1]) for name in ("x", "sent"))
            for block in blocks:
                place.write(block.start, x[block.start : block.stop])
            yield place, sent if isinstance(sent, FilePlace) else None

    def send(self, x: Dense, hops: int) -> Dense:
        """``P^hops x``; ``x`` itself without hops. Memory: the values once more."""
        for _ in range(hops):
            following = np.empty_like(x)
            for first, sent in self.blocks(x):
                following[first : first + len(sent)] = sent
            x = following
        return x

    def spread(self, values: NDArray[Any], hops: int) -> NDArray[np.float32]:
        """``P^hops`` of one number a node. Memory: 8 bytes a node."""
        return self.send(np.ascontiguousarray(values, np.float32).reshape(-1, 1), hops)[:, 0]


@dataclass(frozen=True)
class HopLayout:
    """How rows of P^hops X are made within a budget."""

    columns: int
    """Columns of X held at once."""
    held_bytes: int
    """Memory of the result; 0 where it goes to a file."""
    peak_bytes: int
    """All memory while it is made."""


def plan_hops(
    num_nodes: int, num_rows: int, num_features: int, *, hops: int, room_bytes: int, beside_result_bytes: int = 0
) -> HopLayout:
    """What ``hop_features`` does with ``room_bytes`` of memory: ``12 N + 48 MiB + result + 4 N a column``.

    With several hops ``8 N`` a column: what is sent and what arrives. The result is held where it takes at most a third
    of what is left, and ``beside_result_bytes`` fit beside it; then as many columns as fit, at least four.
    """
    fixed, column_bytes = 12 * num_nodes + 3 * BLOCK_BYTES, _column_bytes(hops) * num_nodes
    room, size = room_bytes - fixed, 4 * num_rows * num_features
    is_held = size <= (room - MIN_COLUMNS * column_bytes) // 3 and size + beside_result_bytes <= room_bytes
    held = size if is_held else 0
    columns = min(max((room - held) // column_bytes, MIN_COLUMNS), num_features)
    return HopLayout(columns, held, fixed + held + columns * column_bytes)


def plan_one_hop(
    num_nodes: int, num_rows: int, num_features: int, *, room_bytes: int, beside_result_bytes: int = 0
) -> HopLayout:
    """What ``one_hop_features`` does with so much memory."""
    beside = beside_result_bytes
    return plan_hops(num_nodes, num_rows, num_features, hops=1, room_bytes=room_bytes, beside_result_bytes=beside)


def plan_propagate_worker(num_nodes: int, num_rows: int, num_features: int, *, room_bytes: int) -> StagePlan:
    """What a worker of ``one_hop_features`` needs that shares no memory: scales, columns of X, blocks of results."""
    layout = plan_one_hop(num_nodes, num_rows, num_features, room_bytes=room_bytes)
    formula = f"(12 + 4 * {layout.columns} columns) bytes for each of {num_nodes:,} nodes + 48 MiB of blocks"
    return StagePlan(STAGE, layout.peak_bytes - layout.held_bytes, formula, setting="memory")


def one_hop_features(
    graph: GraphStore,
    nodes: Ids,
    resources: Resources,
    *,
    norm: Norm = "sym",
    path: Path,
    besides_bytes: int = 0,
    beside_result_bytes: int | None = 0,
) -> Dense:
    """Rows ``nodes`` (ascending) of P X, dense; see ``hop_features``."""
    return hop_features(
        graph,
        nodes,
        resources,
        hops=1,
        norm=norm,
        path=path,
        besides_bytes=besides_bytes,
        beside_result_bytes=beside_result_bytes,
    )


def hop_features(
    graph: GraphStore,
    nodes: Ids,
    resources: Resources,
    *,
    hops: int,
    norm: Norm = "sym",
    path: Path,
    besides_bytes: int = 0,
    beside_result_bytes: int | None = 0,
) -> Dense:
    """Rows ``nodes`` (ascending) of P^hops X, dense: in memory where they fit beside columns of X, else at ``path``.

    As many columns of X as fit are held at once, so features and edges are read once for each group of them.
    ``besides_bytes`` of the budget are left free; ``beside_result_bytes`` are the caller's when the rows are made, None
    where they are to be in the file whatever fits.

    Memory
    ------
    See ``plan_hops``.
    """
    features, num_nodes = graph.require_features(), graph.num_nodes
    node_bytes = 12 + _column_bytes(hops) * MIN_COLUMNS
    formula = f"{num_nodes:,} nodes * {node_bytes} bytes + 48 MiB"
    resources.require(node_bytes * num_nodes + 3 * BLOCK_BYTES + besides_bytes, stage=STAGE, formula=formula)
    shape = (nodes.size, features.num_features)
    room = resources.room_bytes - besides_bytes
    beside = room if beside_result_bytes is None else beside_result_bytes
    layout = plan_hops(num_nodes, *shape, hops=hops, room_bytes=room, beside_result_bytes=beside)
    propagation = StreamedPropagation(graph, resources, norm)
    result: Dense
    if layout.held_bytes or not nodes.size:
        result = np.empty(shape, np.float32)
    else:
        with storage_errors(path, needed_bytes=4 * shape[0] * shape[1]):
            path.parent.mkdir(parents=True, exist_ok=True)
            result = np.memmap(path, np.float32, mode="w+", shape=shape)
    width = layout.columns
    for column in range(0, shape[1], width):
        stop = min(column + width, shape[1])
        x = propagation.send(_read_columns(graph, column, stop), hops - 1)
        for first, sent in propagation.blocks(x):
            begin, end = np.searchsorted(nodes, [first, first + len(sent)])
            result[begin:end, column:stop] = sent[nodes[begin:end] - first]
    return result


def _column_bytes(hops: int) -> int:
    """What a column takes for each node while it is sent: itself, and what arrives where that is sent on."""
    return 4 if hops == 1 else 8


def _read_columns(graph: GraphStore, first: int, stop: int) -> Dense:
    features = graph.require_features()
    x = np.empty((graph.num_nodes, stop - first), np.float32)
    for block in features.blocks():
        features.read_columns(block, first, stop, x[block.start : block.stop])
    return x

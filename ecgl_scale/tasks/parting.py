"""One pass over a store for the graphs of many tasks: edges and rows, parted by task, in files of which each is built.

A node's number says its task and its place there: tasks have runs of numbers, one after the other. An edge goes to the
task of both its ends, a row to that of its node. Every stored edge and every chunk of features is read once, whatever
the number of tasks; each piece leaves one file, in which the tasks follow each other:

    edges-<piece>   for each task the sources, then the targets, 4 bytes each (8 from 2^31 nodes of a task on)
    rows-<piece>    dense: for each task its rows, as they are stored
                    sparse: values of each row, then all columns, then all values, each task by task
    labels          of every node, by its number

Memory: 4 bytes a node of the whole graph, and for each thread a piece. Disk: 8 bytes an edge within a task, and the
rows, until the graphs are built.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.induced import part_edges, part_pairs
from ecgl_scale.base.durable import atomic_file, crc32c_of, storage_errors
from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.store.build import MIN_SPARE_BYTES, MemoryShares
from ecgl_scale.store.edges.older import OlderSpan
from ecgl_scale.store.edges.write import RESERVE_BYTES
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.nodes import LABEL
from ecgl_scale.tasks.task_nodes import Task
from ecgl_scale.units import MIB

EDGE_STAGE, ROW_STAGE = "part edges by task", "part features by task"
TABLE_NAME, NUMBERS_NAME, LABELS_NAME = "parts.json", "numbers.npy", "labels.npy"
PIECE_BYTES, PIECE_ROWS = 8 * MIB, 1 << 16
"""Rows of a piece, at most, but for one chunk of the store; edges of one are as many as of a build's."""

Numbers = NDArray[Any]


@dataclass(frozen=True)
class PartedEdges:
    """What a piece has left: edges of each task, and the crc32c of sources and targets together."""

    counts: list[int]
    crcs: list[int]


@dataclass(frozen=True)
class PartedRows:
    """What a piece of rows has left: rows of each task, and of sparse ones their values."""

    counts: list[int]
    num_values: list[int] | None = None


@dataclass(frozen=True)
class Parts:
    """What one pass has left in a directory."""

    directory: Path
    firsts: tuple[int, ...]
    """The first number of each task, and the end."""
    id_dtype: str
    edges: tuple[PartedEdges, ...]
    rows: tuple[PartedRows, ...]

    def write(self) -> None:
        """Say what there is, for other processes."""
        entry = {key: value for key, value in asdict(self).items() if key != "directory"}
        with atomic_file(self.directory / TABLE_NAME) as path:
            path.write_text(json.dumps(entry), encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> Parts:
        """What another process has left."""
        with storage_errors(directory):
            entry = json.loads((directory / TABLE_NAME).read_text(encoding="utf-8"))
        return cls(
            directory,
            tuple(entry["firsts"]),
            entry["id_dtype"],
            tuple(PartedEdges(**one) for one in entry["edges"]),
            tuple(PartedRows(**one) for one in entry["rows"]),
        )

    @cached_property
    def edge_bytes(self) -> int:
        """Bytes of an edge."""
        return 2 * np.dtype(self.id_dtype).itemsize


def parted_bytes(graph: GraphStore, num_nodes: int) -> int:
    """About what the files of a pass for so many nodes take on the disk, if all edges were within tasks."""
    features = graph.features
    row_bytes = 0 if features is None else features.row_bytes
    return int(8 * graph.num_edges * num_nodes / graph.num_nodes) + num_nodes * (row_bytes + 8)


def part_store(graph: GraphStore, tasks: Sequence[Task], directory: Path, resources: Resources) -> Parts:
    """Part the edges and the features of a store by task; no node is of two tasks.

    Memory: 4 bytes a node of the graph; for each thread 8 bytes an edge of a build's pieces, then 32 MiB.
    """
    firsts = np.array([0, *accumulate(task.num_nodes for task in tasks)], np.int64)
    dtype = np.dtype(np.int32 if firsts[-1] < 1 << 31 else np.int64)
    map_bytes, least = graph.num_nodes * dtype.itemsize, RESERVE_BYTES + MIN_SPARE_BYTES
    formula = f"{dtype.itemsize} bytes a node of the whole graph + {least >> 20} MiB"
    resources.require(map_bytes + least, stage=EDGE_STAGE, formula=formula)
    room = max(resources.room_bytes - map_bytes, least)
    shares = MemoryShares.of(room, threads=resources.threads, num_keys_hint=graph.num_edges)
    resources, block_edges = resources.with_threads(shares.threads), shares.block_edges
    numbers = np.full(graph.num_nodes, -1, dtype)
    for task, first in zip(tasks, firsts.tolist(), strict=False):
        numbers[task.node_ids] = np.arange(first, first + task.num_nodes, dtype=dtype)
    numbers.setflags(write=False)
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        if not resources.executor.shares_memory:
            np.save(directory / NUMBERS_NAME, numbers, allow_pickle=False)
    edge_work = PartEdgesWork(graph, numbers, firsts, directory)
    edges = _parted_edges(edge_work, block_edges, resources)
    features, rows = graph.features, []
    if features is not None:
        rows = _parted_rows(PartRowsWork(graph, numbers, firsts, directory), resources)
    _part_labels(graph, numbers, int(firsts[-1]), directory)
    parts = Parts(directory, tuple(firsts.tolist()), edge_work.id_dtype.name, tuple(edges), tuple(rows))
    parts.write()
    return parts


def _parted_edges(work: PartEdgesWork, block_edges: int, resources: Resources) -> list[PartedEdges]:
    pieces, done, found = work.cut(block_edges), 0, []
    resources.on_event(StageStarted(EDGE_STAGE, sum(piece.num_rows for piece in pieces), "edges"))
    for piece, record in run_blocks(work, pieces, resources) if pieces else ():
        found.append(record)
        done += piece.num_rows
        resources.on_event(BlockFinished(EDGE_STAGE, done))
    return found


def _parted_rows(work: PartRowsWork, resources: Resources) -> list[PartedRows]:
    pieces, found = work.cut(), []
    resources.on_event(StageStarted(ROW_STAGE, pieces[-1].stop, "rows"))
    for piece, record in run_blocks(work, pieces, resources):
        found.append(record)
        resources.on_event(BlockFinished(ROW_STAGE, piece.stop))
    return found


def _part_labels(graph: GraphStore, numbers: Numbers, total: int, directory: Path) -> None:
    if graph.nodes is None or LABEL not in graph.nodes.names:
        return
    labels: NDArray[Any] | None = None
    with storage_errors(directory):
        for first, values in graph.nodes.blocks(LABEL):
            if labels is None:
                labels = np.lib.format.open_memmap(directory / LABELS_NAME, "w+", values.dtype, (total,))
            here = numbers[first : first + values.size]
            labels[here[here >= 0]] = values[here >= 0]


class _PartWork:
    """What both passes share: where nodes go, and where files go."""

    def __init__(self, graph: GraphStore, numbers: Numbers, firsts: NDArray[np.int64], directory: Path) -> None:
        self._graph = graph
        self._numbers = numbers
        self._firsts = firsts
        self._directory = directory

    def describe(self) -> Json:
        """The store, the files, and the first number of each task; numbers are in a file."""
        return {"store": self._graph.address, "directory": str(self._directory), "firsts": self._firsts.tolist()}

    @staticmethod
    def opened(description: Json) -> tuple[GraphStore, Numbers, NDArray[np.int64], Path]:
        """What ``describe`` has said."""
        directory = Path(description["directory"])
        with storage_errors(directory):
            numbers = np.load(directory / NUMBERS_NAME, mmap_mode="r", allow_pickle=False)
        return GraphStore.open(description["store"]), numbers, np.array(description["firsts"], np.int64), directory


class PartEdgesWork(_PartWork, Work[None, PartedEdges]):
    """A piece of the stored edges, parted by task."""

    name: ClassVar[str] = "tasks.part_edges"
    record: ClassVar[type[Any]] = PartedEdges

    def __init__(self, graph: GraphStore, numbers: Numbers, firsts: NDArray[np.int64], directory: Path) -> None:
        super().__init__(graph, numbers, firsts, directory)
        edges = graph.edges
        wanted = [bool((numbers[block.start : block.stop] >= 0).any()) for block in edges.blocks()]
        blocks = [block for block in edges.blocks() if wanted[block.index]]
        spans = edges.older.spans(wanted)
        self._parts: list[Block | OlderSpan] = [*blocks, *spans]
        self._starts = [
            0,
            *accumulate([*map(edges.num_own_edges, blocks), *(span.stop - span.first for span in spans)]),
        ]
        largest = int(np.diff(firsts).max())
        self.id_dtype = np.dtype(np.uint32 if largest < 1 << 31 else np.uint64)

    @classmethod
    def open(cls, description: Json, resources: Resources) -> PartEdgesWork:
        """Make the work again, in another process."""
        del resources
        return cls(*cls.opened(description))

    def cut(self, block_edges: int) -> list[Block]:
        """Pieces of the edges, each of one stored block."""
        pieces: list[Block] = []
        for first, last in zip(self._starts, self._starts[1:], strict=False):
            for start in range(first, last, block_edges):
                pieces.append(Block(len(pieces), start, min(start + block_edges, last)))
        return pieces

    def run(self, block: Block, given: Json, scratch: None) -> PartedEdges:
        """Write the edges within tasks of one piece."""
        del given, scratch
        index = bisect_right(self._starts, block.start) - 1
        within = (block.start - self._starts[index], block.stop - self._starts[index])
        src, dst = np.empty(block.num_rows, self.id_dtype), np.empty(block.num_rows, self.id_dtype)
        ends = np.zeros((self._firsts.size - 1, 2), np.int64)
        part, edges = self._parts[index], self._graph.edges
        if isinstance(part, Block):
            rows = edges.own_rows(part)
            part_edges(rows.offsets, rows.values, part.start, within, self._numbers, self._firsts, ends, src, dst)
        else:
            pairs = edges.older.read_span(part)
            targets, sources = pairs.dst[slice(*within)], pairs.src[slice(*within)]
            part_pairs(targets, sources, self._numbers, self._firsts, ends, src, dst)
        crcs = []
        with atomic_file(self._directory / edges_name(block.index), is_shared=True) as path, path.open("wb") as file:
            for start, stop in ends.tolist():
                crcs.append(crc32c_of(dst[start:stop], crc32c_of(src[start:stop])))
                file.write(src[start:stop].data)
                file.write(dst[start:stop].data)
        return PartedEdges((ends[:, 1] - ends[:, 0]).tolist(), crcs)


class PartRowsWork(_PartWork, Work[None, PartedRows]):
    """A run of the stored rows, parted by task."""

    name: ClassVar[str] = "tasks.part_rows"
    record: ClassVar[type[Any]] = PartedRows

    @classmethod
    def open(cls, description: Json, resources: Resources) -> PartRowsWork:
        """Make the work again, in another process."""
        del resources
        return cls(*cls.opened(description))

    def cut(self) -> list[Block]:
        """Pieces of whole chunks, so that each of those is read once."""
        features = self._graph.require_features()
        wanted = min(PIECE_BYTES // max(features.row_bytes, 1), PIECE_ROWS)
        return split_blocks(features.num_rows, max(wanted // features.rows_per_read, 1) * features.rows_per_read)

    def run(self, block: Block, given: Json, scratch: None) -> PartedRows:
        """Write the rows of tasks of one piece."""
        del given, scratch
        numbers = self._numbers[block.start : block.stop]
        places = np.flatnonzero(numbers >= 0)
        places = places[np.argsort(numbers[places], kind="stable")]
        cuts = np.searchsorted(numbers[places], self._firsts)
        counts, features = np.diff(cuts).tolist(), self._graph.require_features()
        if not places.size:
            return PartedRows(counts, [0] * len(counts) if features.is_sparse else None)
        if not features.is_sparse:
            self._write(block, [features.rows_dense(block.start + places, threads=1)])
            return PartedRows(counts)
        rows = features.rows_csr(block.start + places)
        self._write(block, [np.diff(rows.indptr), rows.indices, rows.values])
        return PartedRows(counts, np.diff(rows.indptr[cuts]).tolist())

    def _write(self, block: Block, arrays: Sequence[NDArray[Any]]) -> None:
        with atomic_file(self._directory / rows_name(block.index), is_shared=True) as path, path.open("wb") as file:
            for array in arrays:
                file.write(np.ascontiguousarray(array).data)


def edges_name(piece: int) -> str:
    """The file of a piece of edges."""
    return f"edges-{piece}"


def rows_name(piece: int) -> str:
    """The file of a piece of rows."""
    return f"rows-{piece}"

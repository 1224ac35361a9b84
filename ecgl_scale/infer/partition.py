"""Sets of destination rows that are worked on one after the other.

    contiguous  runs of rows with about as many edges each; nothing is read but row offsets
    ldg         streaming linear deterministic greedy: one look at every edge, neighbours together, 8 bytes a node
    metis       METIS through DGL, in a process of its own; the whole graph in that process's memory; may be kept

Rows of a partition ascend; every row is in exactly one.
"""

from __future__ import annotations

import subprocess
import sys
from bisect import bisect_left
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.halo import assign_greedily, mark_sources
from ecgl_scale.base.durable import storage_errors
from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.errors import UsageError
from ecgl_scale.graph.adjacency import Adjacency
from ecgl_scale.infer.kept_cut import KeptCuts
from ecgl_scale.infer.settings import Partitioner

CHUNK_ROWS = 1024
"""Rows that one thread works on at once; partitions that are large enough are cut at multiples of it."""
ALIGN_FROM_CHUNKS = 4
ROW_WEIGHT = 16.0
"""A row's dense work in edges, about; it only balances."""
LDG_SLACK = 1.05
"""How much fuller than the average a part may get."""
METIS_SECONDS = 3600.0
METIS_BYTES_PER_EDGE = 128
"""DGL 1.1.3 took 101 at ten million edges: int64 edges, their symmetric copy and METIS's coarser graphs."""


@dataclass(frozen=True)
class Partition:
    """Some rows: ``first`` up to ``stop``, or the ``ids`` where given."""

    index: int
    first: int
    stop: int
    ids: NDArray[np.int64] | None = None

    @property
    def num_rows(self) -> int:
        """How many rows."""
        return self.stop - self.first if self.ids is None else self.ids.size

    @property
    def where(self) -> slice | NDArray[np.int64]:
        """Index into anything that has a value for each node."""
        return slice(self.first, self.stop) if self.ids is None else self.ids


def cut_contiguous(edges: Adjacency, count: int, row_weight: float = ROW_WEIGHT) -> list[Partition]:
    """Runs of rows with about equal work, a row counting as ``row_weight`` edges; fewer where rows are few."""
    num_nodes = edges.num_nodes
    total = edges.edges_before(num_nodes) + row_weight * num_nodes
    align = CHUNK_ROWS if num_nodes >= count * CHUNK_ROWS * ALIGN_FROM_CHUNKS else 1
    cuts = {0, num_nodes}
    for number in range(1, count):
        wanted = total * number / count
        cut = bisect_left(range(num_nodes), wanted, key=lambda row: edges.edges_before(row) + row_weight * row)
        cuts.add(min(round(cut / align) * align, num_nodes))
    return [Partition(index, first, stop) for index, (first, stop) in enumerate(pairwise(sorted(cuts)))]


def cut_greedily(edges: Adjacency, count: int) -> list[Partition]:
    """Linear deterministic greedy over the nodes in order. Memory: 4 bytes a node, 8 while they are sorted."""
    parts = np.full(edges.num_nodes, -1, np.int32)
    loads, near = np.zeros(count, np.int64), np.zeros(count, np.int64)
    capacity = float(np.ceil(edges.num_nodes / count * LDG_SLACK))
    for block in edges.blocks():
        for first, rows in edges.pieces(block.start, block.stop):
            assign_greedily(rows.indptr, rows.indices, first, capacity, parts, loads, near)
    return group_rows(parts)


def cut_by_metis(
    store: Path, edges: Adjacency, count: int, scratch: Path, budget: MemoryBudget, kept: KeptCuts | None = None
) -> list[Partition]:
    """METIS in a child process; whatever happens to it there does not happen to us. Not called where a cut is kept."""
    parts = None if kept is None else kept.load(count, edges.num_nodes)
    if parts is None:
        parts = _run_metis(store, edges, count, scratch, budget)
        if kept is not None:
            kept.save(count, parts)
    return group_rows(parts)


def _run_metis(store: Path, edges: Adjacency, count: int, scratch: Path, budget: MemoryBudget) -> NDArray[np.int32]:
    if find_spec("dgl") is None:
        raise UsageError(
            "METIS comes with DGL, which is not installed here",
            fix="pip install dgl==1.1.3 (Python 3.11 or older), or partitioner: ldg",
        )
    budget.require(
        edges.edges_before(edges.num_nodes) * METIS_BYTES_PER_EDGE,
        stage="METIS",
        formula=f"{METIS_BYTES_PER_EDGE} bytes an edge, in a process of its own; partitioner: ldg needs 8 a node",
    )
    with storage_errors(scratch):
        scratch.mkdir(parents=True, exist_ok=True)
    target = scratch / "metis.npy"
    command = [sys.executable, "-m", "ecgl_scale.infer.backends.metis", str(store), str(count), str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=METIS_SECONDS, check=False)
        if done.returncode != 0 or not target.is_file():
            raise _metis_failed(f"ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['silent'])[-1]}")
        parts = np.load(target, allow_pickle=False)
    except subprocess.TimeoutExpired as error:
        raise _metis_failed(f"was not done after {METIS_SECONDS:.0f} s") from error
    finally:
        target.unlink(missing_ok=True)
    if parts.shape != (edges.num_nodes,) or parts.dtype.kind != "i":
        raise _metis_failed(f"gave {parts.dtype} {parts.shape}")
    return np.asarray(parts, np.int32)


def _metis_failed(how: str) -> UsageError:
    return UsageError(f"METIS {how}", fix="partitioner: ldg, or contiguous; METIS needs the whole graph in memory")


def group_rows(parts: NDArray[np.int32]) -> list[Partition]:
    """Partitions from a part number for each node; empty parts are left out."""
    order = np.argsort(parts, kind="stable")
    cuts = np.flatnonzero(np.diff(parts[order])) + 1
    groups = np.split(order, cuts)
    return [Partition(index, int(ids[0]), int(ids[-1]) + 1, ids) for index, ids in enumerate(groups)]


def cut_partitions(
    partitioner: Partitioner,
    edges: Adjacency,
    count: int,
    *,
    row_weight: float = ROW_WEIGHT,
    store: Path,
    scratch: Path,
    budget: MemoryBudget,
    kept: KeptCuts | None = None,
) -> list[Partition]:
    """About ``count`` partitions by the chosen way."""
    count = min(count, edges.num_nodes)
    if partitioner == "contiguous":
        return cut_contiguous(edges, count, row_weight)
    if partitioner == "ldg" or count == 1:
        return cut_greedily(edges, count)
    return cut_by_metis(store, edges, count, scratch, budget, kept)


@dataclass(frozen=True)
class HaloSize:
    """What a partition reaches."""

    num_rows: int
    num_sources: int
    """Distinct nodes: its own rows and where their edges come from."""
    num_edges: int


def measure_halos(edges: Adjacency, partitions: list[Partition]) -> list[HaloSize]:
    """Count what each partition needs. Memory: a byte a node, and a row set's edges."""
    marks = np.zeros(edges.num_nodes, np.uint8)
    sizes = []
    for partition in partitions:
        marks[:] = 0
        marks[partition.where] = 1
        sources, num_edges = partition.num_rows, 0
        pieces = (
            edges.pieces(partition.first, partition.stop)
            if partition.ids is None
            else iter([(0, edges.select(partition.ids))])
        )
        for _, rows in pieces:
            sources += mark_sources(rows.indices, int(rows.indptr[0]), int(rows.indptr[-1]), marks)
            num_edges += rows.num_edges
        sizes.append(HaloSize(partition.num_rows, sources, num_edges))
    return sizes

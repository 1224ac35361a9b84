"""Attributed PageRank out of core: vertex vectors in memory, edges streamed from the tiles.

    ranks <- d (T ranks + dangling mass * jump) + (1 - d) r

One sweep reads every edge once (4 bytes each). Stripes are dealt to threads once, largest first, and every sum is
formed in a fixed order, so the ranks are the same bits for any number of threads and any size of read.
Memory: 20 bytes a node (ranks, sums, contributions, degrees), 8 more with a reset vector, and the read buffers.
Up to ``EXACT_NODES`` nodes sums and contributions are float64 (8 bytes more) and any tolerance can be reached; above
they are float32, for speed: ranks are then exact to about 1e-7 of themselves, and a tolerance below 1e-9 may never be
reached. The precision setting chooses otherwise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.csr import count_sources
from ecgl_kernels.pagerank import DANGLING, L1, L2, TOTAL, finish_range, spread_ranks, sweep_tiles
from ecgl_scale.base.events import BlockFinished, EventSink, StageStarted
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import UsageError
from ecgl_scale.rank.journal import NoJournal, RankJournal
from ecgl_scale.rank.tile_stream import BUFFERS_PER_THREAD, PIECE_BYTES, TileStream
from ecgl_scale.store.edges.plan import RANGE_ROWS
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB

STAGE = "rank by importance"
BYTES_PER_NODE = {"float32": 20, "float64": 28}
EXACT_NODES = 1 << 21
RESET_BYTES_PER_NODE = 8
RESERVE_BYTES = 48 * MIB

Vector = NDArray[np.float64]
_RangeWork = Callable[[int, slice], None]


@dataclass(frozen=True)
class PageRankSettings:
    """What to compute and when to stop."""

    damping: float = 0.85
    tol: float = 1e-8
    max_iter: int = 100
    norm: Literal["l1", "l2"] = "l1"
    dangling: Literal["uniform", "reset"] = "uniform"
    """Where the mass of nodes without out-edges goes: 1/N each (the paper), or as r (the reference code)."""

    precision: Literal["auto", "float32", "float64"] = "auto"
    """Of sums and contributions: auto is float64 up to ``EXACT_NODES`` nodes."""

    def precision_for(self, num_nodes: int) -> Literal["float32", "float64"]:
        """The precision of a graph of this size."""
        if self.precision != "auto":
            return self.precision
        return "float64" if num_nodes <= EXACT_NODES else "float32"

    def __post_init__(self) -> None:
        if not 0.0 <= self.damping < 1.0:
            raise UsageError(f"damping is {self.damping}", expected="0 <= damping < 1")
        if not self.tol >= 0.0:  # so that NaN is refused too
            raise UsageError(f"tol is {self.tol}", expected="tol >= 0")
        if self.max_iter < 1:
            raise UsageError(f"max_iter is {self.max_iter}", expected="at least one sweep")
        if self.norm not in ("l1", "l2") or self.dangling not in ("uniform", "reset"):
            raise UsageError(
                f"norm is {self.norm!r}, dangling {self.dangling!r}", expected="l1 or l2; uniform or reset"
            )
        if self.precision not in ("auto", "float32", "float64"):
            raise UsageError(f"precision is {self.precision!r}", expected="auto, float32 or float64")


@dataclass(frozen=True)
class Sweep:
    """One finished sweep."""

    iteration: int
    residual: float
    seconds: float
    read_bytes: int


@dataclass(frozen=True)
class RankResult:
    """Ranks that sum to one, and how they were reached."""

    ranks: Vector
    converged: bool
    sweeps: tuple[Sweep, ...]
    """The sweeps of this call; those before a resumption are not in it."""
    iterations: int
    """All sweeps, those before a resumption included."""
    residual: float


def planned_bytes(num_nodes: int, settings: PageRankSettings, *, with_reset: bool, threads: int) -> int:
    """Memory of a ranking on top of what the process holds."""
    padded = -(-num_nodes // RANGE_ROWS) * RANGE_ROWS
    bytes_per_node = BYTES_PER_NODE[settings.precision_for(num_nodes)] + (RESET_BYTES_PER_NODE if with_reset else 0)
    vectors = padded * bytes_per_node
    return vectors + threads * BUFFERS_PER_THREAD * PIECE_BYTES + RESERVE_BYTES


def rank_importance(
    graph: GraphStore,
    resources: Resources,
    *,
    reset: Vector | None = None,
    start: Vector | None = None,
    settings: PageRankSettings | None = None,
    journal: RankJournal | NoJournal | None = None,
) -> RankResult:
    """PageRank of every node with restarts to ``reset`` (the attribute vector), or to all nodes alike without one.

    ``start`` is a vector to begin with, say of an earlier ranking; a journal with finished sweeps goes before it.
    """
    settings = settings or PageRankSettings()
    journal = journal or NoJournal()
    threads = max(1, min(resources.threads, len(graph.tiles.blocks())))
    resources.require(
        planned_bytes(graph.num_nodes, settings, with_reset=reset is not None, threads=threads),
        stage="the ranking",
        formula=f"vectors of {graph.num_nodes:,} nodes and read buffers",
    )
    with closing(_State.of(graph, settings, reset, threads)) as state:
        return _sweep_until_done(state, graph, settings, start, journal, resources.on_event)


def _sweep_until_done(
    state: _State,
    graph: GraphStore,
    settings: PageRankSettings,
    start: Vector | None,
    journal: RankJournal | NoJournal,
    on_event: EventSink,
) -> RankResult:
    finished = journal.load(graph.num_nodes)
    first, residual = 0, math.inf
    if finished is not None:
        state.begin(finished.ranks)
        first, residual = finished.iteration, finished.residual
        finished = None  # its vector is not in the plan
    else:
        state.begin(_normalised(start, graph.num_nodes, "start"))
    on_event(StageStarted(STAGE, settings.max_iter, "sweeps"))
    sweeps: list[Sweep] = []
    iteration = first
    while iteration < settings.max_iter and not residual < settings.tol:
        started = time.perf_counter()
        read_bytes = state.sweep()
        journal.wait()  # the ranks it is still writing are about to be replaced
        residual = state.finish()
        iteration += 1
        sweeps.append(Sweep(iteration, residual, time.perf_counter() - started, read_bytes))
        journal.save(state.ranks[: graph.num_nodes], iteration, residual)
        on_event(BlockFinished(STAGE, iteration))
    journal.wait()
    return RankResult(state.ranks[: graph.num_nodes], residual < settings.tol, tuple(sweeps), iteration, residual)


class _State:
    """Vectors, padded to whole ranges, and the threads that work on them."""

    def __init__(
        self, graph: GraphStore, settings: PageRankSettings, reset: Vector, degrees: NDArray[np.uint32], threads: int
    ) -> None:
        size = degrees.size
        self._graph = graph
        self._settings = settings
        self._reset = reset
        self._degrees = degrees
        self._threads = threads
        self.ranks = np.zeros(size, np.float64)
        precision = np.dtype(settings.precision_for(graph.num_nodes))
        self._sums: NDArray[Any] = np.zeros(size, precision)
        self._contributions: NDArray[Any] = np.zeros(size, precision)
        self._dangling = 0.0
        self._checked: set[int] = set()
        self._shares = _deal(graph, threads)
        self._streams = [TileStream(graph.tiles, self._checked) for _ in range(threads)]
        # Kept from sweep to sweep: on a small graph, starting threads would take longer than sweeping.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sweep")

    @classmethod
    def of(cls, graph: GraphStore, settings: PageRankSettings, reset: Vector | None, threads: int) -> _State:
        degrees = out_degrees(graph)
        padded_reset = np.empty(0, np.float64)
        if reset is not None:
            padded_reset = np.zeros(degrees.size, np.float64)
            padded_reset[: graph.num_nodes] = _normalised(reset, graph.num_nodes, "reset")
        return cls(graph, settings, padded_reset, degrees, threads)

    def begin(self, ranks: Vector) -> None:
        """Start from ``ranks``; their dangling mass is added up as ``finish`` does, so that resuming changes no bit."""
        self.ranks[: ranks.size] = ranks
        dangling = np.zeros(self.ranks.size // RANGE_ROWS, np.float64)

        def spread(number: int, rows: slice) -> None:
            dangling[number] = spread_ranks(self.ranks[rows], self._degrees[rows], self._contributions[rows])

        self._map_ranges(spread)
        self._dangling = math.fsum(dangling)

    def sweep(self) -> int:
        """Form all sums; returns the bytes read from the disk."""
        if self._threads == 1:
            return self._sweep_share(0)
        return sum(self._pool.map(self._sweep_share, range(self._threads)))

    def _sweep_share(self, thread: int) -> int:
        read_bytes = 0
        tiles = self._graph.tiles
        for piece in self._streams[thread].pieces(self._shares[thread]):
            width = tiles.width(piece.block)
            sums = self._sums[piece.block.start : piece.block.start + width * RANGE_ROWS]
            sweep_tiles(piece.packed, piece.first_edge, piece.offsets, width, self._contributions, sums)
            read_bytes += piece.read_bytes
        return read_bytes

    def finish(self) -> float:
        """Turn sums into ranks; returns the change by the chosen norm."""
        settings, num_nodes = self._settings, self._graph.num_nodes
        lost = settings.damping * self._dangling
        constant = lost / num_nodes if settings.dangling == "uniform" or not self._reset.size else 0.0
        reset_share = 1.0 - settings.damping
        if self._reset.size:
            reset_share += lost if settings.dangling == "reset" else 0.0
        else:
            constant += (1.0 - settings.damping) / num_nodes
        weights = (settings.damping, constant, reset_share)
        partials = np.zeros((self.ranks.size // RANGE_ROWS, 4), np.float64)

        def finish(number: int, rows: slice) -> None:
            finish_range(
                self.ranks[rows], self._sums[rows], self._reset[rows], self._degrees[rows], self._contributions[rows],
                weights, partials[number],
            )  # fmt: skip

        self._map_ranges(finish)
        self._dangling = math.fsum(partials[:, DANGLING])
        if not math.isclose(math.fsum(partials[:, TOTAL]), 1.0, abs_tol=1e-4):
            raise AssertionError(f"ranks sum to {math.fsum(partials[:, TOTAL])}, not to one")
        change = math.fsum(partials[:, L1 if settings.norm == "l1" else L2])
        return change if settings.norm == "l1" else math.sqrt(change)

    def _map_ranges(self, work: _RangeWork) -> None:
        num_nodes = self._graph.num_nodes
        ranges = [
            slice(start, min(start + RANGE_ROWS, num_nodes)) for start in range(0, num_nodes, RANGE_ROWS)
        ]  # without the padding, which is no node
        if self._threads == 1:
            for number, rows in enumerate(ranges):
                work(number, rows)
            return
        for done in [self._pool.submit(work, number, rows) for number, rows in enumerate(ranges)]:
            done.result()

    def close(self) -> None:
        """End all threads."""
        self._pool.shutdown()
        for stream in self._streams:
            stream.close()


def _deal(graph: GraphStore, threads: int) -> list[list[Block]]:
    """Stripes to threads, the heaviest first, each to whoever has least; then in file order, for the disk's sake."""
    shares: list[list[Block]] = [[] for _ in range(threads)]
    loads = [0] * threads
    for block in sorted(graph.tiles.blocks(), key=lambda block: (-graph.edges.num_edges_of(block), block.index)):
        lightest = loads.index(min(loads))
        shares[lightest].append(block)
        loads[lightest] += graph.edges.num_edges_of(block)
    return [sorted(share, key=lambda block: block.index) for share in shares]


def out_degrees(graph: GraphStore) -> NDArray[np.uint32]:
    """Edges out of every node, padded to whole ranges. Memory: 4 bytes a node.

    In a symmetrised store they equal the in-degrees, which the row offsets tell without reading an edge.
    """
    degrees = np.zeros(-(-graph.num_nodes // RANGE_ROWS) * RANGE_ROWS, np.uint32)
    for block, rows in graph.edges.stream():
        if graph.manifest.edges.symmetrised:
            degrees[block.start : block.stop] = np.diff(rows.offsets)
        else:
            count_sources(rows.values, degrees)
    return degrees


def _normalised(vector: Vector | None, num_nodes: int, name: str) -> Vector:
    if vector is None:
        return np.full(num_nodes, 1.0 / num_nodes)
    vector = np.asarray(vector, np.float64)
    if vector.shape != (num_nodes,):
        raise UsageError(f"{name} has shape {vector.shape}", expected=f"one value for each of {num_nodes} nodes")
    total = math.fsum(vector)
    if not (np.isfinite(vector).all() and (vector >= 0).all() and total > 0):
        raise UsageError(f"{name} is not a distribution", expected="finite values >= 0, not all zero")
    return vector / total

"""Attributed PageRank out of core: vertex vectors in memory, edges streamed from the tiles.

    ranks <- d (T ranks + dangling mass * jump) + (1 - d) r

One sweep reads every edge once (4 bytes each); ``sweep`` says what it does to a stripe. The largest stripes are begun
first, and every sum is formed in a fixed order: the ranks are the same bits for any number of threads and size of read.
Memory: 20 bytes a node (ranks, contributions of this sweep and the next, degrees), 8 more with a reset vector, the
sums of a stripe a thread, and the read buffers.
Up to ``EXACT_NODES`` nodes sums and contributions are float64 (8 bytes more) and any tolerance can be reached; above
they are float32, for speed: ranks are then exact to about 1e-7 of themselves, and a tolerance below 1e-9 may never be
reached. The precision setting chooses otherwise.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.pagerank import DANGLING, L1, L2, TOTAL
from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.config.choices import Dangling, Norm, Precision
from ecgl_scale.config.sections import RankConfig
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.executor import Workers
from ecgl_scale.engine.journal import EVERY_SECONDS, VectorJournal
from ecgl_scale.engine.place import FilePlace, shared_directory
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import UsageError
from ecgl_scale.rank.rank_vectors import RankVectors, keep_normalised, make_vectors, stripe_cuts
from ecgl_scale.rank.sweep import SweepWork, SweptStripe
from ecgl_scale.rank.tile_stream import buffer_bytes
from ecgl_scale.store.edges.plan import RANGE_ROWS, widest_block
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB

STAGE = "rank by importance"
BYTES_PER_NODE = {"float32": 20, "float64": 28}
EXACT_NODES = 1 << 21
RESET_BYTES_PER_NODE = 8
RANK_BYTES, DEGREE_BYTES = 8, 4
RESERVE_BYTES = 48 * MIB

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class PageRankSettings:
    """What to compute and when to stop."""

    damping: float = 0.85
    tol: float = 1e-8
    max_iter: int = 100
    norm: Norm = "l1"
    dangling: Dangling = "uniform"
    """Where the mass of nodes without out-edges goes: 1/N each (the paper), or as r (the reference code)."""

    precision: Precision = "auto"
    """Sums and contributions have it: auto is float64 up to ``EXACT_NODES`` nodes."""

    @classmethod
    def of(cls, config: RankConfig) -> PageRankSettings:
        """Take the settings of the config."""
        return cls(**config.model_dump(include={entry.name for entry in fields(cls)}))

    def precision_for(self, num_nodes: int) -> Literal["float32", "float64"]:
        """Return the precision of a graph of this size."""
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
    """From the edges on the disk."""
    exchanged_bytes: int
    """Through files of vectors, by all workers; ``sweep.exchange_bytes`` has the formula."""


@dataclass(frozen=True)
class RankResult:
    """Ranks that sum to one, and how they were reached."""

    padded_ranks: Vector
    """They are followed by zeros up to a whole range."""
    num_nodes: int
    converged: bool
    sweeps: tuple[Sweep, ...]
    """The sweeps of this call; those before a resumption are not in it."""
    iterations: int
    """All sweeps, those before a resumption included."""
    residual: float

    @property
    def ranks(self) -> Vector:
        """One rank for each node."""
        return self.padded_ranks[: self.num_nodes]

    @property
    def read_bytes(self) -> int:
        """Bytes that this call read from the disk."""
        return sum(sweep.read_bytes for sweep in self.sweeps)

    @property
    def exchanged_bytes(self) -> int:
        """Bytes that workers of this call exchanged through files."""
        return sum(sweep.exchanged_bytes for sweep in self.sweeps)


def plan_importance(
    num_nodes: int, settings: PageRankSettings, *, with_reset: bool, threads: int, shares_memory: bool = True
) -> int:
    """Plan memory on top of what the process holds: vectors, a stripe's sums for each thread, read buffers.

    Where workers share no memory the vectors are in files, and this process holds the final ranks alone, and a stripe
    of what it writes; ``plan_sweep_worker`` says what the others need.
    """
    num_ranges = -(-num_nodes // RANGE_ROWS)
    stripe_rows = widest_block(num_ranges) * RANGE_ROWS
    if not shares_memory:
        return num_ranges * RANGE_ROWS * RANK_BYTES + 3 * stripe_rows * RANK_BYTES + RESERVE_BYTES
    precision = settings.precision_for(num_nodes)
    bytes_per_node = BYTES_PER_NODE[precision] + (RESET_BYTES_PER_NODE if with_reset else 0)
    sums = stripe_rows * np.dtype(precision).itemsize
    return num_ranges * RANGE_ROWS * bytes_per_node + threads * sums + buffer_bytes(threads) + RESERVE_BYTES


def plan_sweep_worker(num_nodes: int, settings: PageRankSettings, *, with_reset: bool, threads: int) -> StagePlan:
    """What a worker needs that shares no memory: all contributions once, and for each thread a stripe of all vectors.

    Degrees, which are counted before, need a vector of 4 bytes a node, so never more.
    """
    num_ranges = -(-num_nodes // RANGE_ROWS)
    item_bytes = np.dtype(settings.precision_for(num_nodes)).itemsize
    # Ranks, degrees, sums, new contributions; and one of them once more, as the file that it is read from.
    row_bytes = 2 * RANK_BYTES + DEGREE_BYTES + 2 * item_bytes + (RESET_BYTES_PER_NODE if with_reset else 0)
    stripes = threads * widest_block(num_ranges) * RANGE_ROWS * row_bytes
    needed = num_ranges * RANGE_ROWS * item_bytes + stripes + buffer_bytes(threads) + RESERVE_BYTES
    formula = f"{item_bytes} bytes for each of {num_nodes:,} nodes + {row_bytes} for each row of a stripe a thread"
    return StagePlan("importance", needed, f"{formula} + read buffers", setting="memory")


def num_sweeps(settings: PageRankSettings) -> int:
    """Estimate the sweeps: each multiplies the change by about ``damping``, down to the tolerance, or up to the cap."""
    if settings.tol <= 0.0 or settings.damping <= 0.0:
        return settings.max_iter if settings.damping > 0.0 else min(2, settings.max_iter)
    return min(max(math.ceil(math.log(settings.tol) / math.log(settings.damping)), 1), settings.max_iter)


def rank_importance(
    graph: GraphStore,
    resources: Resources,
    *,
    reset: Vector | None = None,
    start: Vector | None = None,
    settings: PageRankSettings | None = None,
    journal: VectorJournal | None = None,
) -> RankResult:
    """PageRank of every node with restarts to ``reset`` (the attribute vector), or to all nodes alike without one.

    ``start`` is a vector to begin with, say of an earlier ranking; a journal with finished sweeps goes before it.
    """
    settings = settings or PageRankSettings()
    threads = max(1, min(resources.threads, len(graph.tiles.blocks())))
    resources = resources.with_threads(threads)
    resources.require(
        plan_importance(
            graph.num_nodes,
            settings,
            with_reset=reset is not None,
            threads=threads,
            shares_memory=resources.executor.shares_memory,
        ),
        stage="the ranking",
        formula=f"vectors of {graph.num_nodes:,} nodes and read buffers",
    )
    name = "importance" if journal is None else f"importance-{journal.digest}"
    vectors = make_vectors(graph, settings.precision_for(graph.num_nodes), reset, resources, name)
    stripes = sorted(graph.tiles.blocks(), key=lambda block: (-graph.edges.num_edges_of(block), block.index))
    work = SweepWork(graph, vectors, settings.precision_for(graph.num_nodes), threads=threads, order=stripes)
    with resources.executor.open(work, resources) as workers:
        sweeps = _Sweeps(graph, settings, vectors, workers, stripes)
        sweeps.begin(start, journal)
        result = _sweep_until_done(sweeps, journal, resources)
    if not resources.executor.shares_memory:
        if journal is not None:  # the note is about files that go
            journal.save(result.padded_ranks, {"iteration": result.iterations, "residual": result.residual})
            journal.wait()
        shutil.rmtree(shared_directory(resources, name), ignore_errors=True)
    return result


def _sweep_until_done(sweeps: _Sweeps, journal: VectorJournal | None, resources: Resources) -> RankResult:
    settings, on_event = sweeps.settings, resources.on_event
    on_event(StageStarted(STAGE, settings.max_iter, "sweeps"))
    done: list[Sweep] = []
    while sweeps.iteration < settings.max_iter and not sweeps.residual < settings.tol:
        started = time.perf_counter()
        keep = None
        if journal is not None and resources.executor.shares_memory and journal.is_due:
            keep = journal.place(sweeps.cuts)
        read_bytes, exchanged_bytes = sweeps.sweep(keep)
        iteration, residual, seconds = sweeps.iteration, sweeps.residual, time.perf_counter() - started
        done.append(Sweep(iteration, residual, seconds, read_bytes, exchanged_bytes))
        if journal is not None:
            _save(journal, sweeps, keep, seconds)
        sweeps.forget(iteration - 1)
        on_event(BlockFinished(STAGE, iteration))
    if journal is not None:
        journal.wait()
    converged = sweeps.residual < settings.tol
    return RankResult(sweeps.ranks, sweeps.num_nodes, converged, tuple(done), sweeps.iteration, sweeps.residual)


def _save(journal: VectorJournal, sweeps: _Sweeps, keep: FilePlace | None, seconds: float) -> None:
    """Note a sweep: the files that its blocks have filled; or else, after a long one, its ranks as they are."""
    entry = {"iteration": sweeps.iteration, "residual": sweeps.residual}
    own = sweeps.vectors.ranks.at(sweeps.iteration)
    if keep is not None:
        journal.save(keep, entry)
    elif journal.is_due and isinstance(own, FilePlace):
        journal.save(own, entry)
        sweeps.keep_files()
    elif journal.is_due and seconds >= EVERY_SECONDS:
        journal.save(sweeps.ranks, entry)
        journal.wait()  # the next sweep changes the ranks


class _Sweeps:
    """The driver's side: which round it is, and the sums over all stripes."""

    def __init__(
        self,
        graph: GraphStore,
        settings: PageRankSettings,
        vectors: RankVectors,
        workers: Workers[SweptStripe],
        stripes: list[Block],
    ) -> None:
        self.num_nodes = graph.num_nodes
        self._dropped = graph.dropped
        self._num_live = graph.num_nodes - graph.num_dropped
        self.settings = settings
        self.vectors = vectors
        self.cuts = stripe_cuts(graph)
        self.iteration = 0
        self.residual = math.inf
        self._workers = workers
        self._stripes = stripes
        self._dangling = 0.0
        self._noted: list[int] = []

    @property
    def ranks(self) -> Vector:
        """Ranks after the last sweep, padded."""
        return self.vectors.ranks.at(self.iteration).read(0, self.cuts[-1])

    def begin(self, start: Vector | None, journal: VectorJournal | None) -> None:
        """Take the ranks of the last sweep in the journal, or those to start with, and spread them."""
        finished = None if journal is None else journal.load(self.cuts[-1])
        if finished is None:
            place = self.vectors.ranks.at(0)
            keep_normalised(place, self.cuts, start, self.num_nodes, "start", self._dropped)
        else:
            self.iteration, self.residual = int(finished[1]["iteration"]), float(finished[1]["residual"])
            self.vectors.ranks.at(self.iteration).write(0, finished[0])
            self.keep_files()
        del finished  # it is not in the plan
        self._dangling = math.fsum(self._run(None, None)[0][:, DANGLING])

    def sweep(self, keep: FilePlace | None) -> tuple[int, int]:
        """Run one round, whose ranks also go to ``keep``; returns the bytes read from the disk, and those exchanged."""
        settings, num_nodes = self.settings, self._num_live
        has_reset = self.vectors.reset is not None
        lost = settings.damping * self._dangling
        constant = lost / num_nodes if settings.dangling == "uniform" or not has_reset else 0.0
        reset_share = 1.0 - settings.damping
        if has_reset:
            reset_share += lost if settings.dangling == "reset" else 0.0
        else:
            constant += (1.0 - settings.damping) / num_nodes
        self.iteration += 1
        partials, *num_bytes = self._run([settings.damping, constant, reset_share], keep)
        self._dangling = math.fsum(partials[:, DANGLING])
        if not math.isclose(math.fsum(partials[:, TOTAL]), 1.0, abs_tol=1e-4):
            raise AssertionError(f"ranks sum to {math.fsum(partials[:, TOTAL])}, not to one")
        change = math.fsum(partials[:, L1 if settings.norm == "l1" else L2])
        self.residual = change if settings.norm == "l1" else math.sqrt(change)
        return num_bytes[0], num_bytes[1]

    def _run(self, weights: list[float] | None, keep: FilePlace | None) -> tuple[NDArray[np.float64], int, int]:
        given = {"round": self.iteration, "weights": weights, "keep": None if keep is None else keep.describe()}
        records = [record for _, record in self._workers.run(self._stripes, given)]
        return (
            np.concatenate([record.partials for record in records]),
            sum(record.read_bytes for record in records),
            sum(record.exchanged_bytes for record in records),
        )

    def forget(self, number: int) -> None:
        """Let go of a round's vectors, but not of ranks that the journal names."""
        self.vectors.contributions.forget(number)
        if number not in self._noted:
            self.vectors.ranks.forget(number)

    def keep_files(self) -> None:
        """The journal is about to name the files of this round; until it does, the note before counts."""
        self._noted.append(self.iteration)
        while len(self._noted) > 2:
            self.vectors.ranks.forget(self._noted.pop(0))

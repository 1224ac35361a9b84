"""Diversity out of core: how far each node is from the mean of its in-neighbours (paper: Eq. divrank).

    scores[i] = | x_i - mean of x_u over the edges u -> i |        a node without neighbours gets |x_i|

Features and edges are read once for each slice of columns that fits the budget, once in all where everything fits; the
edges are mapped and cost no memory of ours. The scores are the same bits for any number of threads and any budget:
a column's sum does not depend on where a slice begins, and the squares are added in the order of the columns.
Memory: 8 bytes a node and one slice, see ``held_columns``; a resumed ranking reads its 8 bytes a node back before that.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.engine.executor import Workers
from ecgl_scale.engine.journal import VectorJournal
from ecgl_scale.engine.place import FilePlace, shared_directory
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.rounds import Rounds, make_rounds
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.rank.distances import DistanceWork, ScoredRows
from ecgl_scale.rank.feature_files import Features, FeatureSource
from ecgl_scale.rank.held_columns import Columns, columns_need
from ecgl_scale.rank.sizes import FeatureSizes, Need
from ecgl_scale.store.edges.plan import RANGE_ROWS, widest_block
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB, format_bytes

STAGE = "rank by diversity"
BYTES_PER_NODE = 8
RESERVE_BYTES = 24 * MIB
"""It is for threads, buffers and small objects."""


@dataclass(frozen=True)
class DiversityResult:
    """A score for every node, and how it was reached."""

    scores: NDArray[np.float64]
    passes: int
    """Times this call read features and edges: slices of columns."""
    resumed_columns: int
    """Columns that an earlier, killed call had finished."""
    read_bytes: int
    """Features and edges that went through; what the page cache held is in it."""
    seconds: float


def plan_diversity(sizes: FeatureSizes, threads: int, *, shares_memory: bool = True, edge_bytes: int = 0) -> Need:
    """Plan the memory of the ranking on top of what the process holds; without the columns where others hold them.

    ``edge_bytes`` is ``EdgeStore.reading_bytes``: what reading the edges takes of a store that has grown.
    """
    fixed = BYTES_PER_NODE * sizes.num_rows + RESERVE_BYTES + (edge_bytes if shares_memory else 0)
    columns = columns_need(sizes, threads) if shares_memory else Need(0, 0)
    return Need(fixed + columns.least, fixed + columns.most)


def plan_diversity_worker(sizes: FeatureSizes, *, room_bytes: int, threads: int, edge_bytes: int = 0) -> StagePlan:
    """What a worker needs that shares no memory: a slice of the columns of all nodes, and squares of its own rows."""
    stripe_rows = widest_block(-(-sizes.num_rows // RANGE_ROWS)) * RANGE_ROWS
    fixed = threads * 2 * BYTES_PER_NODE * min(stripe_rows, sizes.num_rows) + RESERVE_BYTES + edge_bytes
    columns = columns_need(sizes, threads)
    # The driver cuts slices that fit beside the scores of all nodes, in a budget that is no larger than a worker's.
    widest = columns.within(max(room_bytes - BYTES_PER_NODE * sizes.num_rows - RESERVE_BYTES, 0))
    formula = (
        f"columns of {sizes.num_rows:,} nodes ({format_bytes(widest)}) + 16 bytes for each row of a block a thread"
    )
    return StagePlan("diversity", fixed + widest, formula, setting="memory")


def rank_diversity(
    graph: GraphStore,
    resources: Resources,
    *,
    features: Any = None,
    include_self: bool = False,
    journal: VectorJournal | None = None,
) -> DiversityResult:
    """Score every node by its distance to the mean of its in-neighbours.

    Parameters
    ----------
    features
        An array [N, K], such as a model's outputs; the store's features without one. float32 and float16 arrays in
        row order are used where they are, others are copied slice by slice as float32.
    include_self
        Count the node itself once more among its neighbours. Stored self loops and repeated edges count anyhow.
    journal
        Keeps finished slices, so that a killed ranking goes on. It counts columns, so any budget may go on with it.

    Raises
    ------
    UsageError
        No features, or not a row for each node.
    InvalidInputError
        A score is not finite: the features are not, or their sums overflow float32.
    DoesNotFitError
        Not even the smallest slice fits; the message has the smallest budget that works.

    Memory
    ------
    ``8 N + slice``: dense ``N * columns * itemsize``, at least four columns; sparse ``8 N + 8 values``.
    """
    started = time.perf_counter()
    name = "diversity" if journal is None else f"diversity-{journal.digest}"
    source = FeatureSource.of(_checked_features(graph, features), resources, name)
    cuts = [*(block.start for block in graph.edges.blocks()), graph.num_nodes]
    squared = make_rounds(resources, f"{name}/squared", cuts, "float64", in_memory=1)
    work = DistanceWork(graph, source, squared, include_self=include_self, threads=resources.threads)
    first, slices = _begin(graph, work.columns, squared, resources, journal)
    resources.on_event(StageStarted(STAGE, work.columns.num_columns, "columns"))
    with resources.executor.open(work, resources) as workers:
        read_bytes = _add_slices(slices, work, workers, squared, resources, journal)
    values = squared.at(work.columns.num_columns).read(0, graph.num_nodes)
    if not resources.executor.shares_memory:
        if journal is not None:  # the note is about files that go
            journal.save(values, {"columns": work.columns.num_columns})
        shutil.rmtree(shared_directory(resources, name), ignore_errors=True)
    if journal is not None:
        journal.wait()  # what it is still writing is about to change
    _check_finite(values)
    scores = np.sqrt(values, out=values)
    return DiversityResult(scores, len(slices), first, read_bytes, time.perf_counter() - started)


def _begin(
    graph: GraphStore, columns: Columns, squared: Rounds, resources: Resources, journal: VectorJournal | None
) -> tuple[int, list[tuple[int, int]]]:
    """Put the squares of the columns that are done in their place; returns how many, and the slices that are left."""
    edge_bytes = graph.edges.reading_bytes(resources.threads)
    held = own_memory_bytes() + RESERVE_BYTES + BYTES_PER_NODE * graph.num_nodes + edge_bytes
    where = (resources.budget, held, graph.num_nodes, resources.threads)
    columns.plan(*where, 0)  # refuses before anything is read
    finished = None if journal is None else journal.load(graph.num_nodes)
    first = 0 if finished is None else int(finished[1]["columns"])
    place = squared.at(first)
    rows = place.room(0, graph.num_nodes)
    if finished is not None:
        rows[:] = finished[0]
    place.write(0, rows)
    del finished, rows  # they are not in the plan
    return first, list(pairwise(columns.plan(*where, first))) if first < columns.num_columns else []


def _add_slices(
    slices: list[tuple[int, int]],
    work: DistanceWork,
    workers: Workers[ScoredRows],
    squared: Rounds,
    resources: Resources,
    journal: VectorJournal | None,
) -> int:
    """Add all slices, each for all rows; returns the bytes read."""
    read_bytes = 0
    blocks = [] if resources.executor.shares_memory else work.stored_blocks()
    for start, stop in slices:
        if resources.executor.shares_memory:
            read_bytes += work.hold(start, stop)
            blocks = blocks or work.ranges()
        if journal is not None:
            journal.wait()  # what it is still writing is about to change
        done = workers.run(blocks, {"first": start, "stop": stop})
        read_bytes += sum(record.read_bytes for _, record in done)
        place = squared.at(stop)
        if journal is not None and isinstance(place, FilePlace):
            journal.save(place, {"columns": stop})
            journal.wait()  # the files that the note before names are about to go
        elif journal is not None and journal.is_due:
            journal.save(place.read(0, blocks[-1].stop), {"columns": stop})
        squared.forget(start)
        resources.on_event(BlockFinished(STAGE, stop))
    return read_bytes


def _checked_features(graph: GraphStore, features: Any) -> Features:
    if features is None:
        if graph.features is None:
            raise UsageError("the store has no features, so there is no diversity", where=graph.path)
        return graph.features
    array = np.asarray(features)
    if array.ndim != 2 or array.shape[0] != graph.num_nodes or array.shape[1] < 1 or array.dtype.kind not in "fiub":
        raise UsageError(
            f"features are {array.dtype} of shape {array.shape}",
            expected=f"numbers, a row for each of {graph.num_nodes} nodes and at least one column",
        )
    return array


def _check_finite(squared: NDArray[np.float64]) -> None:
    if not np.isfinite(squared).all():
        node = int(np.argmin(np.isfinite(squared)))
        raise InvalidInputError(
            f"node {node} has no finite distance to its neighbours",
            expected="finite features, small enough that 64 of them can be added in float32",
        )

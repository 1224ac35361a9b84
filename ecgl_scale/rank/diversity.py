"""Diversity out of core: how far each node is from the mean of its in-neighbours (paper: Eq. divrank).

    scores[i] = | x_i - mean of x_u over the edges u -> i |        a node without neighbours gets |x_i|

Features and edges are read once for each slice of columns that fits the budget, once in all where everything fits; the
edges are mapped and cost no memory of ours. The scores are the same bits for any number of threads and any budget:
a column's sum does not depend on where a slice begins, and the squares are added in the order of the columns.
Memory: 8 bytes a node and one slice, see ``columns``; a resumed ranking reads its 8 bytes a node back before that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.threads import map_bounded
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.rank.columns import Columns, EdgeRange, columns_of
from ecgl_scale.rank.journal import NoJournal, RankJournal
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB

STAGE = "rank by diversity"
RANGE_EDGES = 1 << 19
"""Edges a thread takes at once: enough to forget the hand-over, few enough that all threads end together."""
BYTES_PER_NODE = 8
RESERVE_BYTES = 24 * MIB
"""For threads, buffers and small objects."""


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


def rank_diversity(
    graph: GraphStore,
    resources: Resources,
    *,
    features: Any = None,
    include_self: bool = False,
    journal_directory: Path | None = None,
) -> DiversityResult:
    """Score every node by its distance to the mean of its in-neighbours.

    Parameters
    ----------
    features
        An array [N, K], such as a model's outputs; the store's features without one. float32 and float16 arrays in
        row order are used where they are, others are copied slice by slice as float32.
    include_self
        Count the node itself once more among its neighbours. Stored self loops and repeated edges count anyhow.
    journal_directory
        Where finished slices are kept, so that a killed ranking goes on. The caller removes it when all is done.

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
    threads = resources.threads
    given = _checked_features(graph, features)
    columns = columns_of(given)
    journal: NoJournal | RankJournal = NoJournal()
    if journal_directory is not None:
        journal = RankJournal(journal_directory, _identity(graph, features, include_self))
    try:
        _load_kernels(graph, columns)
        squared = np.zeros(graph.num_nodes, np.float64)
        held = own_memory_bytes() + RESERVE_BYTES + BYTES_PER_NODE * graph.num_nodes
        budget = resources.budget
        columns.plan(budget, held, graph.num_nodes, threads, 0)  # refuses before anything is read
        first = 0
        finished = journal.load(graph.num_nodes)
        if finished is not None:
            squared[:], first = finished.ranks, finished.iteration
            del finished
        left = columns.plan(budget, held, graph.num_nodes, threads, first) if first < columns.num_columns else []
        slices = [*pairwise(left)]
        on_event = resources.on_event
        on_event(StageStarted(STAGE, columns.num_columns, "columns"))
        read_bytes = 0
        ranges: list[EdgeRange] = []
        for start, stop in slices:
            read_bytes += columns.load(start, stop, threads=threads)
            journal.wait()  # what it is still writing is about to change
            read_bytes += _add_slice(ranges or _ranges(graph, ranges), columns, include_self, squared, threads)
            journal.save(squared, stop, 0.0)
            on_event(BlockFinished(STAGE, stop))
        journal.wait()
    finally:
        if isinstance(journal, RankJournal):
            journal.close()
    _check_finite(squared)
    scores = np.sqrt(squared, out=squared)
    return DiversityResult(scores, len(slices), first, read_bytes, time.perf_counter() - started)


def _checked_features(graph: GraphStore, features: Any) -> DenseFeatures | SparseFeatures | NDArray[Any]:
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


def _identity(graph: GraphStore, features: Any, include_self: bool) -> dict[str, Any]:
    """What a journal belongs to: columns are counted, not slices, so any budget may go on with it."""
    given = None
    if features is not None:
        array = np.asarray(features)
        given = [str(array.dtype), list(array.shape), _crc_of(array)]
    return {
        "kind": "diversity",
        "store": graph.identity,
        "features": given,
        "include_self": include_self,
    }


def _crc_of(array: NDArray[Any]) -> int:
    crc = 0
    step = max(MIB // max(array.itemsize * array.shape[1], 1), 1)
    for start in range(0, len(array), step):
        crc = crc32c_of(np.ascontiguousarray(array[start : start + step]), crc)
    return crc


def _add_slice(
    ranges: Iterable[EdgeRange], columns: Columns, include_self: bool, squared: NDArray[np.float64], threads: int
) -> int:
    def add(edges: EdgeRange) -> int:
        columns.add(edges, include_self, squared)
        num_edges = int(edges.indptr[-1] - edges.indptr[0])
        return edges.indptr.nbytes + num_edges * edges.indices.itemsize

    return sum(map_bounded(add, ranges, threads=threads))


def _load_kernels(graph: GraphStore, columns: Columns) -> None:
    """Compile (or load) what we need before memory is planned, as the compiler's memory stays with the process."""
    indptr, indices = np.zeros(1, np.int64), np.zeros(0, graph.edges.id_dtype)
    indptr.setflags(write=False)
    indices.setflags(write=False)
    columns.add(EdgeRange(indptr, indices, 0), False, np.zeros(0, np.float64))


def _ranges(graph: GraphStore, kept: list[EdgeRange]) -> Iterator[EdgeRange]:
    """All rows, in ranges of about ``RANGE_EDGES`` edges; a row is never cut.

    They are kept for the next slice: mapping the files anew would fault every page in again.
    """
    for block, rows in graph.edges.stream():
        num_ranges = max(rows.values.size // RANGE_EDGES, 1)
        targets = np.linspace(0, rows.values.size, num_ranges + 1)[1:-1]
        cuts = np.unique(np.searchsorted(rows.offsets, targets)).tolist()
        for first, stop in pairwise([0, *(cut for cut in cuts if 0 < cut < block.num_rows), block.num_rows]):
            kept.append(EdgeRange(rows.offsets[first : stop + 1], rows.values, block.start + first))
            yield kept[-1]


def _check_finite(squared: NDArray[np.float64]) -> None:
    if not np.isfinite(squared).all():
        node = int(np.argmin(np.isfinite(squared)))
        raise InvalidInputError(
            f"node {node} has no finite distance to its neighbours",
            expected="finite features, small enough that 64 of them can be added in float32",
        )

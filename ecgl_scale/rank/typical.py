"""Nodes that stand for their class: by herding or k-means, among features that have passed along two edges.

    f_i = row i of P^2 X, divided by its length      P = D^-1/2 (A + I) D^-1/2; a row of zeros stays one

Rows of the candidates are made by groups of columns (``graph.propagate``), within the budget: in memory, or in a file
that is gone afterwards. Then they are walked over, pass by pass, by threads of this process. The choice has the same
bits for any budget, threads and workers, so a job that was killed chooses the same again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.topk import fill_quotas
from ecgl_scale.base.durable import storage_errors
from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.graph.propagate import hop_features, plan_hops
from ecgl_scale.rank.grouped_rows import GroupedRows
from ecgl_scale.rank.herding import herd
from ecgl_scale.rank.kmeans import MOVES, cluster, num_passes
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.scaling import Scaling
from ecgl_scale.units import MIB

HOPS = 2
STAGE = "choose typical nodes"
ROW_BYTES = 80
"""A candidate: the number of its group, half its square, its distance and nearest centre, and copies of some."""
VECTORS_A_GROUP, VECTORS_A_NODE = 5, 3
"""Vectors in float64: of a group by herding, of a node to be chosen by k-means."""
CHUNK_BYTES = MIB
RESERVE_BYTES = 16 * MIB
"""It is for threads, compiled code and small objects."""

Ids = NDArray[np.int64]
Typical = Literal["herding", "kmeans"]


@dataclass(frozen=True)
class TypicalSizes:
    """What the memory of the choice depends on."""

    num_nodes: int
    num_features: int
    num_candidates: int
    budget: int
    num_groups: int
    """Groups that are chosen from, at most."""


@dataclass(frozen=True)
class TypicalPlan:
    """What the choice will need."""

    host_bytes: int
    column_groups: int
    """Times the features are read, and the edges ``HOPS`` times."""
    written_bytes: int
    """Rows that do not fit memory."""
    passes: int
    """Walks over the candidates' rows, of one product a row each."""


def plan_typical(sizes: TypicalSizes, select: Typical, *, room_bytes: int) -> TypicalPlan:
    """``80 candidates + 12 N + 8 N a column + 64 MiB + 4 candidates K`` where that is a third of the rest, else a file.

    Besides for each of the K columns 40 bytes a class by herding, 24 bytes a chosen node by k-means.
    """
    besides = _besides_bytes(sizes, select)
    layout = plan_hops(
        sizes.num_nodes, sizes.num_candidates, sizes.num_features, hops=HOPS, room_bytes=room_bytes - besides
    )
    largest_quota = -(-sizes.budget // max(min(sizes.num_groups, sizes.budget), 1))
    # A move multiplies a row by every centre of its group, so it counts as that many passes.
    passes = num_passes(largest_quota) + MOVES * (largest_quota - 1) if select == "kmeans" else largest_quota
    return TypicalPlan(
        layout.peak_bytes + besides,
        -(-sizes.num_features // layout.columns),
        0 if layout.held_bytes else 4 * sizes.num_candidates * sizes.num_features,
        passes,
    )


def _besides_bytes(sizes: TypicalSizes, select: Typical) -> int:
    groups = min(sizes.num_groups, sizes.budget)
    vectors = VECTORS_A_NODE * sizes.budget + 2 * groups if select == "kmeans" else VECTORS_A_GROUP * groups
    return ROW_BYTES * sizes.num_candidates + 8 * sizes.num_features * vectors + RESERVE_BYTES


def choose_typical(
    graph: GraphStore,
    candidates: Ids,
    labels: Ids,
    resources: Resources,
    *,
    select: Typical,
    budget: int,
    seed: tuple[int, ...],
    directory: Path | None,
) -> Ids:
    """Positions in ``candidates`` (ascending ids) of those that are chosen: of each label its share of the budget.

    Memory
    ------
    See ``plan_typical``. Rows that do not fit it go to a file below ``directory``, which is removed.
    """
    present, counts = np.unique(labels, return_counts=True)
    quotas = np.zeros(present.size, np.int64)
    fill_quotas(counts.astype(np.int64, copy=False), budget, quotas)
    present, quotas = present[quotas > 0], quotas[quotas > 0]
    groups = np.where(np.isin(labels, present), np.searchsorted(present, labels), -1).astype(np.int64, copy=False)
    features = graph.require_features()
    sizes = TypicalSizes(graph.num_nodes, features.num_features, candidates.size, budget, int(present.size))
    passes = int(quotas.max(initial=0))
    with _scratch(directory or resources.work) as scratch:
        rows = hop_features(
            graph,
            candidates,
            resources,
            hops=HOPS,
            path=scratch / "rows.f32",
            besides_bytes=_besides_bytes(sizes, select),
        )
        normalise(rows, candidates)
        grouped = GroupedRows(rows, groups, quotas, threads=resources.threads)
        total = num_passes(passes) if select == "kmeans" else passes
        resources.on_event(StageStarted(STAGE, total, "passes"))

        def on_pass(done: int) -> None:
            resources.on_event(BlockFinished(STAGE, done))

        if select == "herding":
            return herd(grouped, on_pass=on_pass)
        return cluster(grouped, [(*seed, label) for label in present.tolist()], on_pass=on_pass)


def normalise(rows: NDArray[np.float32], nodes: Ids) -> None:
    """Divide each row by its length, in place; refuse a node whose row is not finite."""
    scaling = Scaling("row_l2")
    step = max(CHUNK_BYTES // (4 * rows.shape[1]), 1)
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        is_finite = np.isfinite(chunk).all(axis=1)
        if not is_finite.all():
            raise InvalidInputError(
                f"the features that arrive at node {nodes[start + int(np.argmin(is_finite))]} are not finite",
                expected="finite features, small enough to be added along edges in float32",
            )
        rows[start : start + step] = scaling.apply(chunk)


@contextmanager
def _scratch(directory: Path | None) -> Iterator[Path]:
    """A directory for one file; the system's own place for such where the caller has none."""
    if directory is not None:
        with storage_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="typical-", dir=directory) as scratch:
        yield Path(scratch)

"""The memory of ranking a whole store, known before it starts: each stage by the rules that it keeps itself.

attributes   the vector of restarts; takes what the budget allows, between its least and its most
importance   vectors of all nodes and read buffers
diversity    a number a node and the columns that fit
write        rows of the file, and where the best are chosen, their places

Scores stay until they are written, and so do libraries once they have worked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.topk import fill_quotas
from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.base.parquet import ROWS_AT_ONCE
from ecgl_scale.engine.plan import MemoryPlan, StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import DoesNotFitError
from ecgl_scale.rank.attribute_dense import dense_bytes
from ecgl_scale.rank.choose_plan import attribute_bytes, diversity_bytes
from ecgl_scale.rank.columns import DENSE_DTYPES
from ecgl_scale.rank.pagerank import planned_bytes
from ecgl_scale.rank.request import RankRequest
from ecgl_scale.rank.topk import BLOCK_BYTES, PLACE_BYTES
from ecgl_scale.store.edges.plan import RANGE_ROWS
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB, format_bytes

SCORE_BYTES = 8
LABEL_BYTES = 4
LEFT_BYTES = 48 * MIB
"""What a stage leaves in the process: compiled kernels (more where they were compiled just now), BLAS's buffers,
threads. Diversity has its own loaded before it looks at what is held."""
DRIFT_BYTES = 4 * MIB
"""What a process gets between its plan and its work; and by how much two processes of one command differ."""
WRITE_COPIES = 4
"""Of the rows that are written at once: as arrays, as a table, encoded, compressed."""

Features = DenseFeatures | SparseFeatures | NDArray[Any]


def plan_rank(
    graph: GraphStore,
    request: RankRequest,
    resources: Resources,
    *,
    features: Features | None,
) -> MemoryPlan:
    """What ``rank_store`` will need with these features, the store's or others; reads nothing."""
    budget, held = resources.budget, _held_bytes()
    threads, num_nodes = resources.threads, graph.num_nodes
    room = max(budget.total_bytes - held, 0)
    stages: list[StagePlan] = []
    kept = 0 if request.candidates is None else num_nodes
    has_reset = request.use_features and features is not None
    if request.by_importance and features is not None and has_reset:
        least, most = _attributes(features, threads)
        stages.append(
            _stage("attributes", _within(least + kept, room, most + kept), f"attributes of {num_nodes:,} nodes")
        )
        kept += LEFT_BYTES
    if request.by_importance:
        sweepers = max(1, min(threads, len(graph.tiles.blocks())))
        needed = planned_bytes(num_nodes, request.pagerank, with_reset=has_reset, threads=sweepers) + kept
        needed += SCORE_BYTES * num_nodes * (has_reset + (request.start is not None))
        stages.append(_stage("importance", needed, f"vectors of {num_nodes:,} nodes and read buffers"))
        kept += LEFT_BYTES + SCORE_BYTES * -(-num_nodes // RANGE_ROWS) * RANGE_ROWS
    if request.by_diversity and features is not None:
        least, most = _diversity(graph, features, threads)
        kept += LEFT_BYTES
        what = f"a score and columns of {num_nodes:,} nodes"
        stages.append(_stage("diversity", _within(least + kept, room, most + kept), what))
        kept += SCORE_BYTES * num_nodes
    stages.append(_stage("write", kept + _write(request, num_nodes), f"scores of {num_nodes:,} nodes"))
    return MemoryPlan(tuple(stages), held, budget)


def require_rank(plan: MemoryPlan) -> None:
    """Refuse before starting, with a budget that has room for every stage."""
    if plan.fits:
        return
    largest = max(plan.stages, key=lambda stage: stage.host_bytes)
    raise DoesNotFitError(
        f"ranking needs {format_bytes(plan.peak_bytes)} ({largest.stage}), "
        f"the budget is {format_bytes(plan.budget.total_bytes)}",
        where=f"budget from {plan.budget.origin}; need = {format_bytes(plan.held_bytes)} held + {largest.formula}",
        fix=f"give at least --memory {-(-(plan.peak_bytes + DRIFT_BYTES) // MIB)}MiB",
    )


def _held_bytes() -> int:
    """With the first kernel comes the compiler's library, some 25 MiB, which would count in no stage."""
    nothing = np.zeros(0, np.int64)
    fill_quotas(nothing, 0, nothing)
    return own_memory_bytes() + DRIFT_BYTES


def _stage(name: str, needed: int, formula: str) -> StagePlan:
    return StagePlan(name, needed, formula, setting="memory")


def _within(least: int, room: int, most: int) -> int:
    return min(max(least, room), most)


def _attributes(features: Features, threads: int) -> tuple[int, int]:
    """Least and most."""
    if isinstance(features, SparseFeatures):
        size = (features.num_rows, features.num_features)
        return attribute_bytes(*size, sparse=True, in_memory=False, threads=threads)
    return dense_bytes(features, threads=1), dense_bytes(features, threads=threads)


def _diversity(graph: GraphStore, features: Features, threads: int) -> tuple[int, int]:
    """Least and most; features that are used where they are cost nothing."""
    num_nodes, section = graph.num_nodes, graph.manifest.features
    if isinstance(features, np.ndarray):
        if features.dtype in DENSE_DTYPES and features.flags.c_contiguous:
            return diversity_bytes(num_nodes, 0, None, threads)
        return diversity_bytes(num_nodes, features.shape[1], None, threads)
    num_values = section.num_values if section is not None and isinstance(features, SparseFeatures) else None
    return diversity_bytes(num_nodes, features.num_features, num_values, threads)


def _write(request: RankRequest, num_nodes: int) -> int:
    """Rows that are written at once; before that, where the best are chosen, their places and who is among them."""
    num_scores = request.by_importance + request.by_diversity
    rows = min(ROWS_AT_ONCE, num_nodes) * SCORE_BYTES * (1 + num_scores) * WRITE_COPIES
    if request.topk is None:
        return rows
    places = min(request.topk, num_nodes)
    chosen = SCORE_BYTES * min(num_scores * places, num_nodes)
    labels = LABEL_BYTES * num_nodes if request.quota == "class" else 0
    return chosen + max(rows, num_nodes + labels + PLACE_BYTES * places + BLOCK_BYTES)

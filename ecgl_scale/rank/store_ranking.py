"""The whole ranking of a store: attribute vector, importance, diversity, the best of each, one after the other.

All stages are planned together, and refused together, before anything is read; each lets go of its memory before the
next. A killed ranking goes on from its journal, a directory beside the output file, which is removed at the end.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.topk import fill_quotas
from ecgl_scale.base.durable import storage_errors
from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.base.output_file import check_output_file
from ecgl_scale.base.parquet import ROWS_AT_ONCE
from ecgl_scale.base.signals import uninterrupted
from ecgl_scale.engine.clock import StageClock
from ecgl_scale.engine.cluster.worker_memory import require_workers
from ecgl_scale.engine.plan import MemoryPlan, StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import DoesNotFitError
from ecgl_scale.rank.candidates import candidate_mask
from ecgl_scale.rank.feature_files import Features, check_finite, map_features
from ecgl_scale.rank.pagerank import RankResult
from ecgl_scale.rank.ranking import SCORE_BYTES, Left, Ranking, RankingSizes, plan_rank_workers, plan_stages
from ecgl_scale.rank.request import RankRequest, check_request
from ecgl_scale.rank.scores import check_scores, write_scores
from ecgl_scale.rank.sizes import FeatureSizes
from ecgl_scale.rank.topk import BLOCK_BYTES, PLACE_BYTES, top_nodes
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB, format_bytes

_log = logging.getLogger(__name__)

LABEL_BYTES = 4
LEFT_BYTES = 48 * MIB
"""What a stage leaves in the process: compiled kernels (more where they were compiled just now), BLAS's buffers,
threads. Diversity has its own loaded before it looks at what is held."""
DRIFT_BYTES = 4 * MIB
"""What a process gets between its plan and its work; and by how much two processes of one command differ."""
WRITE_COPIES = 4
"""So often are the rows that are written at once in memory: as arrays, as a table, encoded, compressed."""


@dataclass(frozen=True)
class RankReport:
    """What was done, for ``--json``."""

    num_nodes: int
    num_edges: int
    kind: str
    importance: dict[str, Any] | None
    diversity: dict[str, Any] | None
    seconds: dict[str, float]
    peak_bytes: int
    num_written: int
    plan: dict[str, Any]
    """What each stage was to need, beside which ``peak_bytes`` stands."""


def rank_store(
    graph: GraphStore,
    out: Path,
    request: RankRequest,
    resources: Resources,
) -> RankReport:
    """Rank the nodes of a store and write the scores to ``out`` (Parquet)."""
    check_request(graph, request)
    out = check_output_file(out)
    features = graph.features if request.features is None else map_features(request.features, graph.num_nodes)
    plan = plan_rank(graph, request, resources, features=features)
    _log.info(plan.summary())
    sizes = rank_sizes(graph, request, features)
    require_workers(resources, lambda room, threads: plan_rank_workers(sizes, room_bytes=room, threads=threads))
    require_rank(plan)
    scores: dict[str, NDArray[np.float64]] = {}
    importance = diversity = None
    journal_path = out.with_name(f".{out.name}.journal")
    with _only_writer(out), PeakSampler() as sampler:
        clock = StageClock(sampler)
        candidates = _look_at_files(graph, request, features)
        ranking = Ranking(graph, resources.with_work(journal_path / "work"), journal=journal_path, clock=clock)
        if request.by_importance:
            result = ranking.importance(
                features,
                request.pagerank,
                gamma=request.gamma,
                use_features=request.use_features,
                start=request.start,
            )
            scores["importance"] = result.ranks
            importance = _importance_report(graph, result)
        if request.by_diversity:
            others = None if request.features is None else features
            found = ranking.diversity(others, include_self=request.include_self)
            scores["diversity"] = found.scores
            diversity = {name: value for name, value in found.__dict__.items() if name != "scores"}
        if graph.dropped is not None:
            for values in scores.values():
                values[graph.dropped.ids] = 0.0
        with clock.stage("write"):
            nodes = None if request.topk is None else _chosen(graph, scores, request, candidates, request.topk)
            write_scores(out, nodes, scores, graph.keys if request.by_key else None)
        shutil.rmtree(journal_path, ignore_errors=True)
    return RankReport(
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        kind=request.kind,
        importance=importance,
        diversity=diversity,
        seconds=clock.seconds,
        peak_bytes=max(sampler.peak_bytes, *(record.peak_bytes for record in clock.records.values())),
        num_written=graph.num_nodes if nodes is None else int(nodes.size),
        plan=plan.as_json(),
    )


@contextmanager
def _only_writer(out: Path) -> Iterator[None]:
    """Nobody else ranks to the same file meanwhile: the journal and the unfinished file have one name each."""
    lock_path = out.with_name(f".{out.name}.lock")
    with storage_errors(out), uninterrupted():
        lock = take_lock(lock_path, target=out)
    try:
        yield
    finally:
        with uninterrupted():
            lock_path.unlink(missing_ok=True)
            os.close(lock)


def _look_at_files(graph: GraphStore, request: RankRequest, features: Features | None) -> NDArray[np.bool_] | None:
    """Refuse files that cannot be used before the work; returns who may be chosen."""
    if request.start is not None:
        check_scores(request.start, "importance", graph.num_nodes)
    if request.features is not None and isinstance(features, np.ndarray):
        check_finite(features, request.features)
    candidates = None if request.candidates is None else candidate_mask(graph, request.candidates)
    if graph.dropped is not None and request.topk is not None:
        candidates = np.ones(graph.num_nodes, np.bool_) if candidates is None else candidates
        candidates[graph.dropped.ids] = False
    return candidates


def _importance_report(graph: GraphStore, result: RankResult) -> dict[str, Any]:
    seconds = [sweep.seconds for sweep in result.sweeps]
    median = float(np.median(seconds)) if seconds else None
    return {
        "iterations": result.iterations,
        "resumed_from": result.iterations - len(result.sweeps),
        "converged": result.converged,
        "residual": result.residual,
        "seconds_per_sweep": median,
        "edges_per_second": graph.num_edges / median if median else None,
        "read_bytes": result.read_bytes,
        "exchanged_bytes": result.exchanged_bytes,
        "sweeps": [asdict(sweep) for sweep in result.sweeps],
    }


def _chosen(
    graph: GraphStore,
    scores: dict[str, NDArray[np.float64]],
    request: RankRequest,
    candidates: NDArray[np.bool_] | None,
    topk: int,
) -> NDArray[np.int64]:
    """The best by each ranking, together, in node order."""
    labels = graph.column("label") if request.quota == "class" else None
    is_chosen = np.zeros(graph.num_nodes, np.bool_)
    for values in scores.values():
        is_chosen[top_nodes(values, topk, candidates=candidates, labels=labels, quota=request.quota)] = True
    return np.flatnonzero(is_chosen).astype(np.int64, copy=False)


def plan_rank(
    graph: GraphStore, request: RankRequest, resources: Resources, *, features: Features | None
) -> MemoryPlan:
    """Plan what ``rank_store`` will need with these features, the store's or others; reads nothing.

    Scores stay until they are written, and so do libraries once they have worked.
    """
    held, num_nodes = _held_bytes(), graph.num_nodes
    sizes = rank_sizes(graph, request, features)
    left = Left(
        at_first=0 if request.candidates is None else num_nodes,
        after_stage=LEFT_BYTES,
        before_diversity=LEFT_BYTES,
        keeps_scores=True,
    )
    room_bytes = max(resources.budget.total_bytes - held, 0)
    needs, kept = plan_stages(
        sizes,
        left,
        room_bytes=room_bytes,
        threads=resources.threads,
        shares_memory=resources.executor.shares_memory,
    )
    needs["write"] = kept + _write_bytes(request, num_nodes)
    formulas = {
        "attributes": f"attributes of {num_nodes:,} nodes",
        "importance": f"vectors of {num_nodes:,} nodes and read buffers",
        "diversity": f"a score and columns of {num_nodes:,} nodes",
        "write": f"scores of {num_nodes:,} nodes",
    }
    stages = [StagePlan(name, needed, formulas[name], setting="memory") for name, needed in needs.items()]
    return MemoryPlan(tuple(stages), held, resources.budget)


def rank_sizes(graph: GraphStore, request: RankRequest, features: Features | None) -> RankingSizes:
    """What the memory of a ranking depends on, for ``plan_rank`` and ``plan_rank_workers``."""
    given = None if features is None else FeatureSizes.of(features, graph)
    return RankingSizes(
        graph.num_nodes,
        pagerank=request.pagerank if request.by_importance else None,
        restarts=given if request.use_features else None,
        diversity=given if request.by_diversity else None,
        has_start=request.start is not None,
        num_stripes=len(graph.tiles.blocks()),
        edges=graph.edges,
    )


def require_rank(plan: MemoryPlan) -> None:
    """Refuse before starting, with a budget that has room for every stage."""
    if plan.fits:
        return
    largest = max(plan.stages, key=lambda stage: stage.host_bytes)
    raise DoesNotFitError(
        f"ranking needs {format_bytes(plan.peak_bytes)} ({largest.stage}), "
        f"the budget is {format_bytes(plan.budget.total_bytes)}",
        where=f"budget from {plan.budget.origin}; need = {format_bytes(plan.held_bytes)} held + {largest.formula}",
        fix=f"give at least {plan.budget.option} {-(-(plan.peak_bytes + DRIFT_BYTES) // MIB)}MiB",
    )


def _held_bytes() -> int:
    """With the first kernel comes the compiler's library, some 25 MiB, which would count in no stage."""
    nothing = np.zeros(0, np.int64)
    fill_quotas(nothing, 0, nothing)
    return own_memory_bytes() + DRIFT_BYTES


def _write_bytes(request: RankRequest, num_nodes: int) -> int:
    """Rows that are written at once; before that, where the best are chosen, their places and who is among them."""
    num_scores = request.by_importance + request.by_diversity
    rows = min(ROWS_AT_ONCE, num_nodes) * SCORE_BYTES * (1 + num_scores) * WRITE_COPIES
    if request.topk is None:
        return rows
    places = min(request.topk, num_nodes)
    chosen = SCORE_BYTES * min(num_scores * places, num_nodes)
    labels = LABEL_BYTES * num_nodes if request.quota == "class" else 0
    return chosen + max(rows, num_nodes + labels + PLACE_BYTES * places + BLOCK_BYTES)

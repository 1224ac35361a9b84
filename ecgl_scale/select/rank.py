"""The whole ranking of a store: attribute vector, importance, diversity, the best of each, one after the other.

Each stage plans its own memory and lets go of it before the next. A killed ranking goes on from its journal, a
directory beside the output file, which is removed at the end.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.errors import UsageError
from ecgl_scale.run.durable import storage_errors
from ecgl_scale.run.events import EventSink, Note, ignore_events
from ecgl_scale.run.lock import take_lock
from ecgl_scale.run.memory import PeakSampler
from ecgl_scale.run.output_file import check_output_file
from ecgl_scale.run.signals import uninterrupted
from ecgl_scale.select.attribute import attribute_vector
from ecgl_scale.select.diversity import rank_diversity
from ecgl_scale.select.journal import RankJournal
from ecgl_scale.select.pagerank import PageRankSettings, RankResult, rank_importance
from ecgl_scale.select.rank_plan import plan_rank
from ecgl_scale.select.scores import read_scores, write_scores
from ecgl_scale.select.topk import top_nodes
from ecgl_scale.store.graph import GraphStore

_log = logging.getLogger(__name__)
Kind = Literal["importance", "diversity", "both"]


@dataclass(frozen=True)
class RankRequest:
    """What ``ecgl rank`` was asked for."""

    kind: Kind = "importance"
    pagerank: PageRankSettings = field(default_factory=PageRankSettings)
    gamma: float | None = None
    use_features: bool = True
    """False ranks by edges alone: r = 1/N."""
    include_self: bool = False
    """Whether a node counts among its own neighbours in the diversity's mean."""
    topk: int | None = None
    candidates: tuple[str, int] | None = None
    """Only nodes whose column has this value are chosen, such as ("split", 0)."""
    quota: Literal["none", "class"] = "none"
    start: Path | None = None
    """Scores of an earlier ranking to begin with."""


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


class _Clock:
    """Seconds of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started


def rank_store(
    graph: GraphStore,
    out: Path,
    request: RankRequest,
    *,
    memory: str | int | None = None,
    threads: int | None = None,
    on_event: EventSink = ignore_events,
) -> RankReport:
    """Rank the nodes of a store and write the scores to ``out`` (Parquet)."""
    _check(graph, request)
    out = check_output_file(out)
    plan = plan_rank(
        graph,
        by_importance=request.kind != "diversity",
        by_diversity=request.kind != "importance",
        use_features=request.use_features,
        has_start=request.start is not None,
        topk=request.topk,
        pagerank=request.pagerank,
        memory=memory,
        threads=threads,
    )
    _log.info(plan.summary())
    clock = _Clock()
    scores: dict[str, NDArray[np.float64]] = {}
    importance = diversity = None
    journal_path = out.with_name(f".{out.name}.journal")
    with _only_writer(out), PeakSampler() as sampler:
        if request.kind in ("importance", "both"):
            result = _importance(graph, request, journal_path / "importance", clock, memory, threads, on_event)
            scores["importance"] = result.ranks
            importance = _importance_report(graph, result)
        if request.kind in ("diversity", "both"):
            with clock.stage("diversity"):
                found = rank_diversity(
                    graph,
                    include_self=request.include_self,
                    memory=memory,
                    threads=threads,
                    journal_directory=journal_path / "diversity",
                    on_event=on_event,
                )
            scores["diversity"] = found.scores
            diversity = {name: value for name, value in found.__dict__.items() if name != "scores"}
        with clock.stage("write"):
            nodes = None if request.topk is None else _chosen(graph, scores, request, request.topk)
            write_scores(out, nodes, scores)
        shutil.rmtree(journal_path, ignore_errors=True)
    return RankReport(
        num_nodes=graph.num_nodes,
        num_edges=graph.num_edges,
        kind=request.kind,
        importance=importance,
        diversity=diversity,
        seconds=clock.seconds,
        peak_bytes=sampler.peak_bytes,
        num_written=graph.num_nodes if nodes is None else int(nodes.size),
        plan=plan.as_json(),
    )


def _check(graph: GraphStore, request: RankRequest) -> None:
    if request.kind not in ("importance", "diversity", "both"):
        raise UsageError(f"kind is {request.kind!r}", expected="importance, diversity or both")
    if request.kind != "importance" and graph.features is None:
        raise UsageError(
            "the store has no features, so there is no diversity", where=graph.path, fix="--kind importance"
        )
    if request.topk is not None and request.topk < 1:
        raise UsageError(f"topk is {request.topk}", expected="at least 1")
    if request.topk is None and (request.candidates is not None or request.quota != "none"):
        raise UsageError("candidates and quotas choose nodes, but no number is given", fix="give --topk")
    wanted = [] if request.candidates is None else [request.candidates[0]]
    for column in wanted + (["label"] if request.quota == "class" else []):
        if column not in graph.manifest.columns:
            raise UsageError(
                f"the store has no node column {column!r}",
                where=graph.path,
                expected=f"one of {sorted(graph.manifest.columns)}",
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


def _importance(
    graph: GraphStore,
    request: RankRequest,
    journal_path: Path,
    clock: _Clock,
    memory: str | int | None,
    threads: int | None,
    on_event: EventSink,
) -> RankResult:
    reset = None
    if request.use_features and graph.features is not None:
        with clock.stage("attributes"):
            reset = attribute_vector(
                graph.features, gamma=request.gamma, memory=memory, threads=threads, on_event=on_event
            )
    elif request.use_features:
        on_event(Note("the store has no features: every node is equally likely at a restart"))
    start = None if request.start is None else read_scores(request.start, "importance", graph.num_nodes)
    identity = {
        "store": [record.crc32c for record in graph.manifest.files.values()],
        "settings": asdict(request.pagerank) | {"tol": None, "max_iter": None},
        "gamma": request.gamma,
        "use_features": request.use_features,
        "start": None if request.start is None else str(request.start),
    }
    journal = RankJournal(journal_path, identity)
    try:
        with clock.stage("importance"):
            return rank_importance(
                graph,
                reset=reset,
                start=start,
                settings=request.pagerank,
                memory=memory,
                threads=threads,
                journal=journal,
                on_event=on_event,
            )
    finally:
        journal.close()


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
        "read_bytes": sum(sweep.read_bytes for sweep in result.sweeps),
        "sweeps": [asdict(sweep) for sweep in result.sweeps],
    }


def _chosen(
    graph: GraphStore, scores: dict[str, NDArray[np.float64]], request: RankRequest, topk: int
) -> NDArray[np.int64]:
    """The best by each ranking, together, in node order."""
    candidates = None
    if request.candidates is not None:
        column, value = request.candidates
        candidates = graph.column(column) == value
    labels = graph.column("label") if request.quota == "class" else None
    best = [
        top_nodes(values, topk, candidates=candidates, labels=labels, quota=request.quota) for values in scores.values()
    ]
    return np.unique(np.concatenate(best))

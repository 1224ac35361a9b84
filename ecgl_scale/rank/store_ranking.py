"""The whole ranking of a store: attribute vector, importance, diversity, the best of each, one after the other.

All stages are planned together, and refused together, before anything is read; each lets go of its memory before the
next. A killed ranking goes on from its journal, a directory beside the output file, which is removed at the end.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import storage_errors
from ecgl_scale.base.events import Note
from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.memory import PeakSampler, give_back_freed
from ecgl_scale.base.output_file import check_output_file
from ecgl_scale.base.signals import uninterrupted
from ecgl_scale.engine.resources import Resources
from ecgl_scale.rank.attribute import attribute_vector
from ecgl_scale.rank.candidates import candidate_mask
from ecgl_scale.rank.diversity import DiversityResult, rank_diversity
from ecgl_scale.rank.given_features import digest_features, map_features
from ecgl_scale.rank.journal import RankJournal
from ecgl_scale.rank.pagerank import RankResult, rank_importance
from ecgl_scale.rank.rank_plan import Features, plan_rank, require_rank
from ecgl_scale.rank.request import RankRequest, check_request
from ecgl_scale.rank.scores import check_scores, read_scores, write_scores
from ecgl_scale.rank.topk import top_nodes
from ecgl_scale.store.graph import GraphStore

_log = logging.getLogger(__name__)


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
    resources: Resources,
) -> RankReport:
    """Rank the nodes of a store and write the scores to ``out`` (Parquet)."""
    check_request(graph, request)
    out = check_output_file(out)
    features = graph.features if request.features is None else map_features(request.features, graph.num_nodes)
    plan = plan_rank(graph, request, resources, features=features)
    _log.info(plan.summary())
    require_rank(plan)
    clock = _Clock()
    scores: dict[str, NDArray[np.float64]] = {}
    importance = diversity = None
    journal_path = out.with_name(f".{out.name}.journal")
    with _only_writer(out), PeakSampler() as sampler:
        given = _Given.of(graph, request, features)
        ranker = _Ranker(graph, request, given, journal_path, clock, resources)
        if request.by_importance:
            result = ranker.importance()
            scores["importance"] = result.ranks
            importance = _importance_report(graph, result)
        if request.by_diversity:
            found = ranker.diversity()
            scores["diversity"] = found.scores
            diversity = {name: value for name, value in found.__dict__.items() if name != "scores"}
        with clock.stage("write"):
            nodes = None if request.topk is None else _chosen(graph, scores, request, given.candidates, request.topk)
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


@dataclass(frozen=True)
class _Given:
    """What came in files besides the store, looked at before the work."""

    features: Features | None
    """The store's, where no others were given."""
    digest: list[Any] | None
    """Of the features, where they are not the store's."""
    candidates: NDArray[np.bool_] | None

    @classmethod
    def of(cls, graph: GraphStore, request: RankRequest, features: Features | None) -> _Given:
        if request.start is not None:
            check_scores(request.start, "importance", graph.num_nodes)
        digest = None
        if request.features is not None and isinstance(features, np.ndarray):
            digest = digest_features(features, request.features)
        candidates = None if request.candidates is None else candidate_mask(graph, request.candidates)
        return cls(features, digest, candidates)


@dataclass(frozen=True)
class _Ranker:
    """The stages that score; each gives back what it freed before the next looks at what is held."""

    graph: GraphStore
    request: RankRequest
    given: _Given
    journal_path: Path
    clock: _Clock
    resources: Resources

    def importance(self) -> RankResult:
        """Attribute vector and sweeps."""
        request, graph, reset = self.request, self.graph, self._reset()
        start = None if request.start is None else read_scores(request.start, "importance", graph.num_nodes)
        give_back_freed()
        identity = {
            "store": graph.identity,
            "settings": asdict(request.pagerank) | {"tol": None, "max_iter": None},
            "gamma": request.gamma,
            "use_features": request.use_features,
            "features": self.given.digest,
            "start": None if request.start is None else str(request.start),
        }
        journal = RankJournal(self.journal_path / "importance", identity)
        try:
            with self.clock.stage("importance"):
                return rank_importance(
                    graph,
                    self.resources,
                    reset=reset,
                    start=start,
                    settings=request.pagerank,
                    journal=journal,
                )
        finally:
            journal.close()

    def _reset(self) -> NDArray[np.float64] | None:
        request, features = self.request, self.given.features
        if not request.use_features:
            return None
        if features is None:
            self.resources.on_event(Note("the store has no features: every node is equally likely at a restart"))
            return None
        with self.clock.stage("attributes"):
            return attribute_vector(features, self.resources, gamma=request.gamma)

    def diversity(self) -> DiversityResult:
        """Distances to the neighbours."""
        give_back_freed()
        with self.clock.stage("diversity"):
            return rank_diversity(
                self.graph,
                self.resources,
                features=None if self.request.features is None else self.given.features,
                include_self=self.request.include_self,
                journal_directory=self.journal_path / "diversity",
            )


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

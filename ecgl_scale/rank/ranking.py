"""The rankings of a graph, one after the other: attribute vector, importance, diversity; for a store and for a task.

Each stage plans its own memory, and gives back what it freed before the next looks at what is held. With a journal a
killed ranking goes on where it was; the caller removes the directory when all is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.base.events import Note
from ecgl_scale.base.memory import PeakSampler, give_back_freed
from ecgl_scale.engine.clock import StageClock
from ecgl_scale.engine.journal import VectorJournal
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.rank.attribute import attribute_vector, plan_attribute_worker, plan_attributes
from ecgl_scale.rank.diversity import DiversityResult, plan_diversity, plan_diversity_worker, rank_diversity
from ecgl_scale.rank.feature_files import Features, digest_features
from ecgl_scale.rank.pagerank import (
    PageRankSettings,
    RankResult,
    plan_importance,
    plan_sweep_worker,
    rank_importance,
)
from ecgl_scale.rank.scores import read_scores
from ecgl_scale.rank.sizes import FeatureSizes
from ecgl_scale.store.edges.plan import RANGE_ROWS
from ecgl_scale.store.edges.read import EdgeStore
from ecgl_scale.store.graph import GraphStore

SCORE_BYTES = 8


class Ranking:
    """Runs the rankings that it is asked for, and measures them."""

    def __init__(
        self, graph: GraphStore, resources: Resources, *, journal: Path | None = None, clock: StageClock | None = None
    ) -> None:
        """Seconds go to ``clock`` as ``attributes``, ``importance`` and ``diversity``."""
        self.clock = clock or StageClock(PeakSampler())
        self._graph = graph
        self._resources = resources
        self._journal_path = journal

    def importance(
        self,
        features: Features | None,
        settings: PageRankSettings,
        *,
        gamma: float | None,
        use_features: bool = True,
        start: Path | None = None,
    ) -> RankResult:
        """Rank all nodes with restarts by these features, or to all alike; ``start`` has scores to begin with."""
        graph, reset = self._graph, None
        if use_features and features is None:
            self._resources.on_event(Note("the store has no features: every node is equally likely at a restart"))
        elif use_features and features is not None:
            with self.clock.stage("attributes"):
                reset = attribute_vector(features, self._resources, gamma=gamma, num_nodes=graph.num_nodes)
        begin = None if start is None else read_scores(start, "importance", graph.num_nodes)
        give_back_freed()
        # The vectors stand for what they are made of, and for gamma: the same bits whenever those are the same.
        identity = {
            "settings": asdict(settings) | {"tol": None, "max_iter": None},
            "reset": None if reset is None else crc32c_of(reset),
            "start": None if begin is None else crc32c_of(begin),
        }
        with self._journal("importance", identity) as journal, self.clock.stage("importance"):
            return rank_importance(graph, self._resources, reset=reset, start=begin, settings=settings, journal=journal)

    def diversity(self, features: Features | None, *, include_self: bool) -> DiversityResult:
        """Score all nodes by the distance to their neighbours, in the store's features unless others are given."""
        give_back_freed()
        digest = None
        if isinstance(features, np.ndarray) and self._journal_path is not None:
            digest = digest_features(features)
        identity = {"features": digest, "include_self": include_self}
        with self._journal("diversity", identity) as journal, self.clock.stage("diversity"):
            return rank_diversity(
                self._graph, self._resources, features=features, include_self=include_self, journal=journal
            )

    @contextmanager
    def _journal(self, kind: str, identity: dict[str, Any]) -> Iterator[VectorJournal | None]:
        if self._journal_path is None:
            yield None
            return
        journal = VectorJournal(self._journal_path / kind, {"kind": kind, "store": self._graph.identity, **identity})
        try:
            yield journal
        finally:
            journal.close()


@dataclass(frozen=True)
class RankingSizes:
    """What the memory of the rankings depends on."""

    num_nodes: int
    pagerank: PageRankSettings | None
    """None where importance is not asked for."""
    restarts: FeatureSizes | None
    """The features of the attribute vector; None where restarts go to all nodes alike."""
    diversity: FeatureSizes | None
    """None where diversity is not asked for."""
    has_start: bool = False
    num_stripes: int | None = None
    """No more threads than this sweep; None where the edges are not stored yet."""
    edges: EdgeStore | None = None
    """They take memory while they are read, where the store has grown; None where they are not stored yet."""

    def edge_bytes(self, threads: int) -> int:
        """The memory that reading rows of edges takes."""
        return 0 if self.edges is None else self.edges.reading_bytes(threads)


@dataclass(frozen=True)
class Left:
    """What stays in the process from stage to stage, besides what a stage counts itself."""

    at_first: int = 0
    after_stage: int = 0
    before_diversity: int = 0
    """It has its own kernels loaded before it looks at what is held."""
    keeps_scores: bool = False
    """Whether the scores of all nodes stay until they are written."""


def plan_stages(
    sizes: RankingSizes, left: Left, *, room_bytes: int, threads: int, shares_memory: bool = True
) -> tuple[dict[str, int], int]:
    """Plan each stage that will run, by its name in ``Ranking.clock``; and return what stays after the last.

    Where workers share no memory this is about the process that asks them; ``plan_rank_workers`` is about them.

    attributes   the vector of restarts; takes what the room allows, between its least and its most
    importance   vectors of all nodes, and read buffers
    diversity    a number a node, and the columns that fit
    """
    needs: dict[str, int] = {}
    kept, num_nodes = left.at_first, sizes.num_nodes
    if sizes.pagerank is not None:
        has_reset = sizes.restarts is not None
        if sizes.restarts is not None:
            needs["attributes"] = plan_attributes(sizes.restarts, threads).within(room_bytes, besides=kept)
            kept += left.after_stage
        sweepers = threads if sizes.num_stripes is None else max(1, min(threads, sizes.num_stripes))
        needed = plan_importance(
            num_nodes, sizes.pagerank, with_reset=has_reset, threads=sweepers, shares_memory=shares_memory
        )
        needs["importance"] = needed + kept + SCORE_BYTES * num_nodes * (has_reset + sizes.has_start)
        kept += left.after_stage
        kept += SCORE_BYTES * -(-num_nodes // RANGE_ROWS) * RANGE_ROWS if left.keeps_scores else 0
    if sizes.diversity is not None:
        kept += left.before_diversity
        needed_columns = plan_diversity(
            sizes.diversity, threads, shares_memory=shares_memory, edge_bytes=sizes.edge_bytes(threads)
        )
        needs["diversity"] = needed_columns.within(room_bytes, besides=kept)
        kept += SCORE_BYTES * num_nodes if left.keeps_scores else 0
    return needs, kept


def plan_rank_workers(sizes: RankingSizes, *, room_bytes: int, threads: int) -> list[StagePlan]:
    """What one worker needs in each stage, on top of what its process holds, where workers share no memory."""
    stages: list[StagePlan] = []
    if sizes.pagerank is not None:
        if sizes.restarts is not None:
            stages.append(plan_attribute_worker(sizes.restarts, room_bytes=room_bytes, threads=threads))
        has_reset = sizes.restarts is not None
        stages.append(plan_sweep_worker(sizes.num_nodes, sizes.pagerank, with_reset=has_reset, threads=threads))
    if sizes.diversity is not None:
        stages.append(
            plan_diversity_worker(
                sizes.diversity, room_bytes=room_bytes, threads=threads, edge_bytes=sizes.edge_bytes(threads)
            )
        )
    return stages

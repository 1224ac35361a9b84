"""Which nodes of a task are remembered: the best by attributed PageRank and the best by diversity, united.

They are chosen among the candidates, the task's training nodes; of equal scores the smaller position goes first.
``unite`` says how places are shared. The rankings run one after the other and each plans its own memory; see
``plan_choose``. Other ways to choose rank nothing: by chance, or nodes that stand for their class (``typical``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.config.choices import Quota, Select
from ecgl_scale.config.sections import BankConfig, RankConfig
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import UsageError
from ecgl_scale.rank.pagerank import PageRankSettings, num_sweeps
from ecgl_scale.rank.ranking import Left, Ranking, RankingSizes, plan_stages
from ecgl_scale.rank.sizes import FeatureSizes
from ecgl_scale.rank.topk import BLOCK_BYTES, PLACE_BYTES, top_nodes
from ecgl_scale.rank.typical import HOPS, Typical, TypicalSizes, choose_typical, plan_typical
from ecgl_scale.rank.unite import Picks, pick_best
from ecgl_scale.store.checked import checked_ids
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB, format_bytes

STAGE = "choose nodes"
CANDIDATE_BYTES = 64
"""Ids, labels and scores, and the sorted copies that count the classes."""
CHOICE_BYTES = 160
"""What a place takes where two rankings are united: ids in both, and a number of Python in what is chosen so far."""
EDGE_BYTES = 4
BLAS_BYTES = 32 * MIB
"""What BLAS keeps for its next product, once it has made the attribute vector."""

Ids = NDArray[np.int64]
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class ChooseSettings:
    """How many nodes of a task are remembered, and which."""

    budget: int
    diversity_ratio: float = 0.25
    """Share of the budget that goes by diversity."""
    importance: bool = True
    diversity: bool = True
    """Without one of the two all go by the other, without both by chance."""
    quota: Quota = "class"
    select: Select = "ecgl"
    refill: bool = True
    """Whether places that the union leaves are given to the next best."""
    pagerank: PageRankSettings = field(default_factory=PageRankSettings)
    gamma: float | None = None
    """How fast resemblance falls in the attribute vector; 1 / columns without one."""
    include_self: bool = False
    """Whether a node counts among its own neighbours in the diversity's mean."""
    seed: int | tuple[int, ...] = 0
    """It decides the choice by chance and where k-means begins; give every task its own, (seed, task) say."""

    @classmethod
    def of(cls, bank: BankConfig, rank: RankConfig, *, seed: tuple[int, ...] = (0,)) -> ChooseSettings:
        """Take the settings of the config, with a seed of the task's own."""
        return cls(
            **bank.model_dump(include={entry.name for entry in fields(cls)}),
            pagerank=PageRankSettings.of(rank),
            gamma=rank.gamma,
            include_self=rank.include_self and not rank.self_loops,  # a stored self loop counts the node already
            seed=seed,
        )

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise UsageError(f"budget is {self.budget}", expected="at least 0 nodes")
        if not 0.0 <= self.diversity_ratio <= 1.0:
            raise UsageError(f"diversity_ratio is {self.diversity_ratio}", expected="0 <= diversity_ratio <= 1")
        if self.quota not in get_args(Quota) or self.select not in get_args(Select):
            expected = "; ".join(" or ".join(get_args(words)) for words in (Quota, Select))
            raise UsageError(f"quota is {self.quota!r}, select {self.select!r}", expected=expected)
        if self.gamma is not None and not 0.0 < self.gamma < math.inf:
            raise UsageError(f"gamma is {self.gamma}", expected="gamma > 0")

    @property
    def is_random(self) -> bool:
        """Whether the choice is by chance."""
        return self.select == "random" or (self.select == "ecgl" and not (self.importance or self.diversity))

    @property
    def places(self) -> tuple[int, int]:
        """Places by importance and by diversity; none where the choice is another."""
        if self.is_random or self.select != "ecgl":
            return 0, 0
        ratio = self.diversity_ratio if self.importance else 1.0
        by_diversity = math.floor(self.budget * ratio) if self.diversity else 0
        return self.budget - by_diversity, by_diversity


@dataclass(frozen=True)
class ChooseStats:
    """How the nodes were found."""

    num_candidates: int
    num_by_importance: int
    """Chosen for their importance, some of them also for their diversity; those that refilled are not in it."""
    num_by_diversity: int
    num_by_both: int
    num_refilled: int
    class_counts: dict[int, int]
    """Chosen nodes of each label among the candidates."""
    iterations: int | None
    """Sweeps of PageRank; None where it did not run."""
    converged: bool | None
    read_bytes: int
    """What the rankings read."""
    seconds: dict[str, float]
    """What ``attributes``, ``importance`` and ``diversity`` took, or ``herding``, or ``kmeans``, as far as they ran."""


@dataclass(frozen=True)
class Chosen:
    """The nodes, by position in the task graph, ascending; and their scores, NaN where not computed."""

    local: Ids
    importance: Scores
    diversity: Scores
    stats: ChooseStats


def plan_choose(
    num_nodes: int,
    num_features: int,
    *,
    num_candidates: int,
    settings: ChooseSettings,
    num_edges: int = 0,
    num_values: int | None = None,
    rank_columns: int | None = None,
    num_classes: int = 1,
    room_bytes: int,
    threads: int,
) -> StagePlan:
    """Plan what ``choose_nodes`` will need for a task graph of this size.

    Parameters
    ----------
    num_values
        Stored values where features are sparse; None for dense ones, which count as float32.
    rank_columns
        Columns of ``rank_features``, where importance is not of the store's features. The array itself is the caller's.
    num_classes
        Classes among the candidates, at most.

    Memory
    ------
    ``64 candidates`` + what ``plan_typical`` says, by herding or k-means; else + the largest of these, rankings as far
    as they have places, where N = nodes and K = columns:

    the choice itself, once all are ranked: ``160 budget`` and 6 MiB;

    attributes: dense ``8 N + threads (unit + chunk) + K^2 (12 + 4 (threads + 2) chunks a unit)``, see ``dense_bytes``;
    sparse ``16 N + 8 K + strip`` with a strip of 4 K (K + 1) bytes or down to 1/16 of it; and 48 MiB.
    importance: ``16 N`` (the attribute vector, and its padded copy) + ``20 N`` (28 up to 2 M nodes) + read buffers.
    diversity: ``8 N`` + dense ``4 N columns`` (all of them, or down to four and read buffers), sparse
    ``8 N + 8 values + 13 K threads``; and 24 MiB, after an attribute vector 32 MiB more.

    Where not everything fits the budget, attributes and diversity take what there is, and more passes.
    """
    held = CANDIDATE_BYTES * num_candidates
    if settings.select in ("herding", "kmeans") and settings.budget < num_candidates:
        groups = num_classes if settings.quota == "class" else 1
        typical = TypicalSizes(num_nodes, num_features, num_candidates, settings.budget, groups)
        values = num_nodes * num_features if num_values is None else 2 * num_values
        return _plan_typical(typical, settings.select, held, 4 * values, num_edges, room_bytes)
    by_importance, by_diversity = settings.places if settings.budget < num_candidates else (0, 0)
    stored = FeatureSizes.stored(num_nodes, num_features, num_values)
    restarts = stored if rank_columns is None else FeatureSizes(num_nodes, rank_columns)
    sizes = RankingSizes(
        num_nodes,
        pagerank=settings.pagerank if by_importance else None,
        restarts=restarts if restarts.num_columns else None,
        diversity=stored if by_diversity else None,
    )
    left = Left(before_diversity=BLAS_BYTES if by_importance and sizes.restarts is not None else 0)
    needs, _ = plan_stages(sizes, left, room_bytes=max(room_bytes - held, 0), threads=threads)
    picking = 0
    if settings.budget < num_candidates:
        picking = (CHOICE_BYTES if needs else PLACE_BYTES) * settings.budget + BLOCK_BYTES
    largest = max(needs, key=lambda name: needs[name], default="")
    most = max(needs.get(largest, 0), picking)
    what = f"for the {largest} of {num_nodes:,} nodes" if largest else "to choose, nothing is ranked"
    sweeps = num_sweeps(settings.pagerank) if by_importance else 0
    feature_passes = 2 * (by_importance > 0 and rank_columns is None) + (by_diversity > 0)
    return StagePlan(
        STAGE,
        held + most,
        f"{CANDIDATE_BYTES} bytes for each of {num_candidates:,} candidates + {format_bytes(most)} {what}",
        read_bytes=feature_passes * stored.stored_bytes + (sweeps + (by_diversity > 0)) * num_edges * EDGE_BYTES,
        passes=sweeps,
        setting="bank.select" if largest else "",
    )


def _plan_typical(
    sizes: TypicalSizes, select: Typical, held_bytes: int, feature_bytes: int, num_edges: int, room_bytes: int
) -> StagePlan:
    plan = plan_typical(sizes, select, room_bytes=max(room_bytes - held_bytes, 0))
    return StagePlan(
        STAGE,
        held_bytes + plan.host_bytes,
        f"{CANDIDATE_BYTES} bytes for each of {sizes.num_candidates:,} candidates + {format_bytes(plan.host_bytes)} "
        f"for the {select} of rows that have passed along the edges of {sizes.num_nodes:,} nodes",
        read_bytes=plan.column_groups * (feature_bytes + HOPS * EDGE_BYTES * num_edges),
        written_bytes=plan.written_bytes,
        passes=plan.passes,
        setting="bank.select",
    )


def choose_nodes(
    graph: GraphStore,
    candidates: Any,
    labels: Any,
    resources: Resources,
    *,
    settings: ChooseSettings,
    rank_features: Any = None,
    journal_directory: Path | None = None,
) -> Chosen:
    """Choose the nodes of a task that go to the memory bank.

    All candidates are chosen, and nothing is ranked, where the budget has room for them. A ranking that has no places
    is not computed. The choice is the same for any budget of memory and any number of threads.

    Parameters
    ----------
    graph
        The task graph.
    candidates
        Positions in it, in any order: its training nodes.
    labels
        The class of every node of the graph; only those of the candidates are looked at.
    rank_features
        What the attribute vector of the importance is made of: an array [N, C] such as a model's outputs; the store's
        features without one. Diversity is always of the store's features.
    journal_directory
        Where finished sweeps are kept, so that a killed ranking goes on. The caller removes it when all is done.

    Raises
    ------
    UsageError
        Candidates or labels that do not fit the graph, a candidate without a label, diversity without features.
    DoesNotFitError
        A ranking does not fit the budget, before it starts.
    """
    ids = np.unique(checked_ids(candidates, graph.num_nodes))
    own = _labels_of(labels, ids, graph.num_nodes)
    importance, diversity = np.full(ids.size, np.nan), np.full(ids.size, np.nan)
    ranking = Ranking(graph, resources, journal=journal_directory)
    by_importance, by_diversity = settings.places
    iterations = converged = None
    read_bytes = 0
    if settings.budget >= ids.size:
        picks = Picks(np.arange(ids.size, dtype=np.int64))
    elif settings.is_random:
        scores = np.random.default_rng(settings.seed).random(ids.size)
        picks = Picks(top_nodes(scores, settings.budget, labels=own, quota=settings.quota))
    elif settings.select in ("herding", "kmeans"):
        with ranking.clock.stage(settings.select):
            picks = Picks(
                choose_typical(
                    graph,
                    ids,
                    own if settings.quota == "class" else np.zeros_like(own),
                    resources,
                    select=settings.select,
                    budget=settings.budget,
                    seed=settings.seed if isinstance(settings.seed, tuple) else (settings.seed,),
                    directory=journal_directory,
                )
            )
    else:
        # Scores of the candidates are copies: those of all nodes are dropped before the next ranking.
        if by_importance:
            features = graph.features if rank_features is None else rank_features
            ranked = ranking.importance(features, settings.pagerank, gamma=settings.gamma)
            importance, iterations, converged = ranked.ranks[ids], ranked.iterations, ranked.converged
            read_bytes += ranked.read_bytes
            del ranked
        if by_diversity:
            scored = ranking.diversity(None, include_self=settings.include_self)
            diversity, read_bytes = scored.scores[ids], read_bytes + scored.read_bytes
            del scored
        picks = pick_best(
            importance, diversity, own, places=settings.places, quota=settings.quota, refill=settings.refill
        )
    chosen = np.sort(picks.chosen)
    present, counts = np.unique(own[chosen], return_counts=True)
    stats = ChooseStats(
        num_candidates=int(ids.size),
        num_by_importance=picks.by_importance,
        num_by_diversity=picks.by_diversity,
        num_by_both=picks.by_both,
        num_refilled=picks.refilled,
        class_counts=dict.fromkeys(np.unique(own).tolist(), 0)
        | dict(zip(present.tolist(), counts.tolist(), strict=True)),
        iterations=iterations,
        converged=converged,
        read_bytes=read_bytes,
        seconds=ranking.clock.seconds,
    )
    return Chosen(ids[chosen], importance[chosen], diversity[chosen], stats)


def _labels_of(labels: Any, ids: Ids, num_nodes: int) -> Ids:
    given = np.asarray(labels)
    if given.shape != (num_nodes,) or given.dtype.kind not in "iu":
        raise UsageError(
            f"labels are {given.dtype} of shape {given.shape}", expected=f"an integer for each of {num_nodes} nodes"
        )
    own = given[ids].astype(np.int64, copy=False)
    if (own < 0).any():
        raise UsageError(
            f"candidate {ids[np.argmax(own < 0)]} has no label", expected="a class, from 0, for every candidate"
        )
    return own

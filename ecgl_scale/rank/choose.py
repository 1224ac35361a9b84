"""Which nodes of a task are remembered: some by importance, some by diversity, united.

    n_div = floor(budget * diversity_ratio)     n_imp = budget - n_div

The best n_imp by attributed PageRank and the best n_div by diversity, among the candidates (the task's training
nodes); of equal scores the smaller position. A node chosen by both takes one place; with refill the places this
leaves go, one each in turn, to the next best by importance and the next best by diversity, until the budget is used up.

With a quota for each class the budget is first shared over the classes as ``topk`` does it, then the n_div places are
shared over those shares in the same way; in a class the rest go by importance, and union and refill stay within it.

The rankings run one after the other and each plans its own memory; see ``plan_choose``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.topk import fill_quotas
from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.base.events import Note
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import UsageError
from ecgl_scale.rank.attribute import attribute_vector
from ecgl_scale.rank.diversity import rank_diversity
from ecgl_scale.rank.journal import NoJournal, RankJournal
from ecgl_scale.rank.pagerank import PageRankSettings, rank_importance
from ecgl_scale.rank.topk import top_nodes
from ecgl_scale.store.checked import checked_ids
from ecgl_scale.store.graph import GraphStore

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
    quota: Literal["none", "class"] = "class"
    select: Literal["ecgl", "random"] = "ecgl"
    refill: bool = True
    """Whether places that the union leaves are given to the next best."""
    pagerank: PageRankSettings = field(default_factory=PageRankSettings)
    gamma: float | None = None
    """Of the attribute vector; 1 / columns without one."""
    include_self: bool = False
    """Whether a node counts among its own neighbours in the diversity's mean."""
    seed: int | tuple[int, ...] = 0
    """Of the choice by chance; give every task its own, (seed, task) say."""

    def __post_init__(self) -> None:
        if self.budget < 0:
            raise UsageError(f"budget is {self.budget}", expected="at least 0 nodes")
        if not 0.0 <= self.diversity_ratio <= 1.0:
            raise UsageError(f"diversity_ratio is {self.diversity_ratio}", expected="0 <= diversity_ratio <= 1")
        if self.quota not in ("none", "class") or self.select not in ("ecgl", "random"):
            raise UsageError(
                f"quota is {self.quota!r}, select {self.select!r}", expected="none or class; ecgl or random"
            )
        if self.gamma is not None and not 0.0 < self.gamma < math.inf:
            raise UsageError(f"gamma is {self.gamma}", expected="gamma > 0")

    @property
    def is_random(self) -> bool:
        """Whether nothing is ranked."""
        return self.select == "random" or not (self.importance or self.diversity)

    @property
    def places(self) -> tuple[int, int]:
        """Places by importance and by diversity; none where the choice is by chance."""
        if self.is_random:
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
    seconds: dict[str, float]
    """Of ``attributes``, ``importance`` and ``diversity``, as far as they ran."""


@dataclass(frozen=True)
class Chosen:
    """The nodes, by position in the task graph, ascending; and their scores, NaN where not computed."""

    local: Ids
    importance: Scores
    diversity: Scores
    stats: ChooseStats


@dataclass(frozen=True)
class _Picks:
    """Positions in the list of candidates, and how many were chosen why."""

    chosen: Ids
    by_importance: int = 0
    by_diversity: int = 0
    by_both: int = 0
    refilled: int = 0


@dataclass
class _Ranker:
    """Runs the rankings of a task graph for its candidates, and adds up what they cost."""

    graph: GraphStore
    settings: ChooseSettings
    candidates: Ids
    resources: Resources
    journal_directory: Path | None
    seconds: dict[str, float] = field(default_factory=dict)
    iterations: int | None = None
    converged: bool | None = None
    read_bytes: int = 0

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started

    def importance(self, rank_features: Any) -> Scores:
        graph = self.graph
        features = graph.features if rank_features is None else rank_features
        reset = None
        if features is None:
            self.resources.on_event(Note("the store has no features: every node is equally likely at a restart"))
        else:
            with self._clock("attributes"):
                reset = attribute_vector(features, self.resources, gamma=self.settings.gamma, num_nodes=graph.num_nodes)
        pagerank = self.settings.pagerank
        journal: RankJournal | NoJournal = NoJournal()
        if self.journal_directory is not None:
            # The vector stands for its features and gamma: it is the same bits whenever they are the same.
            identity = {
                "kind": "importance",
                "store": graph.identity,
                "settings": asdict(pagerank) | {"tol": None, "max_iter": None},
                "reset": None if reset is None else crc32c_of(reset),
            }
            journal = RankJournal(self.journal_directory / "importance", identity)
        try:
            with self._clock("importance"):
                result = rank_importance(graph, self.resources, reset=reset, settings=pagerank, journal=journal)
        finally:
            if isinstance(journal, RankJournal):
                journal.close()
        self.iterations, self.converged = result.iterations, result.converged
        self.read_bytes += sum(sweep.read_bytes for sweep in result.sweeps)
        return result.ranks[self.candidates]  # a copy: the ranks of all nodes are dropped before the next ranking

    def diversity(self) -> Scores:
        with self._clock("diversity"):
            result = rank_diversity(
                self.graph,
                self.resources,
                include_self=self.settings.include_self,
                journal_directory=None if self.journal_directory is None else self.journal_directory / "diversity",
            )
        self.read_bytes += result.read_bytes
        return result.scores[self.candidates]


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
    ranker = _Ranker(graph, settings, ids, resources, journal_directory)
    by_importance, by_diversity = settings.places
    if settings.budget >= ids.size:
        picks = _Picks(np.arange(ids.size, dtype=np.int64))
    elif settings.is_random:
        scores = np.random.default_rng(settings.seed).random(ids.size)
        picks = _Picks(_best(scores, own, settings))
    else:
        if by_importance:
            importance = ranker.importance(rank_features)
        if by_diversity:
            diversity = ranker.diversity()
        picks = _pick(importance, diversity, own, settings)
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
        iterations=ranker.iterations,
        converged=ranker.converged,
        read_bytes=ranker.read_bytes,
        seconds=ranker.seconds,
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


def _best(scores: Scores, own: Ids, settings: ChooseSettings) -> Ids:
    """The best of all, or of every class, best first: as many as the budget."""
    return top_nodes(scores, settings.budget, labels=own, quota=settings.quota)


def _pick(importance: Scores, diversity: Scores, own: Ids, settings: ChooseSettings) -> _Picks:
    """Unite the best of both in every group: in each class, or in all candidates together."""
    num_importance, num_diversity = settings.places
    nothing = np.empty(0, np.int64)
    by_importance = _best(importance, own, settings) if num_importance else nothing
    by_diversity = _best(diversity, own, settings) if num_diversity else nothing
    groups = own if settings.quota == "class" else np.zeros_like(own)
    numbers, sizes = np.unique(groups[by_importance if num_importance else by_diversity], return_counts=True)
    shares = np.zeros(numbers.size, np.int64)
    fill_quotas(sizes.astype(np.int64, copy=False), num_diversity, shares)
    parts = [nothing]
    by_both = 0
    for number, size, share in zip(numbers, sizes.tolist(), shares.tolist(), strict=True):
        part, overlap = unite(
            by_importance[groups[by_importance] == number],
            by_diversity[groups[by_diversity] == number],
            places=(size - share, share),
            refill=settings.refill,
        )
        parts.append(part)
        by_both += overlap
    refilled = by_both if settings.refill else 0
    return _Picks(np.concatenate(parts), num_importance, num_diversity, by_both, refilled)


def unite(by_importance: Ids, by_diversity: Ids, *, places: tuple[int, int], refill: bool) -> tuple[Ids, int]:
    """The first ``places`` of two rankings together, each node once; and how many are among the first of both.

    With ``refill`` these places go to the next of the rankings in turn, importance first, passing over nodes that are
    in already. A ranking with places is given as far as there are places in all: it cannot be used up before they are.
    """
    chosen = dict.fromkeys(by_importance[: places[0]].tolist())
    chosen |= dict.fromkeys(by_diversity[: places[1]].tolist())
    overlap = sum(places) - len(chosen)
    waiting = [iter(by_importance[places[0] :].tolist()), iter(by_diversity[places[1] :].tolist())]
    for turn in range(overlap if refill else 0):
        chosen[next(node for node in waiting[turn % 2] if node not in chosen)] = None
    return np.fromiter(chosen, np.int64, len(chosen)), overlap

"""Which nodes are remembered: equal to a slow choice by the same scores, resumable, planned, refused."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ecgl_scale.base.events import Note
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.engine import journal
from ecgl_scale.engine.threads import available_cores
from ecgl_scale.errors import DoesNotFitError, UsageError
from ecgl_scale.rank import ranking
from ecgl_scale.rank.attribute import attribute_vector
from ecgl_scale.rank.choose import CHOICE_BYTES, ChooseSettings, choose_nodes, plan_choose
from ecgl_scale.rank.diversity import rank_diversity
from ecgl_scale.rank.pagerank import PageRankSettings, rank_importance
from ecgl_scale.rank.topk import BLOCK_BYTES, PLACE_BYTES
from ecgl_scale.rank.unite import pick_best, unite
from ecgl_scale.store.build import build_store
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.units import GIB, MIB, format_bytes
from tests import naive
from tests.resources import at
from tests.store.graphs import KEEP_ALL, random_edges

N = 60
PAGERANK = PageRankSettings(tol=1e-12, max_iter=500)


def store_of(path, edge_index, x, features="dense"):
    source = array_source(edge_index, x=x, num_nodes=len(x))
    build_store(source, path, at(), options=KEEP_ALL, features_as=features)
    return GraphStore.open(path)


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A graph of 60 nodes: its store, edges, features, labels of three uneven classes, and training nodes."""
    random = np.random.default_rng(3)
    edge_index, x = random_edges(N, 300, seed=1), random.normal(size=(N, 5)).astype(np.float32)
    labels = np.array([4] * 40 + [7] * 15 + [9] * 5)
    random.shuffle(labels)
    candidates = np.sort(random.choice(N, 45, replace=False))
    graph = store_of(tmp_path_factory.mktemp("task") / "store", edge_index, x)
    return graph, edge_index, x, labels, candidates


@pytest.fixture(scope="module")
def scores(task):
    graph, _, _, _, _ = task
    ranks = rank_importance(graph, at(), reset=attribute_vector(graph.features, at()), settings=PAGERANK).ranks
    return ranks.tolist(), rank_diversity(graph, at()).scores.tolist()


def slow_choice(scores, labels, candidates, wanted):
    """One place after the other, from lists that are sorted anew for each."""
    by_importance, by_diversity = scores
    num_imp, num_div = wanted.places
    groups = {0: candidates}
    if wanted.quota == "class":
        groups = {c: [n for n in candidates if labels[n] == c] for c in sorted({labels[n] for n in candidates})}
    sizes = naive.class_quotas([len(nodes) for nodes in groups.values()], wanted.budget)
    shares = naive.class_quotas(sizes, num_div)
    chosen = []
    for nodes, size, share in zip(groups.values(), sizes, shares, strict=True):
        part = {
            *naive.top_nodes(by_importance, size - share if num_imp else 0, nodes),
            *naive.top_nodes(by_diversity, share, nodes),
        }
        rankings = [by_importance, by_diversity]
        while wanted.refill and len(part) < size:
            part |= {*naive.top_nodes(rankings[0], 1, [node for node in nodes if node not in part])}
            rankings.reverse()
        chosen += part
    return sorted(chosen)


@settings(max_examples=60)
@given(
    budget=st.integers(0, 50),
    ratio=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]),
    importance=st.booleans(),
    diversity=st.booleans(),
    quota=st.sampled_from(["none", "class"]),
    refill=st.booleans(),
)
@example(budget=44, ratio=0.5, importance=True, diversity=True, quota="none", refill=True)
@example(budget=30, ratio=0.5, importance=True, diversity=True, quota="class", refill=True)
@example(budget=30, ratio=0.5, importance=True, diversity=True, quota="class", refill=False)
@example(budget=45, ratio=0.5, importance=True, diversity=True, quota="none", refill=False)
def test_the_choice_equals_the_slow_one(task, scores, budget, ratio, importance, diversity, quota, refill):
    graph, _, _, labels, candidates = task
    if not (importance or diversity):
        importance = True
    wanted = ChooseSettings(
        budget, ratio, importance, diversity, quota, refill=refill, pagerank=PAGERANK, include_self=False
    )
    found = choose_nodes(graph, candidates, labels, at(), settings=wanted)
    ranked = budget < candidates.size
    expected = slow_choice(scores, labels.tolist(), candidates.tolist(), wanted) if ranked else candidates.tolist()
    assert found.local.dtype == np.int64
    assert found.local.tolist() == expected
    num_imp, num_div = wanted.places
    for given_scores, all_scores, is_used in (
        (found.importance, scores[0], num_imp > 0),
        (found.diversity, scores[1], num_div > 0),
    ):
        known = np.array(all_scores)[found.local] if is_used and ranked else np.full(found.local.size, np.nan)
        np.testing.assert_array_equal(given_scores, known)
    stats = found.stats
    assert stats.num_candidates == 45
    assert {c: n for c, n in stats.class_counts.items() if n} == Counter(labels[found.local].tolist())
    assert [*stats.class_counts] == [4, 7, 9]
    if ranked:
        assert (stats.num_by_importance, stats.num_by_diversity) == (num_imp, num_div)
        assert num_imp + num_div == budget
        assert found.local.size == budget - stats.num_by_both + stats.num_refilled
        assert found.local.size == budget or not refill
    assert (stats.iterations is not None) == (ranked and num_imp > 0)


def test_the_scores_are_the_papers(task):
    graph, edge_index, x, labels, candidates = task
    wanted = ChooseSettings(20, 0.5, include_self=True, pagerank=PAGERANK, gamma=0.05)
    found = choose_nodes(graph, candidates, labels, at(), settings=wanted)
    edges = [*zip(*edge_index.tolist(), strict=True)]
    similar = np.array(naive.expanded_similarities(x.astype(float).tolist(), 0.05))
    ranks = naive.pagerank(edges, N, reset=(similar / similar.sum()).tolist())
    np.testing.assert_allclose(found.importance, np.array(ranks)[found.local], rtol=1e-5)
    far = naive.diversity(edges, x.astype(float).tolist(), include_self=True)
    np.testing.assert_allclose(found.diversity, np.array(far)[found.local], rtol=1e-5)
    assert found.stats.converged
    assert {*found.stats.seconds} == {"attributes", "importance", "diversity"}
    assert found.stats.read_bytes > 0


def test_importance_may_be_of_other_features_and_diversity_is_not(task, scores):
    graph, _, _, labels, candidates = task
    logits = np.random.default_rng(5).normal(size=(N, 3))
    wanted = ChooseSettings(20, 0.5, pagerank=PAGERANK)
    found = choose_nodes(graph, candidates, labels, at(), settings=wanted, rank_features=logits)
    ranks = rank_importance(graph, at(), reset=attribute_vector(logits, at()), settings=PAGERANK).ranks
    np.testing.assert_array_equal(found.importance, ranks[found.local])
    np.testing.assert_array_equal(found.diversity, np.array(scores[1])[found.local])
    assert found.local.tolist() == slow_choice(
        (ranks.tolist(), scores[1]), labels.tolist(), candidates.tolist(), wanted
    )
    with pytest.raises(UsageError, match="features have 59 rows"):
        choose_nodes(graph, candidates, labels, at(), settings=wanted, rank_features=logits[1:])


def test_equal_scores_go_by_the_smaller_position(tmp_path):
    ring = np.array([np.arange(12), (np.arange(12) + 1) % 12])
    graph = store_of(tmp_path / "ring", ring, np.ones((12, 2), np.float32))
    wanted = ChooseSettings(4, 0.5, quota="none")
    found = choose_nodes(graph, [9, 3, 5, 7, 11, 3], np.zeros(12, int), at(), settings=wanted)
    assert found.local.tolist() == [3, 5, 7, 9]
    assert (found.stats.num_candidates, found.stats.num_by_both, found.stats.num_refilled) == (5, 2, 2)
    without = choose_nodes(
        graph, [9, 3, 5, 7, 11], np.zeros(12, int), at(), settings=ChooseSettings(4, 0.5, quota="none", refill=False)
    )
    assert without.local.tolist() == [3, 5]


def test_refilling_takes_turns_and_begins_with_importance():
    by_importance, by_diversity = np.array([1, 2, 3, 4, 5, 6, 7]), np.array([2, 1, 9, 3, 8, 4, 10])
    together, overlap = unite(by_importance, by_diversity, places=(4, 3), refill=False)
    assert (sorted(together.tolist()), overlap) == ([1, 2, 3, 4, 9], 2)
    together, overlap = unite(by_importance, by_diversity, places=(4, 3), refill=True)
    assert together.tolist() == [1, 2, 3, 4, 9, 5, 8]
    assert overlap == 2


def test_a_class_that_no_ranking_likes_still_gets_its_share(task):
    graph, _, _, labels, candidates = task
    for refill in (True, False):
        found = choose_nodes(graph, candidates, labels, at(), settings=ChooseSettings(12, 0.25, refill=refill))
        counts = found.stats.class_counts
        assert max(counts.values()) <= 4 + int(refill)
        assert min(counts.values()) >= 3 - int(not refill) * 2
    chosen = choose_nodes(graph, candidates, labels, at(), settings=ChooseSettings(12, 0.25))
    own = Counter(labels[candidates].tolist())
    assert [*chosen.stats.class_counts.values()] == naive.class_quotas([own[c] for c in (4, 7, 9)], 12)


@pytest.mark.parametrize("quota", ["none", "class"])
@pytest.mark.parametrize("nothing", [{"select": "random"}, {"importance": False, "diversity": False}])
def test_a_choice_by_chance_is_seeded_and_ranks_nothing(task, quota, nothing):
    graph, _, _, labels, candidates = task

    def chosen(seed, order=1):
        wanted = ChooseSettings(12, quota=quota, seed=seed, **nothing)
        return choose_nodes(graph, candidates[::order], labels, at(), settings=wanted)

    first = chosen((0, 1))
    assert first.local.tolist() == chosen((0, 1), order=-1).local.tolist()
    assert len({tuple(chosen((0, task)).local.tolist()) for task in range(5)}) == 5
    assert np.isin(first.local, candidates).all()
    assert (np.diff(first.local) > 0).all()
    assert first.local.size == 12
    assert np.isnan(first.importance).all()
    assert np.isnan(first.diversity).all()
    assert (first.stats.iterations, first.stats.read_bytes, first.stats.seconds) == (None, 0, {})
    if quota == "class":
        own = Counter(labels[candidates].tolist())
        assert [*first.stats.class_counts.values()] == naive.class_quotas([own[c] for c in (4, 7, 9)], 12)


def test_every_candidate_can_be_chosen_by_chance(task):
    graph, _, _, labels, candidates = task
    settings_of = [ChooseSettings(12, quota="none", select="random", seed=seed) for seed in range(60)]
    found = [choose_nodes(graph, candidates, labels, at(), settings=wanted).local for wanted in settings_of]
    times = Counter(np.concatenate(found).tolist())
    assert {*times} == {*candidates.tolist()}
    assert max(times.values()) < 35  # 16 on average


def test_a_budget_with_room_for_all_ranks_nothing(task, tmp_path):
    graph, _, _, labels, candidates = task
    for budget in (45, 1000):
        found = choose_nodes(
            graph, candidates, labels, at(memory=1), settings=ChooseSettings(budget), journal_directory=tmp_path / "j"
        )
        assert found.local.tolist() == candidates.tolist()
        assert found.stats.iterations is None
    none = choose_nodes(graph, [], labels, at(), settings=ChooseSettings(5))
    assert (none.local.size, none.stats.class_counts) == (0, {})
    assert choose_nodes(graph, candidates, labels, at(), settings=ChooseSettings(0)).local.size == 0
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_choice_does_not_depend_on_threads(tmp_path, kind):
    random = np.random.default_rng(2)
    x = random.random((2000, 9), np.float32) * (random.random((2000, 9)) < 0.3)
    graph = store_of(tmp_path / kind, random_edges(2000, 9000), x.astype(np.float32), kind)
    labels, candidates = random.integers(0, 4, 2000), np.arange(0, 2000, 2)
    wanted = ChooseSettings(200)
    one, two = (choose_nodes(graph, candidates, labels, at(threads=threads), settings=wanted) for threads in (1, 2))
    for name in ("local", "importance", "diversity"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_a_killed_choice_goes_on_with_its_sweeps(task, tmp_path, monkeypatch):
    graph, _, _, labels, candidates = task
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
    whole = choose_nodes(graph, candidates, labels, at(), settings=ChooseSettings(20, pagerank=PAGERANK))

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ranking, "rank_diversity", die)
        with pytest.raises(KeyboardInterrupt):
            choose_nodes(
                graph,
                candidates,
                labels,
                at(),
                settings=ChooseSettings(20, pagerank=PAGERANK),
                journal_directory=tmp_path,
            )
    sweeps = []
    monkeypatch.setattr(
        ranking, "rank_importance", lambda *a, **k: sweeps.append(rank_importance(*a, **k)) or sweeps[-1]
    )

    def again(**changes):
        wanted = ChooseSettings(**{"budget": 20, "pagerank": PAGERANK} | changes)
        return choose_nodes(graph, candidates, labels, at(), settings=wanted, journal_directory=tmp_path)

    resumed = again()
    assert len(sweeps[-1].sweeps) == 0
    assert resumed.stats.iterations == whole.stats.iterations
    np.testing.assert_array_equal(resumed.local, whole.local)
    np.testing.assert_array_equal(resumed.importance, whole.importance)
    again(budget=10)  # of another budget the ranking is the same
    assert len(sweeps[-1].sweeps) == 0
    again(gamma=0.5)  # of another gamma it is not
    assert len(sweeps[-1].sweeps) > 0


def test_a_store_without_features_is_ranked_by_its_edges(tmp_path):
    edges = random_edges(50, 200)
    graph = GraphStore.from_edge_index(edges, path=tmp_path / "bare", num_nodes=50)
    notes = []
    wanted = ChooseSettings(10, quota="none", diversity=False)
    found = choose_nodes(graph, np.arange(50), np.zeros(50, int), at(on_event=notes.append), settings=wanted)
    assert found.local.tolist() == sorted(
        naive.top_nodes(rank_importance(graph, at()).ranks.tolist(), 10, [*range(50)])
    )
    assert any(isinstance(event, Note) and "no features" in event.text for event in notes)
    with pytest.raises(UsageError, match="no diversity"):
        choose_nodes(graph, np.arange(50), np.zeros(50, int), at(), settings=ChooseSettings(10))


def test_what_does_not_fit_is_refused(task):
    graph, _, _, labels, candidates = task
    wanted = ChooseSettings(10)
    with pytest.raises(UsageError, match="row 60 does not exist"):
        choose_nodes(graph, [60], labels, at(), settings=wanted)
    with pytest.raises(UsageError, match="labels are int64 of shape"):
        choose_nodes(graph, candidates, labels[1:], at(), settings=wanted)
    with pytest.raises(UsageError, match="labels are float64"):
        choose_nodes(graph, candidates, labels * 1.0, at(), settings=wanted)
    unlabelled = labels.copy()
    unlabelled[candidates[3]] = -1
    with pytest.raises(UsageError, match=f"candidate {candidates[3]} has no label"):
        choose_nodes(graph, candidates, unlabelled, at(), settings=wanted)
    with pytest.raises(DoesNotFitError, match="at least --memory"):
        choose_nodes(graph, candidates, labels, at(memory="1MiB"), settings=wanted)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"budget": -1}, "budget is -1"),
        ({"diversity_ratio": 1.5}, "diversity_ratio is 1.5"),
        ({"diversity_ratio": math.nan}, "diversity_ratio is nan"),
        ({"quota": "some"}, "quota is 'some'"),
        ({"select": "best"}, "select 'best'"),
        ({"gamma": 0.0}, "gamma is 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, match):
    with pytest.raises(UsageError, match=match):
        ChooseSettings(**{"budget": 5} | wrong)


def test_the_places_are_split_as_the_paper_says():
    assert ChooseSettings(1000, 0.25).places == (750, 250)
    assert ChooseSettings(7, 0.25).places == (6, 1)
    assert ChooseSettings(7, 0.25, importance=False).places == (0, 7)
    assert ChooseSettings(7, 0.25, diversity=False).places == (7, 0)
    assert ChooseSettings(7, select="random").places == (0, 0)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_peak_stays_under_the_plan(tmp_path, kind):
    num_nodes, num_features = 100_000, 64
    random = np.random.default_rng(1)
    x = random.random((num_nodes, num_features), np.float32)
    x[random.random(x.shape) < 0.7] = 0
    num_values = int(np.count_nonzero(x)) if kind == "sparse" else None
    graph = store_of(tmp_path / "store", random_edges(num_nodes, 200_000), x, kind)
    del x
    wanted = ChooseSettings(1000, 0.5, pagerank=PageRankSettings(max_iter=5))
    labels, candidates = random.integers(0, 5, num_nodes), np.arange(num_nodes // 2)
    choose_nodes(graph, candidates, labels, at(), settings=wanted)  # compiles
    held = own_memory_bytes()
    with PeakSampler(0.001) as sampler:
        choose_nodes(graph, candidates, labels, at(), settings=wanted)
    plan = plan_choose(
        num_nodes,
        num_features,
        num_candidates=candidates.size,
        settings=wanted,
        num_values=num_values,
        num_edges=1000,
        room_bytes=GIB,
        threads=2,
    )
    assert sampler.peak_bytes - held <= plan.host_bytes * 1.1
    assert plan.host_bytes < 150 << 20
    assert plan.read_bytes > 0


@pytest.mark.parametrize("quota", ["none", "class"])
@pytest.mark.parametrize("budget", [1000, 59_000])
def test_the_choice_itself_takes_no_more_than_is_planned_for_it(quota, budget):
    num_candidates = 60_000
    importance, diversity = np.random.default_rng(0).random((2, num_candidates))
    labels = np.arange(num_candidates) % 7
    wanted = ChooseSettings(budget, 0.5, quota=quota)
    given = {"places": wanted.places, "quota": wanted.quota, "refill": wanted.refill}
    pick_best(importance, diversity, labels, **given)  # compiles
    tracemalloc.start()
    try:
        picks = pick_best(importance, diversity, labels, **given)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert picks.chosen.size == budget
    assert peak <= CHOICE_BYTES * budget + BLOCK_BYTES


def test_the_plan_knows_what_is_not_ranked_and_what_can_shrink():
    def plan(budget=1000, room_bytes=1 << 40, num_nodes=2_000_000, **changes):
        return plan_choose(
            num_nodes,
            100,
            num_candidates=num_nodes // 2,
            settings=ChooseSettings(budget, **changes),
            room_bytes=room_bytes,
            threads=available_cores(),
        )

    nothing = plan(select="random")
    assert plan(budget=2_000_000).host_bytes == 64_000_000
    assert nothing.host_bytes == 64_000_000 + 1000 * PLACE_BYTES + BLOCK_BYTES
    many, few = plan(select="random", budget=500_000), plan(diversity=False, budget=900_000, room_bytes=MIB)
    assert many.host_bytes - nothing.host_bytes == 499_000 * PLACE_BYTES
    assert few.host_bytes >= 64_000_000 + 900_000 * CHOICE_BYTES
    assert (nothing.read_bytes, nothing.passes) == (0, 0)
    whole = plan()
    assert whole.host_bytes > 4 * 100 * 2_000_000
    assert "diversity" in whole.formula
    assert f" + {format_bytes(whole.host_bytes - 64_000_000)} for the " in whole.formula
    small = plan(room_bytes=MIB)
    assert small.host_bytes < whole.host_bytes / 2
    assert plan(diversity=False).host_bytes < whole.host_bytes
    assert whole.passes == 100
    assert plan(pagerank=PageRankSettings(tol=1e-3)).passes == 43

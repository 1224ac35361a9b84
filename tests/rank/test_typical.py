"""Herding and k-means: equal to a slow choice, the same for any memory, threads and workers; planned, refused."""

from __future__ import annotations

import errno

import numpy as np
import pytest
import scipy.sparse
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import DoesNotFitError, InvalidInputError, UsageError
from ecgl_scale.rank import kmeans, typical
from ecgl_scale.rank.choose import ChooseSettings, choose_nodes, plan_choose
from ecgl_scale.rank.grouped_rows import GroupedRows
from ecgl_scale.rank.herding import herd
from ecgl_scale.rank.kmeans import cluster
from ecgl_scale.rank.typical import normalise
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import GIB, MIB
from tests import naive
from tests.graph.matrices import dense_matrix
from tests.resources import at
from tests.store.graphs import random_edges

N, K = 300, 12
SELECTS = ("herding", "kmeans")
small = st.integers(-3, 3)


@st.composite
def grouped(draw):
    """Rows of small integers, so that sums are exact and ties are ties; three groups, and quotas they may not fill."""
    width = draw(st.integers(1, 9))
    rows = draw(st.lists(st.lists(small, min_size=width, max_size=width), min_size=1, max_size=24))
    groups = draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
    sizes = np.bincount(groups, minlength=3)
    quotas = [draw(st.integers(0, size)) for size in sizes.tolist()]
    return np.array(rows, np.float32).reshape(-1, width), np.array(groups, np.int64), np.array(quotas, np.int64)


@settings(max_examples=120, deadline=None)
@given(drawn=grouped(), threads=st.integers(1, 3))
@example(drawn=(np.zeros((4, 2), np.float32), np.array([0, 1, 0, 0]), np.array([3, 1, 0])), threads=2)
@example(drawn=(np.ones((5, 1), np.float32), np.array([2, 2, 2, 2, 2]), np.array([0, 0, 2])), threads=3)
def test_herding_equals_the_slow_one(drawn, threads):
    rows, groups, quotas = drawn
    taken = herd(GroupedRows(rows, groups, quotas, threads=threads))
    for group, quota in enumerate(quotas.tolist()):
        own = np.flatnonzero(groups == group)
        wanted = own[naive.herding(rows[own].tolist(), quota)]
        assert taken[groups[taken] == group].tolist() == wanted.tolist()


@settings(max_examples=60, deadline=None)
@given(drawn=grouped(), seed=st.integers(0, 5))
@example(drawn=(np.zeros((4, 2), np.float32), np.array([0, 1, 0, 0]), np.array([3, 1, 0])), seed=0)
def test_k_means_takes_each_row_once_and_as_many_as_are_wanted(drawn, seed):
    rows, groups, quotas = drawn
    seeds = [(seed, group) for group in range(3)]
    one, two = (cluster(GroupedRows(rows, groups, quotas, threads=threads), seeds) for threads in (1, 3))
    assert one.tolist() == two.tolist()
    assert np.unique(one).size == one.size
    assert np.bincount(groups[one], minlength=3).tolist() == quotas.tolist()


def test_k_means_finds_clusters_that_lie_apart(monkeypatch):
    random = np.random.default_rng(0)
    middles = 50 * np.eye(5, 6)
    places = random.integers(0, 5, 200)
    rows = (middles[places] + random.normal(size=(200, 6))).astype(np.float32)
    taken = cluster(GroupedRows(rows, np.zeros(200, np.int64), np.array([5])), [(0, 1)])
    assert sorted(places[taken]) == [0, 1, 2, 3, 4]
    for row in taken:
        own = rows[places == places[row]].astype(np.float64)
        apart = np.square(own - own.mean(axis=0)).sum(axis=1)
        assert np.square(rows[row] - own.mean(axis=0)).sum() == pytest.approx(apart.min())
    drawn = cluster(GroupedRows(rows, np.zeros(200, np.int64), np.array([30])), [(0, 1)])
    other = cluster(GroupedRows(rows, np.zeros(200, np.int64), np.array([30])), [(0, 2)])
    assert sorted(drawn.tolist()) != sorted(other.tolist())
    monkeypatch.setattr(kmeans, "MOVES", 0)
    unmoved = cluster(GroupedRows(rows, np.zeros(200, np.int64), np.array([30])), [(0, 1)])
    assert sorted(unmoved.tolist()) != sorted(drawn.tolist())


def test_lengths_become_one_and_zeros_stay(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    rows[[0, 9]] = 0
    wanted = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    whole = rows.copy()
    normalise(whole, np.arange(50))
    assert np.allclose(whole, wanted, atol=1e-6)
    monkeypatch.setattr(typical, "CHUNK_BYTES", 3 * 28)
    normalise(rows, np.arange(50))
    assert rows.tobytes() == whole.tobytes()


@pytest.fixture(scope="module", params=["dense", "sparse"])
def task(request, tmp_path_factory):
    """A graph whose last 20 nodes are isolated, some of them without features; labels and candidates."""
    random = np.random.default_rng(3)
    x = random.normal(size=(N, K)).astype(np.float32) * (random.random((N, K)) < 0.4)
    x[[5, N - 1, N - 2]] = 0
    x[N - 5 : N - 2] = x[N - 6]
    held = scipy.sparse.csr_matrix(x) if request.param == "sparse" else x
    edges = random_edges(N - 20, 1200, seed=4)
    path = tmp_path_factory.mktemp("typical") / "store"
    graph = GraphStore.from_edge_index(edges, x=held, path=path, num_nodes=N)
    labels = random.choice([2, 5, 6], N, p=[0.7, 0.27, 0.03])
    candidates = np.union1d(random.choice(N, 200, replace=False), np.arange(N - 20, N))
    return graph, x, labels, candidates


@pytest.mark.parametrize("quota", ["class", "none"])
def test_the_choice_is_of_rows_that_have_passed_two_edges(task, quota):
    graph, x, labels, candidates = task
    p = dense_matrix(graph, "sym")
    sent = (p @ p @ x)[candidates]
    lengths = np.linalg.norm(sent, axis=1, keepdims=True)
    f = sent / np.where(lengths == 0, 1, lengths)
    found = choose_nodes(graph, candidates, labels, at(), settings=ChooseSettings(60, quota=quota, select="herding"))
    own = labels[candidates]
    groups = [np.flatnonzero(own == c) for c in (2, 5, 6)] if quota == "class" else [np.arange(own.size)]
    quotas = naive.class_quotas([group.size for group in groups], 60)
    wanted = [group[naive.herding(f[group].tolist(), k)] for group, k in zip(groups, quotas, strict=True)]
    assert found.local.tolist() == sorted(candidates[np.concatenate(wanted)].tolist())
    assert np.isnan(found.importance).all()
    assert np.isnan(found.diversity).all()
    assert [*found.stats.seconds] == ["herding"]
    assert found.stats.iterations is None
    if quota == "class":
        assert [*found.stats.class_counts.values()] == quotas
        assert quotas[2] == groups[2].size < 20  # a class that is smaller than its share


@pytest.mark.parametrize("select", SELECTS)
def test_the_choice_has_the_same_bits_for_any_memory_threads_and_workers(task, select, tmp_path, monkeypatch):
    graph, _, labels, candidates = task
    wanted = ChooseSettings(60, select=select, seed=(1, 2))
    events = []
    whole = choose_nodes(graph, candidates, labels, at(threads=1, on_event=events.append), settings=wanted)
    total = next(event.total for event in events if isinstance(event, StageStarted) and event.stage == typical.STAGE)
    done = [event.done for event in events if isinstance(event, BlockFinished) and event.stage == typical.STAGE]
    assert done == [*range(1, total + 1)]
    lost = OSError(errno.EIO, "gone")
    script = ScriptedExecutor(tmp_path / "counts", failures={("graph.propagate", 0): [lost]})
    there = at(threads=2, executor=script, work=tmp_path / "work")
    for resources, order in ((at(threads=2), 1), (at(threads=3), -1), (there, 1)):
        again = choose_nodes(graph, candidates[::order], labels, resources, settings=wanted)
        assert again.local.tolist() == whole.local.tolist()
    assert script.times_run("graph.propagate", 0) > 1
    monkeypatch.setattr("ecgl_scale.engine.resources.own_memory_bytes", lambda: 0)
    rows = typical.ROW_BYTES * candidates.size
    vectors = 8 * K * (3 * 60 + 2 * 3 if select == "kmeans" else 5 * 3)
    smallest = (12 + 8 * 4) * N + 48 * MIB + rows + vectors + typical.RESERVE_BYTES
    mapped, memmap = [], np.memmap
    monkeypatch.setattr(np, "memmap", lambda *a, **k: mapped.append(a[0]) or memmap(*a, **k))
    narrow = choose_nodes(
        graph, candidates, labels, at(memory=smallest), settings=wanted, journal_directory=tmp_path / "j"
    )
    assert narrow.local.tolist() == whole.local.tolist()
    assert [path.parent.parent for path in mapped] == [tmp_path / "j"]  # in a file, which is gone
    assert [path for path in tmp_path.rglob("*") if path.is_file() and "counts" not in path.parts] == []
    with pytest.raises(DoesNotFitError, match="pass features along the edges"):
        choose_nodes(graph, candidates, labels, at(memory=smallest - 1), settings=wanted)


@pytest.mark.parametrize(("select", "inner"), [("herding", "herd"), ("kmeans", "cluster")])
def test_a_choice_that_was_stopped_is_made_again_and_the_same(task, select, inner, tmp_path, monkeypatch):
    graph, _, labels, candidates = task
    wanted = ChooseSettings(60, select=select, seed=(1, 2))
    whole = choose_nodes(graph, candidates, labels, at(), settings=wanted)

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(typical, inner, die)
        with pytest.raises(KeyboardInterrupt):
            choose_nodes(graph, candidates, labels, at(), settings=wanted, journal_directory=tmp_path)
    (tmp_path / "typical-killed").mkdir()
    (tmp_path / "typical-killed" / "rows.f32").write_bytes(b"half")  # what a kill would have left
    again = choose_nodes(graph, candidates, labels, at(), settings=wanted, journal_directory=tmp_path)
    assert again.local.tolist() == whole.local.tolist()


def test_seeds_decide_where_k_means_begins_and_nothing_of_herding(task):
    graph, _, labels, candidates = task

    def chosen(select, seed):
        wanted = ChooseSettings(60, select=select, seed=seed)
        return choose_nodes(graph, candidates, labels, at(), settings=wanted).local.tolist()

    assert chosen("kmeans", 3) == chosen("kmeans", (3,))
    assert chosen("kmeans", (0, 1)) != chosen("kmeans", (0, 2))
    assert chosen("herding", (0, 1)) == chosen("herding", (0, 2))


@pytest.mark.parametrize("select", SELECTS)
def test_fewer_places_than_classes_and_places_for_all(task, select):
    graph, _, labels, candidates = task
    few = choose_nodes(graph, candidates, labels, at(), settings=ChooseSettings(2, select=select))
    assert few.stats.class_counts == {2: 1, 5: 1, 6: 0}
    everything = choose_nodes(graph, candidates, labels, at(memory=1), settings=ChooseSettings(1000, select=select))
    assert everything.local.tolist() == candidates.tolist()
    assert choose_nodes(graph, candidates, labels, at(), settings=ChooseSettings(0, select=select)).local.size == 0


@pytest.mark.parametrize("select", SELECTS)
def test_what_cannot_be_compared_is_refused(tmp_path, select):
    bare = GraphStore.from_edge_index(random_edges(50, 200), path=tmp_path / "bare", num_nodes=50)
    labels = np.zeros(50, int)
    with pytest.raises(UsageError, match="no features"):
        choose_nodes(bare, np.arange(50), labels, at(), settings=ChooseSettings(10, select=select))
    star = np.array([np.arange(8, 30), np.full(22, 7)])
    huge = np.full((50, 2), 3e38, np.float32)
    large = GraphStore.from_edge_index(star, x=huge, path=tmp_path / "large", num_nodes=50)
    with pytest.raises(InvalidInputError, match="that arrive at node 7 are not finite"):
        choose_nodes(large, np.arange(50), labels, at(), settings=ChooseSettings(10, select=select))


def plan_of(num_nodes, num_features, candidates, budget, select, room_bytes=GIB):
    return plan_choose(
        num_nodes,
        num_features,
        num_candidates=candidates,
        settings=ChooseSettings(budget, select=select),
        num_edges=1000,
        num_classes=5,
        room_bytes=room_bytes,
        threads=2,
    )


@pytest.mark.parametrize("select", SELECTS)
def test_the_peak_stays_under_the_plan(tmp_path, select):
    num_nodes, num_features = 100_000, 64
    random = np.random.default_rng(1)
    x = random.random((num_nodes, num_features), np.float32)
    graph = GraphStore.from_edge_index(random_edges(num_nodes, 200_000), x=x, path=tmp_path / "store")
    del x
    labels, candidates = random.integers(0, 5, num_nodes), np.arange(num_nodes // 2)
    wanted = ChooseSettings(50, select=select)
    choose_nodes(graph, candidates[:200], labels, at(), settings=wanted)  # compiles
    held = own_memory_bytes()
    with PeakSampler(0.001) as sampler:
        choose_nodes(graph, candidates, labels, at(memory=held + 150 * MIB, threads=2), settings=wanted)
    plan = plan_of(num_nodes, num_features, candidates.size, 50, select, 150 * MIB)
    assert sampler.peak_bytes - held <= plan.host_bytes * 1.1
    assert plan.host_bytes <= 150 * MIB


def test_the_plan_shrinks_with_the_room_and_knows_the_passes():
    roomy, tight = (plan_of(2_000_000, 100, 1_000_000, 1000, "herding", room) for room in (8 * GIB, MIB))
    assert roomy.host_bytes > 8 * 100 * 2_000_000
    assert tight.host_bytes < 400 * MIB
    assert (roomy.written_bytes, tight.written_bytes) == (0, 400_000_000)
    assert tight.read_bytes == 25 * roomy.read_bytes
    assert roomy.passes == 200
    assert plan_of(2_000_000, 100, 1_000_000, 1000, "kmeans").passes > 5 * roomy.passes
    assert roomy.setting == "bank.select"
    assert "herding" in roomy.formula
    assert plan_of(2_000_000, 100, 1_000_000, 1_000_000, "herding").host_bytes == 64_000_000

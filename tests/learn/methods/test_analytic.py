"""The closed-form learner against a naive ridge regression, in any order, with any threads, and after forgetting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.config.schema import config_from_mapping
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import DoesNotFitError, InvalidInputError, UsageError
from ecgl_scale.infer.model_input import ModelInput
from ecgl_scale.infer.projected_rows import ProjectedRows
from ecgl_scale.infer.random_features import RandomFeatures
from ecgl_scale.learn.methods.analytic import Analytic
from ecgl_scale.session.learner import Learner
from ecgl_scale.session.run import run
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.stream import TaskStream
from ecgl_scale.units import MIB
from tests import naive
from tests.learn.methods.learning import learn, new_learner, weights_of
from tests.session.streams import Drawn, config_of, draw_graph, write_store

NARROW = ("analytic.width=32", "analytic.ridge=0.1")


def analytic_config(store: Path, cache: Path | None, *overrides: str) -> Any:
    return config_of(store, cache, "method=analytic", "threads=1", *NARROW, *overrides)


def head_of(learner: Learner) -> Any:
    """The head in float64, from what is kept, as [width, classes]."""
    method = learner.method
    assert isinstance(method, Analytic)
    return method._solve(dict(method.kept), learner.config)[1]


def naive_rows(drawn: Drawn, nodes: Any, config: Any) -> Any:
    """The model's input for nodes of a graph that has these nodes alone."""
    place = np.full(len(drawn.x), -1)
    place[nodes] = np.arange(nodes.size)
    inside = (place[drawn.edge_index] >= 0).all(axis=0)
    settings_of = config.analytic
    rows = naive.stacked_hops(drawn.x[nodes], place[drawn.edge_index[:, inside]], settings_of.hops)
    if not settings_of.width:
        return rows
    mapping = RandomFeatures(rows.shape[1], settings_of.width, config.seed, threads=1)
    return np.maximum(rows @ np.hstack(mapping._blocks), 0)


def naive_head(drawn: Drawn, learner: Learner, num_tasks: int | None = None) -> Any:
    """The head of all rows together, from a dense matrix of edges."""
    stream, config = learner.stream, learner.config
    tasks = list(stream)[:num_tasks]
    rows, labels = [], []
    for task in tasks:
        own = naive_rows(drawn, task.node_ids, config)
        rows.append(own[np.isin(task.node_ids, task.train_ids)])
        labels.append(stream.labels_of(task.train_ids))
    num_classes = learner.weights.num_classes
    return naive.ridge_head(np.concatenate(rows), np.concatenate(labels), num_classes, config.analytic.ridge)


@pytest.mark.parametrize("kind", ["class", "time"])
@pytest.mark.parametrize("width", [0, 20, 600])
@pytest.mark.parametrize("hops", [0, 2])
def test_the_head_is_the_ridge_regression_of_all_rows_so_far(store, drawn, cache, tmp_path, kind, width, hops):
    """In a time stream classes come back; fewer and more random features than columns; some nodes have no label."""
    time = ("tasks.kind=time", "tasks.column=year") if kind == "time" else ()
    config = analytic_config(store, cache, f"analytic.width={width}", f"analytic.hops={hops}", *time)
    learner = new_learner(config, tmp_path)
    for index in range(3):
        learn(learner, index)
        wanted = naive_head(drawn, learner, index + 1)
        np.testing.assert_allclose(head_of(learner), wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
        np.testing.assert_allclose(weights_of(learner)[0].numpy().T, head_of(learner), rtol=1e-5, atol=1e-7)


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_odd_graphs_have_the_same_head_as_the_naive_one(tmp_path_factory, data):
    """Isolated nodes, rows of zeros, equal rows, a class of two nodes, missing labels."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    num_nodes, num_features = data.draw(st.integers(14, 40)), data.draw(st.integers(1, 6))
    y = rng.integers(0, 3, num_nodes)
    y[:8] = [0, 0, 1, 1, 2, 2, 3, 3]
    y[rng.random(num_nodes) < 0.2] = -1
    y[:8] = [0, 0, 1, 1, 2, 2, 3, 3]
    x = rng.normal(size=(num_nodes, num_features)).astype(np.float32)
    x[rng.random(num_nodes) < data.draw(st.sampled_from([0.0, 0.3]))] = 0
    if data.draw(st.booleans()):
        x[:] = x[0]
    edges = rng.integers(0, num_nodes, (2, data.draw(st.integers(0, 40))))
    edges = np.unique(np.concatenate([edges, edges[::-1]], axis=1), axis=1)
    drawn = Drawn(edges[:, edges[0] != edges[1]], x, y, np.zeros(num_nodes, np.int64))
    directory = tmp_path_factory.mktemp("odd")
    store = write_store(directory / "graph.ecgl", drawn)
    width = data.draw(st.sampled_from([0, 3, 40]))
    keys = (f"analytic.width={width}", "tasks.fractions=[0.5, 0.0, 0.5]", "learn.scale=none")
    learner = new_learner(analytic_config(store, None, *keys), directory / "run")
    learn(learner, *range(len(learner.stream)))
    wanted = naive_head(drawn, learner)
    np.testing.assert_allclose(head_of(learner), wanted, rtol=2e-3, atol=2e-4 * max(np.abs(wanted).max(), 1e-6))


def tensors_of(learner: Learner) -> dict[str, Any]:
    return {**learner.tensors(), **learner.method.state()}


@pytest.mark.parametrize("keys", [("threads=2",), ("infer.partitions=5",), ("learn.block_rows=64",), ("words",)])
@pytest.mark.parametrize("width", [40, 700])
def test_threads_memory_and_blocks_change_no_bit(store, drawn, cache, tmp_path, keys, width):
    if keys == ("words",):
        store, cache, keys = write_store(tmp_path / "sparse.ecgl", in_words(drawn)), None, ("threads=2",)
    found = []
    little = f"memory={own_memory_bytes() + 400 * MIB}"  # the process of the tests may hold much already
    for name, more in (("plain", ()), ("other", (*keys, little))):
        config = analytic_config(store, cache, f"analytic.width={width}", "analytic.ridge=auto", *more)
        learner = new_learner(config, tmp_path / name)
        learn(learner, 0, 1, 2)
        found.append(tensors_of(learner))
    assert found[0].keys() == found[1].keys()
    for name, array in found[0].items():
        np.testing.assert_array_equal(array, found[1][name], err_msg=name)


def test_the_order_of_tasks_does_not_matter(store, cache, tmp_path):
    heads = {}
    for name, order in (("up", [0, 1, 2, 3, 4, 5]), ("down", [4, 5, 2, 3, 0, 1])):
        learner = new_learner(analytic_config(store, cache, f"tasks.class_order={order}"), tmp_path / name)
        learn(learner, 0, 1, 2)
        heads[name] = head_of(learner)[:, np.argsort(learner.stream.classes)]
    assert np.abs(heads["up"] - heads["down"]).max() <= 1e-10 * np.abs(heads["up"]).max()


def test_one_pass_over_everything_gives_the_same_head_as_task_by_task(drawn, tmp_path):
    """Where no edge joins two tasks: else a task's own graph lacks it."""
    task_of = drawn.y // 2
    joined = (task_of[drawn.edge_index[0]] == task_of[drawn.edge_index[1]]) & (drawn.y[drawn.edge_index] >= 0).all(0)
    apart = replace(drawn, edge_index=drawn.edge_index[:, joined])
    store = write_store(tmp_path / "apart.ecgl", apart)
    heads = []
    for classes in (2, 6):
        learner = new_learner(
            analytic_config(store, None, f"tasks.classes_per_task={classes}"), tmp_path / str(classes)
        )
        learn(learner, *range(len(learner.stream)))
        heads.append(head_of(learner))
    assert np.abs(heads[0] - heads[1]).max() <= 1e-10 * np.abs(heads[0]).max()


def in_words(drawn: Drawn, num_words: int = 1500) -> Drawn:
    """The same graph with bags of six words or so; some nodes have none."""
    x = (np.random.default_rng(1).random((len(drawn.x), num_words)) < 6 / num_words).astype(np.float32)
    x[::17] = 0
    return replace(drawn, x=x)


@pytest.mark.parametrize("hops", [0, 1, 3])
@pytest.mark.parametrize("width", [32, 530])
def test_sparse_features_have_the_head_of_their_dense_rows(drawn, tmp_path, hops, width):
    sparse = in_words(drawn)
    store = write_store(tmp_path / "sparse.ecgl", sparse)
    assert GraphStore.open(store).has_sparse_features
    config = analytic_config(store, None, f"analytic.hops={hops}", f"analytic.width={width}")
    learner = new_learner(config, tmp_path / "run")
    learn(learner, 0, 1, 2)
    is_projected = isinstance(learner.predictor.features_of(learner.stream[0]), ProjectedRows)
    assert is_projected == (hops > 0)
    wanted = naive_head(sparse, learner)
    np.testing.assert_allclose(head_of(learner), wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("inter_task_edges", [False, True])
def test_sparse_features_give_the_same_logits_whichever_way_they_are_multiplied(
    drawn, tmp_path, monkeypatch, inter_task_edges
):
    """The graph of a task and that of all tasks may go different ways."""
    store = write_store(tmp_path / "sparse.ecgl", in_words(drawn))
    config = analytic_config(store, None, f"tasks.inter_task_edges={inter_task_edges}", "tasks.eval_scope=seen")
    logits = {}
    for name in ("first", "last"):
        learner = new_learner(config, tmp_path / name)
        learn(learner, 0, 1, 2)
        task, weights = learner.stream[2], learner.weights
        rows = learner.predictor.features_of(task)
        assert isinstance(rows, ProjectedRows) == (name == "first")
        [seen] = (np.vstack(list(blocks)) for blocks in learner.predictor.seen_logits(weights, task, [task.test_ids]))
        logits[name] = np.vstack(list(learner.predictor.logits(weights, task, task.test_ids))), seen
        monkeypatch.setattr(ModelInput, "on", lambda made, graph, *, keeps_zeros: made)
    for one, other in zip(logits["first"], logits["last"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    other = learner.predictor._of_all_seen
    assert other is not None
    assert not isinstance(other[1], ProjectedRows)


def test_the_ridge_is_chosen_by_the_error_on_validation_nodes(store, cache, tmp_path):
    from ecgl_scale.learn.methods.analytic import _balanced
    from ecgl_scale.learn.ridge import STRENGTHS, solve_head, validation_error

    learner = new_learner(analytic_config(store, cache, "analytic.ridge=auto"), tmp_path)
    learn(learner, 0, 1, 2)
    kept = learner.method.kept
    train, valid = (_balanced(kept, part) for part in ("train", "valid"))
    errors = [validation_error(solve_head(train, strength), valid) for strength in STRENGTHS]
    assert kept["strength"][0] == STRENGTHS[int(np.argmin(errors))]
    stream = learner.stream
    ids = np.concatenate([task.valid_ids for task in stream])
    rows = np.concatenate([learner.predictor.features_of(task)[_places(task)] for task in stream])
    head, labels = solve_head(train, 0.1), stream.labels_of(ids)
    squared = ((rows @ head - np.eye(6)[labels]) ** 2).sum(axis=1)
    wanted = np.mean([squared[labels == label].mean() for label in range(6)])
    assert validation_error(head, valid) == pytest.approx(wanted, rel=1e-5)


def _places(task: Any) -> Any:
    return np.searchsorted(task.node_ids, task.valid_ids)


def test_a_killed_run_goes_on_with_the_same_bits(store, cache, tmp_path):
    config = analytic_config(store, cache, "tasks.kind=time", "tasks.column=year")
    whole = new_learner(config, tmp_path / "whole")
    learn(whole, 0, 1, 2)
    begun = new_learner(config, tmp_path / "stopped")
    learn(begun, 0)
    first = new_learner(config, tmp_path / "stopped")
    first.restore(begun.tensors(), task_index=1, is_remembered=False)
    task = first.stream[1]
    first.predictor.prepare(task)
    first.begin_task(task, is_new=True)
    first.train_epoch(task, 0)  # and killed before it is remembered
    second = new_learner(config, tmp_path / "stopped")
    second.restore(first.tensors(), task_index=1, is_remembered=False)
    second.predictor.prepare(second.stream[1])
    second.remember(second.stream[1])
    third = new_learner(config, tmp_path / "stopped")
    third.restore(second.tensors(), task_index=2, is_remembered=False)
    assert "strength" in third.method.kept
    learn(third, 2)
    for name, array in tensors_of(whole).items():
        np.testing.assert_array_equal(array, tensors_of(third)[name], err_msg=name)
    names = sorted(path.name for path in (tmp_path / "stopped" / "weights").glob("sums-*"))
    assert len(names) <= 2 * 6  # a class has the sums of now and of one task before


@pytest.mark.parametrize("is_sparse", [False, True])
def test_workers_that_know_descriptions_alone_give_the_same_results(drawn, tmp_path, monkeypatch, is_sparse):
    from tests.session.test_executors import same_parts, use

    store = write_store(tmp_path / "graph.ecgl", in_words(drawn) if is_sparse else drawn)
    wanted = run(analytic_config(store, None), tmp_path / "local")
    script = ScriptedExecutor(tmp_path / "counts", failures={("learn.class_sums", 0): [OSError(5, "disk")]})
    use(script, monkeypatch)
    found = run(analytic_config(store, None), tmp_path / "scripted")
    assert same_parts(found) == same_parts(wanted)
    assert script.times_run("learn.class_sums", 0) > 3


# --- settings


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("analytic.ridge=0", "analytic.ridge is 0"),
        ("learn.features=propagated:2", "analytic passes features along edges by itself"),
        ("engine.ranks=2", "no gradient"),
        ("learn.train_as=gcn", "cannot be trained as"),
    ],
)
def test_settings_that_mean_nothing_here_are_refused(store, cache, key, words):
    with pytest.raises(UsageError, match=words):
        RunSetup.open(analytic_config(store, cache, key)).widths  # noqa: B018


def test_a_map_that_does_not_fit_is_refused_with_one_that_does(store, cache, tmp_path):
    little = f"memory={own_memory_bytes() + 600 * MIB}"
    config = analytic_config(store, cache, "analytic.width=16384", little)
    with pytest.raises(DoesNotFitError, match=r"--set analytic.width=\d+"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_narrow_map_is_the_beginning_of_a_wide_one():
    narrow, wide = (np.hstack(RandomFeatures(7, width, 3, threads=2)._blocks) for width in (100, 1300))
    np.testing.assert_array_equal(narrow, wide[:, :100])
    assert abs(wide.mean()) < 0.05
    assert abs(wide.std() - 1) < 0.05
    assert ModelInput(2, is_stacked=True, width=100).num_columns(7) == 100
    assert ModelInput(2, is_stacked=True).num_columns(7) == 21


def test_rows_of_a_task_that_were_never_learned_cannot_be_subtracted():
    from ecgl_scale.learn.class_sums import ClassSums

    sums = ClassSums.empty(4).plus([np.ones((2, 4), np.float32)], 2, threads=1)
    with pytest.raises(InvalidInputError, match="3 rows of a class"):
        sums.minus([np.ones((3, 4), np.float32)], 3, threads=1)
    assert sums.minus([np.ones((2, 4), np.float32)], 2, threads=1).count == 0


@pytest.mark.parametrize("counts", [(3, 4), (3, 40), (40, 3), (40, 40)])
def test_sums_are_the_same_however_rows_come_and_are_kept(counts):
    """Few rows of a class are kept as a factor, many as a triangle; what is added last decides."""
    from ecgl_scale.learn.class_sums import ClassSums

    rng = np.random.default_rng(0)
    first, second = (rng.random((count, 64)).astype(np.float32) for count in counts)
    sums = ClassSums.empty(64).plus([first], len(first), threads=2)
    sums = ClassSums.of_arrays(sums.arrays("a"), "a").plus([second[:2], second[2:]], len(second), threads=1)
    rows = np.concatenate([first, second]).astype(np.float64)
    np.testing.assert_allclose(sums.square(threads=1), rows.T @ rows, rtol=1e-12)
    np.testing.assert_allclose(sums.total, rows.sum(axis=0), rtol=1e-12)
    assert (sums.factor is None) == (sum(counts) > 16)
    back = sums.minus([second], len(second), threads=2)
    np.testing.assert_allclose(back.square(threads=1), first.astype(np.float64).T @ first, atol=1e-11)
    for broken in ({}, {"a.count": np.array([1]), "a.total": np.zeros(3)}):
        with pytest.raises(InvalidInputError):
            ClassSums.of_arrays(broken, "a")


def test_streams_of_other_lengths_have_their_graph(drawn, tmp_path):
    del drawn
    store = write_store(tmp_path / "larger.ecgl", draw_graph(300, num_features=5))
    graph = GraphStore.open(store)
    stream = TaskStream.class_incremental(graph, classes_per_task=3, seed=1)
    assert len(stream) == 2
    results = run(analytic_config(store, None, "tasks.classes_per_task=3", "setting=task-il"), tmp_path / "run")
    assert results["aa"] > 40
    assert config_from_mapping({"store": "any.ecgl"}).analytic.width == 4096

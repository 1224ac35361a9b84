"""ER-GNN: which nodes MF and CM choose, how the two losses are weighed, and a whole run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.learn.methods import ergnn
from ecgl_scale.learn.methods.ergnn import coverage_scores, mean_scores
from ecgl_scale.learn.rows import RowCache
from tests.learn.methods.learning import begin, check_goes_on, check_whole_run, learn, new_learner, small_config


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60) + 4
    return rng.normal(size=(60, 5)).astype(np.float32) + labels[:, None], labels


def test_mf_scores_are_distances_to_the_mean_of_the_class(rows: tuple[np.ndarray, np.ndarray]) -> None:
    x, labels = rows
    for least_alike in (False, True):
        scores = mean_scores(RowCache.from_array(x), labels, least_alike=least_alike)
        for i in range(60):
            mean = x[labels == labels[i]].astype(np.float64).mean(axis=0)
            wanted = x[i] @ mean if least_alike else np.sum((x[i] - mean) ** 2)
            assert scores[i] == pytest.approx(-wanted, rel=1e-5)


def test_cm_scores_count_the_nodes_of_other_classes_nearby(rows: tuple[np.ndarray, np.ndarray]) -> None:
    x, labels = rows
    scores = coverage_scores(RowCache.from_array(x), labels, 2.5, np.random.default_rng(0))
    wanted = [sum(np.linalg.norm(x[i] - x[j]) < 2.5 and labels[i] != labels[j] for j in range(60)) for i in range(60)]
    assert scores.tolist() == [-count for count in wanted]
    assert max(wanted) > 0


def test_cm_draws_whom_it_compares_with_and_the_public_code_candidates_too(
    store: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ergnn.MAX_COMPARED == 1000
    monkeypatch.setattr(ergnn, "MAX_COMPARED", 4)
    x, labels = np.zeros((30, 2), np.float32), np.repeat([0, 1, 2], 10)
    scores = coverage_scores(RowCache.from_array(x), labels, 1.0, np.random.default_rng(0))
    assert scores.tolist() == [-8.0] * 30  # four of each of the two other classes
    for reference, kept in (("false", 6), ("true", 4)):
        keys = ("ergnn.select=cm", f"ergnn.reference={reference}")
        learner = new_learner(small_config(store, cache, "ergnn", *keys), tmp_path / reference)
        assert np.bincount(learner.method.remember(learner.context).label).tolist() == [kept, kept]


@pytest.mark.parametrize("select", ["mf", "cm"])
@pytest.mark.parametrize("reference", [False, True])
def test_the_best_of_each_class_are_kept(
    select: str, reference: bool, store: Path, cache: Path, tmp_path: Path
) -> None:
    keys = (f"ergnn.select={select}", f"ergnn.reference={str(reference).lower()}", "ergnn.distance=4.0")
    config = small_config(store, cache, "ergnn", *keys)
    learner = new_learner(config, tmp_path)
    task = learner.stream[0]
    bank = learner.method.remember(learner.context)
    labels = learner.stream.labels_of(task.train_ids)
    x = np.asarray(learner.context.bank_rows(task, task.train_ids))
    scores = (
        mean_scores(RowCache.from_array(x), labels, least_alike=reference)
        if select == "mf"
        else coverage_scores(RowCache.from_array(x), labels, 4.0, np.random.default_rng((0, 0)))
    )
    for position in task.positions.tolist():
        own = np.flatnonzero(labels == position)
        best = own[np.lexsort((own, -scores[own]))][:6]
        assert bank.node_ids[bank.label == position].tolist() == np.sort(task.train_ids[best]).tolist()
        assert np.array_equal(bank.rows[bank.label == position], x[np.sort(best)])


@pytest.mark.parametrize("setting", ["class-il", "task-il"])
def test_the_losses_are_weighed_by_the_share_of_kept_nodes(
    setting: str, store: Path, cache: Path, tmp_path: Path
) -> None:
    learner = new_learner(small_config(store, cache, "ergnn", f"setting={setting}"), tmp_path)
    learn(learner, 0, 1)
    begin(learner, 2)
    new, kept = learner.method.segments(learner.context)
    beta = 24 / (24 + learner.stream[2].train_ids.size)
    assert new.coefficients.sum() == pytest.approx(beta)
    assert kept.coefficients.sum() == pytest.approx(1 - beta)
    own = kept.columns if kept.groups is None else kept.columns[kept.groups[0]]
    assert np.flatnonzero(own).tolist() == ([0, 1, 2, 3, 4, 5] if setting == "class-il" else [0, 1])


def test_as_the_public_code_old_losses_are_nested_in_task_il(store: Path, cache: Path, tmp_path: Path) -> None:
    learner = new_learner(small_config(store, cache, "ergnn", "setting=task-il", "ergnn.reference=true"), tmp_path)
    learn(learner, 0, 1)
    begin(learner, 2)
    new, kept = learner.method.segments(learner.context)
    beta = 24 / (24 + learner.stream[2].train_ids.size)
    loss = np.array([1.0, 0.0, 0.0])  # weights of: the current task, task 0, task 1
    for task in (1, 2):
        loss = beta * loss
        loss[task] += 1 - beta
    tasks = np.repeat([0, 1], 12)
    found = [new.coefficients.sum(), *(kept.coefficients[tasks == task].sum() for task in (0, 1))]
    assert found == pytest.approx(loss, rel=1e-5)
    for task in (0, 1):  # of each task a balanced mean
        labels = kept.labels[tasks == task]
        share = 1 / np.bincount(labels)[labels]
        assert kept.coefficients[tasks == task] == pytest.approx(loss[task + 1] * share / share.sum(), rel=1e-5)


def test_nested_sums_are_sums_of_every_task(store: Path, cache: Path, tmp_path: Path) -> None:
    keys = ("setting=task-il", "ergnn.reference=true", "learn.balance=none", "learn.reduction=sum")
    learner = new_learner(small_config(store, cache, "ergnn", *keys), tmp_path)
    learn(learner, 0, 1)
    begin(learner, 2)
    new, kept = learner.method.segments(learner.context)
    beta = 24 / (24 + learner.stream[2].train_ids.size)
    assert new.coefficients == pytest.approx(beta**2, rel=1e-5)
    assert kept.coefficients == pytest.approx(np.repeat([(1 - beta) * beta, 1 - beta], 12), rel=1e-5)


@pytest.mark.parametrize("backbone", ["mlp", "gcn"])
def test_a_stopped_run_ends_as_an_undisturbed_one(backbone: str, store: Path, cache: Path, tmp_path: Path) -> None:
    select = "mf" if backbone == "mlp" else "cm"
    config = small_config(store, cache, "ergnn", f"learn.train_as={backbone}", f"ergnn.select={select}")
    check_goes_on(config, tmp_path)
    check_whole_run(config, tmp_path / "run")

"""GEM: the projection against a general solver and its conditions; memories and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import torch

from ecgl_scale.learn.methods.gem import project
from tests.learn.methods.learning import (
    SETTINGS,
    begin,
    check_goes_on,
    check_whole_run,
    gradients_of,
    learn,
    new_learner,
    small_config,
    train,
)


def draw(num_tasks, num_weights, seed, *, scale=1.0):
    rng = np.random.default_rng(seed)
    old = rng.normal(size=(num_tasks, num_weights)) + rng.normal(size=num_weights)
    gradient = -old.mean(axis=0) + rng.normal(size=num_weights)
    return (torch.from_numpy(scale * array).float() for array in (gradient, old))


def cosines(gradient, old):
    gradient, old = gradient.double(), old.double()
    return (old @ gradient) / (old.norm(dim=1) * gradient.norm())


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize("num_tasks", [1, 2, 7, 22])
def test_no_negative_dot_product_is_left(num_tasks, margin, scale):
    for seed in range(5):
        gradient, old = draw(num_tasks, 60, seed, scale=scale)
        assert (cosines(gradient, old) < 0).any()
        assert cosines(project(gradient, old, margin=margin), old).min() > -1e-6


@pytest.mark.parametrize("ridge", [0.0, 1e-3])
def test_it_is_the_quadratic_programs_minimum(ridge):
    gradient, old = draw(4, 30, 3)
    g, matrix = gradient.double().numpy(), old.double().numpy()
    m, p = matrix @ matrix.T + ridge * np.eye(4), matrix @ g
    solved = scipy.optimize.minimize(
        lambda v: 0.5 * v @ m @ v + p @ v, np.ones(4), jac=lambda v: m @ v + p, bounds=[(0.5, None)] * 4, tol=1e-12
    )
    wanted = g + matrix.T @ solved.x
    np.testing.assert_allclose(project(gradient, old, margin=0.5, ridge=ridge).numpy(), wanted, rtol=1e-3, atol=1e-4)


def test_without_a_margin_it_is_the_nearest_gradient_that_is_allowed():
    gradient, old = draw(3, 20, 1)
    found = project(gradient, old, margin=0.0).double()
    constraint = {"type": "ineq", "fun": lambda x: old.double().numpy() @ x}
    nearest = scipy.optimize.minimize(
        lambda x: ((x - gradient.double().numpy()) ** 2).sum(), np.zeros(20), constraints=[constraint], tol=1e-12
    )
    np.testing.assert_allclose(found.numpy(), nearest.x, atol=1e-4)


def test_old_gradients_that_repeat_each_other_are_no_trouble():
    gradient, old = draw(2, 30, 5)
    doubled = torch.cat([old, old, 2 * old[:1], torch.zeros(1, 30)])
    found = project(gradient, doubled, margin=0.0)
    torch.testing.assert_close(found, project(gradient, old, margin=0.0), rtol=1e-3, atol=1e-4)


def test_a_gradient_that_hurts_nobody_is_left_alone():
    gradient, old = draw(3, 20, 2)
    assert project(-gradient, old * 0, margin=0.5).equal(-gradient)
    kind = old.mean(dim=0)
    assert (cosines(kind, old) >= 0).all()
    assert project(kind, old, margin=0.5).equal(kind)


def test_the_public_codes_term_leaves_negative_products_where_gradients_are_small():
    gradient, old = draw(3, 40, 0, scale=1e-4)
    assert cosines(project(5 * gradient, old, margin=0.5, ridge=1e-3), old).min() < -0.1
    assert cosines(project(5 * gradient, old, margin=0.5), old).min() > -1e-6


def memory_gradient(learner, index):
    """Of the CE on the memory of an old task, by autograd over the whole old task graph."""
    task = learner.stream[index]
    ids = learner.method._nodes[index]
    if learner.config.learn.train_as == "gcn":
        (segment,) = learner.context.segments([task], None)
        logits = segment.outputs(learner.weights, slice(None))[np.searchsorted(task.train_ids, ids)]
    else:
        rows = learner.context.rows(task, ids, "memory")
        logits = learner.weights.mlp(torch.from_numpy(rows.read(0, rows.num_rows)))
    seen = learner.stream.seen_positions(learner.context.task)
    columns = task.positions if learner.config.setting == "task-il" else seen
    labels = np.searchsorted(columns, learner.stream.labels_of(ids))
    weight = torch.from_numpy(1 / np.maximum(np.bincount(labels, minlength=columns.size), 1)).float()
    loss = torch.nn.functional.cross_entropy(logits[:, columns], torch.from_numpy(labels), weight=weight)
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, learner.weights.parameters())])


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize(("setting", "train_as"), SETTINGS)
def test_every_step_is_projected_by_the_old_tasks_own_gradients(store, cache, tmp_path, setting, train_as, reference):
    keys = (f"setting={setting}", f"learn.train_as={train_as}", "gem.memory_nodes=9", f"gem.reference={reference}")
    learner = new_learner(small_config(store, cache, "gem", *keys), tmp_path)
    learn(learner, 0, 1)
    begin(learner, 2)
    num_projected = 0
    for epoch in range(4):
        train(learner, 2, range(epoch, epoch + 1))
        old = torch.stack([memory_gradient(learner, index) for index in (0, 1)])
        learner.trainer.gradient(learner._segments)
        plain = torch.cat([g.reshape(-1) for g in gradients_of(learner)])
        learner.method.adjust(learner.context)
        found = torch.cat([g.reshape(-1) for g in gradients_of(learner)])
        wanted = project(plain, old, margin=0.5, ridge=1e-3 if reference else 0.0)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-6)
        assert reference or cosines(found, old).min() > -1e-5
        num_projected += not torch.equal(found, plain)
    assert num_projected or (reference and setting == "task-il")


def nodes_of(store, cache, directory, *keys):
    learner = new_learner(small_config(store, cache, "gem", "gem.memory_nodes=20", *keys), directory)
    learn(learner, 0)
    return learner, learner.method._nodes[0]


def test_memories_are_drawn_from_the_training_nodes(store, cache, tmp_path):
    learner, nodes = nodes_of(store, cache, tmp_path)
    assert np.isin(nodes, learner.stream[0].train_ids).all()
    assert np.unique(nodes).size == nodes.size == 20
    assert np.unique(learner.stream.labels_of(nodes)).size == 2


def test_the_old_tasks_graphs_are_let_go_of_after_the_epochs(store, cache, tmp_path):
    learner, _ = nodes_of(store, cache, tmp_path, "learn.train_as=gcn")
    begin(learner, 1)
    assert len(learner.method._memories) == 1
    learner.end_task()
    assert learner.method._memories == []


def test_the_public_codes_memories(store, cache, tmp_path):
    reference = "gem.reference=true"
    learner, nodes = nodes_of(store, cache, tmp_path / "class", reference)
    labels = learner.stream.labels_of(learner.stream[0].train_ids)
    np.testing.assert_array_equal(nodes, learner.stream[0].train_ids[labels == labels.min()][:20])
    _, nodes = nodes_of(store, cache, tmp_path / "task", reference, "setting=task-il", "gem.memory_nodes=60")
    assert nodes.size == 60
    assert np.unique(nodes).size < 60


@pytest.mark.parametrize("reference", ["true", "false"])
@pytest.mark.parametrize(("setting", "train_as"), SETTINGS)
def test_a_whole_run(store, cache, tmp_path, setting, train_as, reference):
    keys = (f"setting={setting}", f"learn.train_as={train_as}", f"gem.reference={reference}", "learn.epochs=2")
    check_whole_run(small_config(store, cache, "gem", *keys), tmp_path / "run")


@pytest.mark.parametrize("keys", [("learn.train_as=gcn",), ("learn.batching=minibatch", "learn.batch_rows=30")])
def test_it_goes_on_after_a_stop(store, cache, tmp_path, keys):
    check_goes_on(small_config(store, cache, "gem", *keys), tmp_path)

"""TWP: importances of loss and topology, the norm's gradient against a second derivative, the public code's quirks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ecgl_scale.errors import UsageError
from ecgl_scale.session.run import run
from tests.learn.methods.learning import (
    SETTINGS,
    batch_loss,
    begin,
    check_goes_on,
    check_whole_run,
    fitted,
    gradients_of,
    learn,
    new_learner,
    small_config,
    train,
    weights_of,
)

LOSS, TOPOLOGY = 3.0, 5.0
KEYS = (f"twp.lambda_loss={LOSS}", f"twp.lambda_topology={TOPOLOGY}")


def topology_norm(learner, task, *, after_messages):
    """|a| over a dense matrix of scores."""
    graph, _ = learner.context.graph(task)
    rows = learner.context.graph_rows(task)
    source, target = graph.to_edge_index()
    a = np.zeros((graph.num_nodes, graph.num_nodes), np.float32)
    a[target, source] = 1
    np.fill_diagonal(a, 1)
    weight, bias = learner.weights.layers[0]
    h = torch.from_numpy(rows.read(0, rows.num_rows)) @ weight.t() + bias
    adjacency = torch.from_numpy(a)
    if after_messages:
        root = adjacency.sum(1).rsqrt()
        h = (adjacency * root[:, None] * root) @ h
    score = torch.nn.functional.leaky_relu(torch.tanh(h) @ h.t(), 0.2).masked_fill(adjacency == 0, -torch.inf)
    return torch.softmax(score, 1).norm()


def gradients(value, learner):
    found = torch.autograd.grad(value, learner.weights.parameters(), allow_unused=True)
    pairs = zip(found, learner.weights.parameters(), strict=True)
    return [torch.zeros_like(p) if g is None else g for g, p in pairs]


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize(("setting", "train_as"), SETTINGS)
def test_importances_are_those_of_loss_and_topology(store, cache, tmp_path, setting, train_as, reference):
    keys = (f"setting={setting}", f"learn.train_as={train_as}", f"twp.reference={str(reference).lower()}", *KEYS)
    learner = new_learner(small_config(store, cache, "twp", *keys), tmp_path)
    learn(learner, 0)
    task = learner.stream[0]
    (segment,) = learner.context.segments([task], None)
    by_loss = gradients(batch_loss(learner, segment), learner)
    norm = topology_norm(learner, task, after_messages=reference and train_as == "gcn")
    by_topology = gradients(norm, learner)
    assert by_topology[0].abs().max() > 0
    for found, loss, topology in zip(learner.method._anchors.strengths, by_loss, by_topology, strict=True):
        both = topology + loss if reference else topology
        torch.testing.assert_close(found, LOSS * loss**2 + TOPOLOGY * both**2, rtol=2e-3, atol=1e-7)


def test_the_penalty_is_the_sum_over_old_tasks(store, cache, tmp_path):
    learner = new_learner(small_config(store, cache, "twp", "twp.beta=0", *KEYS), tmp_path)
    kept = []
    for index in (0, 1):
        learn(learner, index)
        task = learner.stream[index]
        (segment,) = learner.context.segments([task], None)
        by_loss = gradients(batch_loss(learner, segment), learner)
        by_topology = gradients(topology_norm(learner, task, after_messages=False), learner)
        pairs = zip(by_loss, by_topology, strict=True)
        kept.append((weights_of(learner), [LOSS * loss**2 + TOPOLOGY * topology**2 for loss, topology in pairs]))
    begin(learner, 2)
    train(learner, 2, range(1))
    wanted = sum(
        float((f * (p - w) ** 2).sum())
        for weights, importances in kept
        for p, w, f in zip(weights_of(learner), fitted(weights, learner), fitted(importances, learner), strict=True)
    )
    learner.trainer.gradient(learner._segments)
    assert float(learner._penalty(learner.weights).detach()) == pytest.approx(wanted, rel=1e-3)


def test_the_norms_gradient_is_the_second_derivative_along_its_signs(store, cache, tmp_path):
    learner = new_learner(small_config(store, cache, "twp", "twp.beta=0.3", "learn.epochs=1"), tmp_path)
    begin(learner, 0)
    train(learner, 0)
    (segment,) = learner._segments
    parameters = learner.weights.parameters()
    first = torch.autograd.grad(batch_loss(learner, segment), parameters, create_graph=True)
    norm = sum(g.abs().sum() for g in first)
    second = torch.autograd.grad(norm, parameters)
    before = [parameter.detach().clone() for parameter in parameters]
    learner.trainer.gradient(learner._segments)
    plain = gradients_of(learner)
    value = learner._penalty(learner.weights)
    assert float(value) == pytest.approx(0.3 * float(norm.detach()), rel=1e-4)
    learner.method.adjust(learner.context)
    found = torch.cat([(g - p).reshape(-1) for g, p in zip(gradients_of(learner), plain, strict=True)])
    wanted = 0.3 * torch.cat([g.reshape(-1) for g in second])
    # The difference steps over a few relus.
    assert float((found - wanted).norm() / wanted.norm()) < 0.05
    assert all(map(torch.equal, before, parameters))


def test_as_the_public_code_the_loss_counts_twice_and_the_norm_is_a_constant(store, cache, tmp_path):
    learner = new_learner(small_config(store, cache, "twp", "twp.reference=true", *KEYS), tmp_path)
    learn(learner, 0)
    begin(learner, 1)
    train(learner, 1, range(1))
    learner.trainer.gradient(learner._segments)
    plain = gradients_of(learner)
    held = gradients(learner.method._anchors.penalty(learner.weights), learner)
    learner._penalty(learner.weights).backward()
    learner.method.adjust(learner.context)
    for found, loss, penalty in zip(gradients_of(learner), plain, held, strict=True):
        torch.testing.assert_close(found, 2 * loss + penalty, rtol=1e-4, atol=1e-7)


def test_what_cannot_be_computed_is_refused(store, cache, tmp_path):
    for key in ("learn.features=propagated:1", "learn.batching=minibatch"):
        with pytest.raises(UsageError, match=f"{key.split('=')[0]} is .*twp"):
            run(small_config(store, cache, "twp", key), tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("reference", ["true", "false"])
@pytest.mark.parametrize(("setting", "train_as"), SETTINGS)
def test_a_whole_run(store, cache, tmp_path, setting, train_as, reference):
    keys = (f"setting={setting}", f"learn.train_as={train_as}", f"twp.reference={reference}", "learn.epochs=2")
    check_whole_run(small_config(store, cache, "twp", *keys), tmp_path / "run")


@pytest.mark.parametrize("train_as", ["mlp", "gcn"])
def test_it_goes_on_after_a_stop(store, cache, tmp_path, train_as):
    check_goes_on(small_config(store, cache, "twp", f"learn.train_as={train_as}"), tmp_path)

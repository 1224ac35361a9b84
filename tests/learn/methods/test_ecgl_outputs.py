"""Nodes ranked by outputs: those of the last epoch, before its step, also after a kill."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ecgl_scale.learn.methods import ecgl
from tests.learn.methods.learning import begin, learn, new_learner, small_config, train, weights_of

BY_OUTPUTS = ("preset=reference", "learn.lr=0.3")  # steps so large that one more changes the ranking


def test_the_weights_of_the_last_epochs_outputs_are_kept_until_nodes_are_chosen(
    store: Path, cache: Path, tmp_path: Path
) -> None:
    learner = new_learner(small_config(store, cache, "ecgl", *BY_OUTPUTS), tmp_path)
    begin(learner, 0)
    train(learner, 0, range(3))
    before = weights_of(learner)
    train(learner, 0, range(3, 4))
    kept = learner.trainer.kept_weights.parameters()
    assert all(torch.equal(one, other) for one, other in zip(kept, before, strict=True))
    assert not torch.equal(kept[0], learner.weights.parameters()[0])
    learner.end_task()
    learner.remember(learner.stream[0])
    assert learner.trainer.kept_weights is learner.weights
    assert not any(name.startswith("earlier") for name in learner.tensors())


def test_killed_before_nodes_are_chosen_the_same_are_chosen(store: Path, cache: Path, tmp_path: Path) -> None:
    config = small_config(store, cache, "ecgl", *BY_OUTPUTS)
    undisturbed = new_learner(config, tmp_path / "undisturbed")
    learn(undisturbed, 0)
    killed = new_learner(config, tmp_path / "killed")
    begin(killed, 0)
    train(killed, 0)
    chosen = {}
    for name, dropped in {"resumed": "nothing", "without": "earlier"}.items():
        tensors = {key: array for key, array in killed.tensors().items() if not key.startswith(dropped)}
        resumed = new_learner(config, tmp_path / name)
        resumed.restore(tensors, task_index=0, is_remembered=False)
        resumed.predictor.prepare(resumed.stream[0])
        resumed.remember(resumed.stream[0])
        chosen[name] = resumed.bank.importance
    assert np.array_equal(chosen["resumed"], undisturbed.bank.importance)
    assert not np.array_equal(chosen["without"], undisturbed.bank.importance)


def test_ranked_by_features_no_weights_are_kept(store: Path, cache: Path, tmp_path: Path) -> None:
    learner = new_learner(small_config(store, cache, "ecgl", "preset=plus"), tmp_path)
    begin(learner, 0)
    train(learner, 0)
    assert learner.trainer.kept_weights is learner.weights


@pytest.mark.parametrize("edges", ["true", "false"])
def test_outputs_are_of_what_the_model_is_given(
    edges: str, store: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("preset=reference", "learn.features=propagated:1", f"tasks.inter_task_edges={edges}")
    learner = new_learner(small_config(store, cache, "ecgl", *keys), tmp_path)
    learn(learner, 0)
    begin(learner, 1)
    train(learner, 1)
    kept = learner.trainer.kept_weights.copy()
    ranked, choose = [], ecgl.choose_nodes
    monkeypatch.setattr(
        ecgl, "choose_nodes", lambda *a, **keys: ranked.append(keys["rank_features"]) or choose(*a, **keys)
    )
    learner.end_task()
    learner.remember(learner.stream[1])
    _, nodes = learner.context.graph(learner.stream[1])
    tasks = learner.stream[:2] if edges == "true" else learner.stream[1:2]
    assert nodes.size == sum(task.node_ids.size for task in tasks)
    for task in tasks:
        given = np.array(learner.predictor.features_of(task))
        with torch.no_grad():
            wanted = kept.mlp(torch.from_numpy(given)).numpy()
        assert np.allclose(ranked[0][np.searchsorted(nodes, task.node_ids)], wanted, atol=1e-5)

"""E-CGL with a solved last layer: where it is solved, and that a run goes on with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ecgl_scale.learn.solved_head import solving_bytes
from tests.learn.methods.learning import begin, check_goes_on, learn, new_learner, small_config, train, weights_of
from tests.session.streams import plan_config

SOLVED = "learn.last_layer=solved"


@pytest.mark.parametrize(
    ("keys", "is_solved"),
    [((SOLVED,), True), ((), False), ((SOLVED, "learn.train_as=gcn"), False), ((SOLVED, "learn.hidden=[]"), False)],
)
def test_the_last_layer_alone_is_solved_for_after_the_epochs(
    store: Path, cache: Path, tmp_path: Path, keys: tuple[str, ...], is_solved: bool
) -> None:
    learner = new_learner(small_config(store, cache, "ecgl", "learn.last_layer=trained", *keys), tmp_path)
    learn(learner, 0)
    begin(learner, 1)
    train(learner, 1)
    trained = weights_of(learner)
    learner.end_task()
    changed = [not torch.equal(a, b) for a, b in zip(trained, weights_of(learner), strict=True)]
    assert changed == [False] * (len(changed) - 2) + [is_solved] * 2


def test_a_stopped_run_goes_on_with_the_same_bits(store: Path, cache: Path, tmp_path: Path) -> None:
    check_goes_on(small_config(store, cache, "ecgl", SOLVED), tmp_path)


def test_squares_of_a_wide_layer_are_planned(store: Path, cache: Path) -> None:
    def train_bytes(*keys: str) -> int:
        stages = plan_config(small_config(store, cache, "ecgl", "memory=8GiB", *keys)).stages
        return next(stage.host_bytes for stage in stages if stage.stage == "train")

    trained, solved = (train_bytes("learn.hidden=[3000]", f"learn.last_layer={kind}") for kind in ("trained", "solved"))
    assert solved == trained + solving_bytes(3000)
    assert train_bytes(SOLVED) == train_bytes("learn.last_layer=trained")

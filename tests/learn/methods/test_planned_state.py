"""What a plan says of a method's own state covers the state it has at the end."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from ecgl_scale.pipeline.plan import plan_config
from tests.learn.methods.learning import learn, new_learner, small_config

OVERRIDES = {
    "ergnn": (),
    "ssm": ("ssm.centre_nodes=5", "ssm.neighbours=[2]"),
    "cat": ("cat.nodes=8", "cat.steps=2"),
    "dygrain": (),
    "continualgnn": ("continualgnn.memory_nodes=20",),
}


@pytest.mark.parametrize("method", OVERRIDES)
def test_the_state_is_not_larger_than_planned(method: str, store: Path, cache: Path, tmp_path: Path) -> None:
    config = small_config(store, cache, method, *OVERRIDES[method], "learn.epochs=1")
    learner = new_learner(config, tmp_path)
    learn(learner, 0, 1, 2)
    size = sum(array.nbytes for array in learner.method.state().values())
    num_weights = sum(a * b + b for a, b in pairwise(learner.weights.widths))
    sizes = {"row_bytes": 4 * 8, "num_features": 8, "num_classes": 6, "num_tasks": 3}
    planned = learner.method.planned_bytes(num_weights, 6, 3) + learner.method.planned_node_bytes(config, **sizes)
    assert size <= 1.1 * planned + 64
    (stage,) = [stage for stage in plan_config(config).stages if stage.stage == "train"]
    assert (f"the method's state {planned:,} bytes" in stage.formula) == (planned > 0)

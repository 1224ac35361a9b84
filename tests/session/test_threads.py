"""The number of threads changes no bit of what is learned, also where epochs are large enough to be shared by them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.learn import products
from ecgl_scale.learn.tensors import load_tensors
from ecgl_scale.session import learner
from ecgl_scale.session.run import run
from tests.session.streams import FEW_EPOCHS, config_of, without_clocks

SETTINGS = ("tasks.evaluate=last", "tasks.eval_scope=task", "cat.steps=3", FEW_EPOCHS, "analytic.width=80")
CASES = [("ecgl", "mlp"), ("ewc", "mlp"), ("twp", "mlp"), ("gem", "mlp"), ("cat", "mlp"), ("analytic", "mlp")]
CASES += [("ecgl", "gcn"), ("twp", "gcn"), ("ssm", "gcn")]
"""Of every kind: other methods use what these use (all were tried once)."""


@pytest.mark.parametrize(("method", "backbone"), CASES)
def test_one_thread_and_three_learn_the_same(
    store: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, backbone: str
) -> None:
    monkeypatch.setattr(learner, "SMALL_EPOCH_FLOPS", 0)
    monkeypatch.setattr(products, "WHOLE_PRODUCTS", 0)
    overrides = (*SETTINGS, f"method={method}", f"learn.train_as={backbone}")
    found = []
    for threads in (1, 3):
        path = tmp_path / str(threads)
        results = run(config_of(store, cache, *overrides, f"threads={threads}"), path)
        found.append((without_clocks(results), load_tensors(path / "weights" / "model.safetensors")[0]))
    (results, weights), (other_results, other_weights) = found
    assert other_results == results
    assert weights.keys() == other_weights.keys()
    assert all(np.array_equal(weights[name], other_weights[name]) for name in weights)

"""Task graphs trained block by block: the regularising methods and GEM do there what they do on whole graphs."""

from __future__ import annotations

import pytest
import torch

from ecgl_scale.learn import graph_blocks
from ecgl_scale.learn.graph_blocks import BlockedGraphSegment
from tests.learn.methods.learning import learn, new_learner, small_config, weights_of


@pytest.mark.parametrize("method", ["lwf", "ewc", "mas", "gem", "twp"])
def test_blocks_learn_the_same(store, cache, tmp_path, method, monkeypatch):
    config = small_config(store, cache, method, "learn.train_as=gcn", "learn.lr=0.005")
    whole = new_learner(config, tmp_path / "whole")
    learn(whole, 0, 1)
    monkeypatch.setattr(graph_blocks, "WHOLE_BELOW_BYTES", 0)
    blocks = new_learner(config, tmp_path / "blocks")
    learn(blocks, 0, 1)
    blocks.context.task = blocks.stream[1]
    assert isinstance(blocks.context.segments([blocks.stream[1]], None)[0], BlockedGraphSegment)
    # Rounding differs, and Adam's first steps make much of small gradients.
    for one, other in zip(weights_of(whole), weights_of(blocks), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=2e-3)

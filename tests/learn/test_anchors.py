"""Anchors: one quadratic for all old tasks is the sum of theirs."""

from __future__ import annotations

import pytest
import torch

from ecgl_scale.learn.anchors import Anchors
from ecgl_scale.learn.model import SharedWeights


def tasks(count, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for index in range(count):
        weights = SharedWeights.create(6, [5], 4, seed=index)
        importances = [
            torch.rand(p.shape, generator=generator).pow(6) * (torch.rand(p.shape, generator=generator) < 0.7)
            for p in weights.parameters()
        ]
        yield weights, importances


@pytest.mark.parametrize("count", [1, 2, 9])
def test_value_and_gradient_are_those_of_the_sum_over_tasks(count):
    anchors, kept = Anchors(), list(tasks(count))
    assert not anchors
    for weights, importances in kept:
        anchors.add(weights, importances)
    here = SharedWeights.create(6, [5], 4, seed=99)
    wanted = sum(
        (f * (p - w.detach()) ** 2).sum()
        for weights, importances in kept
        for p, w, f in zip(here.parameters(), weights.parameters(), importances, strict=True)
    )
    found = anchors.penalty(here)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    for one, other in zip(
        torch.autograd.grad(found, here.parameters()), torch.autograd.grad(wanted, here.parameters()), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_state_holds_all_of_it():
    anchors = Anchors()
    for weights, importances in tasks(3):
        anchors.add(weights, importances)
    again = Anchors.of_state({**anchors.state(), "other": anchors.state()["anchor.rest"]})
    here = SharedWeights.create(6, [5], 4, seed=99)
    assert torch.equal(anchors.penalty(here), again.penalty(here))
    assert not Anchors.of_state(Anchors().state())


def test_a_weight_that_nobody_needs_is_free():
    anchors = Anchors()
    for weights, importances in tasks(2):
        anchors.add(weights, [torch.zeros_like(importance) for importance in importances])
    assert float(anchors.penalty(SharedWeights.create(6, [5], 4, seed=99)).detach()) == 0

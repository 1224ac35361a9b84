"""Products of training have the bits of one thread, whatever the number of threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ecgl_scale.engine.threads import torch_threads
from ecgl_scale.learn import products
from ecgl_scale.learn.products import add_outer, linear, multiply, weighted_sum

SHAPES = [(500, 745, 256), (500, 100, 256), (4000, 64, 24), (2000, 256, 6), (1, 5, 3), (0, 4, 2), (300, 1, 1)]
"""Rows, columns of x, columns of the result; MKL adds up some of them in another order with more threads."""


@pytest.fixture(autouse=True, params=["as large as they are", "all cut"])
def _cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "all cut":
        monkeypatch.setattr(products, "WHOLE_PRODUCTS", 0)


@pytest.fixture(params=SHAPES, ids=str)
def operands(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, columns, width = request.param
    torch.manual_seed(0)
    return torch.rand(rows, columns) - 0.3, torch.randn(width, columns), torch.randn(rows, width)


def by_threads(compute: object) -> list[torch.Tensor]:
    found = []
    for threads in (1, 2, 3, 7):
        with torch_threads(threads):
            assert callable(compute)
            found.append(compute())
            assert torch.get_num_threads() == threads
    return found


def test_a_product_has_the_same_bits_for_any_threads(operands) -> None:  # type: ignore[no-untyped-def]
    x, weight, _ = operands
    bias = torch.arange(len(weight), dtype=torch.float32)
    first, *others = by_threads(lambda: multiply(x, weight.t(), torch.empty(len(x), len(weight)), bias))
    assert all(torch.equal(first, other) for other in others)
    exact = x.double() @ weight.t().double() + bias
    np.testing.assert_allclose(first, exact, rtol=1e-4, atol=1e-3)


def test_a_gradient_has_the_same_bits_for_any_threads(operands) -> None:  # type: ignore[no-untyped-def]
    x, weight, g = operands

    def add() -> torch.Tensor:
        into = weight.clone()
        add_outer(into, g, x)
        return into

    first, *others = by_threads(add)
    assert all(torch.equal(first, other) for other in others)
    np.testing.assert_allclose(first, weight.double() + g.t().double() @ x.double(), rtol=1e-4, atol=1e-2)


def test_a_gradient_that_lies_by_columns_gets_the_same(operands) -> None:  # type: ignore[no-untyped-def]
    x, weight, g = operands
    by_rows, by_columns = weight.clone(), weight.t().contiguous().t()
    add_outer(by_rows, g, x)
    add_outer(by_columns, g, x)
    np.testing.assert_allclose(by_columns, by_rows, rtol=1e-4, atol=1e-2)


def test_autograd_gets_what_torch_would_give(operands) -> None:  # type: ignore[no-untyped-def]
    x, weight, g = operands
    found = []
    for layer in (linear, torch.nn.functional.linear):
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_(), torch.ones(len(weight)).requires_grad_()]
        layer(*leaves).backward(g)
        found.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-2)


def test_a_sum_has_the_same_bits_for_any_threads() -> None:
    values, weights = torch.rand(100_000), torch.rand(100_000)
    first, *others = by_threads(lambda: weighted_sum(values, weights))
    assert first.dtype == torch.float64
    assert all(torch.equal(first, other) for other in others)
    assert float(first) == pytest.approx(float((values.double() * weights.double()).sum()), rel=1e-12)

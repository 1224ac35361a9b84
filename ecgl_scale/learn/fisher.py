"""Squares of gradients: how much each weight matters to a loss  L = sum_i c_i l_i  of rows i.

    batch_squares   (dL / dw)^2                 the square of the whole batch's gradient
    row_squares     sum_i c_i (dl_i / dw)^2     the diagonal of the empirical Fisher: every row's own gradient

Rows by themselves have the second exactly, in one pass (``MlpGradient.begin``). Rows of a graph share their messages,
and a gradient of each would be a pass each; there it is the mean over draws of (sum_i s_i sqrt(c_i) dl_i / dw)^2 with
random signs s_i: products of two rows cancel on average, so its expectation is exact; its deviation is about
sqrt(2 / draws) of the value. Memory: 8 bytes a weight; a graph also one epoch's activations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.learn.graph_blocks import BlockedGraphSegment
from ecgl_scale.learn.graph_segment import GraphSegment
from ecgl_scale.learn.train import AnySegment, Trainer


def batch_squares(trainer: Trainer, segment: AnySegment) -> list[torch.Tensor]:
    """(dL / dw)^2 for every weight, without dropout."""
    trainer.gradient([segment], with_dropout=False)
    return [parameter.grad.square() for parameter in trainer.weights.parameters()]


def row_squares(
    trainer: Trainer, segment: AnySegment, *, draws: int, seed: int | tuple[int, ...]
) -> list[torch.Tensor]:
    """sum_i c_i (dl_i / dw)^2 for every weight, without dropout; ``draws`` and ``seed`` are for graphs."""
    roots = np.sqrt(segment.coefficients)
    if not isinstance(segment, GraphSegment):
        trainer.gradient([replace(segment, coefficients=roots)], with_dropout=False, squares=True)
        return [parameter.grad.clone() for parameter in trainer.weights.parameters()]
    rng = np.random.default_rng(seed)
    squares = [torch.zeros_like(parameter, requires_grad=False) for parameter in trainer.weights.parameters()]
    gradients_by = _gradients_of_weighted_rows(trainer, segment)
    for _ in range(draws):
        signed = rng.choice(np.array([-1, 1], np.float32), roots.size) * roots
        for square, gradient in zip(squares, gradients_by(signed), strict=True):
            square.addcmul_(gradient, gradient, value=1 / draws)
    return squares


def _gradients_of_weighted_rows(
    trainer: Trainer, segment: GraphSegment
) -> Callable[[NDArray[np.float32]], list[torch.Tensor]]:
    """A function from coefficients of the rows to the gradient of their loss."""
    parameters = trainer.weights.parameters()
    if isinstance(segment, BlockedGraphSegment):

        def by_blocks(coefficients: NDArray[np.float32]) -> list[torch.Tensor]:
            trainer.gradient([replace(segment, coefficients=coefficients)], with_dropout=False)
            return [parameter.grad for parameter in parameters]

        return by_blocks
    # One pass forward, and one back for each call.
    losses = segment.losses(segment.logits(trainer.weights), slice(0, segment.num_rows))

    def by_autograd(coefficients: NDArray[np.float32]) -> list[torch.Tensor]:
        weights = torch.from_numpy(coefficients).to(losses.device)
        return list(torch.autograd.grad(losses, parameters, weights, retain_graph=True, materialize_grads=True))

    return by_autograd

"""Loss and gradient of an MLP on a block of rows, in memory that is used again for the next block.

What autograd would compute, step by step, with every product written to its place:

    forward    H_l = relu(H_{l-1} W_l^T + b_l) [* mask]            logits among the wanted columns only
    loss       CE_i = -log softmax(logits_i)[label_i]              G = coefficient_i * (softmax - onehot)
               and where rows have old outputs, or another measure, what ``soft`` and ``loss`` say
    backward   dW_l += G^T H_{l-1},  db_l += sum of G,  G = (G W_l) [* mask] where H_{l-1} > 0

Autograd takes fresh memory for each of these in each block, and touching it costs about as much as the products.
Sparse rows need a hidden layer; a first weight that does not lie by columns is turned once a gradient, and so is its
gradient, not once a block.
Memory: ``rows * 4 * (2 * hidden (3 with dropout) + 2 * classes (7 with old outputs))`` and the gradient; sparse rows
with a weight by rows: 8 bytes a first weight.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.learn.loss import Targets
from ecgl_scale.learn.model import Rows, SharedWeights
from ecgl_scale.learn.products import add_outer, multiply, weighted_sum
from ecgl_scale.learn.sparse_linear import add_sparse_gradient, multiply_sparse
from ecgl_scale.store.source import CsrBlock

Positions = slice | NDArray[np.int64]


class MlpGradient:
    """Adds up gradients of blocks in every weight's ``.grad``: ``begin``, any number of ``add``, ``settle``.

    Whoever takes what is in ``.grad`` after ``settle``, and leaves zeros, may go on with ``add``: that is a lane.
    """

    def __init__(self, weights: SharedWeights, *, dropout: float = 0.0) -> None:
        self._weights = weights
        self._dropout = dropout
        self._buffers: dict[str, torch.Tensor] = {}
        self._turned: torch.Tensor | None = None
        self._turned_gradient: torch.Tensor | None = None
        self._squares = False

    def begin(self, *, squares: bool = False) -> None:
        """Set all gradients to zero; with ``squares`` each row's gradient is squared before it is added.

        A row's gradient of a layer is an outer product, so the sum of squares is a product as well: (G^2)^T (H^2).
        """
        self._squares = squares
        for parameter in self._weights.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()
        self._turned = self._turned_gradient = None

    def settle(self) -> None:
        """Put what sparse rows have added to its place: ``.grad`` is then the sum of all that was added."""
        if self._turned_gradient is not None:
            self._weights.layers[0][0].grad.add_(self._turned_gradient.t())
            self._turned_gradient = None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def add(
        self,
        x: Rows,
        targets: Targets,
        positions: Positions,
        *,
        scale: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Add the gradient of ``scale`` times the loss of these rows; returns their loss, unscaled, in float64.

        Nothing is dropped without a ``generator``.
        """
        layers = self._weights.layers
        num_rows = x.indptr.size - 1 if isinstance(x, CsrBlock) else len(x)
        inputs: list[Rows] = [x]
        masks: list[torch.Tensor] = []
        for index, (weight, bias) in enumerate(layers[:-1]):
            hidden = self._take(f"hidden {index}", num_rows, weight.shape[0])
            self._multiply(inputs[-1], weight, bias, hidden)
            hidden.clamp_(min=0)
            if self._dropout and generator is not None:
                mask = self._take(f"mask {index}", num_rows, weight.shape[0])
                masks.append(mask.bernoulli_(1 - self._dropout, generator=generator).div_(1 - self._dropout))
                hidden.mul_(mask)
            inputs.append(hidden)
        weight, bias = layers[-1]
        head = targets.head
        narrow = weight[head]
        logits = self._take("logits", num_rows, narrow.shape[0])
        self._multiply(inputs[-1], narrow, None if bias is None else bias[head], logits)
        loss = self._loss_and_gradient(logits, targets, positions, scale)
        self._add_layer(inputs[-1], logits, weight, bias, head)
        passed = logits
        for index in range(len(layers) - 2, -1, -1):
            used = narrow if index == len(layers) - 2 else layers[index + 1][0]
            gradient = multiply(passed, used, self._take(f"gradient {index}", num_rows, used.shape[1]))
            if masks:
                gradient.mul_(masks[index])
            hidden_now = inputs[index + 1]
            torch.ops.aten.threshold_backward.grad_input(gradient, hidden_now, 0, grad_input=gradient)
            self._add_layer(inputs[index], gradient, *layers[index], slice(None))
            passed = gradient
        return loss

    def forget_buffers(self) -> None:
        """Let go of the memory that is used again for every block."""
        self._buffers, self._turned, self._turned_gradient = {}, None, None

    def _multiply(self, x: Rows, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
        if isinstance(x, CsrBlock):
            multiply_sparse(x, self._by_columns(weight).numpy(), out.numpy())
            if bias is not None:
                out.add_(bias)
        else:
            multiply(x, weight.t(), out, bias)

    def _loss_and_gradient(
        self, logits: torch.Tensor, targets: Targets, positions: Positions, scale: float
    ) -> torch.Tensor:
        """``logits`` become the gradient of the loss by them."""
        labels, coefficients = targets.labels_and_coefficients(positions, logits.device)
        softened, soft_loss = None, 0.0
        if targets.soft is not None:
            softened = self._take("soft", *logits.shape).zero_()
            soft_loss = targets.soft.add_gradient(logits, positions, targets.head_columns, softened)
        targets.mask_forbidden(logits, positions)
        if targets.measure == "squares":
            losses = torch.linalg.vecdot(logits, logits)
            logits.mul_(2)
        else:
            logp = torch.log_softmax(logits, 1, out=self._take("logp", *logits.shape))
            losses = logp.gather(1, labels[:, None]).squeeze(1).neg_()
            torch.exp(logp, out=logits)
            logits.scatter_add_(1, labels[:, None], torch.full_like(labels[:, None], -1, dtype=logits.dtype))
        logits.mul_((coefficients * scale)[:, None])
        if softened is not None:
            logits.add_(softened, alpha=scale)
        return weighted_sum(losses, coefficients) + soft_loss

    def _add_layer(
        self,
        x: Rows,
        gradient: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        columns: slice | torch.Tensor,
    ) -> None:
        if self._squares:
            x = CsrBlock(x.indptr, x.indices, np.square(x.values)) if isinstance(x, CsrBlock) else x.square()
            gradient = gradient.square()
        if isinstance(x, CsrBlock):
            add_sparse_gradient(x, gradient.numpy(), self._gradient_by_columns(weight).numpy())
        elif isinstance(columns, slice):
            add_outer(weight.grad[columns], gradient, x)
        else:
            added = torch.zeros(gradient.shape[1], x.shape[1], device=weight.device)
            add_outer(added, gradient, x)
            weight.grad.index_add_(0, columns.to(weight.device), added)
        if bias is not None:
            bias.grad[columns] += gradient.sum(0)

    def _by_columns(self, weight: torch.Tensor) -> torch.Tensor:
        """The first weight as [in, out], which sparse rows need."""
        if weight.t().is_contiguous():
            return weight.detach().t()
        if self._turned is None:
            self._turned = self._take("turned", *weight.t().shape).copy_(weight.t())
        return self._turned

    def _gradient_by_columns(self, weight: torch.Tensor) -> torch.Tensor:
        """The gradient of the first weight as [in, out], to which sparse rows add."""
        if weight.grad.t().is_contiguous():
            return weight.grad.t()
        if self._turned_gradient is None:
            self._turned_gradient = self._take("turned gradient", *weight.t().shape).zero_()
        return self._turned_gradient

    def _take(self, name: str, *shape: int) -> torch.Tensor:
        size = shape[0] * shape[1]
        held = self._buffers.get(name)
        if held is None or held.numel() < size:
            self._buffers.pop(name, None)
            held = self._buffers[name] = torch.empty(size, device=self._weights.device)
        return held[:size].view(shape)

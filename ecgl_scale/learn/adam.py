"""Adam, with the weight decay as L2 inside it, as ``torch.optim.Adam`` computes it.

    g = grad + decay * w        m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
    w -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)

torch's own imports its compiler at the first use (seconds and a hundred MiB), and its state is made to be pickled; this
one is a page, and its state is tensors. On the CPU a step is one pass of our kernel, else tensor operations.
Memory: 8 bytes a weight; on a device also two buffers as large as the largest tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_kernels.adam import step_weights
from ecgl_scale.engine.threads import run_parts
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.learn.model import padded_like

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
SERIAL_WEIGHTS = 1 << 18
"""Fewer weights (a fraction of a millisecond) are one thread's work."""


class Adam:
    """Holds the moments of some parameters and does the steps."""

    def __init__(self, parameters: Sequence[torch.Tensor], *, lr: float, weight_decay: float) -> None:
        self.lr = lr
        self.weight_decay = weight_decay
        self.num_steps = 0
        self._parameters = list(parameters)
        self._means = [torch.zeros_like(tensor, requires_grad=False) for tensor in parameters]
        self._squares = [torch.zeros_like(tensor, requires_grad=False) for tensor in parameters]

    def reset(self) -> None:
        """Forget all moments."""
        self.num_steps = 0
        for tensor in (*self._means, *self._squares):
            tensor.zero_()

    def follow(self, parameters: Sequence[torch.Tensor]) -> None:
        """Go on with these parameters, of which some have got more rows: the moments of those are zero."""
        self._parameters = list(parameters)
        self._means = [padded_like(mean, tensor) for mean, tensor in zip(self._means, parameters, strict=True)]
        self._squares = [padded_like(square, tensor) for square, tensor in zip(self._squares, parameters, strict=True)]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """Move every parameter against its ``.grad``, which is used up."""
        self.num_steps += 1
        step_size = self.lr / (1 - BETA1**self.num_steps)
        root = (1 - BETA2**self.num_steps) ** 0.5
        for parameter, mean, square in zip(self._parameters, self._means, self._squares, strict=True):
            gradient = parameter.grad
            if gradient is None:
                continue
            if parameter.device.type == "cpu" and gradient.stride() == parameter.stride():
                self._step_here(parameter, gradient, mean, square, (step_size, root))
            else:
                self._step_on_device(parameter, gradient, mean, square, (step_size, root))

    def _step_here(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        mean: torch.Tensor,
        square: torch.Tensor,
        sizes: tuple[float, float],
    ) -> None:
        w, g, m, v = (in_memory_order(tensor) for tensor in (parameter, gradient, mean, square))

        def step(first: int, stop: int) -> None:
            part = slice(first, stop)
            step_weights(w[part], g[part], m[part], v[part], (BETA1, BETA2), (self.weight_decay, *sizes, EPSILON))

        threads = 1 if parameter.numel() < SERIAL_WEIGHTS else torch.get_num_threads()
        run_parts(step, np.linspace(0, parameter.numel(), threads + 1).astype(int).tolist())

    def _step_on_device(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        mean: torch.Tensor,
        square: torch.Tensor,
        sizes: tuple[float, float],
    ) -> None:
        step_size, root = sizes
        if self.weight_decay:
            gradient.add_(parameter, alpha=self.weight_decay)
        mean.lerp_(gradient, 1 - BETA1)
        square.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        denominator = torch.sqrt(square).div_(root).add_(EPSILON)
        parameter.addcdiv_(mean, denominator, value=-step_size)

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the moments and the number of steps, as tensors."""
        state = {"adam.step": torch.tensor(self.num_steps, dtype=torch.int64)}
        for index, (mean, square) in enumerate(zip(self._means, self._squares, strict=True)):
            state[f"adam.mean.{index}"] = mean.clone()
            state[f"adam.square.{index}"] = square.clone()
        return state

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from ``state()`` of the same parameters."""
        self.num_steps = int(take_tensor(state, "adam.step", ()))
        for index, (mean, square) in enumerate(zip(self._means, self._squares, strict=True)):
            mean.copy_(take_tensor(state, f"adam.mean.{index}", tuple(mean.shape)))
            square.copy_(take_tensor(state, f"adam.square.{index}", tuple(square.shape)))


def in_memory_order(tensor: torch.Tensor) -> NDArray[Any]:
    """All numbers of a matrix that lies by rows or by columns, as one array; no copy."""
    by_rows = tensor.detach() if tensor.is_contiguous() else tensor.detach().t()
    flat: NDArray[Any] = by_rows.view(-1).numpy()
    return flat


def take_tensor(state: Mapping[str, torch.Tensor], name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of a checkpoint, which must be there and have this shape."""
    found = state.get(name)
    if found is None or tuple(found.shape) != shape:
        what = "missing" if found is None else f"of shape {list(found.shape)}"
        raise InvalidInputError(
            f"a checkpoint does not fit this model: {name} is {what}", expected=f"a tensor of shape {list(shape)}"
        )
    return found

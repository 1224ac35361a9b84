"""One list of weights, used both as an MLP (training) and as a message-passing network (inference).

    mlp   H = relu(H W^T + b)                      rows know nothing of each other
    gcn   H = relu(P (H W^T + b))  bias inside     the paper's trick: the same tensors, no copy, only P is new
          H = relu(P H W^T + b)    bias outside
    sage  as gcn, where P takes the mean
    sgc   the mlp of P^L X

No relu after the last layer. P is whatever the caller gives: see ``message`` (whole graph, with a gradient) and the
partitioned inference of ``ecgl_scale.infer``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.graph.convolution import BiasPlace, Encoder
from ecgl_scale.learn.products import linear
from ecgl_scale.learn.sparse_linear import linear_of_sparse
from ecgl_scale.learn.tensors import load_tensors, save_tensors
from ecgl_scale.store.source import CsrBlock

Layer: TypeAlias = "tuple[torch.Tensor, torch.Tensor | None]"
Rows: TypeAlias = "torch.Tensor | CsrBlock"
Columns: TypeAlias = "slice | torch.Tensor"
Propagate = Callable[[torch.Tensor], torch.Tensor]
Init = Literal["torch", "kaiming"]

KIND = "weights"


class SharedWeights:
    """``layers[l]`` is (weight [out, in], bias [out] or None), float32; all are leaves that take gradients."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers: list[Layer] = [
            (weight.detach().requires_grad_(), None if bias is None else bias.detach().requires_grad_())
            for weight, bias in layers
        ]
        if not self.layers:
            raise UsageError("a model needs at least one layer", expected="a list of (weight, bias)")
        for index, (weight, bias) in enumerate(self.layers):
            expected_in = weight.shape[1] if index == 0 else self.layers[index - 1][0].shape[0]
            fits = weight.ndim == 2 and weight.shape[1] == expected_in
            if not fits or (bias is not None and tuple(bias.shape) != (weight.shape[0],)):
                found = f"weight {list(weight.shape)}, bias {None if bias is None else list(bias.shape)}"
                raise UsageError(
                    "these layers do not fit each other",
                    where=f"layer {index}: {found}",
                    expected=f"in = {expected_in}",
                )

    @classmethod
    def create(
        cls,
        num_features: int,
        hidden: Sequence[int],
        num_classes: int,
        *,
        bias: bool = True,
        init: Init = "torch",
        seed: int = 0,
        by_columns: bool = False,
    ) -> SharedWeights:
        """Random weights, the same for the same seed whatever else was drawn before.

        ``by_columns``: the first weight lies in memory column by column, as products with sparse rows want it; turning
        it to and fro would take most of a small epoch. Its shape and numbers are the same.
        ``torch``: uniform in +-1/sqrt(in), as ``torch.nn.Linear``. ``kaiming``: normal with deviation 1/sqrt(in), as
        the reference code's ``kaiming_normal_(nonlinearity="sigmoid")``. Biases are torch's in both. Numbers are drawn
        in the order in which torch's modules draw them, after ``torch.manual_seed(seed)``.
        """
        widths = [num_features, *hidden, num_classes]
        if min(widths) < 1:
            raise UsageError("a layer has no width", where=f"widths {widths}", expected="at least 1 each")
        if init not in ("torch", "kaiming"):
            raise UsageError(f"no such init: {init!r}", expected="torch or kaiming")
        generator = torch.Generator().manual_seed(seed)
        layers: list[Layer] = []
        for fan_in, fan_out in pairwise(widths):
            bound = 1 / math.sqrt(fan_in)
            weight = torch.empty(fan_out, fan_in).uniform_(-bound, bound, generator=generator)
            layers.append((weight, torch.empty(fan_out).uniform_(-bound, bound, generator=generator) if bias else None))
        if init == "kaiming":
            for weight, _ in layers:
                weight.normal_(0.0, 1 / math.sqrt(weight.shape[1]), generator=generator)
        if by_columns:
            weight, first_bias = layers[0]
            layers[0] = (weight.t().contiguous().t(), first_bias)
        return cls(layers)

    def grow(self, num_new: int) -> None:
        """Give the head a row of zeros for each of so many new classes, in tensors that lie in memory as the old ones.

        Zeros are also what weight decay leaves of outputs that wait for their classes from the beginning. Drawn numbers
        would shake the layers below until they are learned: that cost LwF five points of accuracy (bench/README.md).
        """
        weight, bias = self.layers[-1]
        self.layers[-1] = (_with_rows(weight, num_new), None if bias is None else _with_rows(bias, num_new))

    def take(self, values: Sequence[torch.Tensor]) -> SharedWeights:
        """Itself, with the numbers of other tensors of the same shapes; fewer rows leave zeros in the rest."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters(), values, strict=True):
                parameter[: len(value)] = value
                parameter[len(value) :] = 0
        return self

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of the input, of every hidden layer and of the output."""
        return (self.layers[0][0].shape[1], *(weight.shape[0] for weight, _ in self.layers))

    @property
    def num_features(self) -> int:
        """Columns of the input."""
        return self.widths[0]

    @property
    def num_classes(self) -> int:
        """Columns of the output: the head."""
        return self.widths[-1]

    @property
    def device(self) -> torch.device:
        """The device that the tensors are on."""
        return self.layers[0][0].device

    def parameters(self) -> list[torch.Tensor]:
        """All tensors, layer by layer, weight before bias."""
        return [tensor for layer in self.layers for tensor in layer if tensor is not None]

    def mlp(
        self,
        x: Rows,
        *,
        columns: Columns | None = None,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Logits of rows by themselves; with ``columns`` only those of the head are computed.

        Dropout is after every hidden relu. Memory: rows * (widths of all layers) * 4 bytes, kept for the gradient.
        """
        first, *others = self._narrowed(columns)
        h = _linear(x, *first)
        for layer in others:
            h = _linear(_drop(torch.relu_(h), dropout, generator), *layer)
        return h

    def gcn(
        self,
        x: Rows,
        propagate: Propagate,
        *,
        encoder: Encoder = "gcn",
        bias_place: BiasPlace = "inside",
        columns: Columns | None = None,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        """Logits of all nodes of a graph, whose messages are ``propagate(H) = P H``."""
        if encoder not in ("gcn", "sage", "sgc") or bias_place not in ("inside", "outside"):
            raise UsageError(
                f"no such network: {encoder!r} with the bias {bias_place!r}",
                expected="gcn, sage or sgc; inside or outside",
            )
        if encoder == "sgc":
            smooth = _dense(x, self.num_features) if isinstance(x, CsrBlock) else x
            for _ in self.layers:
                smooth = propagate(smooth)
            return self.mlp(smooth, columns=columns, dropout=dropout, generator=generator)
        first, *others = self._narrowed(columns)
        h = _convolve(x, *first, propagate, bias_place)
        for layer in others:
            h = _convolve(_drop(torch.relu_(h), dropout, generator), *layer, propagate, bias_place)
        return h

    def _narrowed(self, columns: Columns | None) -> list[Layer]:
        if columns is None:
            return self.layers
        weight, bias = self.layers[-1]
        return [*self.layers[:-1], (weight[columns], None if bias is None else bias[columns])]

    def copy(self) -> SharedWeights:
        """A copy: equal numbers in tensors of its own."""
        return SharedWeights([(w.detach().clone(), None if b is None else b.detach().clone()) for w, b in self.layers])

    def to(self, device: str | torch.device) -> SharedWeights:
        """The weights on a device; themselves where they are there already."""
        if self.device == torch.device(device):
            return self
        return SharedWeights([(w.to(device), None if b is None else b.to(device)) for w, b in self.layers])

    def arrays(self) -> list[tuple[NDArray[np.float32], NDArray[np.float32] | None]]:
        """The layers as numpy arrays; on the CPU they are the same memory."""
        return [
            (weight.detach().cpu().numpy(), None if bias is None else bias.detach().cpu().numpy())
            for weight, bias in self.layers
        ]

    def save(self, path: str | Path) -> None:
        """Write all tensors to one safetensors file, durably, in place of what was there."""
        tensors = {}
        for index, (weight, bias) in enumerate(self.arrays()):
            tensors[f"weight.{index}"] = weight
            if bias is not None:
                tensors[f"bias.{index}"] = bias
        save_tensors(Path(path), tensors, about={"kind": KIND})

    @classmethod
    def load(cls, path: str | Path, *, widths: Sequence[int] | None = None) -> SharedWeights:
        """Read weights, which must have these ``widths`` where they are given.

        Raises
        ------
        InvalidInputError
            No such file, a pickle, a damaged file, other tensors, or weights of other widths.
        """
        tensors, about = load_tensors(Path(path))
        count = sum(name.startswith("weight.") for name in tensors)
        names = {f"{part}.{index}" for part in ("weight", "bias") for index in range(count)}
        wrong = [name for name, tensor in tensors.items() if name not in names or tensor.dtype != np.float32]
        if about.get("kind") != KIND or wrong or not count or not all(f"weight.{i}" in tensors for i in range(count)):
            raise InvalidInputError(
                "this file holds no weights",
                where=f"{path}: {', '.join(sorted(tensors))}",
                expected="weight.0, bias.0, ...",
            )
        layers: list[Layer] = []
        for index in range(count):
            bias = tensors.get(f"bias.{index}")
            weight = torch.from_numpy(tensors[f"weight.{index}"])
            layers.append((weight, None if bias is None else torch.from_numpy(bias)))
        try:
            loaded = cls(layers)
        except UsageError as error:
            raise InvalidInputError(error.what, where=f"{path}, {error.where}", expected=error.expected) from error
        if widths is not None and loaded.widths != tuple(widths):
            raise InvalidInputError(
                f"the weights have the widths {list(loaded.widths)}",
                where=path,
                expected=f"widths {list(widths)}: features, hidden layers, classes",
            )
        return loaded


def padded_like(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor with zeros in the rows that ``like`` has besides, on its device and laid out in memory as it is."""
    if (tensor.shape, tensor.stride(), tensor.device) == (like.shape, like.stride(), like.device):
        return tensor
    padded = torch.zeros_like(like, requires_grad=False)
    padded[: len(tensor)] = tensor
    return padded


def _with_rows(tensor: torch.Tensor, num_new: int) -> torch.Tensor:
    rows = torch.cat([tensor.detach(), tensor.new_zeros(num_new, *tensor.shape[1:])])
    rows = rows if tensor.is_contiguous() else rows.t().contiguous().t()
    return rows.requires_grad_()


def _linear(x: Rows, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if isinstance(x, CsrBlock):
        return linear_of_sparse(x, weight, bias)
    return linear(x, weight, bias)


def _convolve(
    x: Rows, weight: torch.Tensor, bias: torch.Tensor | None, propagate: Propagate, bias_place: BiasPlace
) -> torch.Tensor:
    """One layer; messages are sent at the narrower of its two widths. P (H W^T + 1 b^T) = (P H) W^T + (P 1) b^T."""
    is_inside = bias_place == "inside"
    if not isinstance(x, CsrBlock) and weight.shape[1] < weight.shape[0]:
        if bias is None or not is_inside:
            return _linear(propagate(x), weight, bias)
        row_sums = propagate(torch.ones(len(x), 1, device=x.device))
        return _linear(propagate(x), weight, None).addcmul_(row_sums, bias)
    sent = propagate(_linear(x, weight, bias if is_inside else None))
    return sent if bias is None or is_inside else sent + bias


def _drop(x: torch.Tensor, dropout: float, generator: torch.Generator | None) -> torch.Tensor:
    """Dropout by ``generator``: torch's own takes none, and a resumed run must draw the same."""
    if dropout == 0.0:
        return x
    return x * torch.empty_like(x).bernoulli_(1 - dropout, generator=generator).div_(1 - dropout)


def _dense(rows: CsrBlock, num_features: int) -> torch.Tensor:
    from ecgl_scale.store.features.csr import to_dense

    return torch.from_numpy(to_dense(rows, num_features))

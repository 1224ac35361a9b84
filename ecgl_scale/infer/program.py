"""The layers as a program: which product comes first, and what is fused between two aggregations.

    gcn, sage   H <- relu(P (H W + b))     bias inside;     relu(P H W + b) outside; no relu after the last
    sgc         P^L X, then the plain MLP

P sums over in-neighbours and the node itself, normalised. It is linear, so P (H W) = (P H) W and the narrower of both
sides goes through the graph: 100 -> 256 -> 47 is aggregated at 100 and at 47 columns, never at 256. Aggregated first,
an inside bias becomes b times the row sums of P, exactly. Between two aggregations rows do not meet, so all dense work
there is done while a few rows are in cache, and only the narrow result is kept. Sparse features are always multiplied
first: aggregated they would be dense.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ecgl_scale.infer.settings import InferSettings, Layer, Matrix
from ecgl_scale.units import format_count

UNIT_COLUMNS = 4
"""Kept matrices are padded to this many columns: the kernels sum four, eight and so on at once."""


@dataclass(frozen=True)
class Dense:
    """rows <- rows W^T + b, then relu; without a weight only what follows it."""

    weight_t: Matrix | None
    """[in, out]."""
    bias: Matrix | None = None
    bias_times_sums: bool = False
    """The bias was inside an aggregation that has been done already: it counts as often as the row sum of P."""
    relu: bool = False

    def width(self, width: int) -> int:
        """The number of columns afterwards."""
        return width if self.weight_t is None else self.weight_t.shape[1]


@dataclass(frozen=True)
class Pass:
    """One aggregation of ``width`` columns and the dense work on its rows."""

    width: int
    dense: tuple[Dense, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of the aggregated rows and after each dense step."""
        widths = [self.width]
        for step in self.dense:
            widths.append(step.width(widths[-1]))
        return tuple(widths)

    @property
    def needs_sums(self) -> bool:
        """Whether the row sums of P are needed."""
        return any(step.bias_times_sums and step.bias is not None for step in self.dense)


@dataclass(frozen=True)
class Program:
    """Dense work on the features (or none), then the passes."""

    num_features: int
    before: Dense | None
    passes: tuple[Pass, ...]

    @property
    def source_width(self) -> int:
        """Columns of what the first pass aggregates."""
        return self.passes[0].width

    @property
    def order(self) -> tuple[str, ...]:
        """The products, in words."""
        said = [] if self.before is None else [f"features {self.num_features} -> {self.source_width}"]
        for layer_pass in self.passes:
            said.append(f"aggregate {format_count(layer_pass.width)}")
            for (before, after), step in zip(pairwise(layer_pass.widths), layer_pass.dense, strict=True):
                said += [] if step.weight_t is None else [f"{before} -> {after}"]
        return tuple(said)


@dataclass
class _Builder:
    before: Dense | None = None
    passes: list[tuple[int, list[Dense]]] = field(default_factory=list)

    def aggregate(self, width: int) -> None:
        self.passes.append((width, []))

    def multiply(self, step: Dense) -> None:
        if self.passes and (step.weight_t is not None or step.bias is not None or step.relu):
            self.passes[-1][1].append(step)
        elif not self.passes:
            self.before = step


def write_program(layers: Sequence[Layer], settings: InferSettings, *, sparse: bool) -> Program:
    """Put the products in order; ``sparse`` features are multiplied before they are aggregated."""
    builder = _Builder()
    if settings.encoder == "sgc":
        _write_sgc(builder, layers, sparse=sparse)
    else:
        _write_convolutions(builder, layers, settings, sparse=sparse)
    passes = tuple(Pass(width, tuple(steps)) for width, steps in builder.passes)
    return Program(layers[0].weight.shape[1], builder.before, passes)


def _write_convolutions(builder: _Builder, layers: Sequence[Layer], settings: InferSettings, *, sparse: bool) -> None:
    inside = settings.bias_place == "inside"
    for number, layer in enumerate(layers):
        num_outputs, num_inputs = layer.weight.shape
        relu, weight_t = number < len(layers) - 1, np.ascontiguousarray(layer.weight.T)
        if num_outputs < num_inputs or (number == 0 and sparse):
            builder.multiply(Dense(weight_t, layer.bias if inside else None))
            builder.aggregate(num_outputs)
            builder.multiply(Dense(None, None if inside else layer.bias, relu=relu))
        else:
            builder.aggregate(num_inputs)
            builder.multiply(Dense(weight_t, layer.bias, bias_times_sums=inside, relu=relu))


def _write_sgc(builder: _Builder, layers: Sequence[Layer], *, sparse: bool) -> None:
    first = layers[0]
    num_outputs, num_inputs = first.weight.shape
    transform_first = num_outputs < num_inputs or sparse
    if transform_first:
        builder.multiply(Dense(np.ascontiguousarray(first.weight.T)))
    for _ in layers:
        builder.aggregate(num_outputs if transform_first else num_inputs)
    for number, layer in enumerate(layers):
        weight_t = None if number == 0 and transform_first else np.ascontiguousarray(layer.weight.T)
        builder.multiply(Dense(weight_t, layer.bias, relu=number < len(layers) - 1))


def shape_layers(widths: Sequence[int], *, bias: bool = True) -> tuple[Layer, ...]:
    """Layers of these widths that hold nothing, for planning."""
    zero = np.zeros(1, np.float32)
    return tuple(
        Layer(np.broadcast_to(zero, (after, before)), np.broadcast_to(zero, (after,)) if bias else None)
        for before, after in pairwise(widths)
    )


def padded(width: int) -> int:
    """Columns that a kept matrix of ``width`` has."""
    return -(-width // UNIT_COLUMNS) * UNIT_COLUMNS

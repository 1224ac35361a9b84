"""Variants of E-CGL that are no part of the product: ``bench.ablation`` names them as ``bench.ablation_methods:Class``.

Each changes one thing, by the hooks that every method of a user has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.learn.graph_segment import GraphSegment
from ecgl_scale.learn.loss import Segment, Targets, target_fields
from ecgl_scale.learn.method.base import Context
from ecgl_scale.learn.methods.ecgl import Ecgl
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.soft import Positions
from ecgl_scale.learn.solved_head import solve_last_layer
from ecgl_scale.learn.sparse_linear import linear_of_sparse
from ecgl_scale.learn.train import AnySegment

TEMPERATURE = 16.0


class SolvedAtTest(Ecgl):
    """The last layer is solved for after each task, but the next task goes on from the one that was trained."""

    name: ClassVar[str] = "solved_at_test"

    def begin_task(self, context: Context) -> None:
        """Take the trained layer back; outputs that have come since are zeros."""
        _take_last(context, [self.kept[name] for name in sorted(self.kept)])

    def finish(self, context: Context, segments: Sequence[AnySegment]) -> None:
        """Keep the trained layer beside the solved one."""
        weight, bias = context.trainer.weights.layers[-1]
        trained = [weight, *([] if bias is None else [bias])]
        self.kept = {f"trained.{place}": tensor.detach().numpy().copy() for place, tensor in enumerate(trained)}
        solve_last_layer(context.trainer, [segment for segment in segments if isinstance(segment, Segment)])


@dataclass(frozen=True, eq=False, kw_only=True)
class AdjustedSegment(Segment):
    """Rows whose logits get the log of each class's share of all rows in the loss (Menon et al. 2021)."""

    offsets: NDArray[np.float32]

    def mask_forbidden(self, logits: torch.Tensor, positions: Positions) -> None:
        """Add the offsets, too; it is what the loss does first."""
        super().mask_forbidden(logits, positions)
        logits.add_(torch.from_numpy(self.offsets[self.head_columns]))


class WithMargins(Ecgl):
    """Rows are weighed as the config says, and the loss asks for wider margins of classes with few rows."""

    name: ClassVar[str] = "with_margins"

    def segments(self, context: Context) -> list[AnySegment]:
        """The same rows, with offsets."""
        plain = [segment for segment in super().segments(context) if isinstance(segment, Segment)]
        labels = np.concatenate([segment.labels for segment in plain])
        counts = np.bincount(labels, minlength=plain[0].columns.shape[-1])
        offsets = np.log(np.maximum(counts, 1) / labels.size).astype(np.float32)
        return [AdjustedSegment(rows=segment.rows, offsets=offsets, **target_fields(segment)) for segment in plain]


class LogitAdjusted(WithMargins):
    """Every row weighs the same, and the loss asks for wider margins of classes with few rows."""

    name: ClassVar[str] = "logit_adjusted"

    def segments(self, context: Context) -> list[AnySegment]:
        """The same rows and offsets, without class weights."""
        weighed = super().segments(context)
        total = sum(segment.num_rows for segment in weighed)
        return [replace(one, coefficients=np.full(one.num_rows, 1 / total, np.float32)) for one in weighed]


@dataclass(frozen=True, eq=False, kw_only=True)
class CosineSegment(GraphSegment):
    """Rows by themselves whose logits are cosines of the last hidden row and the output's weight; by autograd."""

    propagation: Any = None
    local: Any = None

    def __post_init__(self) -> None:
        Targets.__post_init__(self)

    def logits(
        self, weights: SharedWeights, *, dropout: float = 0.0, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Cosines times the temperature; nothing is dropped."""
        del dropout, generator
        first, (last, _) = weights.layers
        if self.rows.is_sparse:
            hidden = torch.relu(linear_of_sparse(self.rows.read_sparse(0, self.rows.num_rows), *first))
        else:
            hidden = torch.relu(torch.nn.functional.linear(self._dense_input, *first))
        normal = torch.nn.functional.normalize
        return TEMPERATURE * normal(hidden, dim=1) @ normal(last[self.head], dim=1).t()


class Cosine(Ecgl):
    """Trained by cosines; tested with outputs' weights of length one, no bias, and hidden rows as they are."""

    name: ClassVar[str] = "cosine"

    def segments(self, context: Context) -> list[AnySegment]:
        """The same rows, weighed the same."""
        plain = super().segments(context)
        return [CosineSegment(rows=segment.rows, **target_fields(segment)) for segment in plain]

    def finish(self, context: Context, segments: Sequence[AnySegment]) -> None:
        """Bring weights to length one, which changes no cosine."""
        del segments
        weight, bias = context.trainer.weights.layers[-1]
        with torch.no_grad():
            weight.copy_(torch.nn.functional.normalize(weight, dim=1))
            if bias is not None:
                bias.zero_()


def _take_last(context: Context, values: Sequence[NDArray[np.float32]]) -> None:
    with torch.no_grad():
        for parameter, value in zip(context.trainer.weights.parameters()[-len(values) :], values, strict=False):
            parameter.zero_()
            parameter[: len(value)] = torch.from_numpy(value)

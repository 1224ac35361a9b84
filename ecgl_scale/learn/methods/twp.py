"""Topology-aware weight preserving: as EWC, but weights that shape the attention over edges count as well.

    L = CE + sum_j sum_k I_jk (w_k - w*_jk)^2 + beta |dCE/dw|_1

    I_j = lambda_loss (dCE/dw)^2 + lambda_topology (d|a|_2/dw)^2       after task j, on its rows and its graph

a are the first layer's attentions over the edges of the task graph (``learn.attention``), between the messages
``X W^T + b``; they need no training with messages, so rows by themselves have them too (Liu et al., AAAI 2021).
beta's term keeps new tasks from leaning on many weights. Its gradient is beta H sign(g), H the Hessian, by the central
difference of two more gradients along sign(g): exact up to rounding but where a relu switches.

``reference: true``, as the public code: the attention is between what nodes have received, not sent; the CE's gradient
is still in the second importance; beta's term is a constant of the step; and the CE's gradient counts twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.config.sections import Section
from ecgl_scale.errors import UsageError
from ecgl_scale.learn.attention import attention_bytes, attention_gradient
from ecgl_scale.learn.graph_segment import GraphSegment
from ecgl_scale.learn.method.anchored import Anchored
from ecgl_scale.learn.method.base import QUIRKS, Context, MethodPlan, TaskShape, TaskSizes, end_plan
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.products import exact_sum
from ecgl_scale.learn.rows import gathering_bytes
from ecgl_scale.learn.train import AnySegment, Penalty
from ecgl_scale.units import format_bytes

RELATIVE_STEP = 1e-3
"""Size of the difference, compared with the weights: its error and float32's are then both about a thousandth."""


class TwpConfig(Section):
    """Topology-aware weight preserving."""

    lambda_loss: float = Field(default=10000.0, ge=0, description="Weight of the importance for the loss.")
    lambda_topology: float = Field(default=10000.0, ge=0, description="Weight of the importance for the attention.")
    beta: float = Field(default=0.01, ge=0, description="Weight of the norm of the loss's gradient.")
    reference: bool = Field(
        default=False,
        description=QUIRKS + " TWP: attention after messages; the loss's gradient is in both importances and twice in "
        "every step; no gradient of beta's term.",
    )


class Twp(Anchored):
    """Keeps anchors: the old tasks' weights and importances, summed up."""

    name: ClassVar[str] = "twp"
    choose_when: ClassVar[str] = "to compare: holds on to old tasks at the cost of new ones"
    place: ClassVar[int] = 70
    cost: ClassVar[str] = "three passes over the task's rows; one with twp.beta 0 or as the public code"
    reference: ClassVar[str] = "Overcoming Catastrophic Forgetting in Graph Neural Networks (Liu et al., AAAI 2021)"
    settings: ClassVar[type[Section]] = TwpConfig
    weight_copies: ClassVar[int] = 6  # the gradient, weights, their gradients and the difference in a step

    def __init__(self) -> None:
        super().__init__()
        self._segments: list[AnySegment] = []
        self._gradient: list[torch.Tensor] = []

    def check(self, config: RunConfig) -> None:
        """Refuse what cannot be computed."""
        if config.learn.num_hops:
            raise UsageError(
                f"learn.features is {config.learn.features}, and twp needs the edges between the rows it is given",
                expected="learn.features: raw",
            )
        settings = config.section(TwpConfig)
        if config.learn.batching == "minibatch" and settings.beta and not settings.reference:
            raise UsageError(
                "learn.batching is minibatch, and twp's norm of the gradient is the whole batch's",
                fix="use batching: full, or twp.beta: 0",
            )

    def begin_task(self, context: Context) -> None:
        """Refuse a graph whose attention does not fit, before hours are spent on it."""
        needed = attention_bytes(context.graph(context.task)[0].num_nodes, context.trainer.weights.widths[1])
        context.resources.require(
            needed,
            stage="attention over the task graph",
            formula=f"{format_bytes(needed)} for first-layer outputs and their gradients",
        )

    def segments(self, context: Context) -> list[AnySegment]:
        """The task's rows."""
        self._segments = super().segments(context)
        return self._segments

    def penalty(self, context: Context) -> Penalty | None:
        """Distance from the anchors, and the gradient's norm, whose own gradient comes with ``adjust``."""
        anchors, config = self._anchors.fit(context.trainer.weights), context.config.section(TwpConfig)

        def value_of(weights: SharedWeights) -> torch.Tensor:
            # The trainer has left the gradient of the CE alone so far.
            self._gradient = [parameter.grad.clone() for parameter in weights.parameters()]
            norm = sum(exact_sum(gradient.abs()) for gradient in self._gradient)
            shift = torch.tensor(config.beta * norm, device=weights.device)
            return anchors.penalty(weights) + shift if anchors else shift

        return value_of

    def adjust(self, context: Context) -> None:
        """Add the gradient of beta's term; or, as the public code does by two backward passes, that of the CE again."""
        config = context.config.section(TwpConfig)
        if config.reference:
            added = self._gradient
        elif config.beta:
            added = [config.beta * gradient for gradient in self._norm_gradient(context)]
        else:
            return
        for parameter, gradient in zip(context.trainer.weights.parameters(), added, strict=True):
            parameter.grad.add_(gradient)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _norm_gradient(self, context: Context) -> list[torch.Tensor]:
        """H sign(g); weights and gradients are left as they were."""
        trainer = context.trainer
        parameters = trainer.weights.parameters()
        places = [parameter.clone() for parameter in parameters]
        totals = [parameter.grad.clone() for parameter in parameters]
        num_weights = sum(place.numel() for place in places)
        square = sum(exact_sum(place.square()) for place in places)
        step = max(RELATIVE_STEP * (square / num_weights) ** 0.5, 1e-12)
        found = [torch.zeros_like(place) for place in places]
        for side in (step, -step):
            for parameter, place, gradient in zip(parameters, places, self._gradient, strict=True):
                parameter.copy_(place).add_(gradient.sign(), alpha=side)
            with torch.enable_grad():
                trainer.gradient(self._segments, with_dropout=False)
            for sum_, parameter in zip(found, parameters, strict=True):
                sum_.add_(parameter.grad, alpha=1 / (2 * side))
        for parameter, place, total in zip(parameters, places, totals, strict=True):
            parameter.copy_(place)
            parameter.grad.copy_(total)
        return found

    def end_task(self, context: Context) -> None:
        """Anchor the weights where they are."""
        weights, config = context.trainer.weights, context.config.section(TwpConfig)
        (segment,) = self.segments(context)
        context.trainer.gradient([segment], with_dropout=False)
        by_loss = [parameter.grad.clone() for parameter in weights.parameters()]
        by_topology = _topology_gradient(context, segment)
        importances = []
        for loss, topology in zip(by_loss, by_topology, strict=True):
            both = topology + loss if config.reference else topology
            importances.append(config.lambda_loss * loss.square() + config.lambda_topology * both.square())
        self._anchors.add(weights, importances)
        self._segments, self._gradient = [], []

    def beside_segments_bytes(self, config: RunConfig, shape: TaskShape) -> int:
        """The attention, and rows of all nodes on their way to a file; a graph has those already."""
        attention = attention_bytes(shape.num_nodes, shape.widths[1])
        is_graph = config.learn.train_as == "gcn"
        return attention + (0 if is_graph else gathering_bytes(shape.num_nodes, shape.num_features))

    def plan(self, config: RunConfig, sizes: TaskSizes) -> MethodPlan:
        """The task's rows and a gradient, then the rows of all nodes and the attention; a graph has those already."""
        needed = sizes.training_beside(self.beside_segments_bytes(config, sizes))
        if config.learn.train_as == "mlp":
            segment = needed - gathering_bytes(sizes.num_nodes, sizes.num_features)
            needed = segment + sizes.rows_bytes(sizes.num_nodes, beside_bytes=segment)
        formula = "the task's rows, or graph, and a gradient; attention over its edges"
        return replace(super().plan(config, sizes), end=end_plan(needed, formula))


def _topology_gradient(context: Context, segment: AnySegment) -> list[torch.Tensor]:
    """d|a|/dw of every weight: zero but for the first layer's."""
    weights = context.trainer.weights
    graph, _ = context.graph(context.task)
    rows, propagation = segment.rows, None
    if not isinstance(segment, GraphSegment):
        rows = context.graph_rows(context.task, beside_bytes=attention_bytes(graph.num_nodes, weights.widths[1]))
    elif context.config.section(TwpConfig).reference:
        propagation = segment.propagation
    _, by_weight, by_bias = attention_gradient(
        graph,
        rows,
        weights.layers[0],
        is_bias_inside=context.config.learn.bias_place == "inside",
        propagation=propagation,
    )
    first = [by_weight] if by_bias is None else [by_weight, by_bias]
    return first + [torch.zeros_like(p, requires_grad=False) for p in weights.parameters()[len(first) :]]

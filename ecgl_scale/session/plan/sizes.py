"""What a plan is made of: sizes of tasks, rows and weights, known from the store and the stream alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.resources import Resources
from ecgl_scale.infer.model_input import ModelInput
from ecgl_scale.learn.bank import plan_bank
from ecgl_scale.learn.method.base import Method
from ecgl_scale.learn.method.table import method_of
from ecgl_scale.learn.row_sources import stays_sparse
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.context import ContextRule
from ecgl_scale.tasks.context_sizes import CountedGraphs, GraphSizes
from ecgl_scale.tasks.stream import Task, TaskStream

KEPT_WEIGHT_BYTES = 16
"""A weight, its gradient and two moments."""
CONTEXT_NODE_BYTES = 24
"""Ids of a graph with context, head positions of its nodes, and a copy of either."""
CONTEXT_SET_BITS = 6
"""A node of the store in sets of nodes, while context is looked for."""
CHECKPOINT_WEIGHT_BYTES = 24
"""Copies of a weight and its moments, and the same as they are written."""


@dataclass(frozen=True, eq=False)
class RunSizes:
    """A store, a stream and a config, as numbers. Memory: ``degrees``."""

    setup: RunSetup
    degrees: NDArray[np.int64]

    @property
    def graph(self) -> GraphStore:
        """The store of the run."""
        return self.setup.graph

    @property
    def stream(self) -> TaskStream:
        """The stream of its tasks."""
        return self.setup.stream

    @property
    def tasks(self) -> list[Task]:
        """Its tasks that have rows to train on; those of others are forgotten."""
        return [task for task in self.stream if task.num_train]

    @property
    def to_learn(self) -> Sequence[Task]:
        """The tasks that are still to be learned: of a model that goes on, the new one."""
        return self.stream[self.setup.first_task :]

    @property
    def config(self) -> RunConfig:
        """The settings of the run."""
        return self.setup.config

    @property
    def resources(self) -> Resources:
        """What the run may use."""
        return self.setup.resources

    @cached_property
    def method(self) -> Method:
        """The method, to be asked what it needs."""
        return method_of(self.config)

    @cached_property
    def made(self) -> ModelInput:
        """How the model's input is made of features."""
        made = self.method.shape(self.config).made
        return made.on(self.graph, keeps_zeros=self.config.learn.scale != "standard")

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Widths of the model: its input, hidden layers, classes."""
        return self.setup.widths

    @property
    def num_weights(self) -> int:
        """Weights of all layers, biases included."""
        return sum(fan_in * fan_out + fan_out for fan_in, fan_out in pairwise(self.widths))

    @property
    def made_dense(self) -> bool:
        """Whether sparse features become dense in the graphs of tasks: a mean taken off leaves no zero."""
        return self.graph.has_sparse_features and self.config.learn.scale == "standard"

    @property
    def values_a_row(self) -> float | None:
        """Stored values of the average row of a task's graph; None for dense rows, which standardised ones are."""
        features = self.graph.features
        if features is None or not features.is_sparse or self.made_dense:
            return None
        return features.num_values / self.graph.num_nodes

    def input_values(self, num_rows: int) -> int | None:
        """Values of so many rows as the model is given them; None for dense ones, which propagated ones are."""
        if self.values_a_row is None or self.made.is_made:
            return None
        return int(np.ceil(self.values_a_row * num_rows))

    @property
    def trains_sparse(self) -> bool:
        """Whether training rows stay sparse: those that are more than half full are held dense."""
        num_rows = max(task.num_train for task in self.stream)
        num_values = self.input_values(num_rows)
        return num_values is not None and stays_sparse(num_rows, self.widths[0], num_values)

    def graph_of(self, task: Task, *, seen: bool) -> GraphSizes:
        """The graph of a task, or of all up to it; with context no larger than that of all tasks."""
        if not self.context.is_none:
            return self.counted_seen.sizes[0] if seen else self.counted_own.sizes[task.index]
        tasks = self.stream.seen(task) if seen else [task]
        return GraphSizes(sum(one.num_nodes for one in tasks), sum(self._edges_into[one.index] for one in tasks))

    @cached_property
    def _edges_into(self) -> list[int]:
        return [int(self.degrees[task.node_ids].sum()) for task in self.stream]

    @property
    def context(self) -> ContextRule:
        """Which unlabelled nodes come into the graphs."""
        return ContextRule.parse(self.config.tasks.context)

    @property
    def counted_own(self) -> CountedGraphs:
        """The graphs of single tasks with their context."""
        about = (self.graph, self.stream, self.context, self.degrees, self.resources.threads)
        return self.setup.context_sizes.own(*about)

    @property
    def counted_seen(self) -> CountedGraphs:
        """The graph of all tasks with its context."""
        about = (self.graph, self.stream, self.context, self.degrees, self.resources.threads)
        return self.setup.context_sizes.seen(*about)

    def context_bytes(self, *, seen: bool) -> int:
        """Memory of the ids of nodes where graphs have context; other tasks' ids are few, or ranges."""
        if self.context.is_none:
            return 0
        counted = self.counted_seen if seen else self.counted_own
        num_nodes = max(one.num_nodes for one in counted.sizes)
        return CONTEXT_NODE_BYTES * num_nodes + CONTEXT_SET_BITS * self.graph.num_nodes // 8

    @cached_property
    def bank_nodes(self) -> int:
        """Nodes in the bank when all tasks are learned."""
        if not self.method.keeps_bank:
            return 0
        return sum(min(self.config.bank.budget, task.num_train) for task in self.stream)

    @cached_property
    def bank_bytes(self) -> int:
        """Memory of the bank when all tasks are learned, twice while it is added to."""
        if not self.bank_nodes:
            return 0
        num_values = self.input_values(self.bank_nodes)
        return plan_bank(self.bank_nodes, self.graph.num_features, num_values=num_values).host_bytes

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights between two epochs."""
        return (KEPT_WEIGHT_BYTES + self._earlier_weight_bytes) * self.num_weights

    @property
    def checkpoint_bytes(self) -> int:
        """Memory of a checkpoint that is written while training goes on."""
        return (CHECKPOINT_WEIGHT_BYTES + 2 * self._earlier_weight_bytes) * self.num_weights

    @property
    def _earlier_weight_bytes(self) -> int:
        """A weight as it was before the last step, where nodes are ranked by outputs."""
        return 4 if self.method.keeps_bank and self.config.rank.features == "logits" else 0

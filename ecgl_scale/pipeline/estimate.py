"""How long a run will take: an estimate, from its amounts of work and a quick measurement of this machine.

extract    every edge of the store read for every task, the task's own sorted and written, with their features
train      epochs x (6 operations a row and weight); rows from the disk where they are not held; messages as gcn
remember   sweeps over the edges, 2 operations a node and pair of columns, one number a column along every edge
evaluate   after every task, each so far: 2 operations a node and weight, the narrow side of a layer along every edge

Edges are those into a task's nodes, so rather too many. What a method adds to its epochs (``ecgl methods``), and what
an earlier run has left in the cache, is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise

from ecgl_scale.learn.methods import create_method
from ecgl_scale.learn.tasks import TaskStream
from ecgl_scale.pipeline.learner import SMALL_EPOCH_FLOPS
from ecgl_scale.pipeline.machine import TYPICAL, MachineRates, measure_machine, num_weights
from ecgl_scale.run.config import RunConfig
from ecgl_scale.run.plan import MemoryPlan, StagePlan
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.threads import available_cores

LONG_SECONDS = 60.0
"""A run that takes this long on any machine is worth measuring this one before it starts."""

# Measured on the graphs of bench/README.md; an edge that is swept in the cache, as ``MachineRates`` counts, costs 1.
SWEEP_COST = 5.0
"""Of an edge that comes from memory."""
MESSAGE_COST = 1.0
"""Of each number that is sent along an edge."""
SCAN_COST, SORT_COST = 16.0, 70.0
"""Of an edge that is looked at, and of one that goes into a task's graph."""
OPERATION_COST = 1.75
"""Of an operation of a whole epoch, the best matrix products being 1."""
SPARSE_COST = 4.0
"""The same where features are sparse."""
SWEEP_SHARE = 0.4
"""Of the sweeps that are enough for any graph; those of bench/README.md take so many."""
EPOCH_SECONDS, STEP_SECONDS = 0.001, 0.05
"""What an epoch or a step takes if there is nothing to do."""


def with_times(plan: MemoryPlan, graph: GraphStore, stream: TaskStream, config: RunConfig) -> MemoryPlan:
    """The plan with the seconds of every stage, on this machine, which is measured for about a second."""
    widths = [graph.num_features, *config.learn.hidden, stream.num_classes]
    return estimate(plan, graph, stream, config, measure_machine(graph.path.parent, widths, config))


def is_long(plan: MemoryPlan, graph: GraphStore, stream: TaskStream, config: RunConfig) -> bool:
    """Whether a run takes so long that measuring the machine first does not matter."""
    return (estimate(plan, graph, stream, config, TYPICAL).seconds or 0.0) > LONG_SECONDS


def estimate(
    plan: MemoryPlan, graph: GraphStore, stream: TaskStream, config: RunConfig, rates: MachineRates
) -> MemoryPlan:
    """The plan with the seconds of every stage, on a machine that does so much in a second."""
    work = _Work(graph, stream, config, rates)
    stages = (replace(stage, seconds=work.seconds(stage)) for stage in plan.stages)
    return replace(plan, stages=tuple(stages))


class _Work:
    def __init__(self, graph: GraphStore, stream: TaskStream, config: RunConfig, rates: MachineRates) -> None:
        degrees = graph.edges.in_degrees()
        self._config = config
        self._rates = rates
        self._store_edges = graph.num_edges
        section, is_sparse = graph.manifest.features, isinstance(graph.features, SparseFeatures)
        self._columns = section.num_values / graph.num_nodes if section and is_sparse else graph.num_features
        self._column_bytes = 8 if is_sparse else 4
        self._operation_cost = SPARSE_COST if is_sparse else OPERATION_COST
        self._outputs = [*config.learn.hidden, stream.num_classes]
        self._nodes = [int(task.node_ids.size) for task in stream]
        self._edges = [int(degrees[task.node_ids].sum()) for task in stream]
        self._rows = [int(task.train_ids.size) for task in stream]
        self._method = create_method(config.method)

    def seconds(self, stage: StagePlan) -> float:
        how = {
            "extract": self._extract,
            "train": self._train,
            "remember": self._remember,
            "evaluate": self._evaluate,
        }
        return how[stage.stage](stage) + len(self._nodes) * STEP_SECONDS

    def _extract(self, stage: StagePlan) -> float:
        cost = SCAN_COST * len(self._nodes) * self._store_edges + SORT_COST * sum(self._edges)
        return cost / self._rates.edges + self._disk(stage.read_bytes, stage.written_bytes)

    def _train(self, stage: StagePlan) -> float:
        epochs, is_held = self._config.learn.epochs, not stage.written_bytes
        total = self._disk(stage.read_bytes, stage.written_bytes)
        for rows, edges in zip(self._epoch_rows(), self._edges, strict=True):
            epoch = EPOCH_SECONDS + self._operations(6.0 * rows * self._num_weights)
            if self._config.learn.train_as == "gcn":
                epoch += 3 * self._messages(edges)
            total += epochs * (epoch + (0.0 if is_held else self._disk(self._feature_bytes(rows))))
        return total

    def _epoch_rows(self) -> Iterator[int]:
        """Rows of an epoch of each task, those of the bank or of earlier tasks included."""
        rows = self._nodes if self._config.learn.train_as == "gcn" else self._rows
        if self._method.keeps_tasks:
            yield from accumulate(rows)
            return
        budget = self._config.bank.budget if self._method.keeps_bank else 0
        for number, own in enumerate(rows):
            yield own + number * budget

    def _remember(self, stage: StagePlan) -> float:
        sweeps = SWEEP_SHARE * stage.passes / len(self._nodes)
        cost = sum(self._edges) * (sweeps * SWEEP_COST + self._columns * MESSAGE_COST)
        read_bytes = 3 * self._feature_bytes(sum(self._nodes))  # twice for attributes, once for diversity
        return (
            cost / self._rates.edges
            + self._operations(2.0 * sum(self._nodes) * self._columns**2)
            + self._disk(read_bytes, stage.written_bytes)
        )

    def _evaluate(self, stage: StagePlan) -> float:
        tasks, total = self._config.tasks, self._disk(0.0, stage.written_bytes)
        sees_all = tasks.eval_scope == "seen" or tasks.inter_task_edges
        for after in range(len(self._nodes)):
            for on in range(after + 1):
                scope = slice(0, after + 1) if sees_all else slice(on, on + 1)
                nodes = sum(self._nodes[scope])
                total += self._operations(2.0 * nodes * self._num_weights) + self._messages(sum(self._edges[scope]))
                total += self._disk(self._feature_bytes(nodes))
        return total

    @property
    def _num_weights(self) -> float:
        """Those that a row meets: of sparse rows, of the columns it has."""
        return self._columns * self._outputs[0] + num_weights(self._outputs)

    def _operations(self, count: float) -> float:
        """Seconds; small work has one thread, see ``Learner``."""
        threads = self._config.threads or available_cores()
        return count * self._operation_cost * (threads if count < SMALL_EPOCH_FLOPS else 1) / self._rates.operations

    def _messages(self, num_edges: int) -> float:
        """Seconds to send the narrow side of every layer along the edges; sparse features are multiplied first."""
        first = self._outputs[0] if self._column_bytes == 8 else min(self._columns, self._outputs[0])
        columns = first + sum(min(pair) for pair in pairwise(self._outputs))
        return num_edges * columns * MESSAGE_COST / self._rates.edges

    def _feature_bytes(self, num_rows: int) -> float:
        return num_rows * self._columns * self._column_bytes

    def _disk(self, read_bytes: float, written_bytes: float = 0.0) -> float:
        return read_bytes / self._rates.read_bytes + written_bytes / self._rates.written_bytes

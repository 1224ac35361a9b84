"""How long a run will take: an estimate, from its amounts of work and a quick measurement of this machine.

extract    every edge of the store looked at for every graph, the graph's own sorted and written, with their features
train      epochs x (4 operations a row and first weight, 6 a later one; the hidden layers; a step of the optimizer);
           as gcn the hidden and output columns along every edge, there and back: messages of the features stay as they
           are and are sent once, before the first layer where that is the narrow side
remember   sweeps over the edges, 2 operations a node and pair of columns, all columns along every edge; herding and
           k-means: all columns along every edge twice, and a product a candidate, column and pass
evaluate   of each graph that is tested on: 2 operations a node and weight, the narrow side of a layer along every edge;
           in the scope `task` after every task each so far, in the scope `seen` one

Edges of tasks are counted in a sample. What is read again and again comes from the page cache where it fits there. What
a method adds to its epochs (``ecgl methods``), and what an earlier run has left in the cache, is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise

from ecgl_scale.base.memory import SHARE_OF_LIMIT, tightest_limit
from ecgl_scale.engine.plan import MemoryPlan, StagePlan
from ecgl_scale.learn.graph_blocks import trains_in_blocks
from ecgl_scale.learn.method.table import method_of
from ecgl_scale.session.learner import SMALL_EPOCH_FLOPS, device_of
from ecgl_scale.session.predict import needs_seen
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.session.time.machine import TYPICAL, MachineRates, measure_machine, num_weights
from ecgl_scale.session.time.task_edges import LikelyGraphs

LONG_SECONDS = 60.0
"""A run that takes this long on any machine is worth measuring this one before it starts."""

# Measured by bench/plan_time.py. In edges that are swept in the cache, as ``MachineRates`` counts them:
SWEEP_COST = 3.0
"""An edge that is swept from memory."""
SEND_COST = 3.0
"""An edge along which anything is sent; the numbers are counted apart."""
SCAN_COST, SORT_COST = 14.0, 50.0
"""An edge that is looked at, and one that goes into a task's graph."""
PAIR_COST = 16.0
"""Two values of a sparse row, in the attribute vector: each pair has a place of its own in memory."""
COPY_COST = 0.3
"""A number that is read from the page cache."""
PRODUCT_COST = 0.4
"""A number of a row that herding and k-means multiply."""

# In operations of the best matrix products:
OPERATION_COST = 1.1
"""An operation of an epoch."""
TEST_COST = 1.5
"""An operation of a test, which has our own kernels."""
SPARSE_COST = 4.0
"""An operation of an epoch where features are sparse."""
HIDDEN_COST, GRAPH_HIDDEN_COST = 180.0, 1300.0
"""A hidden value in an epoch: it is written and read several times; by autograd, in fresh memory every time."""
WEIGHT_COST = 250.0
"""A weight in a step of the optimizer."""
DOUBLE_COST, NUM_HEADS, VALID_SHARE = 2.0, 4, 1 / 3
"""An operation in float64; heads that are made after a task; validation rows to a training row."""

SWEEP_SHARE = 0.4
"""The share of the sweeps that are enough for any graph which the graphs of bench/README.md take."""
EPOCH_SECONDS, TEST_SECONDS, STEP_SECONDS = 0.001, 0.015, 0.05
"""What an epoch, a test on a task, or any other step takes if there is nothing to do."""


def with_times(plan: MemoryPlan, setup: RunSetup) -> MemoryPlan:
    """The plan with the seconds of every stage, on this machine, which is measured for about a second."""
    num_nodes = max(task.num_nodes for task in setup.stream)
    disk = setup.graph.files.directory.parent
    rates = measure_machine(disk, setup.widths, setup.config, setup.resources, num_nodes=num_nodes)
    return estimate(plan, setup, rates)


def is_long(plan: MemoryPlan, setup: RunSetup) -> bool:
    """Whether a run takes so long that measuring the machine first does not matter."""
    return (estimate(plan, setup, TYPICAL).seconds or 0.0) > LONG_SECONDS


def estimate(plan: MemoryPlan, setup: RunSetup, rates: MachineRates) -> MemoryPlan:
    """The plan with the seconds of every stage, on a machine that does so much in a second."""
    work = _Work(setup, rates)
    stages = (replace(stage, seconds=work.seconds(stage)) for stage in plan.stages)
    return replace(plan, stages=tuple(stages))


class _Work:
    def __init__(self, setup: RunSetup, rates: MachineRates) -> None:
        config, graph, stream = setup.config, setup.graph, setup.stream
        self._config = config
        self._threads = setup.resources.threads
        self._rates = rates
        self._store_edges = graph.num_edges
        self._method = method_of(config)
        self._made = self._method.shape(config).made.on(graph, keeps_zeros=config.learn.scale != "standard")
        self._num_values = 0.0 if graph.features is None else graph.features.num_values / graph.num_nodes
        becomes_dense = config.learn.scale == "standard" or self._made.is_made
        features = graph.features
        self._is_sparse = features is not None and features.is_sparse and not becomes_dense
        self._columns = graph.num_features + 0.0
        if features is not None and self._is_sparse:
            self._columns = features.num_values / graph.num_nodes
        self._num_features = graph.num_features
        self._outputs = [*config.learn.hidden, stream.num_classes]
        sizes, seen = LikelyGraphs.of(setup), config.tasks.inter_task_edges
        self._own_nodes, self._rows = sizes.own_nodes, [task.num_train for task in stream]
        self._seen_nodes, self._seen_edges, self._own_edges = sizes.seen_nodes, sizes.seen_edges, sizes.own_edges
        self._nodes = sizes.seen_nodes if seen else sizes.own_nodes
        self._edges = sizes.seen_edges if seen else sizes.own_edges
        self._is_cached = 2 * graph.manifest.total_bytes < SHARE_OF_LIMIT * tightest_limit().limit_bytes

    def seconds(self, stage: StagePlan) -> float:
        how = {
            "extract": self._extract,
            "train": self._train,
            "remember": self._remember,
            "evaluate": self._evaluate,
        }
        return how[stage.stage](stage)

    def _extract(self, stage: StagePlan) -> float:
        count = len(self._nodes)
        seen = [self._seen_edges[task] for task in range(count) if needs_seen(self._config, task, count)]
        num_graphs, num_edges = count + len(seen), sum(self._own_edges) + sum(seen)
        cost = SCAN_COST * stage.passes * self._store_edges + SORT_COST * num_edges
        again = max(stage.passes, 1) if self._is_cached else 1
        total = cost / self._rates.edges + self._disk(stage.read_bytes / again, stage.written_bytes)
        return total + num_graphs * STEP_SECONDS

    def _learn_at_once(self, stage: StagePlan) -> float:
        """Seconds of features passed along, of sums over rows in float64, and of heads, in closed form."""
        made, num_features = self._made, self._num_features
        columns, hops, edges = made.num_columns(num_features), sum(range(made.num_hops + 1)), sum(self._edges)
        total = self._disk(0.0, stage.written_bytes)
        if made.multiplies_first:  # all nodes, with their words
            total += hops * self._send(edges, made.width) + made.num_hops * self._send(edges, num_features)
            mapped = 2.0 * (made.num_hops + 1) * SPARSE_COST * self._num_values * made.width
            total += self._operations(sum(self._nodes) * mapped)
            mapped = 0.0
        else:
            total += hops * self._send(edges, num_features)
            mapped = 2.0 * made.num_stacked(num_features) * made.width
        for rows in self._rows:
            total += self._operations(rows * (1 + VALID_SHARE) * (mapped + DOUBLE_COST * columns**2))
            total += self._operations(NUM_HEADS * DOUBLE_COST * columns**3 / 3) + STEP_SECONDS
        return total

    def _train(self, stage: StagePlan) -> float:
        if self._method.learns_at_once:
            return self._learn_at_once(stage)
        learn, is_held = self._config.learn, not stage.written_bytes
        total = self._disk(0.0, stage.written_bytes)
        weights = self._num_features * self._outputs[0] + num_weights(self._outputs)
        for number, (own, bank) in enumerate(self._epoch_rows()):
            values = self._values(self._columns * (own + bank))
            steps = 1 if learn.batching == "full" else -(-(own + bank) // learn.batch_rows)
            epoch = EPOCH_SECONDS + steps * self._operations(WEIGHT_COST * weights)
            epoch += self._products(bank) + (0.0 if is_held else values)
            if learn.train_as == "gcn":
                epoch += self._graph_products(own) + 2 * self._messages(self._edges[number], is_first=False)
                total += self._messages(self._edges[number])
            else:
                epoch += self._products(own)
            total += values + learn.epochs * epoch + STEP_SECONDS
        return total

    def _graph_products(self, num_nodes: int) -> float:
        """Seconds of an epoch's products of a graph: by autograd, or in blocks, whose hidden layer is made twice."""
        learn = self._config.learn
        widths, device = [self._num_features, *self._outputs], device_of(learn.device)
        in_blocks = trains_in_blocks(
            num_nodes,
            widths,
            encoder=learn.encoder,
            dropout=learn.dropout,
            device=device,
            is_sparse=self._is_sparse,
        )
        if in_blocks:
            return self._products(num_nodes, first=6.0)
        return self._products(num_nodes, hidden=GRAPH_HIDDEN_COST)

    def _products(self, num_rows: int, *, first: float = 4.0, hidden: float = HIDDEN_COST) -> float:
        """Seconds of an epoch's rows through all layers and back."""
        cost = first * self._columns * self._outputs[0] * (SPARSE_COST if self._is_sparse else OPERATION_COST)
        cost += 6.0 * OPERATION_COST * num_weights(self._outputs) + hidden * sum(self._config.learn.hidden)
        return self._operations(num_rows * cost)

    def _epoch_rows(self) -> Iterator[tuple[int, int]]:
        """Rows of an epoch of each task, or of earlier tasks too, and those of the bank."""
        rows = self._nodes if self._config.learn.train_as == "gcn" else self._rows
        budget, bank = self._config.bank.budget if self._method.keeps_bank else 0, 0
        for own, candidates in zip(accumulate(rows) if self._method.keeps_tasks else rows, self._rows, strict=True):
            yield own, bank
            bank += min(budget, candidates)

    def _remember(self, stage: StagePlan) -> float:
        total = self._disk(0.0, stage.written_bytes) + EPOCH_SECONDS
        if not stage.read_bytes:  # nothing is ranked
            return total
        total += len(self._nodes) * STEP_SECONDS
        nodes, edges = sum(self._nodes), sum(self._edges)
        if self._config.bank.select in (
            "herding",
            "kmeans",
        ):  # rows that have passed two edges, then products of candidates' rows
            products = self._num_features * sum(self._rows) * stage.passes / len(self._nodes)
            total += 2 * self._send(edges, self._num_features) + products * PRODUCT_COST / self._rates.edges
            return total + self._values(self._columns * nodes)
        sweeps = SWEEP_SHARE * stage.passes / len(self._nodes)
        total += edges * sweeps * SWEEP_COST / self._rates.edges + self._send(edges, self._columns)
        pairs = nodes * self._columns**2
        total += pairs * PAIR_COST / self._rates.edges if self._is_sparse else self._operations(2.0 * pairs)
        return total + self._values(3 * self._columns * nodes)  # twice for attributes, once for diversity

    def _evaluate(self, stage: StagePlan) -> float:
        total = self._disk(0.0, stage.written_bytes)
        weights = self._columns * self._outputs[0] + num_weights(self._outputs)
        for nodes, edges in self._tested_graphs():
            total += self._operations(2.0 * TEST_COST * nodes * weights) + self._messages(edges)
            total += self._values(self._columns * nodes) + TEST_SECONDS
        return total

    def _tested_graphs(self) -> Iterator[tuple[int, int]]:
        """Nodes and edges of each graph that is gone through to test, as often as it is."""
        tasks, count = self._config.tasks, len(self._nodes)
        for after in range(count):
            if tasks.tests_after(after, count):
                if "task" in tasks.scopes:
                    yield from zip(self._nodes[: after + 1], self._edges[: after + 1], strict=True)
                if "seen" in tasks.scopes:
                    yield self._seen_nodes[after], self._seen_edges[after]

    def _operations(self, count: float) -> float:
        """Seconds of so many operations; small work has one thread, see ``Learner``."""
        return count * (self._threads if count < SMALL_EPOCH_FLOPS else 1) / self._rates.operations

    def _messages(self, num_edges: int, *, is_first: bool = True) -> float:
        """Seconds to send the narrow side of every layer along the edges; sparse features are multiplied first.

        Without ``is_first`` those are left out that are the same in every epoch: of the features themselves.
        """
        of_features = not self._is_sparse and self._num_features < self._outputs[0]
        first = self._num_features if of_features else self._outputs[0]
        columns = [first, *(min(pair) for pair in pairwise(self._outputs))]
        return sum(self._send(num_edges, width) for width in columns[0 if is_first or not of_features else 1 :])

    def _send(self, num_edges: int, columns: float) -> float:
        return num_edges * (SEND_COST / self._rates.edges + columns / self._rates.messages)

    def _values(self, count: float) -> float:
        """Seconds to read features of task graphs, which have just been written."""
        value_bytes = 8 if self._is_sparse else 4
        return count * COPY_COST / self._rates.edges if self._is_cached else self._disk(count * value_bytes)

    def _disk(self, read_bytes: float, written_bytes: float = 0.0) -> float:
        return read_bytes / self._rates.read_bytes + written_bytes / self._rates.written_bytes

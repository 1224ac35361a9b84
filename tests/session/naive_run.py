"""What a finished run must have measured, worked out again with dense float64 matrices from the files it left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.config.schema import RunConfig, load_config
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.stream import Task, TaskStream
from tests import naive
from tests.session.streams import Drawn

Dense = NDArray[np.float64]
Layers = list[tuple[Dense, Dense]]


class NaiveRun:
    """The config, tasks and weights of a run directory, and the graph it was run on."""

    def __init__(self, run: Path, drawn: Drawn) -> None:
        self.config: RunConfig = load_config(run / "config.yaml")
        self.stream = TaskStream.load(run / "split.parquet", GraphStore.open(self.config.store))
        self.layers = as_layers(SharedWeights.load(run / "weights" / "model.safetensors"))
        self.x = _scaled(drawn.x.astype(np.float64), self.config.learn.scale, self.stream[0].train_ids)
        self.adjacency = np.zeros((len(drawn.y), len(drawn.y)))
        self.adjacency[drawn.edge_index[1], drawn.edge_index[0]] = 1
        self.edges = [*zip(*drawn.edge_index.tolist(), strict=True)]
        self.labels = drawn.y.tolist()

    def propagation(self, nodes: NDArray[np.int64]) -> Dense:
        """P of the subgraph of these nodes, each with one self loop."""
        found = self.adjacency[np.ix_(nodes, nodes)]
        np.fill_diagonal(found, 1)
        norm = "mean" if self.config.learn.encoder == "sage" else self.config.infer.norm
        if norm == "mean":
            return np.asarray(found / found.sum(axis=1, keepdims=True))
        if norm == "sym":
            return np.asarray(found / np.sqrt(found.sum(axis=1)[:, None] * found.sum(axis=0)[None, :]))
        return found

    def graph_of(self, *, after: Task, on: Task) -> NDArray[np.int64]:
        """The nodes whose subgraph a task is tested on."""
        tasks = self.config.tasks
        if tasks.eval_scope == "seen":
            seen = self.stream.seen(after)
        elif tasks.inter_task_edges:
            seen = self.stream.seen(on)
        else:
            seen = [on]
        return self.with_context(np.concatenate([task.node_ids for task in seen]))

    def with_context(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """These nodes and the unlabelled ones that the config brings in, ascending."""
        rule = self.config.tasks.context
        hops = None if rule == "all" else int(rule.partition(":")[2] or 0)
        return np.array(naive.with_context(self.edges, self.labels, nodes.tolist(), hops))

    def logits(self, layers: Layers, nodes: NDArray[np.int64], *, with_edges: bool = True) -> Dense:
        """Outputs for all of these nodes."""
        h, step, learn = self.x[nodes], np.eye(len(nodes)), self.config.learn
        if with_edges:
            step = self.propagation(nodes)
        hops = learn.num_hops or (len(layers) if learn.encoder == "sgc" else 0)
        if hops:
            h, step = np.linalg.matrix_power(step, hops) @ h, np.eye(len(nodes))
        for index, (weight, bias) in enumerate(layers):
            h = step @ (h @ weight.T + bias)
            h = np.maximum(h, 0) if index + 1 < len(layers) else h
        return h

    def last_row(self) -> list[float]:
        """Macro accuracies on every task, with the weights as they are at the end."""
        after = self.stream[-1]
        row = []
        for on in self.stream:
            nodes = self.graph_of(after=after, on=on)
            ids = on.test_ids if self.config.tasks.score == "test" else on.valid_ids
            allowed = on.positions if self.config.setting == "task-il" else self.stream.seen_positions(after)
            logits = self.logits(self.layers, nodes)[np.searchsorted(nodes, ids)]
            is_right = allowed[logits[:, allowed].argmax(axis=1)] == self.stream.labels[ids]
            shares = [is_right[self.stream.labels[ids] == position].mean() for position in on.positions]
            row.append(100.0 * float(np.mean(shares)))
        return row

    def first_loss(self, tasks: list[Task], *, with_edges: bool) -> float:
        """Of the first epoch on these tasks, each on its own graph, with new weights: mean over classes of their CE."""
        learn = self.config.learn
        seed = int(np.random.SeedSequence((self.config.seed, tasks[-1].index)).generate_state(1)[0])
        widths = (self.x.shape[1], learn.hidden, self.stream.num_seen_classes(tasks[-1]))
        layers = as_layers(SharedWeights.create(*widths, init=learn.init, seed=seed))
        allowed = self.stream.seen_positions(tasks[-1])
        of_class: dict[int, list[float]] = {}
        for task in tasks:
            nodes = self.with_context(task.node_ids)
            logits = self.logits(layers, nodes, with_edges=with_edges)
            for node in task.train_ids.tolist():
                row, label = logits[np.searchsorted(nodes, node)], int(self.stream.labels[node])
                of_class.setdefault(label, []).append(float(np.log(np.exp(row[allowed]).sum()) - row[label]))
        return float(np.mean([np.mean(losses) for losses in of_class.values()]))


def as_layers(weights: SharedWeights) -> Layers:
    return [(weight.astype(np.float64), np.asarray(bias, np.float64)) for weight, bias in weights.arrays()]


def _scaled(x: Dense, kind: str, fitted_on: NDArray[np.int64]) -> Dense:
    if kind == "row_l2":
        return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))
    if kind == "standard":
        return np.asarray((x - x[fitted_on].mean(axis=0)) / x[fitted_on].std(axis=0))
    return x


def forgetting_of(matrix: Any) -> float:
    """AF by its formula."""
    last = len(matrix) - 1
    return sum(matrix[last][task] - matrix[task][task] for task in range(last)) / last

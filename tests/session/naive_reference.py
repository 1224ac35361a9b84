"""The public reference code's E-CGL, as protocol.md describes it: torch modules and dense matrices, nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Dense = NDArray[np.float64]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class NaiveTask:
    """Nodes of consecutive classes, and which of them are trained and tested on."""

    classes: range
    node_ids: Ids
    train_ids: Ids
    test_ids: Ids


@dataclass(frozen=True)
class NaiveResult:
    """What was kept of each task, in the order of the ids, and the performance matrix' rows."""

    banks: list[Ids]
    matrix: list[list[float]]


class NaiveReference:
    """A symmetric graph without self loops, as a dense matrix; features and labels."""

    def __init__(self, adjacency: Dense, x: NDArray[np.float32], y: Ids, *, is_class_il: bool, seed: int) -> None:
        self.adjacency = adjacency + np.eye(len(adjacency))
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)
        self.is_class_il = is_class_il
        torch.manual_seed(seed)

    def run(
        self, tasks: list[NaiveTask], *, hidden: int, epochs: int, lr: float, budget: int, ratio: float
    ) -> NaiveResult:
        """Learn one task after another."""
        num_classes = tasks[-1].classes.stop
        layers = [torch.nn.Linear(self.x.shape[1], hidden), torch.nn.Linear(hidden, num_classes)]
        for layer in layers:
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="sigmoid")
        model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
        optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=5e-4)
        banks: list[Ids] = []
        matrix = []
        for index, task in enumerate(tasks):
            outputs = torch.empty(0)
            for _ in range(epochs):
                optimizer.zero_grad()
                outputs = model(self.x[task.node_ids])
                loss = self._new_loss(outputs[np.searchsorted(task.node_ids, task.train_ids)], task)
                if banks:
                    bank = np.concatenate(banks)
                    weight = self._class_weights(banks[-1], num_classes)
                    loss = loss + self._loss(model(self.x[bank]), bank, range(task.classes.stop), weight)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            banks.append(self._choose(task, outputs.detach().double().numpy(), budget, ratio))
            matrix.append([self._accuracy(layers, after=task, on=on) for on in tasks[: index + 1]])
        return NaiveResult(banks, matrix)

    def _new_loss(self, outputs: torch.Tensor, task: NaiveTask) -> torch.Tensor:
        allowed = range(task.classes.stop) if self.is_class_il else task.classes
        return self._loss(outputs, task.train_ids, allowed, self._class_weights(task.train_ids, outputs.shape[1]))

    def _loss(self, outputs: torch.Tensor, ids: Ids, allowed: range, weight: torch.Tensor) -> torch.Tensor:
        columns = slice(allowed.start, allowed.stop)
        labels = self.y[ids] - allowed.start
        return torch.nn.functional.cross_entropy(outputs[:, columns], labels, weight=weight[columns])

    def _class_weights(self, ids: Ids, num_classes: int) -> torch.Tensor:
        return 1 / torch.bincount(self.y[ids], minlength=num_classes).clamp(min=1).float()

    def _choose(self, task: NaiveTask, outputs: Dense, budget: int, ratio: float) -> Ids:
        """By PageRank whose restarts are at nodes of similar outputs, and by distance from the neighbours' mean."""
        adjacency = self.adjacency[np.ix_(task.node_ids, task.node_ids)]
        gamma = 1 / outputs.shape[1]
        near = np.exp(-gamma * (outputs**2).sum(axis=1))
        linear, square = 2 * gamma * near @ outputs, 2 * gamma**2 * (outputs.T * near) @ outputs
        reset = near * (near.sum() + outputs @ linear + ((outputs @ square) * outputs).sum(axis=1))
        reset /= reset.sum()
        rank, change = np.full(len(reset), 1 / len(reset)), 1.0
        while change > 1e-10:
            following = 0.85 * (adjacency / adjacency.sum(axis=0)) @ rank + 0.15 * reset
            rank, change = following, float(np.linalg.norm(following - rank))
        x = self.x[task.node_ids].double().numpy()
        diversity = np.linalg.norm(x - (adjacency @ x) / adjacency.sum(axis=1, keepdims=True), axis=1)
        num_diverse = int(budget * ratio)
        return np.union1d(_best(task, rank, budget - num_diverse), _best(task, diversity, num_diverse))

    @torch.no_grad()
    def _accuracy(self, layers: list[torch.nn.Linear], *, after: NaiveTask, on: NaiveTask) -> float:
        """Macro, of the same weights with messages: unnormalised sums over neighbours and the node itself."""
        step = torch.from_numpy(self.adjacency[np.ix_(on.node_ids, on.node_ids)]).float()
        outputs = step @ layers[1](torch.relu(step @ layers[0](self.x[on.node_ids])))
        tested = outputs[np.searchsorted(on.node_ids, on.test_ids)]
        allowed = range(after.classes.stop) if self.is_class_il else on.classes
        predicted = tested[:, allowed.start : allowed.stop].argmax(dim=1) + allowed.start
        is_right = (predicted == self.y[on.test_ids]).double()
        return 100 * float(np.mean([is_right[self.y[on.test_ids] == label].mean() for label in on.classes]))


def _best(task: NaiveTask, scores: Dense, count: int) -> Ids:
    ids = task.node_ids[np.argsort(-scores, kind="stable")]
    return ids[np.isin(ids, task.train_ids)][:count]

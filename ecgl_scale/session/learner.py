"""The model of a run and what happens to it: trained on a task, asked to remember it, tested on any.

It holds weights, optimizer and bank; everything else is on disk. What a method adds is in ``learn/methods``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.config.choices import Scope
from ecgl_scale.engine.threads import torch_threads
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.method.base import TaskShape
from ecgl_scale.learn.method.table import method_of
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.tensors import load_tensors, save_tensors
from ecgl_scale.learn.train import AnySegment, EpochResult, Penalty, Trainer
from ecgl_scale.session.checkpoint import WEIGHTS_DIRECTORY
from ecgl_scale.session.context import RunContext
from ecgl_scale.session.directory import FORGOTTEN_NAME, WORK_NAME
from ecgl_scale.session.evaluate import evaluate_elsewhere
from ecgl_scale.session.predict import Predictor
from ecgl_scale.session.ranks.team import Team
from ecgl_scale.session.saved_model import SavedModel, names_of_outputs, save_model
from ecgl_scale.session.scoring import Question
from ecgl_scale.session.setup import RunSetup, infer_settings, scaling_of
from ecgl_scale.tasks.context import ContextRule
from ecgl_scale.tasks.forgotten import about_forgotten
from ecgl_scale.tasks.graphs import TaskGraphs
from ecgl_scale.tasks.metrics import Accuracy
from ecgl_scale.tasks.stream import Task

BANK_NAME = "bank.arrow"
SMALL_EPOCH_FLOPS = 2e8


class Learner:
    """Weights, optimizer and bank of one run; in each of its ranks, of which the first alone saves anything."""

    def __init__(self, setup: RunSetup, directory: Path, team: Team | None = None) -> None:
        config, graph, stream = setup.config, setup.graph, setup.stream
        self.team = team or Team()
        self.config = config
        self.stream = stream
        self.directory = directory
        self.method = method_of(config)
        self.shape = self.method.shape(config)
        self._work = directory / WORK_NAME
        if self.team.rank:
            self._work = self._work / f"rank-{self.team.rank}"
        resources = setup.resources.with_work(self._work / "engine")
        self._resources = resources
        self.scaling = setup.scaling or scaling_of(graph, stream, config)
        self.graphs = TaskGraphs(
            graph,
            stream,
            directory / "tests" if config.tasks.keep_tests else config.cache or directory / "tasks",
            resources,
            self_loops=config.rank.self_loops,
            scaling=self.scaling,
            context=ContextRule.parse(config.tasks.context),
            are_kept=config.tasks.keep_tests,
        )
        learn = config.learn
        self.trainer = Trainer(
            self._new_weights(0, by_columns=graph.has_sparse_features and not self.shape.made.is_stacked),
            lr=learn.lr,
            weight_decay=learn.weight_decay,
            device=self.team.device(device_of(learn.device)),
            block_rows=learn.block_rows,
            dropout=learn.dropout,
            seed=config.seed,
            batching=learn.batching,
            batch_rows=learn.batch_rows,
        )
        self.trainer.lane_sum = self.team.make_lane_sum()
        self.predictor = Predictor(config, self.shape.made, self.graphs, self._work, resources)
        self.context = RunContext(config, stream, self.trainer, self.predictor, self._work, resources)
        self.context.keeping = directory / WEIGHTS_DIRECTORY
        self.context.holds_all_graphs = self.method.keeps_tasks or self.method.keeps_graphs
        self._segments: list[AnySegment] = []
        self._penalty: Penalty | None = None

    @property
    def bank(self) -> MemoryBank:
        """The memory bank: the nodes that are remembered so far."""
        return self.context.bank

    @property
    def weights(self) -> SharedWeights:
        """The weights, shared by MLP and graph network."""
        return self.trainer.weights

    @property
    def classes(self) -> tuple[int, ...]:
        """The label of each output that there is so far."""
        return self.stream.classes[: self.weights.num_classes]

    def _new_weights(self, task_index: int, *, by_columns: bool = False) -> SharedWeights:
        learn = self.config.learn
        seed = int(np.random.SeedSequence((self.config.seed, task_index)).generate_state(1)[0])
        if learn.init == "kaiming" and task_index == 0:
            seed = self.config.seed  # the public code's own weights for this seed, so that runs can be compared
        return SharedWeights.create(
            self.shape.made.num_columns(self.graphs.graph.num_features),
            self.shape.hidden,
            self._num_outputs(task_index),
            bias=self.shape.bias,
            init=learn.init,
            seed=seed,
            by_columns=by_columns,
        )

    def _num_outputs(self, task_index: int) -> int:
        """Width of the head while a task is learned."""
        stream = self.stream
        return stream.num_classes if self.config.learn.head == "whole" else stream.num_seen_classes(stream[task_index])

    # --- going on after a stop

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Copies of weights and optimizer, for a checkpoint."""
        return {name: tensor.detach().cpu().numpy() for name, tensor in self.trainer.state().items()}

    def restore(self, tensors: dict[str, NDArray[Any]] | None, *, task_index: int, is_remembered: bool) -> None:
        """Go on from a checkpoint, with the bank as it was before ``task_index``, or after where it is remembered."""
        self.method = method_of(self.config)
        if tensors is not None:
            self._match_head(tensors, task_index)
            self.trainer.load_state({name: torch.from_numpy(np.array(array)) for name, array in tensors.items()})
        remembered = range(task_index + is_remembered)
        if self.keeps_nodes and remembered:
            path = self.directory / BANK_NAME
            self.context.bank = MemoryBank.load(path).for_tasks(remembered)
            may_lack = (self.directory / FORGOTTEN_NAME).exists()
            if (
                self.bank.tasks != list(remembered) and not may_lack
            ) or self.bank.num_features != self.weights.num_features:
                raise InvalidInputError(
                    f"the memory bank has nodes of the tasks {self.bank.tasks}, {self.bank.num_features} values each",
                    where=path,
                    expected=f"the tasks {list(remembered)}, {self.weights.num_features} values",
                    fix="start the run anew in another directory",
                )

        if remembered and self.method_path(remembered[-1]).exists():
            self.method.load_state(load_tensors(self.method_path(remembered[-1]))[0])

    def _match_head(self, tensors: Mapping[str, NDArray[Any]], task_index: int) -> None:
        """Give the head the width that a checkpoint has: that of the task it was saved in, or of the one before."""
        found = len(tensors.get(f"parameter.{len(self.weights.parameters()) - 1}", ()))
        last = len(self.stream) - 1
        known = [self._num_outputs(index) for index in (task_index - 1, task_index) if 0 <= index <= last]
        if known[0] <= found <= known[-1]:  # between them where a forgotten class comes back
            self.trainer.grow_head(found)

    @property
    def keeps_nodes(self) -> bool:
        """Whether there is a bank."""
        return self.method.keeps_bank and self.config.bank.budget > 0

    # --- training

    def begin_task(self, task: Task, *, is_new: bool) -> None:
        """Make everything ready for a task; ``is_new`` unless it goes on after a stop."""
        if is_new:
            self.trainer.forget_kept_weights()
            self.trainer.grow_head(self._num_outputs(task.index))
        if is_new and self.method.restarts:
            self.weights.take(self._new_weights(task.index).parameters())  # Adam's moments stay, as in the public code
        if is_new and self.config.learn.optimizer == "reset":
            self.trainer.reset_optimizer()
        self._look_at(task)
        self.method.begin_task(self.context)
        if not self.method.learns_at_once:
            self._segments = self.method.segments(self.context)
            self._penalty = self.method.penalty(self.context)

    def _look_at(self, task: Task) -> None:
        """Let the method learn this task, with the memory that it needs besides the task's rows."""
        seen = self.stream.seen(task)
        num_nodes, num_old = self.predictor.num_trained_on(task), sum(one.num_train for one in seen[:-1])
        self.context.task, shape = task, TaskShape(num_nodes, task.num_train, num_old, self.weights.widths)
        self.context.beside_segments_bytes = self.method.beside_segments_bytes(self.config, shape)

    @property
    def num_epochs(self) -> int:
        """Epochs of a task; a method that learns it at once has one."""
        return 1 if self.method.learns_at_once else self.config.learn.epochs

    def train_epoch(self, task: Task, epoch: int) -> EpochResult:
        """One epoch. Outputs are ranked as the last epoch has them, before its step, as in the public code."""
        if self.method.learns_at_once:
            started = time.perf_counter()
            return EpochResult(self.method.learn(self.context), time.perf_counter() - started)
        if epoch == self.config.learn.epochs - 1 and self.config.rank.features == "logits":
            self.trainer.keep_weights()
        with torch_threads(self._epoch_threads()), self.team.sharing():
            finished = self.trainer.run_epoch(
                self._segments,
                task_index=task.index,
                epoch=epoch,
                penalty=self._penalty,
                adjust=lambda: self.method.adjust(self.context),
            )
            self.team.end_epoch(self.weights.parameters(), where=f"task {task.index}, epoch {epoch}")
        return finished

    def _epoch_threads(self) -> int:
        """One thread for small work: handing it out, and waiting for each other, would take longer than doing it."""
        weights = sum(fan_in * fan_out for fan_in, fan_out in pairwise(self.weights.widths))
        flops = 6 * weights * max(segment.rows.num_rows for segment in self._segments)
        return 1 if flops < SMALL_EPOCH_FLOPS else self._shared_threads()

    def _shared_threads(self) -> int:
        """Threads while all ranks work, which share the cores where the config does not say how many each may use."""
        threads = self._resources.threads
        return threads if self.config.threads is not None else self.team.epoch_threads(threads)

    def end_task(self) -> None:
        """Let the method finish the weights, and let go of the task's rows."""
        if self._segments:
            with torch_threads(self._epoch_threads()):
                self.method.finish(self.context, self._segments)
        self._segments, self._penalty = [], None
        self.method.end_epochs()
        self.forget_rows()

    def forget_rows(self) -> None:
        """Let go of rows, and of buffers for them."""
        self.context.forget_rows()
        self.trainer.forget_buffers()

    # --- remembering

    def remember(self, task: Task) -> None:
        """What the method does after a task; done again after a kill it does the same."""
        self.end_method(task)
        with torch_threads(self._resources.threads):
            self.context.bank = self.method.remember(self.context)
        if self.keeps_nodes:
            self.bank.save(self.directory / BANK_NAME)
        state = self.method.state()
        if state:
            save_tensors(self.method_path(task.index), state, about={"method": self.method.name})
            self.method_path(task.index - 2).unlink(missing_ok=True)
        self.trainer.forget_kept_weights()
        self.forget_rows()

    def end_method(self, task: Task) -> None:
        """The method's end of a task, the first part of remembering it: where it is gradients, ranks share them."""
        self._look_at(task)
        self.context.bank = self.context.bank.for_tasks(range(task.index))
        is_shared = self.method.shares_end
        threads = self._shared_threads() if is_shared else self._resources.threads
        with torch_threads(threads), self.team.sharing() if is_shared else nullcontext():
            self.method.end_task(self.context)

    def method_path(self, task_index: int) -> Path:
        """Where the method's state after a task is, if it has any."""
        return self.directory / WEIGHTS_DIRECTORY / f"method-{task_index}.safetensors"

    # --- testing

    def evaluate(self, *, after: Task, on: Sequence[Task], scope: Scope) -> Iterator[Accuracy]:
        """Accuracy on the scored nodes of each of these tasks, with the weights as they are after another.

        A task whose scored nodes are all forgotten has none.
        """
        scored = [task for task in on if task.num_in(self.config.tasks.score)]
        found = self._evaluate_seen(after, scored) if scope == "seen" else self._evaluate(after, scored)
        for task in on:
            yield next(found) if task.num_in(self.config.tasks.score) else Accuracy(math.nan, math.nan)

    def _evaluate(self, after: Task, on: Sequence[Task]) -> Iterator[Accuracy]:
        asked = (self._question(after, task) for task in on)
        if self._resources.executor.shares_memory or self.shape.made.is_made:
            for task, question in zip(on, asked, strict=True):
                yield question.score(self.predictor.logits(self.weights, task, question.ids))
            return
        graphs = [self.predictor.training_graph(task)[0] for task in on]
        settings, kept = infer_settings(self.config), self.graphs.directory
        cuts = kept if isinstance(kept, Path) else None
        yield from evaluate_elsewhere(self.weights, graphs, asked, settings, cuts, self._resources)

    def _evaluate_seen(self, after: Task, on: Sequence[Task]) -> Iterator[Accuracy]:
        """All tasks from one inference on the graph they share, which all workers make together."""
        found = self.predictor.seen_logits(self.weights, after, [self._scored_ids(task) for task in on])
        for task in on:
            yield self._question(after, task).score(next(found))

    def _scored_ids(self, task: Task) -> NDArray[np.int64]:
        return task.test_ids if self.config.tasks.score == "test" else task.valid_ids

    def _question(self, after: Task, on: Task) -> Question:
        ids = self._scored_ids(on)
        allowed = on.positions if self.config.setting == "task-il" else self.stream.seen_positions(after)
        if allowed.max(initial=-1) >= self.weights.num_classes:
            raise UsageError(
                f"task {on.index} has classes that are not learned yet: the model has no outputs for them",
                expected=f"one of the tasks up to {after.index}",
            )
        return Question(ids, self.stream.labels_of(ids), on.positions, allowed)

    @property
    def about_input(self) -> dict[str, int]:
        """What a model's file says of what it is given."""
        return {"num_features": self.graphs.graph.num_features, **self.predictor.about_input}

    def as_saved(self) -> SavedModel:
        """The model as its files would hold it."""
        return SavedModel(self.config, self.weights, self.classes, self.scaling, dict(self.about_input))

    def save_model(self) -> None:
        """What ``ecgl infer`` needs: the weights, the class of each output, the scaling."""
        directory = self.directory / WEIGHTS_DIRECTORY
        directory.mkdir(exist_ok=True)
        stream = self.stream
        about: dict[str, Any] = {"tasks_learned": len(stream), "split_hash": stream.split_hash}
        about |= about_forgotten(self.classes, [task.classes for task in stream])
        about |= names_of_outputs(self.classes, stream.class_names)
        about |= self.about_input
        save_model(directory, self.weights, self.classes, self.scaling, **about)


def learn_task(learner: Learner, task: Task, *, from_epoch: int = 0) -> Iterator[tuple[int, EpochResult]]:
    """Train a task, epoch by epoch, from ``from_epoch`` on; the loop of every run, of ``ECGL`` and of the tests.

    Between two epochs the caller may save the weights, or leave; when the last is taken, the task's rows are let go.
    """
    learner.begin_task(task, is_new=from_epoch == 0)
    for epoch in range(from_epoch, learner.num_epochs):
        yield epoch, learner.train_epoch(task, epoch)
    learner.end_task()


def device_of(name: str) -> str:
    """The device that a config's ``auto`` stands for."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name

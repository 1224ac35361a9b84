"""The model of a run and what happens to it: trained on a task, asked to remember it, tested on any.

It holds weights, optimizer and bank; everything else is on disk. What a method adds is in ``learn/methods``.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.loss import Labelled, Segment, Targets, make_segments, make_targets
from ecgl_scale.learn.message import GraphPropagation, GraphSegment
from ecgl_scale.learn.methods import create_method
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.task_graph import TaskGraphs, positions_of
from ecgl_scale.learn.tasks import Task, TaskStream
from ecgl_scale.learn.train import AnySegment, EpochResult, Trainer, plan_training
from ecgl_scale.pipeline.directory import WORK_NAME
from ecgl_scale.pipeline.predict import Predictor
from ecgl_scale.pipeline.setup import choose_settings, loss_settings, scaling_of
from ecgl_scale.report.metrics import Accuracy, accuracy
from ecgl_scale.run.config import RunConfig
from ecgl_scale.run.durable import write_atomically
from ecgl_scale.run.events import EventSink
from ecgl_scale.run.memory import MemoryBudget, own_memory_bytes
from ecgl_scale.select.choose import choose_nodes
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.store.threads import available_cores

BANK_NAME = "bank.arrow"
SMALL_EPOCH_FLOPS = 2e8
MODEL_NAME = "weights/model.safetensors"
ABOUT_NAME = "weights/model.json"


class Learner:
    """Weights, optimizer and bank of one run."""

    def __init__(
        self, config: RunConfig, graph: GraphStore, stream: TaskStream, directory: Path, on_event: EventSink
    ) -> None:
        self.config = config
        self.stream = stream
        self.directory = directory
        self.method = create_method(config.method)
        self.bank = MemoryBank.empty(graph.num_features)
        self._on_event = on_event
        self._work = directory / WORK_NAME
        self.scaling = scaling_of(graph, stream, config)
        self.graphs = TaskGraphs(
            graph,
            stream,
            config.cache or directory / "tasks",
            self_loops=config.rank.self_loops,
            scaling=self.scaling,
            memory=config.memory,
            threads=config.threads,
            on_event=on_event,
        )
        learn = config.learn
        self.trainer = Trainer(
            self._new_weights(0, graph.num_features),
            lr=learn.lr,
            weight_decay=learn.weight_decay,
            device=device_of(learn.device),
            block_rows=learn.block_rows,
            dropout=learn.dropout,
            seed=config.seed,
            batching=learn.batching,
            batch_rows=learn.batch_rows,
        )
        self.predictor = Predictor(config, self.graphs, self._work, on_event)
        self._segments: list[AnySegment] = []

    @property
    def weights(self) -> SharedWeights:
        """The weights, shared by MLP and graph network."""
        return self.trainer.weights

    def _new_weights(self, task_index: int, num_features: int) -> SharedWeights:
        learn = self.config.learn
        seed = int(np.random.SeedSequence((self.config.seed, task_index)).generate_state(1)[0])
        return SharedWeights.create(
            num_features, learn.hidden, self.stream.num_classes, bias=learn.bias, init=learn.init, seed=seed
        )

    # --- going on after a stop

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Copies of weights and optimizer, for a checkpoint."""
        return {name: tensor.detach().cpu().numpy() for name, tensor in self.trainer.state().items()}

    def restore(self, tensors: dict[str, NDArray[Any]] | None, *, task_index: int, is_remembered: bool) -> None:
        """Go on from a checkpoint, with the bank as it was before ``task_index``, or after where it is remembered."""
        if tensors is not None:
            self.trainer.load_state({name: torch.from_numpy(np.array(array)) for name, array in tensors.items()})
        remembered = range(task_index + is_remembered)
        if self._keeps_nodes and remembered:
            path = self.directory / BANK_NAME
            self.bank = MemoryBank.load(path).for_tasks(remembered)
            if self.bank.tasks != list(remembered) or self.bank.num_features != self.weights.num_features:
                raise InvalidInputError(
                    f"the memory bank has nodes of the tasks {self.bank.tasks}, {self.bank.num_features} values each",
                    where=path,
                    expected=f"the tasks {list(remembered)}, {self.weights.num_features} values",
                    fix="start the run anew in another directory",
                )

    @property
    def _keeps_nodes(self) -> bool:
        return self.method.keeps_bank and self.config.bank.budget > 0

    # --- training

    def begin_task(self, task: Task, *, is_new: bool) -> None:
        """Gather the rows of a task; ``is_new`` unless it goes on after a stop."""
        if is_new and self.method.restarts:
            self._restart(task)
        if is_new and self.config.learn.optimizer == "reset":
            self.trainer.reset_optimizer()
        tasks = self.stream.seen(task) if self.method.keeps_tasks else [task]
        bank = self._bank_part(task) if self.method.keeps_bank and task.index else None
        if self.config.learn.train_as == "gcn":
            self._segments = self._graph_segments(task, tasks, bank)
        else:
            self._segments = list(
                make_segments([self._part(one, tasks) for one in tasks], bank, **self._loss_arguments(task))
            )

    def _restart(self, task: Task) -> None:
        """New weights in the same tensors; Adam's moments stay, as in the public code."""
        fresh = self._new_weights(task.index, self.weights.num_features)
        with torch.no_grad():
            for parameter, value in zip(self.weights.parameters(), fresh.parameters(), strict=True):
                parameter.copy_(value)

    def train_epoch(self, task: Task, epoch: int) -> EpochResult:
        """One epoch."""
        with torch_threads(self._epoch_threads()):
            return self.trainer.run_epoch(self._segments, task_index=task.index, epoch=epoch)

    def _epoch_threads(self) -> int:
        """One thread for small work: handing it out, and waiting for each other, would take longer than doing it."""
        weights = sum(fan_in * fan_out for fan_in, fan_out in pairwise(self.weights.widths))
        flops = 6 * weights * max(segment.rows.num_rows for segment in self._segments)
        return 1 if flops < SMALL_EPOCH_FLOPS else self.config.threads or available_cores()

    def end_task(self) -> None:
        """Let go of the task's rows."""
        self._segments = []
        shutil.rmtree(self._work / "rows", ignore_errors=True)

    def _loss_arguments(self, task: Task) -> dict[str, Any]:
        return {
            "positions": [one.positions for one in self.stream.seen(task)],
            "num_classes": self.stream.num_classes,
            "settings": loss_settings(self.config),
        }

    def _part(self, task: Task, tasks: Sequence[Task]) -> Labelled:
        """The training rows of a task; several tasks share what memory is left by their number of rows."""
        total = sum(one.train_ids.size for one in tasks)
        share = self._rows_bytes() * task.train_ids.size // max(total, 1)
        rows = self._rows_of(task, task.train_ids, f"train-{task.index}", share)
        return Labelled.of_task(task.index, self.stream.labels_of(task.train_ids), rows)

    def _rows_of(self, task: Task, ids: NDArray[np.int64], name: str, memory_bytes: int) -> RowCache:
        features = self.predictor.features_of(task)
        local = positions_of(task.node_ids, ids)
        if isinstance(features, np.ndarray):
            return RowCache.from_array(np.asarray(features[local], np.float32))
        return RowCache.gather(
            features,
            local,
            memory_bytes=memory_bytes,
            directory=self._rows_directory(),
            name=name,
            identity=f"{self.graphs.own(task).path.name} {name}",
        )

    def _rows_directory(self) -> Path:
        directory = self._work / "rows"
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def _rows_bytes(self) -> int:
        """Memory left for training rows besides what an epoch takes."""
        epoch = plan_training(self.weights.widths, block_rows=self.config.learn.block_rows, rows_held=False)
        room = MemoryBudget.of(self.config.memory).total_bytes - own_memory_bytes() - epoch.host_bytes
        return max(room, 0)

    def _bank_part(self, task: Task) -> Labelled | None:
        bank = self.bank.for_tasks(range(task.index))
        if not len(bank):
            return None
        rows = (
            RowCache.from_csr(bank.rows, bank.num_features)
            if isinstance(bank.rows, CsrBlock)
            else RowCache.from_array(bank.dense_rows())
        )
        return Labelled(bank.label, bank.task, rows)

    def _graph_segments(self, task: Task, tasks: Sequence[Task], bank: Labelled | None) -> list[AnySegment]:
        """The task graphs as wholes, for ``train_as: gcn``; bank rows have no edges, so they go through the MLP."""
        new = [Labelled.of_task(one.index, self.stream.labels_of(one.train_ids)) for one in tasks]
        targets = make_targets(new, bank, **self._loss_arguments(task))
        segments: list[AnySegment] = []
        directory = self._rows_directory()
        for one, target in zip(tasks, targets, strict=False):
            graph, nodes = self.predictor.training_graph(one)
            rows = RowCache.gather(
                graph.require_features(),
                np.arange(graph.num_nodes),
                memory_bytes=self._rows_bytes(),
                directory=directory,
                name=f"all-{one.index}",
            )
            segments.append(
                GraphSegment(
                    rows=rows,
                    propagation=GraphPropagation(
                        graph, self.config.infer.norm, threads=self.config.threads, memory=self.config.memory
                    ),
                    local=positions_of(nodes, one.train_ids),
                    encoder=self.config.learn.encoder,
                    bias_place=self.config.learn.bias_place,
                    **fields_of(target),
                )
            )
        if bank is not None and bank.rows is not None and len(targets) > len(tasks):
            segments.append(Segment(rows=bank.rows, **fields_of(targets[-1])))
        return segments

    # --- remembering

    def remember(self, task: Task) -> None:
        """Choose nodes of the task for the bank; done again after a kill it chooses the same."""
        if not self._keeps_nodes:
            return
        graph, nodes = self.predictor.training_graph(task)
        local = positions_of(nodes, task.train_ids)
        labels = self.stream.labels_of(nodes)
        journal = self._work / "rank"
        outputs = self._outputs(graph) if self.config.rank.features == "logits" else None
        chosen = choose_nodes(
            graph,
            local,
            labels,
            settings=choose_settings(self.config, task.index),
            rank_features=outputs,
            memory=self.config.memory,
            threads=self.config.threads,
            journal_directory=journal,
            on_event=self._on_event,
        )
        ids = nodes[chosen.local]
        rows = self._bank_rows(task, ids)
        self.bank = self.bank.for_tasks(range(task.index)).add(
            task.index, ids, labels[chosen.local], rows, chosen.importance, chosen.diversity
        )
        self.bank.save(self.directory / BANK_NAME)
        shutil.rmtree(journal, ignore_errors=True)

    def _outputs(self, graph: GraphStore) -> NDArray[np.float32]:
        """The MLP's outputs on every node of a graph."""
        rows = RowCache.gather(
            graph.require_features(),
            np.arange(graph.num_nodes),
            memory_bytes=self._rows_bytes(),
            directory=self._rows_directory(),
            name="outputs",
        )
        return self.trainer.logits(rows)

    def _bank_rows(self, task: Task, ids: NDArray[np.int64]) -> Any:
        features = self.predictor.features_of(task)
        local = positions_of(task.node_ids, ids)
        return np.asarray(features[local], np.float32) if isinstance(features, np.ndarray) else features.rows(local)

    # --- testing

    def evaluate(self, *, after: Task, on: Task) -> Accuracy:
        """Accuracy on the scored nodes of a task, with the weights as they are after another."""
        ids = on.test_ids if self.config.tasks.score == "test" else on.valid_ids
        allowed = on.positions if self.config.setting == "task-il" else self.stream.seen_positions(after)
        logits = self.predictor.logits(self.weights, after=after, on=on, ids=ids)
        predicted = allowed[logits[:, allowed].argmax(axis=1)]
        return accuracy(predicted, self.stream.labels_of(ids), positions=on.positions)

    def save_model(self) -> None:
        """What ``ecgl infer`` needs: the weights, the class of each output, the scaling."""
        path = self.directory / MODEL_NAME
        path.parent.mkdir(exist_ok=True)
        self.weights.save(path)
        about = {"classes": list(self.stream.classes), "scaling": json.loads(self.scaling.to_json())}
        write_atomically(self.directory / ABOUT_NAME, json.dumps(about))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fields_of(targets: Targets) -> dict[str, Any]:
    """Targets as arguments of a segment."""
    return {name: getattr(targets, name) for name in ("labels", "coefficients", "columns", "groups")}


def device_of(name: str) -> str:
    """The device that a config's ``auto`` stands for."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name

"""A run as its method sees it: the rows, graphs and targets of the task that is being learned."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import EcglError
from ecgl_scale.graph.autograd import GraphPropagation
from ecgl_scale.graph.propagate import one_hop_features
from ecgl_scale.infer.input_rows import StackedRows
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.graph_blocks import BlockedGraphSegment, block_bytes, trains_in_blocks
from ecgl_scale.learn.graph_segment import RESERVE_BYTES, GraphSegment
from ecgl_scale.learn.loss import Labelled, Segment, Targets, make_targets, target_fields
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.train import AnySegment, Trainer, plan_training
from ecgl_scale.session.predict import Predictor
from ecgl_scale.session.setup import infer_settings, loss_settings
from ecgl_scale.store.features.files import AnyFeatures
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.tasks.graphs import positions_of
from ecgl_scale.tasks.stream import Task, TaskStream

Ids = NDArray[np.int64]


class RunContext:
    """What ``learn.method.base.Context`` asks for."""

    def __init__(
        self,
        config: RunConfig,
        stream: TaskStream,
        trainer: Trainer,
        predictor: Predictor,
        work: Path,
        resources: Resources,
    ) -> None:
        self.config = config
        self.stream = stream
        self.trainer = trainer
        self.task = stream[0]
        self.bank = MemoryBank.empty(trainer.weights.num_features)
        self.work = work
        self.keeping = work
        self.resources = resources
        self.beside_segments_bytes = 0
        """What the method needs while it has segments of a task."""
        self.holds_all_graphs = False
        """Whether graphs of several tasks are held together: then what is passed along their edges is in files."""
        self._predictor = predictor

    def parts(self, tasks: Sequence[Task]) -> list[Labelled]:
        """Training rows and labels; several tasks share what memory is left by their number of rows."""
        if self.config.learn.train_as == "gcn":
            return [Labelled.of_task(task.index, self.stream.labels_of(task.train_ids)) for task in tasks]
        total = sum(task.num_train for task in tasks)
        room = self._rows_bytes(self.beside_segments_bytes)
        found = []
        for task in tasks:
            share = room * task.num_train // max(total, 1)
            rows = self._gather(task, task.train_ids, f"train-{task.index}", share)
            found.append(Labelled.of_task(task.index, self.stream.labels_of(task.train_ids), rows))
        return found

    def replay(self) -> Labelled | None:
        """The bank's rows of earlier tasks."""
        bank = self.bank.for_tasks(range(self.task.index))
        if not len(bank):
            return None
        rows = (
            RowCache.from_csr(bank.rows, bank.num_features)
            if isinstance(bank.rows, CsrBlock)
            else RowCache.from_array(bank.dense_rows())
        )
        return Labelled(bank.label, bank.task, rows)

    def targets(self, parts: Sequence[Labelled], replay: Labelled | None) -> list[Targets]:
        """What their logits are compared with."""
        return make_targets(
            parts,
            replay,
            positions=[task.positions for task in self.stream.seen(self.task)],
            num_classes=self.trainer.weights.num_classes,
            settings=loss_settings(self.config),
        )

    def attach(
        self, tasks: Sequence[Task], parts: Sequence[Labelled], replay: Labelled | None, targets: Sequence[Targets]
    ) -> list[AnySegment]:
        """Targets with their rows; bank rows have no edges, so they go through the MLP even beside graphs."""
        segments: list[AnySegment] = []
        for task, part, target in zip(tasks, parts, targets, strict=False):
            if part.rows is None:
                segments.append(self._graph_segment(task, target))
            else:
                segments.append(Segment(rows=part.rows, **target_fields(target)))
        if replay is not None and replay.rows is not None and len(targets) > len(tasks):
            segments.append(Segment(rows=replay.rows, **target_fields(targets[-1])))
        return segments

    def segments(self, tasks: Sequence[Task], replay: Labelled | None) -> list[AnySegment]:
        """The plain loss of these tasks and the bank."""
        parts = self.parts(tasks)
        return self.attach(tasks, parts, replay, self.targets(parts, replay))

    def graph(self, task: Task) -> tuple[GraphStore, Ids]:
        """The graph a task is trained and ranked on, and the ids of its nodes."""
        return self._predictor.training_graph(task)

    def rows(self, task: Task, ids: Ids, name: str, *, beside_bytes: int = 0) -> RowCache:
        """Feature rows of nodes of a task, held where that leaves ``beside_bytes`` besides an epoch."""
        return self._gather(task, ids, name, self._rows_bytes(beside_bytes))

    def bank_rows(self, task: Task, ids: Ids) -> Any:
        """Feature rows as the bank keeps them."""
        features = self._stored_features(task)
        local = self._predictor.rows_of(task, ids)
        return np.asarray(features[local], np.float32) if isinstance(features, np.ndarray) else features.rows(local)

    def input_rows(self, task: Task) -> StackedRows:
        """Rows of the model's input for every node of a task."""
        found = self._predictor.features_of(task)
        if not isinstance(found, StackedRows):
            raise EcglError(f"the method {self.config.method} asks for stacked hops, and its model is given others")
        return found

    def graph_rows(self, task: Task, *, beside_bytes: int = 0, memory_bytes: int | None = None) -> RowCache:
        """Features of every node of the graph a task is trained on, held as those of ``rows``."""
        graph, _ = self.graph(task)
        return RowCache.gather(
            graph.require_features(),
            np.arange(graph.num_nodes),
            memory_bytes=self._rows_bytes(beside_bytes) if memory_bytes is None else memory_bytes,
            directory=self._rows_directory(),
            name=f"all-{task.index}",
        )

    def forget_rows(self) -> None:
        """Remove the files of rows."""
        shutil.rmtree(self.work / "rows", ignore_errors=True)

    def _gather(self, task: Task, ids: Ids, name: str, memory_bytes: int) -> RowCache:
        features = self._stored_features(task)
        local = self._predictor.rows_of(task, ids)
        is_propagated = isinstance(features, np.ndarray)
        return RowCache.gather(
            features,
            local,
            memory_bytes=memory_bytes,
            directory=self._rows_directory(),
            name=name,
            identity="" if is_propagated else f"{self._predictor.own_name(task)} {name}",
        )

    def _stored_features(self, task: Task) -> AnyFeatures | NDArray[np.float32]:
        found = self._predictor.features_of(task)
        if isinstance(found, StackedRows):
            raise EcglError(f"the method {self.config.method} asks for rows to keep, and its input is never stored")
        return found

    def _graph_segment(self, task: Task, target: Targets) -> GraphSegment:
        graph, nodes = self.graph(task)
        learn = self.config.learn
        norm = infer_settings(self.config).effective_norm  # as at inference: `sage` averages whatever `norm` says
        weights = self.trainer.weights
        in_blocks = trains_in_blocks(
            graph.num_nodes,
            weights.widths,
            encoder=learn.encoder,
            dropout=learn.dropout,
            device=str(weights.device),
            is_sparse=graph.has_sparse_features,
        )
        fields: dict[str, Any] = {
            "propagation": GraphPropagation(graph, self.resources, norm),
            "local": positions_of(nodes, task.train_ids),
            "encoder": learn.encoder,
            "bias_place": learn.bias_place,
            **target_fields(target),
        }
        if not in_blocks:
            return GraphSegment(rows=self.graph_rows(task), **fields)
        path = self._rows_directory() / f"sent-{task.index}.f32"
        everything = np.arange(graph.num_nodes)
        beside = block_bytes(weights.widths, graph.num_nodes) + self._epoch_bytes() + self.beside_segments_bytes
        sent = one_hop_features(
            graph,
            everything,
            self.resources,
            norm=norm,
            path=path,
            besides_bytes=RESERVE_BYTES,
            beside_result_bytes=None if self.holds_all_graphs else beside,
        )
        # The rows themselves are hardly ever asked for, so they stay on disk.
        return BlockedGraphSegment(rows=self.graph_rows(task, memory_bytes=0), sent=RowCache.from_array(sent), **fields)

    def _rows_directory(self) -> Path:
        directory = self.work / "rows"
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def _rows_bytes(self, beside_bytes: int) -> int:
        """Memory left for rows besides what an epoch takes."""
        return max(self.resources.room_bytes - self._epoch_bytes() - beside_bytes, 0)

    def _epoch_bytes(self) -> int:
        learn, num_ranks = self.config.learn, self.config.engine.ranks
        widths = self.trainer.weights.widths
        return plan_training(widths, block_rows=learn.block_rows, rows_held=False, num_ranks=num_ranks).host_bytes

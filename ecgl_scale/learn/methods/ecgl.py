"""E-CGL: replay of a memory bank, chosen by importance and diversity; loss = new + lambda * replay."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.loss import Segment
from ecgl_scale.learn.method.base import Context, Ids, Method, MethodPlan, TaskShape, TaskSizes
from ecgl_scale.learn.solved_head import solve_last_layer, solving_bytes
from ecgl_scale.learn.train import RESERVE_BYTES, AnySegment
from ecgl_scale.rank.choose import ChooseSettings, choose_nodes, plan_choose
from ecgl_scale.tasks.graphs import positions_of


class Ecgl(Method):
    """Keeps a bank; how it is filled and weighed is in the sections ``bank``, ``rank`` and ``learn`` of the config."""

    name: ClassVar[str] = "ecgl"
    choose_when: ClassVar[str] = "where memory, disk or, on small graphs, time is short, or a network is wanted"
    place: ClassVar[int] = 0
    category: ClassVar[str] = "replay"
    stores: ClassVar[str] = "bank.budget nodes a task, features and label"
    cost: ClassVar[str] = "one pass over the task's rows and the bank"
    reference: ClassVar[str] = "E-CGL: An Efficient Continual Graph Learner (Guo et al.)"
    keeps_bank: ClassVar[bool] = True
    remark: ClassVar[str] = "E-CGL"

    def finish(self, context: Context, segments: Sequence[AnySegment]) -> None:
        """Solve for the last layer, where the config says so."""
        if _solves_head(context.config):
            solve_last_layer(context.trainer, [segment for segment in segments if isinstance(segment, Segment)])

    def remember(self, context: Context) -> MemoryBank:
        """Rank the task's training nodes and keep the best, with a copy of their rows."""
        if not context.config.bank.budget:
            return context.bank
        task = context.task
        graph, nodes = context.graph(task)
        labels = context.stream.labels_of(nodes)
        journal = context.work / "rank"
        outputs = None
        if _ranks_outputs(context.config):
            outputs = _outputs(context, nodes)
        chosen = choose_nodes(
            graph,
            positions_of(nodes, task.train_ids),
            labels,
            context.resources,
            settings=choose_settings(context.config, task.index),
            rank_features=outputs,
            journal_directory=journal,
        )
        ids = nodes[chosen.local]
        rows = context.bank_rows(task, ids)
        bank = context.bank.add(task.index, ids, labels[chosen.local], rows, chosen.importance, chosen.diversity)
        shutil.rmtree(journal, ignore_errors=True)
        return bank

    def beside_segments_bytes(self, config: RunConfig, shape: TaskShape) -> int:
        """Squares of the last hidden layer, where an epoch's reserve is too small for them."""
        del shape
        needed = solving_bytes(config.learn.hidden[-1]) if _solves_head(config) else 0
        return needed if needed > RESERVE_BYTES else 0

    def plan(self, config: RunConfig, sizes: TaskSizes) -> MethodPlan:
        """The larger of the two rankings; before that the outputs of all nodes, where those are ranked by."""
        needed = sizes.training_beside(self.beside_segments_bytes(config, sizes))
        plain = replace(super().plan(config, sizes), work_bytes=needed)
        return replace(plain, end=_plan_ranking(config, sizes)) if config.bank.budget else plain


def _solves_head(config: RunConfig) -> bool:
    """Whether rows go by themselves through a layer below the last, and that is solved for."""
    learn = config.learn
    return learn.last_layer == "solved" and learn.train_as == "mlp" and len(learn.hidden) > 0


def _plan_ranking(config: RunConfig, sizes: TaskSizes) -> StagePlan:
    num_nodes, by_outputs = sizes.num_nodes, _ranks_outputs(config)
    outputs = 4 * num_nodes * sizes.num_classes if by_outputs else 0
    ranking = plan_choose(
        num_nodes,
        sizes.num_features,
        num_candidates=sizes.num_rows,
        settings=choose_settings(config, 0),
        num_edges=sizes.num_edges,
        num_values=None if sizes.values_a_row is None else int(sizes.values_a_row * num_nodes) + 1,
        rank_columns=sizes.num_classes if by_outputs else None,
        num_classes=sizes.num_classes,
        room_bytes=max(sizes.room_bytes - outputs, 0),
        threads=sizes.threads,
    )
    if not by_outputs:
        return ranking
    making = sizes.rows_bytes(num_nodes, beside_bytes=outputs) + sizes.epoch_bytes
    return replace(ranking, host_bytes=max(ranking.host_bytes, making) + outputs)


def _ranks_outputs(config: RunConfig) -> bool:
    """Whether importance compares what the model says, which is then needed of every node."""
    return config.rank.features == "logits" and choose_settings(config, 0).places[0] > 0


def _outputs(context: Context, nodes: Ids) -> NDArray[np.float32]:
    """Outputs of every node of the graph that is ranked, by what the model is given of it."""
    task, trainer = context.task, context.trainer
    outputs = 4 * nodes.size * trainer.weights.num_classes
    if not context.config.learn.num_hops:
        return trainer.logits(context.graph_rows(task, beside_bytes=outputs), weights=trainer.kept_weights)
    found = np.empty((nodes.size, trainer.weights.num_classes), np.float32)
    for one in context.stream.seen(task) if context.config.tasks.inter_task_edges else [task]:
        rows = context.rows(one, one.node_ids, f"ranked-{one.index}")
        found[positions_of(nodes, one.node_ids)] = trainer.logits(rows, weights=trainer.kept_weights)
    return found


def choose_settings(config: RunConfig, task_index: int) -> ChooseSettings:
    """Which nodes of a task are remembered."""
    return ChooseSettings.of(config.bank, config.rank, seed=(config.seed, task_index))

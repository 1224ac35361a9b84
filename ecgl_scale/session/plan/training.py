"""The part of a plan that is training: rows and an epoch, or the task graph, and what a method is told of a task."""

from __future__ import annotations

from dataclasses import replace

from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.graph.autograd import edge_bytes_of
from ecgl_scale.learn.graph_blocks import plan_blocks, trains_in_blocks
from ecgl_scale.learn.graph_segment import held_graph_bytes, plan_propagation
from ecgl_scale.learn.lanes import LANE_SUM_BYTES
from ecgl_scale.learn.method.base import MethodPlan, TaskSizes
from ecgl_scale.learn.rows import plan_rows
from ecgl_scale.learn.train import plan_training
from ecgl_scale.session.plan.sizes import RunSizes
from ecgl_scale.tasks.stream import Task
from ecgl_scale.units import format_bytes


def plan_epoch(sizes: RunSizes, num_rows: int) -> StagePlan:
    """An epoch over so many rows, besides the rows."""
    learn = sizes.config.learn
    return plan_training(
        sizes.widths,
        block_rows=learn.block_rows,
        rows_held=False,
        is_sparse=sizes.trains_sparse,
        dropout=learn.dropout,
        num_rows=num_rows,
        num_ranks=sizes.config.engine.ranks,
    )


def plan_rows_of(sizes: RunSizes, num_rows: int, room_bytes: int) -> StagePlan:
    """Rows, held where they fit beside an epoch, and the epochs."""
    epoch = plan_epoch(sizes, num_rows)
    rows = plan_rows(
        num_rows,
        sizes.graph.num_features,
        memory_bytes=max(room_bytes - epoch.host_bytes, 0),
        num_values=sizes.input_values(num_rows),
    )
    return replace(
        rows,
        host_bytes=rows.host_bytes + epoch.host_bytes,
        formula=f"{rows.formula}; {epoch.formula}",
        device_bytes=epoch.device_bytes,
        passes=sizes.config.learn.epochs,
        blocks=epoch.blocks,
        setting=epoch.setting,
    )


def plan_task_graph(sizes: RunSizes, task: Task, room_bytes: int, *, is_alone: bool = True) -> StagePlan:
    """A task's graph in memory, and the epochs over it; the bank's rows go through the model beside it."""
    beside = plan_epoch(sizes, sizes.bank_nodes).host_bytes if sizes.bank_nodes else sizes.weight_bytes
    learn, found = sizes.config.learn, sizes.graph_of(task, seen=sizes.config.tasks.inter_task_edges)
    counts = {"num_nodes": found.num_nodes, "num_edges": found.num_edges}
    if _in_blocks(sizes, found.num_nodes):
        plan = plan_blocks(
            sizes.graph, sizes.widths, room_bytes=room_bytes, beside_bytes=beside, holds_sent=is_alone, **counts
        )
        return replace(plan, passes=learn.epochs)
    plan = plan_propagation(sizes.graph, sizes.widths, dropout=learn.dropout, values_a_row=_row_values(sizes), **counts)
    return replace(plan, host_bytes=plan.host_bytes + beside, passes=learn.epochs)


def plan_all_graphs(sizes: RunSizes, room_bytes: int) -> StagePlan:
    """The graphs of all tasks in memory, and the epochs over each."""
    lane_sum, held = LANE_SUM_BYTES * sizes.num_weights, [_held_graph(sizes, task) for task in sizes.tasks]
    plans = []
    for task, own in zip(sizes.tasks, held, strict=True):
        others = sum(held) - own
        plan = plan_task_graph(sizes, task, max(room_bytes - others - lane_sum, 0), is_alone=False)
        formula = f"{format_bytes(others)} of other tasks' graphs; {plan.formula}"
        plans.append(replace(plan, host_bytes=plan.host_bytes + others + lane_sum, formula=formula))
    return max(plans, key=lambda plan: plan.host_bytes)


def _held_graph(sizes: RunSizes, task: Task) -> int:
    """A graph's memory between two epochs; where there are several, what is passed along edges is in files."""
    found = sizes.graph_of(task, seen=sizes.config.tasks.inter_task_edges)
    if _in_blocks(sizes, found.num_nodes):
        return edge_bytes_of(sizes.graph, found.num_nodes, found.num_edges)
    return held_graph_bytes(
        sizes.graph, sizes.widths, found.num_nodes, found.num_edges, values_a_row=_row_values(sizes)
    )


def plan_method(sizes: RunSizes, task: Task, room_bytes: int) -> MethodPlan:
    """What the method needs for a task, by its own plan."""
    return sizes.method.plan(sizes.config, task_sizes(sizes, task, room_bytes))


def task_sizes(sizes: RunSizes, task: Task, room_bytes: int) -> TaskSizes:
    """What a method is told of a task."""
    config = sizes.config
    found = sizes.graph_of(task, seen=config.tasks.inter_task_edges)
    num_rows = task.num_train
    training, least = (
        plan_task_graph(sizes, task, room) if config.learn.train_as == "gcn" else plan_rows_of(sizes, num_rows, room)
        for room in (room_bytes, 0)
    )
    return TaskSizes(
        num_nodes=found.num_nodes,
        num_edges=found.num_edges,
        edge_bytes=edge_bytes_of(sizes.graph, found.num_nodes, found.num_edges),
        num_rows=num_rows,
        num_old_rows=sum(one.num_train for one in sizes.stream.seen(task)[:-1]),
        num_tasks=len(sizes.stream),
        widths=sizes.widths,
        stored_features=sizes.graph.num_features,
        values_a_row=sizes.values_a_row,
        made=sizes.made,
        epoch_bytes=plan_epoch(sizes, num_rows).host_bytes,
        training_bytes=training.host_bytes,
        least_training_bytes=least.host_bytes,
        threads=sizes.resources.threads,
        room_bytes=room_bytes,
    )


def _row_values(sizes: RunSizes) -> float | None:
    """Values of the average row where rows stay sparse in training; None where they become dense, as for sgc."""
    return None if sizes.config.learn.encoder == "sgc" else sizes.values_a_row


def _in_blocks(sizes: RunSizes, num_nodes: int) -> bool:
    learn = sizes.config.learn
    # `auto` is planned as the CPU: what a GPU needs is its own memory.
    device = "cpu" if learn.device == "auto" else learn.device
    return trains_in_blocks(
        num_nodes,
        sizes.widths,
        encoder=learn.encoder,
        dropout=learn.dropout,
        device=device,
        is_sparse=sizes.values_a_row is not None,
    )

"""What a run will need, stage by stage, before it starts. Tasks follow each other, so the largest of each stage counts.

extract    the task graphs, by the builder's own plan
train      rows held (or a file of them) + an epoch over blocks of them + the bank's rows
remember   the larger of the two rankings of the largest task, and the bank
evaluate   message passing over the largest graph that is tested on
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.infer.layerwise import plan_inference
from ecgl_scale.learn.bank import plan_bank
from ecgl_scale.learn.message import plan_propagation
from ecgl_scale.learn.message_blocks import plan_blocks, trains_in_blocks
from ecgl_scale.learn.methods import create_method
from ecgl_scale.learn.methods.ecgl import choose_settings
from ecgl_scale.learn.rows import plan_rows
from ecgl_scale.learn.task_graph import TaskGraphs
from ecgl_scale.learn.tasks import Task, TaskStream
from ecgl_scale.learn.train import plan_training
from ecgl_scale.pipeline.setup import infer_settings, open_store, task_stream
from ecgl_scale.run.config import RunConfig
from ecgl_scale.run.events import EventSink, ignore_events
from ecgl_scale.run.memory import MemoryBudget, own_memory_bytes
from ecgl_scale.run.plan import MemoryPlan, StagePlan, largest
from ecgl_scale.select.choose_plan import plan_choose
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.graph import GraphStore


@dataclass(frozen=True)
class _Sizes:
    """What is known of a task's graph before it is extracted; edges into its nodes, so never too few."""

    num_nodes: int
    num_edges: int
    num_values: int | None


def plan_config(config: RunConfig, on_event: EventSink = ignore_events) -> MemoryPlan:
    """The plan of a config; opens its store and draws its tasks, and writes nothing."""
    graph = open_store(config)
    return plan_run(graph, task_stream(graph, config, on_event), config)


def plan_run(graph: GraphStore, stream: TaskStream, config: RunConfig) -> MemoryPlan:
    """The plan of a run."""
    budget = MemoryBudget.of(config.memory)
    degrees = graph.edges.in_degrees()
    held = own_memory_bytes() - degrees.nbytes
    stages = [
        replace(_extraction(graph, stream, config), stage="extract"),
        _training(graph, stream, config, budget.total_bytes - held, degrees),
    ]
    if create_method(config.method).keeps_bank and config.bank.budget:
        stages.append(_remembering(graph, stream, config, degrees))
    stages.append(_evaluation(graph, stream, config, degrees))
    return MemoryPlan(tuple(stages), held, budget)


def _extraction(graph: GraphStore, stream: TaskStream, config: RunConfig) -> StagePlan:
    graphs = TaskGraphs(graph, stream, Path("tasks"), memory=config.memory, threads=config.threads)
    return graphs.plan(scope="seen" if _uses_seen(config) else "own")


def _training(
    graph: GraphStore, stream: TaskStream, config: RunConfig, room_bytes: int, degrees: NDArray[np.int64]
) -> StagePlan:
    widths = _widths(graph, stream, config)
    method, learn = create_method(config.method), config.learn
    bank_bytes = _bank_plan(graph, _bank_nodes(config, stream)).host_bytes if method.keeps_bank else 0
    plans = []
    counted = (
        [sum(task.train_ids.size for task in stream)] if method.keeps_tasks else [t.train_ids.size for t in stream]
    )
    for num_rows in counted:
        sizes = _row_sizes(graph, num_rows)
        epoch = plan_training(
            widths,
            block_rows=learn.block_rows,
            rows_held=False,
            is_sparse=sizes.num_values is not None,
            dropout=learn.dropout,
            num_rows=num_rows,
        )
        rows = plan_rows(
            num_rows,
            graph.num_features,
            memory_bytes=max(room_bytes - epoch.host_bytes - bank_bytes, 0),
            num_values=sizes.num_values,
        )
        plans.append(
            replace(
                rows,
                host_bytes=rows.host_bytes + epoch.host_bytes + bank_bytes,
                formula=f"{rows.formula}; {epoch.formula}; bank {bank_bytes:,} bytes",
                device_bytes=epoch.device_bytes,
                passes=learn.epochs,
                blocks=epoch.blocks,
                setting=epoch.setting,
            )
        )
    if learn.train_as == "gcn":
        plans += [_graph_training(graph, stream, task, config, room_bytes, degrees) for task in stream]
    for task in stream:
        num_nodes = _sizes(graph, stream, task, degrees, seen=config.tasks.inter_task_edges).num_nodes
        needed = method.planned_work_bytes(
            config,
            num_nodes=num_nodes,
            num_rows=int(task.train_ids.size),
            num_features=graph.num_features,
            room_bytes=room_bytes,
        )
        plans.append(StagePlan("train", needed, f"the method's work on {num_nodes:,} nodes", setting="memory"))
    plan = largest("train", plans)
    state_bytes = _state_bytes(graph, stream, config)
    formula = f"{plan.formula}; the method's state {state_bytes:,} bytes" if state_bytes else plan.formula
    return replace(plan, host_bytes=plan.host_bytes + state_bytes, formula=formula)


def _state_bytes(graph: GraphStore, stream: TaskStream, config: RunConfig) -> int:
    """What the method keeps besides the bank, when all tasks are learned."""
    method, widths = create_method(config.method), _widths(graph, stream, config)
    num_weights = sum(fan_in * fan_out + fan_out for fan_in, fan_out in pairwise(widths))
    values = _row_sizes(graph, 1).num_values
    row_bytes = 4 * graph.num_features if values is None else 8 * values
    return method.planned_bytes(num_weights, stream.num_classes, len(stream)) + method.planned_node_bytes(
        config,
        row_bytes=row_bytes,
        num_features=graph.num_features,
        num_classes=stream.num_classes,
        num_tasks=len(stream),
    )


def _graph_training(
    graph: GraphStore, stream: TaskStream, task: Task, config: RunConfig, room_bytes: int, degrees: NDArray[np.int64]
) -> StagePlan:
    widths, learn = _widths(graph, stream, config), config.learn
    sizes = _sizes(graph, stream, task, degrees, seen=config.tasks.inter_task_edges)
    counts = {"num_nodes": sizes.num_nodes, "num_edges": sizes.num_edges}
    # `auto` is planned as the CPU: what a GPU needs is its own memory.
    device = "cpu" if learn.device == "auto" else learn.device
    if trains_in_blocks(sizes.num_nodes, widths, encoder=learn.encoder, dropout=learn.dropout, device=device):
        return plan_blocks(graph, widths, room_bytes=room_bytes, **counts)
    return plan_propagation(graph, widths, dropout=learn.dropout, **counts)


def _remembering(graph: GraphStore, stream: TaskStream, config: RunConfig, degrees: NDArray[np.int64]) -> StagePlan:
    plans = []
    for task in stream:
        sizes = _sizes(graph, stream, task, degrees, seen=config.tasks.inter_task_edges)
        plan = plan_choose(
            sizes.num_nodes,
            graph.num_features,
            num_candidates=int(task.train_ids.size),
            settings=choose_settings(config, task.index),
            num_edges=sizes.num_edges,
            num_values=sizes.num_values,
            rank_columns=stream.num_classes if config.rank.features == "logits" else None,
            memory=config.memory,
            threads=config.threads,
        )
        bank = _bank_plan(graph, (task.index + 1) * config.bank.budget)
        outputs = 4 * sizes.num_nodes * stream.num_classes if config.rank.features == "logits" else 0
        plans.append(
            replace(
                plan,
                host_bytes=plan.host_bytes + bank.host_bytes + outputs,
                written_bytes=plan.written_bytes + bank.written_bytes,
            )
        )
    return largest("remember", plans)


def _evaluation(graph: GraphStore, stream: TaskStream, config: RunConfig, degrees: NDArray[np.int64]) -> StagePlan:
    plans = []
    for task in stream:
        sizes = _sizes(graph, stream, task, degrees, seen=_uses_seen(config))
        plans.append(
            plan_inference(
                graph,
                _widths(graph, stream, config),
                settings=infer_settings(config),
                threads=config.threads,
                memory=config.memory,
                num_nodes=sizes.num_nodes,
                num_edges=sizes.num_edges,
            )
        )
    return largest("evaluate", plans)


def _uses_seen(config: RunConfig) -> bool:
    return config.tasks.inter_task_edges or config.tasks.eval_scope == "seen"


def _widths(graph: GraphStore, stream: TaskStream, config: RunConfig) -> list[int]:
    return [graph.num_features, *config.learn.hidden, stream.num_classes]


def _bank_nodes(config: RunConfig, stream: TaskStream) -> int:
    return sum(min(config.bank.budget, int(task.train_ids.size)) for task in stream[:-1])


def _bank_plan(graph: GraphStore, num_nodes: int) -> StagePlan:
    return plan_bank(num_nodes, graph.num_features, num_values=_row_sizes(graph, num_nodes).num_values)


def _row_sizes(graph: GraphStore, num_rows: int) -> _Sizes:
    """Rows of the average number of values, where features are sparse."""
    section = graph.manifest.features
    if section is None or not isinstance(graph.features, SparseFeatures):
        return _Sizes(num_rows, 0, None)
    return _Sizes(num_rows, 0, -(-section.num_values * num_rows // graph.num_nodes))


def _sizes(graph: GraphStore, stream: TaskStream, task: Task, degrees: NDArray[np.int64], *, seen: bool) -> _Sizes:
    tasks = stream.seen(task) if seen else [task]
    num_nodes = sum(int(one.node_ids.size) for one in tasks)
    num_edges = sum(int(degrees[one.node_ids].sum()) for one in tasks)
    return replace(_row_sizes(graph, num_nodes), num_edges=num_edges)

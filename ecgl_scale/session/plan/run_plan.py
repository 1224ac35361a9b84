"""What a run will need, stage by stage, before it starts. Tasks follow each other, so the largest of each stage counts.

extract    the task graphs, by the builder's own plan
train      rows held (or a file of them) + an epoch over blocks of them, or the task graph; what the method does besides
remember   what the method does at the end of the largest task: E-CGL the larger of its two rankings
evaluate   message passing over the largest graph that is tested on: with the scope `seen`, that of all tasks

Each on top of what is held all the time: Python and libraries, and from the first task on weights, bank and state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.plan import MemoryPlan, StagePlan, largest
from ecgl_scale.infer.layerwise import plan_inference, plan_inference_worker
from ecgl_scale.learn.method.base import MethodPlan
from ecgl_scale.session.learner import device_of
from ecgl_scale.session.plan.context_graphs import plan_context_graphs
from ecgl_scale.session.plan.sizes import RunSizes
from ecgl_scale.session.plan.training import plan_all_graphs, plan_method, plan_rows_of, plan_task_graph
from ecgl_scale.session.predict import needs_seen, rows_at_once, tests_on_store
from ecgl_scale.session.scoring import scoring_bytes
from ecgl_scale.session.setup import RunSetup, infer_settings
from ecgl_scale.tasks.extract_plan import plan_extract_worker
from ecgl_scale.tasks.graphs import TaskGraphs
from ecgl_scale.tasks.split import Ids
from ecgl_scale.tasks.stream import Task
from ecgl_scale.units import MIB, format_bytes

LIBRARY_BYTES = 80 * MIB
"""What libraries take when they first work: kernels, threads, packing buffers. Measured 30 to 50 MiB where kernels come
from numba's cache, 130 where they are compiled, of which the stages' own reserves cover the rest."""


def plan_run(setup: RunSetup) -> MemoryPlan:
    """The plan of a run."""
    budget, config = setup.resources.budget, setup.config
    sizes = RunSizes(setup, setup.graph.edges.in_degrees())
    held = own_memory_bytes() - sizes.degrees.nbytes + LIBRARY_BYTES
    context_bytes = sizes.context_bytes(seen=_uses_seen(config))
    room = budget.total_bytes - held - sizes.bank_bytes - sizes.weight_bytes - sizes.checkpoint_bytes - context_bytes
    state_bytes = plan_method(sizes, setup.stream[-1], max(room, 0)).state_bytes
    room = max(room - state_bytes, 0)
    parts = _kept_parts(sizes.bank_bytes, state_bytes, context_bytes)
    kept = sizes.bank_bytes + state_bytes
    of_method = [plan_method(sizes, task, room) for task in sizes.to_learn]
    stages = [
        _with_kept(_extraction(sizes, room), kept + context_bytes + sizes.weight_bytes, parts),
        _with_kept(_training(sizes, room, of_method), kept + context_bytes + sizes.checkpoint_bytes, parts),
        _with_kept(_remembering(of_method, kept), kept + context_bytes + sizes.weight_bytes, parts),
        _with_kept(_evaluation(sizes, room), kept + context_bytes + sizes.weight_bytes, parts),
    ]
    if device_of(config.learn.device) == "cpu":  # there is no other memory
        stages = [replace(stage, device_bytes=0) for stage in stages]
    return MemoryPlan(tuple(stages), held, budget)


def plan_run_workers(setup: RunSetup, *, room_bytes: int, threads: int) -> list[StagePlan]:
    """What one worker that has so much room needs in each stage of a run that is spread, where it shares no memory.

    Rankings, propagation and tests of a task take no more of a worker than of one process that does it all; training
    stays where it is.
    """
    own = replace(setup, resources=setup.resources.with_threads(threads))
    sizes = RunSizes(own, setup.graph.edges.in_degrees())
    seen, driver_threads = _uses_seen(setup.config), setup.resources.threads
    extracted = [
        plan_extract_worker(
            setup.graph,
            _graph_nodes(sizes, task, seen=seen),
            room_bytes=room_bytes,
            driver_threads=driver_threads,
            threads=threads,
        )
        for task in (sizes.tasks if sizes.context.is_none else sizes.tasks[:1])
    ]
    stages = [largest("extract", extracted)]
    if sizes.made.is_made:
        stages.append(largest("train", [_propagation(sizes, task, room_bytes, seen=seen) for task in sizes.tasks]))
    stages.append(_remembering([plan_method(sizes, task, room_bytes) for task in sizes.tasks], 0))
    return [*stages, _evaluation(sizes, room_bytes, is_spread=True)]


def _graph_nodes(sizes: RunSizes, task: Task, *, seen: bool) -> Ids:
    if not sizes.context.is_none:
        return (sizes.counted_seen if seen else sizes.counted_own).largest.ids
    tasks = sizes.stream.seen(task) if seen else [task]
    return np.sort(np.concatenate([one.node_ids for one in tasks]))


def _kept_parts(bank_bytes: int, state_bytes: int, context_bytes: int) -> str:
    parts = {"bank": bank_bytes, "the method's state": state_bytes, "nodes of graphs with context": context_bytes}
    return "".join(f"; {name} {format_bytes(size)}" for name, size in parts.items() if size)


def _with_kept(stage: StagePlan, kept_bytes: int, parts: str) -> StagePlan:
    return replace(stage, host_bytes=stage.host_bytes + kept_bytes, formula=stage.formula + parts)


def _extraction(sizes: RunSizes, room_bytes: int) -> StagePlan:
    config, count = sizes.config, len(sizes.stream)
    graphs = TaskGraphs(
        sizes.graph,
        sizes.stream,
        Path("tasks"),
        sizes.resources,
        self_loops=config.rank.self_loops,
        context=sizes.context,
    )
    seen = [task for task in sizes.stream if needs_seen(config, task.index, count)]
    seen = [task for task in seen if not tests_on_store(config, graphs, task)]
    if not sizes.context.is_none:
        return plan_context_graphs(sizes, room_bytes, num_seen=len(seen))
    return replace(graphs.plan(room_bytes, seen=seen, in_degrees=sizes.degrees), stage="extract")


def _training(sizes: RunSizes, room_bytes: int, of_method: Sequence[MethodPlan]) -> StagePlan:
    method, learn = sizes.method, sizes.config.learn
    seen = sizes.config.tasks.inter_task_edges
    plans: list[StagePlan] = []
    if method.learns_at_once:
        pass  # its rows are never held: see what it plans itself
    elif learn.train_as == "gcn":
        plans += (
            [plan_all_graphs(sizes, room_bytes)]
            if method.keeps_tasks or method.keeps_graphs
            else [plan_task_graph(sizes, task, room_bytes) for task in sizes.to_learn]
        )
    else:
        tasks = sizes.stream if method.keeps_tasks else sizes.to_learn
        counts = [task.num_train for task in tasks]
        plans += [
            plan_rows_of(sizes, int(rows), room_bytes) for rows in ([sum(counts)] if method.keeps_tasks else counts)
        ]
    for task, planned in zip(sizes.to_learn, of_method, strict=True):
        what = f"the method's work on {sizes.graph_of(task, seen=seen).num_nodes:,} nodes"
        plans.append(StagePlan("train", planned.work_bytes, what, setting="memory"))
        if sizes.made.is_made:
            plans.append(_propagation(sizes, task, room_bytes, seen=seen))
    return largest("train", plans)


def _remembering(of_method: Sequence[MethodPlan], kept_bytes: int) -> StagePlan:
    plans = [replace(one.end, written_bytes=one.end.written_bytes + kept_bytes) for one in of_method]
    return largest("remember", plans)


def _evaluation(sizes: RunSizes, room_bytes: int, *, is_spread: bool = False) -> StagePlan:
    """Tests by one process, or a worker where they are spread: it tests whole tasks, and shares the graph of all."""
    config, plans = sizes.config, []
    if config.tasks.evaluate == "none":
        return StagePlan("evaluate", 0, "nothing is tested")
    for task in sizes.tasks:
        scored = scoring_bytes(max(task.num_test, task.num_valid), sizes.widths[-1])
        if sizes.made.is_made:
            plan = _propagation(sizes, task, room_bytes, seen=_uses_seen(config))
            predicting = 4 * rows_at_once(sizes.made) * (2 * sizes.widths[0] + 2 * sum(sizes.widths[1:]))
            predicting += sizes.made.reading_bytes(sizes.graph.num_features) + scored
            plan = replace(plan, host_bytes=max(plan.host_bytes, predicting))
        else:
            found = sizes.graph_of(task, seen=_uses_seen(config))
            is_shared = is_spread and "seen" in config.tasks.scopes
            plan = (plan_inference_worker if is_shared else plan_inference)(
                sizes.graph,
                sizes.widths,
                settings=infer_settings(config),
                room_bytes=room_bytes,
                threads=sizes.resources.threads,
                num_nodes=found.num_nodes,
                num_edges=found.num_edges,
                made_dense=sizes.made_dense,
                beside_result_bytes=scored,
            )
        plans.append(plan)
    return largest("evaluate", plans)


def _propagation(sizes: RunSizes, task: Task, room_bytes: int, *, seen: bool) -> StagePlan:
    """Features of a task passed along the edges; they are then in a file."""
    found, config = sizes.graph_of(task, seen=seen), sizes.config
    plan = sizes.made.plan(
        sizes.graph,
        norm=config.infer.norm,
        room_bytes=room_bytes,
        threads=sizes.resources.threads,
        num_nodes=found.num_nodes,
        num_edges=found.num_edges,
        made_dense=sizes.made_dense,
    )
    return replace(plan, formula=f"features passed along {sizes.made.num_hops} edges: {plan.formula}")


def _uses_seen(config: RunConfig) -> bool:
    """Whether the graph of all tasks together is trained or tested on."""
    return needs_seen(config, 0, 1)

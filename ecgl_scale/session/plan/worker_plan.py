"""What a run that is spread needs of this process and of one worker, before any worker is there."""

from __future__ import annotations

from dataclasses import replace

from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.engine.cluster.entrance import divide, with_workers
from ecgl_scale.engine.cluster.settings import ClusterSettings
from ecgl_scale.engine.cluster.worker_memory import WorkerRoom, require_workers
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.engine.threads import available_cores
from ecgl_scale.session.plan.remedy import MEMORY_TRIES
from ecgl_scale.session.plan.run_plan import plan_run_workers
from ecgl_scale.session.setup import RunSetup, cluster_of
from ecgl_scale.store.remote import manifest_files
from ecgl_scale.units import MIB


def plan_worker(setup: RunSetup) -> tuple[RunSetup, MemoryPlan | None]:
    """The run with what its workers leave to this process, and the plan of one worker; None where there are none.

    Workers of a running cluster are asked for their limits, and refused where they have too little; those that the run
    would start get the shares that it would give them.
    """
    cluster = cluster_of(setup.config)
    if cluster.is_alone:
        return setup, None
    if cluster.workers is None:
        return _of_cluster(setup, cluster)
    resources, given = divide(setup.resources, cluster)
    budget = MemoryBudget.of(given.worker_memory)
    origin = f"a share of this machine for each of {cluster.workers} workers"
    budget = replace(
        budget, origin=origin if cluster.worker_memory is None else "--worker-memory", option="--worker-memory"
    )
    smallest = min(resources.budget, budget, key=lambda one: one.total_bytes)
    setup = replace(setup, resources=replace(resources, budget=smallest))
    room = WorkerRoom(budget, given.worker_threads or available_cores(), with_torch=True)
    return setup, room.plan(lambda free, threads: plan_run_workers(setup, room_bytes=free, threads=threads))


def least_worker_memory(setup: RunSetup, threads: int) -> int:
    """A budget, near the peak, that is enough for a worker of a run: it has been planned again."""
    needed = MIB
    for _ in range(MEMORY_TRIES):
        room = WorkerRoom(MemoryBudget(needed, "a try"), threads, with_torch=True)
        found = room.plan(lambda free, threads: plan_run_workers(setup, room_bytes=free, threads=threads))
        if found.peak_bytes <= needed:
            break
        needed = found.peak_bytes
    return needed


def _of_cluster(setup: RunSetup, cluster: ClusterSettings) -> tuple[RunSetup, MemoryPlan | None]:
    with with_workers(cluster, setup.resources, shared=(), inputs=manifest_files(setup.graph.path)) as resources:
        setup = replace(setup, resources=replace(setup.resources, budget=resources.budget))
        found = require_workers(
            resources,
            lambda room, threads: plan_run_workers(setup, room_bytes=room, threads=threads),
            with_torch=True,
        )
    return setup, found

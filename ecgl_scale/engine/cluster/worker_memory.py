"""What one worker needs, checked against the limit of every worker before a job starts.

A stage says what it needs of a worker that has so much room and so many threads; the worker's process and its
libraries come on top. Room is that of the smallest worker, threads are those of the one that has most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.engine.cluster.executor import ClusterExecutor
from ecgl_scale.engine.cluster.handshake import require_memory
from ecgl_scale.engine.plan import MemoryPlan, StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.units import MIB

PROCESS_BYTES = 48 * MIB
"""A worker that has not worked yet; measured 43 MiB."""
LIBRARY_BYTES = 80 * MIB
"""Kernels, threads and buffers of libraries when they first work."""
TORCH_BYTES = 150 * MIB
"""What torch takes as soon as it is imported, with all that tests a task."""

PlanStages = Callable[[int, int], Sequence[StagePlan]]
"""What a worker needs in each stage that is spread, given the bytes that it has left and its threads."""


@dataclass(frozen=True)
class WorkerRoom:
    """What a worker has."""

    budget: MemoryBudget
    threads: int
    with_torch: bool = False
    """Whether its work imports torch."""

    @property
    def held_bytes(self) -> int:
        """What its process and libraries take."""
        return PROCESS_BYTES + LIBRARY_BYTES + (TORCH_BYTES if self.with_torch else 0)

    def plan(self, stages: PlanStages) -> MemoryPlan:
        """What it needs, stage by stage."""
        room_bytes = max(self.budget.total_bytes - self.held_bytes, 0)
        return MemoryPlan(tuple(stages(room_bytes, self.threads)), self.held_bytes, self.budget)


def require_workers(resources: Resources, stages: PlanStages, *, with_torch: bool = False) -> MemoryPlan | None:
    """Refuse a job that does not fit one of its workers; the plan of a worker, None where this process does it all.

    Raises
    ------
    DoesNotFitError
        A worker has too little for a stage; it names both, and nothing has been started.
    """
    if not isinstance(resources.executor, ClusterExecutor):
        return None
    workers = resources.executor.cluster.facts
    least = min(workers, key=lambda worker: worker.memory_bytes)
    budget = MemoryBudget(least.memory_bytes, f"worker {least.name} on {least.host} ({least.memory_origin})")
    room = WorkerRoom(budget, max(worker.threads for worker in workers), with_torch=with_torch)
    plan = room.plan(stages)
    for stage in sorted(plan.stages, key=lambda stage: -stage.host_bytes):
        require_memory(workers, plan.held_bytes + stage.host_bytes, stage=stage.stage)
    return plan

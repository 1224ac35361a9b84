"""What a job asks a batch system for: memory, cores and time of a node, from the plan of its run.

process   the plan's peak + a third, in whole GiB: without --memory a run's budget is 80 % of its limit, which is
          then the peak and a fifteenth; with Dask that of a worker, where it needs more than the run's own process
node      a process, or all ranks that a config keeps on one; with Dask also a worker and the scheduler
time      as given, or twice the plan's estimate in whole quarters of an hour: a job whose time is up goes on later
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ecgl_scale.base.memory import SHARE_OF_LIMIT
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.session.plan.remedy import least_memory, require_fit
from ecgl_scale.session.plan.run_plan import plan_run
from ecgl_scale.session.plan.worker_plan import least_worker_memory
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.session.time.estimate import with_times
from ecgl_scale.units import GIB

Engine = Literal["local", "dask", "ranks"]

DEFAULT_CORES = 8
SCHEDULER_BYTES = GIB
LEAST_SECONDS = 1800
SECONDS_STEP = 900


@dataclass(frozen=True)
class JobNeeds:
    """What a job asks for."""

    peak_bytes: int
    """The plan's, of one process; with Dask what a process was given, if that was said."""
    process_gib: int
    node_gib: int
    cores: int
    seconds: int
    estimated_seconds: float | None
    """The plan's, where nobody said how long the job may take."""
    has_gpu: bool

    @property
    def budget_mib(self) -> int:
        """What a process may use where several share a node, so that none takes the node's limit for its own."""
        return int(self.process_gib * 1024 * SHARE_OF_LIMIT)


def find_needs(config: RunConfig, engine: Engine, *, cores: int | None, seconds: int | None) -> JobNeeds:
    """Plan a run as it will be in the job, and say what the job must ask for.

    Raises
    ------
    DoesNotFitError
        The run needs more than the memory that its config gives it. What this machine has does not matter.
    """
    cores = cores or config.threads or DEFAULT_CORES
    setup = RunSetup.open(config.model_copy(update={"threads": config.threads or cores}))
    plan = plan_run(setup)
    if config.memory is None:
        needed_bytes = least_memory(plan, setup)
    else:
        require_fit(plan, setup)
        needed_bytes = plan.budget.total_bytes if engine == "dask" else plan.peak_bytes
    if engine == "dask":
        needed_bytes = max(needed_bytes, least_worker_memory(setup, cores))
    process_gib = -(-4 * needed_bytes // (3 * GIB))
    estimated = None if seconds is not None else with_times(plan, setup).seconds
    return JobNeeds(
        peak_bytes=needed_bytes,
        process_gib=process_gib,
        node_gib=_node_gib(process_gib, engine, 1 if engine == "ranks" else config.engine.ranks),
        cores=cores,
        seconds=_job_seconds(estimated) if seconds is None else seconds,
        estimated_seconds=estimated,
        has_gpu=config.learn.device not in ("auto", "cpu"),
    )


def _node_gib(process_gib: int, engine: Engine, num_ranks: int) -> int:
    if engine == "dask":
        return (num_ranks + 1) * process_gib + SCHEDULER_BYTES // GIB
    return num_ranks * process_gib


def _job_seconds(estimated: float | None) -> int:
    return max(LEAST_SECONDS, -(-int(2 * (estimated or 0.0)) // SECONDS_STEP) * SECONDS_STEP)

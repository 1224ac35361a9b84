"""How many runs of a sweep go at a time, and what each of them may use.

``auto`` gives every run two cores, so a machine of two has one run at a time: training uses both, and a second run
would only share them, take as much memory again and make every result come later. Runs so small that an epoch takes a
single thread (``learner.SMALL_EPOCH_FLOPS``) leave the second core idle: of those, one goes on each core. On a GPU it
is one run at a time. Then fewer, until the plan of every run fits its share of the budget, from which the sweep's own
process is taken off first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.config.sweep import Jobs
from ecgl_scale.engine.cluster.executor import ClusterExecutor
from ecgl_scale.engine.cluster.worker_memory import WorkerRoom
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.threads import available_cores
from ecgl_scale.errors import DoesNotFitError, EcglError
from ecgl_scale.session.learner import SMALL_EPOCH_FLOPS, device_of
from ecgl_scale.session.plan.remedy import require_fit
from ecgl_scale.session.plan.run_plan import plan_run
from ecgl_scale.session.setup import RunSetup, open_store, resources_of

CORES_A_RUN = 2


@dataclass(frozen=True)
class Share:
    """What a run may use; None stands for whatever it finds."""

    memory_bytes: int | None
    threads: int | None

    def overrides(self) -> list[str]:
        """The limits as ``KEY=VALUE`` of a config."""
        given = {"memory": self.memory_bytes, "threads": self.threads}
        return [f"{key}={value}" for key, value in given.items() if value is not None]

    def apply(self, config: RunConfig) -> RunConfig:
        """A config with these limits."""
        memory = config.memory if self.memory_bytes is None else str(self.memory_bytes)
        return config.model_copy(update={"memory": memory, "threads": config.threads or self.threads})


@dataclass(frozen=True)
class Schedule:
    """How many runs go at a time, what each may use, and which are refused."""

    jobs: int
    share: Share
    refused: dict[str, EcglError] = field(default_factory=dict)
    """Combinations that cannot run, and why."""
    store_ids: dict[AnyPath, str] = field(default_factory=dict)


def smallest_worker(resources: Resources) -> Resources | None:
    """What a run may use on the worker that has least; None where runs are done here, or workers say nothing."""
    if not isinstance(resources.executor, ClusterExecutor):
        return None
    threads = min(worker.threads for worker in resources.executor.cluster.facts)
    held_bytes = WorkerRoom(resources.budget, threads, with_torch=True).held_bytes
    left = replace(resources.budget, total_bytes=max(resources.budget.total_bytes - held_bytes, 1))
    return Resources(left, threads)


def make_schedule(
    configs: Mapping[str, RunConfig], *, jobs: Jobs | None, num_runs: int, worker: Resources | None = None
) -> Schedule:
    """Plan one run of each combination; without ``jobs`` they go elsewhere, and have to fit a ``worker`` that is known.

    Raises
    ------
    DoesNotFitError
        So many runs at a time do not fit, though fewer would.
    """
    alone = _share(next(iter(configs.values())), 1)
    refused: dict[str, EcglError] = {}
    store_ids: dict[AnyPath, str] = {}
    are_small = True
    for name, config in configs.items():
        try:
            store_ids[config.store] = open_store(config).short_identity
            if worker is not None:
                _plan_on(worker, config)
            else:
                are_small = _plan(alone.apply(config)) and are_small
        except EcglError as error:
            if jobs is not None or worker is not None or not isinstance(error, DoesNotFitError):
                refused[name] = error
    if jobs is None:
        return Schedule(1, Share(None, None), refused, store_ids)
    possible = {name: config for name, config in configs.items() if name not in refused}
    most = _most_jobs(possible, are_small=are_small) if jobs == "auto" else jobs
    count = max(min(most, num_runs), 1)
    while count > 1 and (refusal := _first_refusal(possible, count)) is not None:
        if jobs != "auto":
            raise DoesNotFitError(
                f"{count} runs at a time do not fit: {refusal.what}",
                where=refusal.where,
                fix="give fewer --jobs, or auto",
            )
        count -= 1
    share = alone if count == 1 else _share(next(iter(configs.values())), count)
    return Schedule(count, share, refused, store_ids)


def _most_jobs(configs: Mapping[str, RunConfig], *, are_small: bool) -> int:
    if any(device_of(config.learn.device) != "cpu" for config in configs.values()):
        return 1
    return available_cores() // (1 if are_small else CORES_A_RUN)


def _first_refusal(configs: Mapping[str, RunConfig], jobs: int) -> EcglError | None:
    for config in configs.values():
        try:
            _plan(_share(config, jobs).apply(config))
        except EcglError as error:
            return error
    return None


def _share(config: RunConfig, jobs: int) -> Share:
    if jobs == 1 and config.memory is None:
        return Share(None, None)  # it finds the same limits as we do
    threads = None if jobs == 1 or config.threads is not None else max(available_cores() // jobs, 1)
    return Share(max(resources_of(config).room_bytes // jobs, 1), threads)


def _plan_on(worker: Resources, config: RunConfig) -> None:
    """Refuse a run that does not fit beside the process of a worker, whose memory is what counts."""
    setup = RunSetup.open(config.model_copy(update={"memory": None}), worker)
    held_bytes = WorkerRoom(worker.budget, worker.threads, with_torch=True).held_bytes
    require_fit(plan_run(setup), setup, besides_bytes=held_bytes)


def _plan(config: RunConfig) -> bool:
    """Refuse a run that does not fit or cannot be; True if its epochs are so small that one thread does them."""
    setup = RunSetup.open(config)
    require_fit(plan_run(setup), setup, besides_bytes=own_memory_bytes())
    stream = setup.stream
    rows = max(task.num_nodes if config.learn.train_as == "gcn" else task.num_train for task in stream)
    rows = max(int(rows), config.bank.budget * (len(stream) - 1))
    return 6 * rows * sum(fan_in * fan_out for fan_in, fan_out in pairwise(setup.widths)) < SMALL_EPOCH_FLOPS

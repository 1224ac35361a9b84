"""Where a command gets its workers: connect, compare, warn, and only then begin.

    with with_workers(settings, resources, shared=[out], inputs=[store / "manifest.json"]) as resources: ...

Nothing has been written before all workers run the same code, see the same files and have been asked for their memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from ecgl_scale.base.durable import storage_errors
from ecgl_scale.base.events import EventSink, Note, WorkerJoined
from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.engine.cluster.executor import ClusterExecutor
from ecgl_scale.engine.cluster.handshake import (
    WorkerFacts,
    check_workers,
    describe_process,
    share_memory,
    smallest_budget,
)
from ecgl_scale.engine.cluster.settings import ClusterSettings, is_open_to_others, scheduler_address
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.threads import available_cores
from ecgl_scale.errors import UsageError
from ecgl_scale.units import format_bytes


@contextmanager
def with_workers(
    settings: ClusterSettings, resources: Resources, *, shared: Iterable[Path], inputs: Iterable[Path] = ()
) -> Iterator[Resources]:
    """These resources with the workers that a user asked for; they themselves where nobody did.

    ``shared`` is what will be written: all must see the directories it goes to, as rows go there, too. ``inputs`` are
    files that all read.
    """
    if settings.is_alone:
        yield resources
        return
    _warn_of_open_door(settings, resources.on_event)
    resources, settings = divide(resources, settings)
    try:
        from ecgl_scale.engine.cluster.dask_cluster import connect
    except ModuleNotFoundError as error:
        raise UsageError(
            "workers need Dask, which is not installed", fix="pip install 'ecgl-scale[cluster]'"
        ) from error
    with connect(settings) as cluster:
        with ExitStack() as stack:  # tokens go as soon as all have looked: a killed command leaves none
            tokens = [stack.enter_context(_token(directory)) for directory in sorted({*map(_existing, shared)})]
            files = {str(path.absolute()): path.stat().st_size for path in (*tokens, *inputs)}
            cluster.facts = tuple(share_memory(cluster.describe(files)))
        warning = check_workers(WorkerFacts(**describe_process("this process", {})), cluster.facts)
        if warning is not None:
            resources.on_event(Note(warning, is_warning=True))
        for worker in cluster.facts:
            resources.on_event(WorkerJoined(worker.name, worker.host, worker.pid, worker.threads, worker.memory_bytes))
        resources.on_event(Note(_summary(cluster.facts, cluster.dashboard)))
        option = "`ecgl worker --memory`" if settings.workers is None else "--worker-memory"
        budget = smallest_budget(resources.budget, cluster.facts, option)
        yield replace(resources, budget=budget, executor=ClusterExecutor(cluster))


def divide(resources: Resources, settings: ClusterSettings) -> tuple[Resources, ClusterSettings]:
    """Memory and cores of this machine for this process and the workers that it starts, where the user did not say."""
    if settings.workers is None:
        return resources, settings
    memory, budget = settings.worker_memory, resources.budget
    if memory is None and budget.origin == "--memory":
        left = MemoryBudget.of(None).total_bytes - budget.total_bytes
        memory = str(max(left // settings.workers, 1))
    elif memory is None:
        share = budget.total_bytes // (settings.workers + 1)
        memory = str(share)
        budget = MemoryBudget(share, f"a share of one in {settings.workers + 1} of {budget.origin}")
    threads = settings.worker_threads or max(available_cores() // settings.workers, 1)
    return replace(resources, budget=budget), replace(settings, worker_memory=memory, worker_threads=threads)


def _existing(path: Path) -> Path:
    """The nearest directory above a path that is there: what is missing will be made in it."""
    return next(folder for folder in path.absolute().parents if folder.is_dir())


@contextmanager
def _token(directory: Path) -> Iterator[Path]:
    """A file that exists only now: who sees it sees the same file system, and not an old copy."""
    path = directory / f".ecgl-{uuid.uuid4().hex}.token"
    with storage_errors(path):
        path.write_bytes(uuid.uuid4().bytes)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _warn_of_open_door(settings: ClusterSettings, on_event: EventSink) -> None:
    if settings.scheduler is None or not is_open_to_others(scheduler_address(settings.scheduler)):
        return
    on_event(
        Note(
            f"{scheduler_address(settings.scheduler)} is open to everybody who can reach it, and whoever does runs "
            "code as its user: use it in a trusted network only, or with TLS (--tls DIR, for `ecgl scheduler` too)",
            is_warning=True,
        )
    )


def _summary(workers: tuple[WorkerFacts, ...], dashboard: str | None) -> str:
    least = min(worker.memory_bytes for worker in workers)
    hosts = len({worker.host for worker in workers})
    number = f"{len(workers)} worker{'s' * (len(workers) > 1)} on {hosts} machine{'s' * (hosts > 1)}"
    shown = f"{number}, each with {format_bytes(least)} or more"
    return shown if dashboard is None else f"{shown}; Dask's dashboard: {dashboard}"

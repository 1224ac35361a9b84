"""What we ask of Dask: place a unit, say when it is done, notice who is lost. The only file that imports dask.

Nothing is kept in Dask: a unit's answer is fetched when it is there and released, and rows never travel through it.
Settings of processes that we start: one Dask thread (kernels have threads of their own), no limits on memory by Dask
(it counts pages of mapped files, and kills), no profiler, few ticks (an idle worker then takes 0.4 % of a core).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask.config
from distributed import Client, Future, KilledWorker, LocalCluster, Nanny, Scheduler, Security, get_worker
from distributed.comm import CommClosedError
from distributed.exceptions import WorkerStartTimeoutError

from ecgl_scale.engine.cluster.failure import pack_error_text
from ecgl_scale.engine.cluster.handshake import WorkerFacts, describe_process
from ecgl_scale.engine.cluster.settings import (
    ClusterSettings,
    is_open_to_others,
    scheduler_address,
    write_scheduler_file,
)
from ecgl_scale.engine.cluster.tls import make_certificates, require_certificates
from ecgl_scale.engine.cluster.unit_runner import MEMORY_VARIABLE, THREADS_VARIABLE, UnitRunner
from ecgl_scale.errors import ClusterLostError, EcglError, InvalidInputError

START_SECONDS = 60.0
"""So long is waited for a scheduler and its first worker."""

PRELOAD = "ecgl_scale.engine.cluster.worker_signals"
PROCESS_CONFIG = {
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.scheduler.allowed-failures": 2,  # three tries, as everywhere
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.scheduler.work-stealing": False,
}


def run_unit(job: str, blocks: str, given: str) -> dict[str, Any]:
    """Run a unit on a Dask worker, whose open work stays with it from unit to unit."""
    return _runner_of(get_worker()).run(job, blocks, given)


def close_job_on_worker(name: str, dask_worker: Any) -> None:
    """Let go of a job's work on a Dask worker."""
    _runner_of(dask_worker).close(name)


def describe_worker(files: dict[str, int], dask_worker: Any) -> dict[str, Any]:
    """What a Dask worker says of itself."""
    return describe_process(str(dask_worker.name), files)


def _runner_of(worker: Any) -> UnitRunner:
    runner: UnitRunner = worker.__dict__.setdefault("ecgl_unit_runner", UnitRunner())
    return runner


@dataclass
class DaskCluster:
    """The workers of a Dask cluster."""

    client: Client
    facts: tuple[WorkerFacts, ...] = ()
    _futures: dict[str, Future] = field(default_factory=dict)

    @property
    def dashboard(self) -> str | None:
        """Where Dask shows what it does, if it does."""
        link: str | None = self.client.dashboard_link
        return link

    def describe(self, files: Mapping[str, int]) -> list[WorkerFacts]:
        """What each worker says of itself."""
        with _lost_cluster():
            found = self.client.run(describe_worker, dict(files))
        return [WorkerFacts(**{**facts, "unseen": tuple(facts["unseen"])}) for _, facts in sorted(found.items())]

    def names(self) -> Mapping[str, str]:
        """Addresses and names of those that are there."""
        with _lost_cluster():
            workers = self.client.scheduler_info(n_workers=-1)["workers"]
        return {address: str(worker["name"]) for address, worker in workers.items()}

    def last_heard(self) -> Mapping[str, float]:
        """When the scheduler last had word of each worker: they send it every few seconds, whatever they do."""
        with _lost_cluster():
            workers = self.client.scheduler_info(n_workers=-1)["workers"]
        return {str(worker["name"]): float(worker["last_seen"]) for worker in workers.values()}

    def send(self, key: str, address: str, unit: tuple[str, str, str], on_done: Callable[[str], None]) -> None:
        """Submit a unit."""
        self._futures[key] = future = self.client.submit(
            run_unit,
            *unit,
            key=key,
            pure=False,
            workers=[address],
            allow_other_workers=True,  # or it would wait for ever for a worker that is lost
            retries=0,
        )
        future.add_done_callback(lambda _: on_done(key))

    def fetch(self, key: str) -> dict[str, Any]:
        """The answer; Dask's own failures are told apart."""
        future = self._futures.pop(key)
        try:
            with _lost_cluster():
                answer: dict[str, Any] = future.result()
        except KilledWorker as error:
            raise EcglError(
                f"every worker that ran this unit was lost, {error.allowed_failures + 1} in all",
                where=f"{key.rsplit('-', 4)[0]}, unit {key.rsplit('-', 2)[1]}, last on {error.last_worker.address}",
                fix="look at the workers' logs and memory; what is finished is kept for the same command",
            ) from error
        except ClusterLostError:
            raise
        except Exception as error:  # Dask could not run it at all: a broken installation on that worker, say
            return {"error": pack_error_text(error)}
        finally:
            future.release()
        return answer

    def cancel(self, key: str) -> None:
        """Forget a unit."""
        future = self._futures.pop(key, None)
        if future is not None:
            future.release()

    def close_job(self, name: str) -> None:
        """Let all workers that answer close a job; a worker that is lost has closed it."""
        if self.client.status == "running":
            self.client.run(close_job_on_worker, name, wait=False, on_error="ignore")

    def check(self) -> None:
        """Raise where the connection is closed for good."""
        if self.client.status != "running":
            raise ClusterLostError("the scheduler of the cluster is gone")


@contextmanager
def _lost_cluster() -> Iterator[None]:
    """Tell a cluster that is gone from every other error."""
    try:
        yield
    except (asyncio.CancelledError, TimeoutError, CommClosedError, ConnectionError) as error:
        raise ClusterLostError("the scheduler of the cluster is gone") from error


@contextmanager
def connect(settings: ClusterSettings) -> Iterator[DaskCluster]:
    """The cluster that a user asked for; what was started for it ends with the ``with``."""
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(PROCESS_CONFIG))
        security = None if settings.tls is None else _security(settings.tls)
        if settings.workers is not None:
            address: Any = stack.enter_context(_local_cluster(settings, security))
        else:
            address = scheduler_address(str(settings.scheduler))
        client = stack.enter_context(_client(address, security))
        yield DaskCluster(client)


@contextmanager
def _client(address: Any, security: Security | None) -> Iterator[Client]:
    try:
        client = Client(address, security=security, timeout=START_SECONDS, set_as_default=False)
        client.wait_for_workers(1, timeout=START_SECONDS)
    except WorkerStartTimeoutError as error:
        raise InvalidInputError(
            "the cluster has no workers", where=address, fix="start some: `ecgl worker ADDRESS|FILE` on each machine"
        ) from error
    except (OSError, TimeoutError) as error:
        raise InvalidInputError(
            f"no scheduler answers: {error}",
            where=address,
            expected="a running Dask scheduler; with TLS, --tls with its certificates",
            fix="start one with `ecgl scheduler FILE`, or check the address",
        ) from error
    with client:
        yield client


@contextmanager
def _local_cluster(settings: ClusterSettings, security: Security | None) -> Iterator[LocalCluster]:
    """Processes on this machine that nobody else can reach, with a dashboard where Dask can draw one."""
    environment = _environment(settings.worker_memory, settings.worker_threads)
    with LocalCluster(
        n_workers=settings.workers,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0" if _can_draw() else None,
        memory_limit=0,
        security=security,
        silence_logs=logging.CRITICAL,
        env=environment,
        preload=[PRELOAD],
    ) as cluster:
        yield cluster


def _can_draw() -> bool:
    return find_spec("bokeh") is not None


def _environment(memory: str | int | None, threads: int | None) -> dict[str, str]:
    """One thread for each library, set before it is imported: our own threads are set where work is done."""
    libraries = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    chosen = {MEMORY_VARIABLE: memory, THREADS_VARIABLE: threads}
    return {**libraries, **{name: str(value) for name, value in chosen.items() if value is not None}}


def _security(directory: Path) -> Security:
    paths = require_certificates(directory)
    roles = {
        f"tls_{role}_{part}": paths[part] for role in ("client", "scheduler", "worker") for part in ("cert", "key")
    }
    return Security(require_encryption=True, tls_ca_file=paths["ca"], **roles)


def run_scheduler(file: Path, *, host: str, port: int, tls: Path | None) -> None:
    """Be a scheduler until SIGTERM or Ctrl-C; ``file`` says where it listens, as soon as it does and as long."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # LSF warns all processes of a job, and it is the driver that stops
    if tls is not None:
        make_certificates(tls)
    security = None if tls is None else _security(tls)
    protocol = "tcp" if security is None else "tls"
    listens_here_only = not is_open_to_others(f"{protocol}://{host}:{port}") and security is None

    async def serve() -> None:
        stopped = _stopped()
        async with Scheduler(
            host=host,
            port=port,
            protocol=protocol,
            security=security,
            dashboard=listens_here_only and _can_draw(),  # it asks nobody who they are
            dashboard_address=f"{host}:0",
        ) as scheduler:
            write_scheduler_file(file, scheduler.address)
            await stopped.wait()

    try:
        with dask.config.set(PROCESS_CONFIG):
            asyncio.run(serve())
    finally:
        file.unlink(missing_ok=True)


def run_worker(
    address: str, *, memory: str | None, threads: int | None, scratch: Path | None, tls: Path | None
) -> None:
    """Be a worker until SIGTERM or Ctrl-C, which let a unit that is being worked on finish, or the scheduler is gone.

    A process of its own does the work and is started again when it is lost. Requests to stop that batch systems send to
    all processes of a job (SIGUSR2) are for the driver; here they are ignored.
    """
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    security = None if tls is None else _security(tls)

    async def serve() -> None:
        stopped = _stopped()
        async with Nanny(
            address,
            name=f"{socket.gethostname()}-{os.getpid()}",
            nthreads=1,
            memory_limit=0,
            local_directory=None if scratch is None else str(scratch),
            security=security,
            dashboard=False,
            env=_environment(memory, threads),
            preload=[PRELOAD],
        ) as nanny:
            ended = [asyncio.create_task(stopped.wait()), asyncio.create_task(nanny.finished())]
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.cancel()

    with dask.config.set(PROCESS_CONFIG):
        asyncio.run(serve())


def _stopped() -> asyncio.Event:
    """An event that SIGTERM and Ctrl-C set; to be called where the loop runs."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped

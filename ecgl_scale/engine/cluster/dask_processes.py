"""The processes of a Dask cluster: its scheduler, its workers, and both on this machine for one command.

Settings of processes that we start: one Dask thread (kernels have threads of their own), no limits on memory by Dask
(it counts pages of mapped files, and kills), no profiler, few ticks (an idle worker then takes 0.4 % of a core).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask.config
from distributed import LocalCluster, Nanny, Scheduler, Security
from distributed.comm import get_address_host
from distributed.comm.addressing import unparse_host_port
from distributed.core import Status
from distributed.exceptions import WorkerStartTimeoutError
from distributed.utils import get_ip

from ecgl_scale.engine.cluster.settings import ClusterSettings, is_open_to_others, write_scheduler_file
from ecgl_scale.engine.cluster.tls import make_certificates, require_certificates
from ecgl_scale.engine.cluster.unit_runner import MEMORY_VARIABLE, THREADS_VARIABLE
from ecgl_scale.errors import InvalidInputError, UsageError

START_SECONDS = 60.0
"""So long is waited for a scheduler and its first worker."""
POLL_SECONDS = 0.1
"""So often is looked whether a worker that was asked to leave is done."""

PAGES = "127.0.0.1:0"
"""Where Dask's pages are: a process has some even without a dashboard, and they ask nobody who they are."""

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
    # Dask looks so long after a loss whether the worker is back, and ends who restarts just then after another loss.
    "distributed.deploy.lost-worker-timeout": "1h",
}


@contextmanager
def start_errors(address: Any) -> Iterator[None]:
    """Say what is missing where a connection cannot be made."""
    try:
        yield
    except WorkerStartTimeoutError as error:
        raise InvalidInputError(
            "the cluster has no workers", where=address, fix="start some: `ecgl worker ADDRESS|FILE` on each machine"
        ) from error
    except MemoryError as error:  # the first words of a web server, read as the size of a message, are exabytes
        raise InvalidInputError(
            "who answers there is no scheduler",
            where=address,
            expected="a running Dask scheduler",
            fix="give the address at which workers find it, not that of its dashboard",
        ) from error
    except (OSError, RuntimeError) as error:
        causes = [error, *_causes(error)]
        if not isinstance(causes[-1], OSError):
            raise
        raise InvalidInputError(
            f"no scheduler answers: {causes[-1]}",
            where=address,
            expected="a running Dask scheduler; with TLS, --tls with its certificates",
            fix="start one with `ecgl scheduler FILE`, or check the address",
        ) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """What an error was raised from, down to the first: Dask says only that a process has not started."""
    while error.__cause__ is not None:
        error = error.__cause__
        yield error


@contextmanager
def local_cluster(settings: ClusterSettings) -> Iterator[LocalCluster]:
    """Processes on this machine that nobody else can reach, with a dashboard where Dask can draw one."""
    environment = _environment(settings.worker_memory, settings.worker_threads)
    with LocalCluster(
        n_workers=settings.workers,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0" if _can_draw() else None,
        memory_limit=0,
        security=None if settings.tls is None else _security(settings.tls),
        silence_logs=logging.CRITICAL,
        env=environment,
        preload=_preloads(),
    ) as cluster:
        yield cluster


def start_missing(cluster: LocalCluster) -> None:
    """Start anew who has given up: a nanny does, for good, when its worker is killed while it starts."""

    def drop_ended() -> None:
        for name, nanny in [*cluster.workers.items()]:
            if nanny.status in (Status.closed, Status.failed):
                del cluster.workers[name]
        cluster.scale(len(cluster.worker_spec))

    cluster.loop.add_callback(drop_ended)  # where it changes the same table itself


def _preloads() -> list[str]:
    """What worker processes load first: our own, and what the user's settings of Dask name."""
    return [PRELOAD, *dask.config.get("distributed.worker.preload")]


def _can_draw() -> bool:
    return find_spec("bokeh") is not None


def _environment(memory: str | int | None, threads: int | None) -> dict[str, str]:
    """One thread for each library, set before it is imported: our own threads are set where work is done."""
    libraries = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    chosen = {MEMORY_VARIABLE: memory, THREADS_VARIABLE: threads}
    return {**libraries, **{name: str(value) for name, value in chosen.items() if value is not None}}


def security_for(address: str, tls: Path | None) -> Security | None:
    """What a connection to this address needs; Dask itself would try, in vain, until its time is over."""
    is_encrypted = address.startswith("tls:")
    if is_encrypted and tls is None:
        raise UsageError("this cluster asks for a certificate", where=address, fix="give --tls DIR, its scheduler's")
    if tls is not None and not is_encrypted:
        raise UsageError(
            "this cluster is not encrypted",
            where=address,
            expected="tls://HOST:PORT",
            fix="start `ecgl scheduler` with --tls",
        )
    return None if tls is None else _security(tls)


def _security(directory: Path) -> Security:
    paths = require_certificates(directory)
    roles = {
        f"tls_{role}_{part}": paths[part] for role in ("client", "scheduler", "worker") for part in ("cert", "key")
    }
    return Security(require_encryption=True, tls_ca_file=paths["ca"], **roles)


def run_scheduler(file: Path, *, host: str, port: int, tls: Path | None) -> None:
    """Be a scheduler until SIGTERM or Ctrl-C; ``file`` says where it listens, as soon as it does and as long."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # LSF sends it to all processes of a job; it is for the run alone
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
            dashboard_address=PAGES,
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
    security = security_for(address, tls)

    async def serve() -> None:
        stopped = _stopped()
        async with Nanny(
            address,
            name=f"{socket.gethostname()}-{os.getpid()}",
            nthreads=1,
            memory_limit=0,
            local_directory=None if scratch is None else str(scratch),
            security=security,
            host=_own_host(address),
            dashboard=False,
            dashboard_address=PAGES,
            env=_environment(memory, threads),
            preload=_preloads(),
        ) as nanny:
            ended = [asyncio.create_task(stopped.wait()), asyncio.create_task(nanny.finished())]
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            if stopped.is_set():
                stopped.clear()
                ended.append(asyncio.create_task(_finish_unit(nanny)))
                again = asyncio.create_task(stopped.wait())
                await asyncio.wait([again, *ended[1:]], return_when=asyncio.FIRST_COMPLETED)
                ended.append(again)
            for task in ended:
                task.cancel()

    with dask.config.set(PROCESS_CONFIG), start_errors(address):
        asyncio.run(serve())


def _own_host(scheduler: str) -> str:
    """The address of this machine on the way to a scheduler: a worker would listen at all that the machine has."""
    return str(unparse_host_port(get_ip(get_address_host(scheduler))))


async def _finish_unit(nanny: Nanny) -> None:
    """Take no more units; wait for the one under way, and until its answer was fetched."""
    address, scheduler = nanny.worker_address, nanny.scheduler
    with suppress(OSError):  # the scheduler is gone, and nobody waits for an answer
        while True:
            await scheduler.retire_workers(workers=[address], close_workers=False, remove=False)
            under_way, held = await scheduler.processing(), await scheduler.has_what()
            if not under_way.get(address) and not held.get(address):
                return
            await asyncio.sleep(POLL_SECONDS)


def _stopped() -> asyncio.Event:
    """An event that SIGTERM and Ctrl-C set; to be called where the loop runs."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped

"""``ecgl scheduler`` and ``ecgl worker``: the processes of a cluster, and the options of commands that use one."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ecgl_scale.errors import UsageError

if TYPE_CHECKING:
    from ecgl_scale.engine.cluster.settings import ClusterSettings

Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Start so many worker processes on this machine, and spread the work."),
]
SchedulerAddress = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="ADDRESS|FILE",
        help="Spread the work over a running Dask cluster: tcp://HOST:PORT, tls://HOST:PORT, or its scheduler file.",
    ),
]
WorkerMemory = Annotated[
    str | None,
    typer.Option("--worker-memory", metavar="SIZE", help="Most memory for each of --workers. Default: an equal share."),
]
WorkerThreads = Annotated[
    int | None,
    typer.Option("--worker-threads", min=1, help="Threads of each of --workers. Default: an equal share of the cores."),
]
Tls = Annotated[
    Path | None,
    typer.Option("--tls", metavar="DIR", help="Certificates of the cluster, as `ecgl scheduler --tls DIR` makes them."),
]

ENGINE_KEYS = ("workers", "scheduler", "worker_memory", "worker_threads", "tls")


@dataclass(frozen=True)
class ClusterOptions:
    """Options of every command whose work can be spread."""

    workers: Workers = None
    scheduler: SchedulerAddress = None
    worker_memory: WorkerMemory = None
    worker_threads: WorkerThreads = None
    tls: Tls = None

    def cluster(self) -> ClusterSettings:
        """What is asked for, as the engine knows it."""
        from ecgl_scale.engine.cluster.settings import ClusterSettings

        return ClusterSettings(self.workers, self.scheduler, self.worker_memory, self.worker_threads, self.tls)

    def overrides(self) -> list[str]:
        """What is asked for, as keys of a config; there it takes the place of workers of the other kind."""
        given = {name: getattr(self, name) for name in ENGINE_KEYS}
        other: list[str] = []
        if self.workers is not None:
            other = ["scheduler"]
        elif self.scheduler is not None:
            other = ["workers", "worker_memory", "worker_threads"]
        keys = {**dict.fromkeys(other), **{name: value for name, value in given.items() if value is not None}}
        return [f"engine.{name}={json.dumps(value, default=str)}" for name, value in keys.items()]


def scheduler(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to say the address; on a file system that workers see.")
    ],
    host: Annotated[
        str, typer.Option("--host", help="Address to listen at. Beyond this machine use --tls.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 0,
    tls: Annotated[
        Path | None,
        typer.Option("--tls", metavar="DIR", help="Encrypt, and admit only who can read DIR; made where missing."),
    ] = None,
) -> None:
    """Be the scheduler of a cluster until SIGTERM or Ctrl-C; workers and commands find it by FILE."""
    from ecgl_scale.engine.cluster.settings import is_open_to_others

    if tls is None and is_open_to_others(f"tcp://{host}:{port}"):
        print(
            f"ecgl: warning: whoever reaches {host} can run code as this user; give --tls DIR, "
            "or be sure that the network is trusted",
            file=sys.stderr,
        )
    require_dask()
    from ecgl_scale.engine.cluster.dask_processes import run_scheduler

    run_scheduler(file, host=host, port=port, tls=tls)


def worker(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS|FILE", help="The scheduler's address, or its file, which is waited for.")
    ],
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory", metavar="SIZE", help="Most memory to use. Default: 80 % of the tightest limit, shared by host."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads. Default: the cores this process may use.")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option("--scratch", metavar="DIR", help="A directory of this machine for Dask's own files.")
    ] = None,
    tls: Tls = None,
) -> None:
    """Be a worker of a cluster, one for each machine, until SIGTERM or Ctrl-C; a block under way is finished first."""
    from ecgl_scale.engine.cluster.settings import wait_for_scheduler
    from ecgl_scale.units import parse_bytes

    if memory is not None:
        parse_bytes(memory)
    require_dask()
    from ecgl_scale.engine.cluster.dask_processes import START_SECONDS, run_worker

    run_worker(wait_for_scheduler(address, START_SECONDS), memory=memory, threads=threads, scratch=scratch, tls=tls)


def require_dask() -> None:
    """Refuse where Dask is not installed."""
    from importlib.util import find_spec

    if find_spec("distributed") is None:
        raise UsageError("a cluster needs Dask, which is not installed", fix="pip install 'ecgl-scale[cluster]'")

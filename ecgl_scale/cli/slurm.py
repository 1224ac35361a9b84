"""``ecgl slurm``: the script of a batch job, from the plan of its run."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ecgl_scale.cli.options import Memory
from ecgl_scale.cli.run import ConfigPath, Overrides


class JobEngine(StrEnum):
    """Which processes compute a run in a job."""

    LOCAL = "local"
    DASK = "dask"
    RANKS = "ranks"


class BatchSystem(StrEnum):
    """Which program starts the job."""

    SLURM = "slurm"
    PBS = "pbs"
    LSF = "lsf"
    SHELL = "shell"


def slurm(
    config: ConfigPath,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="RUN", help="Directory of the run. Default: runs/ and CONFIG's name."),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes of the job.")] = 1,
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="HH:MM:SS",
            help="Time of the job, which goes on later if that is not enough. Default: twice the plan's estimate.",
        ),
    ] = None,
    cores: Annotated[
        int | None, typer.Option("--cores", min=1, help="Cores of a node. Default: the config's `threads`, else 8.")
    ] = None,
    engine: Annotated[
        JobEngine,
        typer.Option(
            "--engine",
            help="local: one process; dask: a worker a node; ranks: training by a process a node.",
        ),
    ] = JobEngine.LOCAL,
    system: Annotated[
        BatchSystem, typer.Option("--system", help="The batch system; shell: a machine without one.")
    ] = BatchSystem.SLURM,
    overrides: Overrides = None,
    memory: Memory = None,
) -> None:
    """Print the script of a batch job that asks for what the plan needs, and goes on when its time is up."""
    from ecgl_scale.base.objects.url import location_of, require_directory
    from ecgl_scale.base.output_file import refuse_inside_store
    from ecgl_scale.config.schema import load_config
    from ecgl_scale.session.batch.needs import find_needs
    from ecgl_scale.session.batch.script import JobRequest, parse_time, write_script
    from ecgl_scale.session.ranks.launch import refuse_unshared

    seconds = None if time is None else parse_time(time)
    given = [text for override in overrides or [] for text in ("--set", override)]
    is_dask = engine is JobEngine.DASK  # which divides the memory of a node itself
    location = location_of(out or Path("runs") / config.stem)
    if engine is not JobEngine.LOCAL:
        require_directory(location, what="a run of several processes", fix="give --out a path that all nodes see")
    request = JobRequest(
        arguments=sys.argv[1:],
        config=config,
        out=location,
        run_options=[*given, *([] if memory is None or is_dask else ["--memory", memory])],
        nodes=nodes,
        engine=engine.value,
        system=system.value,
    )
    request.check()
    if isinstance(location, Path):
        refuse_inside_store(location.absolute())
    loaded = load_config(config, [*(overrides or []), *([] if memory is None else [f"memory={memory}"])])
    if engine is JobEngine.RANKS:
        loaded = loaded.model_copy(update={"engine": loaded.engine.model_copy(update={"ranks": nodes})})
        refuse_unshared(loaded)  # and each of them holds, besides, what it exchanges with the others
    needs = find_needs(loaded, request.engine, cores=cores, seconds=seconds)
    print(write_script(request, needs, is_timed=seconds is not None), end="")

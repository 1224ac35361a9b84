"""``ecgl update``: one more task for a model that is finished."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecgl_scale.base.objects.url import location_of, require_directory
from ecgl_scale.cli.cluster import ClusterOptions
from ecgl_scale.cli.options import Json, Memory, StorePath, takes_settings
from ecgl_scale.cli.output import print_json
from ecgl_scale.cli.run import Ranks, command_of_rank, print_results

if TYPE_CHECKING:
    from ecgl_scale.base.events import EventSink
    from ecgl_scale.session.update import Update


class Evaluate(StrEnum):
    """What is tested after an update."""

    ALL = "all"
    NONE = "none"


@takes_settings
def update(
    context: typer.Context,
    settings: ClusterOptions,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Directory of a finished run, of a model that ECGL.save wrote, or of an earlier update; of its "
            "versions the newest, or MODEL@N.",
        ),
    ],
    store: StorePath,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="MODEL2",
            help="Directory of the updated model, new or empty, unless with --resume; or MODEL, for its next version.",
        ),
    ],
    new_nodes: Annotated[
        bool,
        typer.Option("--new-nodes", help="Learn the labelled nodes that the model has not seen yet: the default."),
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar='"COLUMN op VALUE"',
            help="Learn those of the nodes in no task yet that meet a condition: op is == != < <= > >=, "
            'or "label in A, B".',
        ),
    ] = None,
    if_new: Annotated[
        bool,
        typer.Option("--if-new", help="Where the store has no node that the model has not seen, end with code 0."),
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with an update that was stopped or killed; begin where none was begun."),
    ] = False,
    evaluate: Annotated[
        Evaluate | None,
        typer.Option(
            "--evaluate",
            help="After learning, test on all tasks so far, or on none: tests grow with the store, learning does not. "
            "As the model's config has it where nothing is said; what is said holds for later updates, too.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another value for a key of the model's config that changes no result, such as threads=4.",
        ),
    ] = None,
    memory: Memory = None,
    ranks: Ranks = None,
    as_json: Json = False,
) -> None:
    """Learn one more task on top of a model, and test on all of its tasks."""
    if new_nodes and where is not None:
        raise typer.BadParameter("--new-nodes and --where exclude each other", param_hint="--where")
    if if_new and where is not None:
        raise typer.BadParameter("--if-new is about new nodes, not about a condition", param_hint="--if-new")
    from ecgl_scale.session.update import Update

    for path in (model, out):
        require_directory(path, what="ecgl update", fix="copy the model to this machine first")
    tests = [] if evaluate is None else [f"tasks.evaluate={evaluate.value}"]
    asked = [*(overrides or []), *tests, *([] if ranks is None else [f"engine.ranks={ranks}"])]
    given = [*asked, *([] if memory is None else [f"memory={memory}"]), *settings.overrides()]
    job = Update.open(model, location_of(store), out, where=where, overrides=given)
    if if_new and not job.basis.has_new_nodes(job.config):
        if not context.obj.quiet:
            print(f"{job.basis.directory}: the store has no new nodes, so there is nothing to learn", file=sys.stderr)
        return
    results = job.done_before() if resume else None
    if results is None:
        with context.obj.progress() as sink:
            results = _run(job, resume, sink, command_of_rank(_arguments(job, store), asked, memory))
    if as_json:
        print_json(results)
    elif not context.obj.quiet:
        print_results(results, job.target)


def _arguments(job: Update, store: Path) -> list[object]:
    where = job.basis.asked
    return ["update", job.basis.directory, store, "--out", job.target, *([] if where is None else ["--where", where])]


def _run(job: Update, resume: bool, sink: EventSink, command: list[str]) -> dict[str, Any]:
    """Run the update; with several ranks, ``command`` starts another one."""
    if job.config.engine.ranks == 1:
        from ecgl_scale.session.run import run

        return run(job.config, job.target, resume=resume, on_event=sink, basis=job.basis)
    from ecgl_scale.session.ranks.run_ranks import run_ranks

    found = run_ranks(job.config, job.target, command=command, resume=resume, on_event=sink, basis=job.basis)
    if isinstance(found, int):
        raise typer.Exit(found)
    return found

"""``ecgl plan``, ``run`` and ``infer``: from a config to results, and from results to predictions."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecgl_scale.base.objects.url import AnyPath, location_of, require_directory
from ecgl_scale.cli.cluster import ClusterOptions
from ecgl_scale.cli.options import Json, Memory, StorePath, takes_settings
from ecgl_scale.cli.output import Output, log_warnings, print_json
from ecgl_scale.errors import DoesNotFitError
from ecgl_scale.units import format_bytes, format_count

if TYPE_CHECKING:
    from ecgl_scale.config.schema import RunConfig

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file; see docs/configuration.md.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Another value for a key of the config, such as learn.epochs=50. May be given several times.",
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        metavar="N",
        min=1,
        help="Share the training among N processes, with the same results: this one and N - 1 more that it starts, "
        "or those that torchrun, srun or mpirun has started. Default: the config's engine.ranks.",
    ),
]

CHILD = ("-m", "ecgl_scale.cli.child")
"""What Python runs as another rank, followed by the number of the process that waits for it."""


@takes_settings
def plan(
    context: typer.Context,
    settings: ClusterOptions,
    config: ConfigPath,
    overrides: Overrides = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """What each stage of a run will need, and about how long it takes; fails where it does not fit."""
    _show_plan(context.obj, _load(config, overrides, memory, settings), as_json)


def _show_plan(output: Output, config: RunConfig, as_json: bool) -> None:
    from ecgl_scale.session.plan.remedy import require_fit
    from ecgl_scale.session.plan.run_plan import plan_run
    from ecgl_scale.session.plan.worker_plan import plan_worker
    from ecgl_scale.session.setup import RunSetup, resources_of
    from ecgl_scale.session.time.estimate import with_times

    own = resources_of(config, log_warnings, num_here=config.engine.ranks)  # all of them here
    setup, of_worker = plan_worker(RunSetup.open(config, own))
    found, refused = plan_run(setup), None
    try:
        if of_worker is not None:
            of_worker.require()
        require_fit(found, setup)
    except DoesNotFitError as error:  # asked before anything is measured: what that leaves in memory is no run's
        refused = error
    found = with_times(found, setup)
    if as_json:
        worker = None if of_worker is None else of_worker.as_json()
        dropped = [asdict(gone) for gone in setup.stream.dropped]
        print_json({**found.as_json(), "worker": worker, "dropped_classes": dropped})
    elif not output.quiet:
        print(found if of_worker is None else f"this process\n{found}\n\none worker\n{of_worker}")
    if refused is not None:
        raise refused


@takes_settings
def run(
    context: typer.Context,
    settings: ClusterOptions,
    config: ConfigPath,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="RUN",
            help="Directory of the run, or its URL; needed unless --dry-run. New or empty, unless with --resume.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with a run that was stopped or killed, with the same config; begin where none was begun.",
        ),
    ] = False,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only plan, as `ecgl plan` does.")] = False,
    memory: Memory = None,
    memray: Annotated[
        bool,
        typer.Option(
            "--memray",
            help="Record native allocations with their stacks: memray.bin and memray.html in RUN. Takes longer.",
        ),
    ] = False,
    ranks: Ranks = None,
    as_json: Json = False,
) -> None:
    """Learn a stream of tasks and test on all of them."""
    overrides = [*(overrides or []), *([] if ranks is None else [f"engine.ranks={ranks}"])]
    loaded = _load(config, overrides, memory, settings)
    if dry_run:
        _show_plan(context.obj, loaded, as_json)
        return
    if out is None:
        raise typer.BadParameter("a run needs a directory", param_hint="--out")
    location = location_of(out)
    with context.obj.progress() as sink:
        if loaded.engine.ranks == 1:
            from ecgl_scale.session.remote_run import run_at

            results = run_at(loaded, location, resume=resume, memray=memray, on_event=sink)
        else:
            from ecgl_scale.session.ranks.run_ranks import run_ranks

            own = require_directory(out, what="a run of several ranks", fix="give --out a path that all ranks see")
            command = command_of_rank(["run", config, "--out", own], overrides, memory)
            found = run_ranks(loaded, own, command=command, resume=resume, memray=memray, on_event=sink)
            if isinstance(found, int):
                raise typer.Exit(found)
            results = found
    if as_json:
        print_json(results)
    elif not context.obj.quiet:
        print_results(results, location)


@takes_settings
def infer(
    context: typer.Context,
    settings: ClusterOptions,
    run_directory: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Directory or URL of a finished run, of an update, or of a model that ECGL.save wrote; of its "
            "versions the newest, or MODEL@N.",
        ),
    ],
    store: StorePath,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Parquet file to write: node, label, score (the softmax of the label's output).",
        ),
    ],
    nodes: Annotated[
        str | None,
        typer.Option(
            "--nodes",
            metavar="new|FILE",
            help="Predict only these nodes, from their neighbourhood alone: those that the model has not learned "
            "from or that the last append brought (with --update: those newer than its table), or those that a file "
            "names (.npy, .txt, .csv, .tsv, .parquet, .arrow). Default: every node.",
        ),
    ] = None,
    by_key: Annotated[
        bool, typer.Option("--id", help="Write the keys of nodes too; the file of --nodes names nodes by key.")
    ] = False,
    update: Annotated[
        Path | None,
        typer.Option(
            "--update",
            metavar="OLD",
            help="Predictions of all nodes, on this store or before it grew: rows of nodes whose neighbourhood has not "
            "changed since are copied; where the model has changed, every node is predicted.",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Most memory to use: 512MiB, 4GiB, 2GB, or bytes. "
            "Default: the run's own `memory`, else 80 % of the tightest limit found.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", min=1, help="Threads. Default: the run's own `threads`, else the cores this process may use."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the class of every node of a store, or of some, with a finished run's weights."""
    from ecgl_scale.session.infer import Asked, infer_store

    if nodes == "new":
        asked = Asked("new", by_key, update)
    else:
        asked = Asked(None if nodes is None else Path(nodes), by_key, update)

    with context.obj.progress() as sink:
        report = infer_store(
            location_of(run_directory),
            location_of(store),
            out,
            asked=asked,
            memory=memory,
            threads=threads,
            cluster=settings.cluster(),
            on_event=sink,
        )
    if as_json:
        print_json(report)
    elif not context.obj.quiet:
        seconds = f"{report['seconds']:.1f} s with the {report['backend']} backend"
        peak = f"{format_bytes(report['peak_bytes'])} of {format_bytes(report['plan']['peak_bytes'])} planned"
        predicted, num_nodes = (format_count(report[name]) for name in ("num_predicted", "num_nodes"))
        of_all = "" if predicted == num_nodes else f" of {num_nodes}"
        print(f"{out}: {predicted}{of_all} nodes, {seconds}, peak memory {peak}")


def command_of_rank(command: list[object], overrides: list[str], memory: str | None) -> list[str]:
    """How another rank of the same run is started on this machine; who it is the environment will say."""
    child = [sys.executable, *CHILD, str(os.getpid())]
    sets = [argument for override in overrides for argument in ("--set", override)]
    sets += [] if memory is None else ["--memory", memory]
    return [*child, "--quiet", *map(str, command), *sets]


def _load(config: Path, overrides: list[str] | None, memory: str | None, settings: ClusterOptions) -> RunConfig:
    from ecgl_scale.config.schema import load_config

    given = [] if memory is None else [f"memory={memory}"]
    return load_config(config, [*(overrides or []), *given, *settings.overrides()])


def print_results(results: dict[str, Any], out: AnyPath) -> None:
    """The performance matrix of a run, its means, and where the rest is."""
    from ecgl_scale.session.results import summary

    whole_graph = "on the whole graph seen so far"
    matrices, tested = {"": results["matrix"]}, results.get("eval_scope", "task")
    if tested == "both":
        matrices = {"on each task's own graph": results["matrix"], whole_graph: results["matrix_seen"]}
    elif tested == "seen":
        matrices = {whole_graph: results["matrix"]}
    for scope, matrix in matrices.items():
        print(f"accuracy (macro, %) after each task (row) on each task (column){f', {scope}' if scope else ''}")
        for number, row in enumerate(matrix):
            shown = "".join("      " if value is None else f"{value:6.1f}" for value in row)
            print(f"{number:>4} {shown}".rstrip())
    print(f"{results['method']} ({results['preset']}, {results['setting']}): {summary(results)}")
    print(f"results: {out / 'results.json'}")

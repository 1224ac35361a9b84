"""``ecgl sweep``: a grid of configs and seeds, one table at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ecgl_scale.cli.cluster import ClusterOptions
from ecgl_scale.cli.options import Json, Memory, takes_settings
from ecgl_scale.cli.output import fail, print_json
from ecgl_scale.cli.run import ConfigPath, Overrides
from ecgl_scale.errors import StopRequestedError

AGAIN = "run the same command again: finished runs are kept, the others go on"


@takes_settings
def sweep(
    context: typer.Context,
    settings: ClusterOptions,
    config: ConfigPath,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Directory of the sweep: new, empty, or that of the same sweep to go on."
        ),
    ],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="KEY=V1,V2",
            help="Values of a key, as YAML. May be given several times: every combination is run.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="SEEDS", help="Such as 0-4 or 0,2,7. Default: the config's.")
    ] = None,
    overrides: Overrides = None,
    jobs: Annotated[
        str | None,
        typer.Option(
            "--jobs",
            metavar="auto|N",
            help="Runs at a time; auto: as cores and memory allow. Default: the config's. With workers, one on each.",
        ),
    ] = None,
    memory: Memory = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="What a sweep does in any case; a script may always pass it."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run every combination of a grid with every seed; stopped, the same command goes on."""
    from ecgl_scale.config.sweep import load_sweep, parse_jobs
    from ecgl_scale.engine.resources import Resources
    from ecgl_scale.session.sweep.run_sweep import run_sweep, with_workers_of

    del resume
    given = [*(overrides or []), *([] if memory is None else [f"memory={memory}"]), *settings.overrides()]
    loaded = load_sweep(config, grid=grid or (), seeds=seeds, overrides=given)
    at_a_time = loaded.jobs if jobs is None else parse_jobs(jobs, where="--jobs")
    try:
        with context.obj.progress() as sink, with_workers_of(loaded, Resources.of(on_event=sink), out) as resources:
            record = run_sweep(loaded, out, config=config, resources=resources, jobs=at_a_time)
    except StopRequestedError as stopped:
        raise StopRequestedError(stopped.what, where=out, fix=AGAIN) from None
    if as_json:
        print_json(record)
    elif not context.obj.quiet:
        for line in table_lines(record):
            print(line)
        print(f"results: {out / 'sweep.json'}, {out / 'sweep.csv'}")
    _fail_for_unfinished(record, out)


def table_lines(record: dict[str, Any]) -> list[str]:
    """The lines of the table, one for each combination: its settings, and mean ± deviation over seeds."""
    from ecgl_scale.config.sweep import short_names

    combinations = record["combinations"]
    keys = [key for axis in record["grid"] for key in axis.split(",")]
    names = short_names(keys)
    measures = {"AA %": "aa", "AF %": "af"}
    if any(entry.get("aa_seen") for entry in combinations):
        measures |= {"AA seen %": "aa_seen", "AF seen %": "af_seen"}
    left = [*(["variant"] if record["variants"] else []), *names.values()]
    rows = [[*left, *measures, "runs", "ms/epoch", "ms/test"]]
    num_left = len(left)
    for entry in combinations:
        finished = sum(run["status"] == "finished" for run in entry["runs"])
        rows.append(
            [
                *([entry["variant"]] if record["variants"] else []),
                *(_shown(key, entry["settings"][key]) for key in keys),
                *(_spread(entry[name]) for name in measures.values()),
                f"{finished}/{len(entry['runs'])}",
                _spread(entry["train_ms_per_epoch"], with_deviation=False),
                _spread(entry["inference_ms"], with_deviation=False),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(width) if column < num_left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _shown(key: str, value: object) -> str:
    from ecgl_scale.config.sweep import shown_value
    from ecgl_scale.report.about_method import shown_method
    from ecgl_scale.session.methods import about_method

    shown = shown_value(value)
    if key != "method":
        return shown
    return shown_method(shown, is_reconstruction=about_method(shown)["is_reconstruction"])


def _spread(found: dict[str, Any] | None, *, with_deviation: bool = True) -> str:
    if found is None:
        return "-"
    is_spread = with_deviation and found["count"] > 1
    return f"{found['mean']:.1f}" + (f" ± {found['deviation']:.1f}" if is_spread else "")


def _fail_for_unfinished(record: dict[str, Any], out: Path) -> None:
    """Exit with the code of the first run that failed, after a list of all."""
    runs = [run for entry in record["combinations"] for run in entry["runs"] if run["status"] != "finished"]
    if not runs:
        return
    total = sum(len(entry["runs"]) for entry in record["combinations"])
    lines = [f"{len(runs)} of {total} runs have not finished"]
    for entry in record["combinations"]:
        seeds: dict[tuple[str, str], list[str]] = {}
        for run in entry["runs"]:
            if run["status"] != "finished":
                seeds.setdefault((run["status"], run["message"] or ""), []).append(str(run["seed"]))
        for (status, message), which in seeds.items():
            place = f"{entry['name']}, seed{'s' if len(which) > 1 else ''} {', '.join(which)}"
            lines.append(f"  {place} ({status}): " + message.replace("\n", "\n  "))
    lines += [f"  where: {out}", f"  fix: mend what can be, and {AGAIN}"]
    codes = [run["exit_code"] for run in runs if run["status"] == "failed"] or [run["exit_code"] for run in runs]
    fail("\n".join(lines), codes[0] or 70)

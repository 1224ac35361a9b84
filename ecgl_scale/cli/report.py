"""``ecgl report``: finished runs side by side, on the terminal and as a page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecgl_scale.base.objects.url import require_directory
from ecgl_scale.cli.options import Json
from ecgl_scale.cli.output import print_columns, print_json
from ecgl_scale.units import format_bytes

if TYPE_CHECKING:
    from ecgl_scale.report.find import Omitted
    from ecgl_scale.report.runs import FinishedRun, Group
    from ecgl_scale.tasks.measures import Spread


MAX_OMITTED = 10
"""Runs that are named on the terminal; the page and ``--json`` have all."""


def report(
    context: typer.Context,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Directories of finished runs, of models (the newest version, or MODEL@N), or of sweeps.",
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write one self-contained page: tables, curves, memory over time, settings."
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures", metavar="DIR", help="Write every figure as SVG, PNG and CSV, and every table as CSV."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare finished runs: AA and AF with their spread over seeds, time and memory."""
    from ecgl_scale.base.output_file import refuse_inside_store
    from ecgl_scale.base.versions import version_directory
    from ecgl_scale.report.find import find_runs
    from ecgl_scale.report.runs import group_runs

    for target in (html, figures and figures / "a figure"):
        if target is not None:
            refuse_inside_store(target)
    for run in runs:
        require_directory(run, what="ecgl report", fix="copy the runs to this machine first")
    found, omitted = find_runs([version_directory(run) for run in runs])
    groups = group_runs(found)
    if as_json:
        left_out = [{**asdict(run), "path": str(run.path)} for run in omitted]
        print_json({"groups": [_as_json(group) for group in groups], "left_out": left_out})
    elif not context.obj.quiet:
        _print_table(groups)
        _print_forgotten(found)
        _print_omitted(omitted)
    if html is not None or figures is not None:
        _write(found, omitted, html, figures, say=not (as_json or context.obj.quiet))


def _write(
    runs: list[FinishedRun], omitted: list[Omitted], html: Path | None, figures: Path | None, *, say: bool
) -> None:
    from ecgl_scale.base.durable import storage_errors, write_atomically
    from ecgl_scale.report.content import gather, save_figures

    content = gather(runs, omitted)
    if html is not None:
        from ecgl_scale.report.page import render_page

        page = render_page(content)
        with storage_errors(html):
            html.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(html, page)
        if say:
            print(f"report: {html} ({format_bytes(len(page.encode()))})")
    if figures is not None:
        with storage_errors(figures):
            count = save_figures(content, figures)
        if say:
            print(f"figures: {figures} ({count} files)")


def _as_json(group: Group) -> dict[str, Any]:
    return {
        "method": group.method,
        "preset": group.preset,
        "setting": group.setting,
        "store": group.store,
        "settings": dict(group.changes),
        "accuracy": _spread_as_json(group.accuracy),
        "forgetting": _spread_as_json(group.forgetting),
        "scopes": list(group.scopes),
        "accuracy_seen": _spread_as_json(group.accuracy_in("seen")),
        "forgetting_seen": _spread_as_json(group.forgetting_in("seen")),
        "seconds": group.seconds,
        "peak_bytes": group.peak_bytes,
        "num_runs": len(group.runs),
        "forgotten": [{"path": str(run.path), "requests": run.forgotten} for run in group.runs if run.forgotten],
    }


def _print_table(groups: list[Group]) -> None:
    from ecgl_scale.report.compare import accuracy_columns
    from ecgl_scale.report.runs import SEEN_NOTE, scopes_of

    scopes = scopes_of(groups)
    rows = [["method", "store", "preset", "setting", *accuracy_columns(scopes), "runs", "seconds", "peak"]]
    for group in groups:
        found = [one for scope in scopes for one in (group.accuracy_in(scope), group.forgetting_in(scope))]
        numbers = ("-" if one is None else str(one) for one in found)
        left = (group.label, group.store, group.preset, group.setting)
        right = (str(len(group.runs)), f"{group.seconds:.1f}", format_bytes(group.peak_bytes))
        rows.append([*left, *numbers, *right])
    print_columns(rows, num_left=4)
    if "seen" in scopes:
        print(SEEN_NOTE)


def _spread_as_json(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)


def _print_forgotten(runs: list[FinishedRun]) -> None:
    for run in runs:
        for request in run.forgotten:
            what = f" of class {request['class']}" if request["class"] is not None else ""
            print(f"{run.path}: {request['num_known']} nodes{what} forgotten on {request['time'][:10]}")
            for line in request["carries"]:
                print(f"  {line}")


def _print_omitted(omitted: list[Omitted]) -> None:
    from ecgl_scale.report.find import count_conditions

    if omitted:
        print(f"left out: {len(omitted)} run{'s' * (len(omitted) > 1)} ({count_conditions(omitted)})")
    for run in omitted[:MAX_OMITTED]:
        print(f"  {run.path}: {run.condition}{f', {run.reason}' if run.reason else ''}")
    if len(omitted) > MAX_OMITTED:
        print(f"  and {len(omitted) - MAX_OMITTED} more; --html and --json name all")

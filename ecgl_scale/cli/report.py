"""``ecgl report``: finished runs side by side, on the terminal and as a page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecgl_scale.cli.options import Json
from ecgl_scale.cli.output import print_json
from ecgl_scale.units import format_bytes

if TYPE_CHECKING:
    from ecgl_scale.report.runs import FinishedRun, Group


def report(
    context: typer.Context,
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of finished runs, or of sweeps.")],
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
    from ecgl_scale.report.runs import FinishedRun, group_runs
    from ecgl_scale.run.output_file import refuse_inside_store

    for target in (html, figures and figures / "a figure"):
        if target is not None:
            refuse_inside_store(target)
    found = [FinishedRun.read(path) for given in runs for path in _run_directories(given)]
    groups = group_runs(found)
    if as_json:
        print_json({"groups": [_as_json(group) for group in groups]})
    elif not context.obj.quiet:
        _print_table(groups)
    if html is not None or figures is not None:
        _write(found, html, figures, say=not (as_json or context.obj.quiet))


def _run_directories(given: Path) -> list[Path]:
    """The directory of a run, or the finished ones below a directory of runs: a sweep's, or a combination's of one."""
    if (given / "results.json").exists():
        return [given]
    return sorted(path.parent for path in given.rglob("results.json")) or [given]


def _write(runs: list[FinishedRun], html: Path | None, figures: Path | None, *, say: bool) -> None:
    from ecgl_scale.report.content import gather, save_figures
    from ecgl_scale.run.durable import storage_errors, write_atomically

    content = gather(runs)
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
        "accuracy": None if group.accuracy is None else asdict(group.accuracy),
        "forgetting": None if group.forgetting is None else asdict(group.forgetting),
        "seconds": group.seconds,
        "peak_bytes": group.peak_bytes,
        "num_runs": len(group.runs),
    }


def _print_table(groups: list[Group]) -> None:
    label = max(14, *(len(group.label) + 2 for group in groups))
    store = max(8, *(len(group.store) + 2 for group in groups))
    head = f"{'method':<{label}}{'store':<{store}}{'preset':<11}{'setting':<10}{'AA %':>13}{'AF %':>14}"
    print(f"{head}{'runs':>6}{'seconds':>9}{'peak':>11}")
    for group in groups:
        forgetting = "-" if group.forgetting is None else str(group.forgetting)
        print(
            f"{group.label:<{label}}{group.store:<{store}}{group.preset:<11}{group.setting:<10}"
            f"{group.accuracy!s:>13}{forgetting:>14}"
            f"{len(group.runs):>6}{group.seconds:>9.1f}{format_bytes(group.peak_bytes):>11}"
        )

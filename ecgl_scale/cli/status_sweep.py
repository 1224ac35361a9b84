"""What ``ecgl status`` shows of a sweep: counts, what goes on now, and a row for each combination."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ecgl_scale.cli import status as run_status
from ecgl_scale.cli.output import print_table
from ecgl_scale.watch.sweep_status import SweepStatus, SweptRun, count

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_FAILED = 10
"""Messages of each kind that are shown; ``--json`` has all."""


def show(found: SweepStatus) -> None:
    """Print a status and its table."""
    print_table(describe(found))
    print()
    for row in table_lines(found):
        print(row)


def describe(found: SweepStatus) -> dict[str, str]:
    """The lines that show a status, by their names."""
    seeds = f"{len(found.seeds)} seed{'s' * (len(found.seeds) != 1)}"
    combinations = f"{len(found.combinations)} combination{'s' * (len(found.combinations) != 1)}"
    lines = {"sweep": f"{found.path} ({combinations} x {seeds})"}
    lines["state"] = f"{found.condition}{f': {found.reason}' if found.reason else ''}"
    lines["runs"] = _counts(found.runs)
    running = [run for run in found.runs if run.condition == "running"]
    failed = [run for run in found.runs if run.condition == "failed"]
    for number, run in enumerate(running, 1):
        lines["now" if len(running) == 1 else f"now {number}"] = _now(run)
    # one that a signal ended goes on with the sweep, but it may have been the kernel's, for lack of memory
    stopped = [run for run in found.runs if run.condition == "stopped" and run.message]
    for name, runs in (("failed", failed), ("stopped", stopped)):
        for number, run in enumerate(runs[:MAX_FAILED], 1):
            lines[name if len(runs) == 1 else f"{name} {number}"] = f"{run.path}: {run.message.partition(chr(10))[0]}"
        if len(runs) > MAX_FAILED:
            lines[f"{name} ..."] = f"{len(runs) - MAX_FAILED} more"
    if found.condition not in ("running", "finished"):
        lines["go on with"] = "the same ecgl sweep command again: finished runs are kept, the others go on"
    return lines


def table_lines(found: SweepStatus) -> list[str]:
    """The lines of the table, a row for each combination."""
    rows = [["combination", "AA %", "finished", "running", "failed", "to do"]]
    for combination in found.combinations:
        runs = combination.runs
        rows.append(
            [
                combination.name,
                "-" if combination.accuracy is None else str(combination.accuracy),
                *(str(count(runs, condition)) for condition in ("finished", "running", "failed")),
                str(count(runs, "stopped", "waiting")),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(text.rjust(w) for text, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def line(found: SweepStatus) -> tuple[object, str]:
    """The status as one line, for a file; before it the counts and places, whose change is worth a new line."""
    running = [run for run in found.runs if run.condition == "running"]
    places = [(run.path, run_status.line(run.now)[0] if run.now is not None else None) for run in running]
    counts = _counts(found.runs)
    return (counts, places), "; ".join([counts, *map(_now, running)])


def as_json(found: SweepStatus) -> dict[str, Any]:
    """The JSON object that ``--json`` prints."""
    runs = found.runs
    return {
        "path": str(found.path),
        "condition": found.condition,
        "reason": found.reason,
        "seeds": list(found.seeds),
        "num_runs": len(runs),
        "num_finished": count(runs, "finished"),
        "num_running": count(runs, "running"),
        "num_failed": count(runs, "failed"),
        "num_to_do": count(runs, "stopped", "waiting"),
        "combinations": [
            {
                "name": combination.name,
                "settings": combination.settings,
                "accuracy": None if combination.accuracy is None else asdict(combination.accuracy),
                "runs": [_run_as_json(run) for run in combination.runs],
            }
            for combination in found.combinations
        ],
    }


def _run_as_json(run: SweptRun) -> dict[str, Any]:
    now = None if run.now is None else {**asdict(run.now), "path": str(run.now.path)}
    return {**asdict(run), "now": now}


def _counts(runs: Sequence[SweptRun]) -> str:
    begun = count(runs, "stopped")
    to_do = f"{count(runs, 'stopped', 'waiting')} to do" + (f" ({begun} of them begun)" if begun else "")
    done = f"{count(runs, 'finished')} of {len(runs)} finished"
    return f"{done}, {count(runs, 'running')} running, {count(runs, 'failed')} failed, {to_do}"


def _now(run: SweptRun) -> str:
    return f"{run.path}: " + ("starts" if run.now is None else run_status.brief(run.now))

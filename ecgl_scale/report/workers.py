"""What each worker of a run took: its memory over time, how long it worked, and how long it waited for the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecgl_scale.report.files import read_lines
from ecgl_scale.report.palette import OTHER_STAGE, series_shade
from ecgl_scale.report.picture import WHOLE_WIDTH_INCHES, Picture, legend_below, only_rows
from ecgl_scale.report.runs import FinishedRun, Group
from ecgl_scale.report.tables import Cell, Table, bytes_cell, number_cell, seconds_cell, text_cell
from ecgl_scale.units import MIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_DRAWN = 10
"""Workers with a line of their own: there are as many colours."""
MOST_UNITS = 2000
"""Points of a line; of more, neighbours are drawn as one with the higher peak."""


@dataclass(frozen=True)
class WorkerUnit:
    """Blocks that a worker did at one go; times are seconds of running, without the pauses between processes."""

    worker: str
    work: str
    start: float
    stop: float
    num_blocks: int
    peak_bytes: int


def read_units(run: Path) -> list[WorkerUnit]:
    """What workers reported, in the order in which it came; empty where a run had none."""
    processes = _processes(run / "memory.jsonl")
    units = []
    for event in read_lines(run / "events.jsonl"):
        if event.get("event") != "WorkerReported":
            continue
        try:
            stop = _running_seconds(processes, float(event["time"]))
            start = max(stop - float(event["seconds"]), 0.0)
            about = (str(event["worker"]), str(event["work"]))
            units.append(WorkerUnit(*about, start, stop, int(event["num_blocks"]), int(event["peak_bytes"])))
        except (KeyError, TypeError, ValueError):
            continue
    return units


def _processes(path: Path) -> list[tuple[float, float]]:
    """When each process of the run began, and the seconds of running before it."""
    found: list[tuple[float, float]] = []
    last = 0.0
    for line in read_lines(path):
        try:
            if "version" in line:
                found.append((float(line["started"]), last))
            elif found:
                last = found[-1][1] + max(float(line["time"]) - found[-1][0], 0.0)
        except (KeyError, TypeError, ValueError):
            continue
    return found


def _running_seconds(processes: list[tuple[float, float]], time: float) -> float:
    earlier = [(started, before) for started, before in processes if started <= time] or processes[:1]
    if not earlier:
        return 0.0
    started, before = earlier[-1]
    return before + max(time - started, 0.0)


def covered_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """How long at least one of these spans of time went on."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return total


def run_with_workers(group: Group) -> FinishedRun | None:
    """The run of a group whose workers took the most memory; None where none had any."""
    found = [run for run in group.runs if run.results.get("workers")]
    return max(found, key=lambda run: max(_of(run, name, "peak_bytes") for name in _names(run)), default=None)


def _names(run: FinishedRun) -> list[str]:
    """The names of its workers, numbers by size."""
    return sorted(run.results["workers"], key=lambda name: (not name.isdigit(), len(name) * name.isdigit(), name))


def _of(run: FinishedRun, name: str, key: str) -> float:
    return float(run.results["workers"][name].get(key, 0))


def workers_table(run: FinishedRun, units: Sequence[WorkerUnit], name: str) -> Table:
    """A table with a line a worker: what it did, how long it worked and waited, and what it took of its limit."""
    at_work = covered_seconds((unit.start, unit.stop) for unit in units)
    rows = []
    for worker in _names(run):
        busy = covered_seconds((unit.start, unit.stop) for unit in units if unit.worker == worker)
        peak, limit = _of(run, worker, "peak_bytes"), _of(run, worker, "memory_bytes")
        rows.append(
            (
                text_cell(worker),
                text_cell(run.results["workers"][worker].get("host", "")),
                number_cell(_of(run, worker, "num_blocks"), "{:,.0f}"),
                number_cell(_of(run, worker, "num_blocks_again"), "{:,.0f}"),
                seconds_cell(busy),
                seconds_cell(max(at_work - busy, 0.0)),
                bytes_cell(peak),
                bytes_cell(limit or None),
                _share(peak, limit),
                bytes_cell(_of(run, worker, "read_bytes")),
                bytes_cell(_of(run, worker, "written_bytes")),
            )
        )
    columns = ("worker", "host", "blocks", "again", "busy", "waiting", "peak", "limit", "peak / limit")
    return Table(
        f"{name}-workers",
        "Workers",
        (*columns, "read", "written"),
        tuple(rows),
        f"Seed {run.results['seed']}. A worker is waiting while others have blocks and it has none: that is what a more"
        " even share would save. Blocks that had failed elsewhere are done again. Bytes are what reached the disk.",
    )


def _share(peak: float, limit: float) -> Cell:
    return Cell(f"{peak / limit:.2f}", peak / limit, mark="bad" if peak > limit else "") if limit else number_cell(None)


def workers_picture(run: FinishedRun, units: Sequence[WorkerUnit], name: str) -> Picture | None:
    """A picture of each worker's peak in every unit over the run, and of the time it worked and waited."""
    if not units:
        return None
    highest = sorted(_names(run), key=lambda worker: -_of(run, worker, "peak_bytes"))[:MOST_DRAWN]
    drawn = [worker for worker in _names(run) if worker in highest]
    at_work = covered_seconds((unit.start, unit.stop) for unit in units)
    by_worker = {worker: [unit for unit in units if unit.worker == worker] for worker in drawn}
    busy = {worker: covered_seconds((unit.start, unit.stop) for unit in own) for worker, own in by_worker.items()}

    def draw(figure: Figure) -> None:
        memory, times = figure.subplots(1, 2, width_ratios=(3, 2))
        for number, (worker, own) in enumerate(by_worker.items()):
            seconds, peaks = _steps(own)
            memory.plot(seconds, peaks, color=series_shade(number).light, linewidth=1.6, label=f"worker {worker}")
        memory.set(xlabel="seconds of running", title="peak memory of a unit, MiB")
        memory.set_ylim(bottom=0)
        only_rows(memory)
        places = range(len(drawn))
        colors = [series_shade(number).light for number in places]
        times.barh(places, [busy[worker] for worker in drawn], height=0.55, color=colors)
        waiting = [max(at_work - busy[worker], 0.0) for worker in drawn]
        times.barh(places, waiting, left=[busy[worker] for worker in drawn], height=0.55, color=OTHER_STAGE.light)
        times.set(title="busy, then (grey) waiting, s", yticks=list(places), yticklabels=drawn)
        times.invert_yaxis()
        times.grid(visible=False, axis="y")
        times.spines["left"].set_visible(False)
        legend_below(figure, memory, columns=5)

    others = len(run.results["workers"]) - len(drawn)
    note = f"Seed {run.results['seed']}. A unit is some blocks that a worker does at one go." + (
        f" The {len(drawn)} workers with the highest peaks; {others} are left out." if others else ""
    )
    columns = ("worker", "work", "start", "stop", "num_blocks", "peak_bytes")
    rows: tuple[tuple[Any, ...], ...] = tuple(
        (unit.worker, unit.work, round(unit.start, 3), round(unit.stop, 3), unit.num_blocks, unit.peak_bytes)
        for unit in units
    )
    height = 2.2 + 0.2 * -(-len(drawn) // 5) + 0.12 * len(drawn)
    return Picture(f"{name}-workers", "Workers", columns, rows, draw, note, height, WHOLE_WIDTH_INCHES)


def _steps(units: Sequence[WorkerUnit]) -> tuple[list[float], list[float]]:
    """A line that is flat while a unit goes, and broken where the worker has none."""
    step = max(-(-len(units) // MOST_UNITS), 1)
    seconds: list[float] = []
    peaks: list[float] = []
    for first in range(0, len(units), step):
        some = units[first : first + step]
        peak = max(unit.peak_bytes for unit in some) / MIB
        seconds += [some[0].start, some[-1].stop, some[-1].stop]
        peaks += [peak, peak, float("nan")]
    return seconds, peaks

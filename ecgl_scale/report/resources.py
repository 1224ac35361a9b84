"""What a run took: memory over time against the plan, and time, memory and bytes of each stage."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ecgl_scale.report.files import Sample
from ecgl_scale.report.palette import INK, PLAN, SOFT, stage_shade
from ecgl_scale.report.picture import WHOLE_WIDTH_INCHES, Picture, legend_below, only_rows
from ecgl_scale.report.runs import FinishedRun, Group
from ecgl_scale.report.tables import Cell, Table, bytes_cell, number_cell, seconds_cell, text_cell
from ecgl_scale.units import MIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_POINTS = 1500
LOW, HIGH = 0.5, 1.1
"""A peak between these shares of its plan is what we promise."""


def planned_bytes(run: FinishedRun) -> dict[str, int]:
    """The planned peak of each stage, including what the process holds before it."""
    return {name: int(stage.get("planned_bytes", 0)) for name, stage in run.results["stages"].items()}


def stage_table(group: Group, name: str) -> Table:
    """A table with a line a stage: mean time and bytes, highest memory, over the seeds."""
    names = list(dict.fromkeys(stage for run in group.runs for stage in run.results["stages"]))
    total = sum(_mean(group, stage, "seconds") for stage in names)
    rows = []
    for stage in names:
        peak, planned = _highest(group, stage, "peak_bytes"), _highest(group, stage, "planned_bytes")
        seconds = _mean(group, stage, "seconds")
        rows.append(
            (
                text_cell(stage),
                seconds_cell(seconds),
                number_cell(100 * seconds / total if total else None, "{:.0f} %", unit="%"),
                bytes_cell(peak),
                bytes_cell(planned or None),
                _share_cell(peak, planned),
                bytes_cell(_mean(group, stage, "read_bytes")),
                bytes_cell(_mean(group, stage, "written_bytes")),
            )
        )
    return Table(
        f"{name}-stages",
        "Stages",
        ("stage", "time", "of all", "peak memory", "planned", "peak / plan", "read from disk", "written to disk"),
        tuple(rows),
        "Over all tasks. Memory is RssAnon + RssShmem, as the plan counts it; bytes are what reached the disk itself."
        + (" Of several seeds the highest memory and the mean of all else." if len(group.runs) > 1 else ""),
    )


def _share_cell(peak: float, planned: float) -> Cell:
    if not planned:
        return number_cell(None)
    share = peak / planned
    return Cell(f"{share:.2f}", share, mark="" if LOW <= share <= HIGH else "bad" if share > HIGH else "warn")


def _mean(group: Group, stage: str, key: str) -> float:
    return statistics.fmean(float(run.results["stages"].get(stage, {}).get(key, 0)) for run in group.runs)


def _highest(group: Group, stage: str, key: str) -> float:
    return max(float(run.results["stages"].get(stage, {}).get(key, 0)) for run in group.runs)


def stages_picture(group: Group, name: str) -> Picture:
    """A picture of each stage's planned and measured peak, and of its time."""
    rows = tuple(
        (
            stage,
            _highest(group, stage, "peak_bytes"),
            _highest(group, stage, "planned_bytes") or None,
            _mean(group, stage, "seconds"),
        )
        for stage in dict.fromkeys(stage for run in group.runs for stage in run.results["stages"])
    )

    def draw(figure: Figure) -> None:
        memory, times = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        places = range(len(rows))
        colors = [stage_shade(stage).light for stage, *_ in rows]
        memory.barh(places, [peak / MIB for _, peak, _, _ in rows], height=0.55, color=colors)
        planned = [(place, row[2]) for place, row in enumerate(rows) if row[2]]
        for place, value in planned:
            memory.plot([value / MIB] * 2, [place - 0.4, place + 0.4], color=PLAN.light, linewidth=2.2)
        if planned:
            memory.plot([], [], color=PLAN.light, linewidth=2.2, label="planned")
            legend_below(figure, memory)
        memory.set(title="peak memory, MiB", yticks=list(places), yticklabels=[row[0] for row in rows])
        memory.set_xlim(left=0)
        memory.invert_yaxis()
        times.barh(places, [seconds for *_, seconds in rows], height=0.55, color=colors)
        times.set(title="time, s")
        for axes in (memory, times):
            axes.grid(visible=False, axis="y")
            axes.spines["left"].set_visible(False)

    columns = ("stage", "peak_bytes", "planned_bytes", "seconds")
    height = 1.0 + 0.36 * len(rows)
    note = "Memory is the highest of the seeds, time their mean." if len(group.runs) > 1 else ""
    return Picture(f"{name}-stages", "Planned and measured", columns, rows, draw, note, height, WHOLE_WIDTH_INCHES)


def timeline_picture(group: Group, name: str) -> Picture | None:
    """A picture of the memory over the run with the highest peak, coloured by stage, under the plan of each stage."""
    run = max(group.runs, key=lambda run: run.peak_bytes)
    samples = thinned(run.samples)
    if len(samples) < 2:
        return None
    planned = planned_bytes(run)
    rows = tuple(_row(sample, planned) for sample in samples)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        seconds, own = [sample.seconds for sample in samples], [sample.own_bytes / MIB for sample in samples]
        named: set[str] = set()
        for first, last in _stage_spans(samples):
            stage = samples[last].stage
            label = None if stage in named else stage or "between stages"
            named.add(stage)
            span = slice(max(first - 1, 0), last + 1)  # a step belongs to the sample that ends it
            color = stage_shade(stage).light
            axes.fill_between(seconds[span], own[span], step="pre", color=color, linewidth=0, label=label)
        ceiling = [planned.get(sample.stage, 0) / MIB or None for sample in samples]
        if any(ceiling):
            missing = [float("nan") if value is None else value for value in ceiling]
            axes.plot(seconds, missing, color=PLAN.light, linewidth=1.4, drawstyle="steps-pre", label="planned")
        files = [sample.file_bytes / MIB for sample in samples]
        # over areas of every colour: only the ink is seen on all of them
        axes.plot(seconds, files, color=INK.light, linewidth=1.3, linestyle=(0, (1, 1.6)), label="mapped files")
        if any(sample.device_bytes for sample in samples):
            device = [sample.device_bytes / MIB for sample in samples]
            axes.plot(seconds, device, color=SOFT.light, linewidth=1.4, linestyle="--", label="device")
        for before, after in pairwise(samples):
            if before.process != after.process:
                axes.axvline(before.seconds, color=PLAN.light, linewidth=1, linestyle=(0, (4, 3)))
                where = axes.get_xaxis_transform()
                axes.text(before.seconds, 1.0, " resumed", transform=where, fontsize=8.5, color=SOFT.light, va="bottom")
        axes.set(xlabel="seconds of running", ylabel="memory, MiB", xlim=(0, seconds[-1]))
        axes.set_ylim(bottom=0)
        only_rows(axes)
        legend_below(figure, axes, columns=8)

    peak = max(samples, key=lambda sample: sample.own_bytes)
    where = f"{peak.stage or 'start'}{f' ({peak.part})' if peak.part and peak.part != peak.stage else ''}"
    note = (
        f"Seed {run.results['seed']}. Highest sample: {peak.own_bytes / MIB:,.0f} MiB in {where}. Areas are RssAnon +"
        " RssShmem; mapped files (RssFile) are the kernel's to take back and count in no plan."
    )
    return Picture(f"{name}-memory", "Memory over time", _COLUMNS, rows, draw, note, 3.2, WHOLE_WIDTH_INCHES)


_COLUMNS = (
    "seconds",
    "stage",
    "part",
    "own_bytes",
    "planned_bytes",
    "file_bytes",
    "device_bytes",
    "minor_faults",
    "major_faults",
    "read_bytes",
    "written_bytes",
)


def _stage_spans(samples: list[Sample]) -> list[tuple[int, int]]:
    """The first and last place of each row of neighbours that have one stage and process."""
    spans: list[tuple[int, int]] = []
    for place, sample in enumerate(samples):
        before = samples[place - 1]
        if spans and (before.stage, before.process) == (sample.stage, sample.process):
            spans[-1] = (spans[-1][0], place)
        else:
            spans.append((place, place))
    return spans


def _row(sample: Sample, planned: dict[str, int]) -> tuple[Any, ...]:
    values = {**vars(sample), "planned_bytes": planned.get(sample.stage), "seconds": round(sample.seconds, 3)}
    return tuple(values[name] for name in _COLUMNS)


def thinned(samples: list[Sample]) -> list[Sample]:
    """At most ``MAX_POINTS`` samples: neighbours are represented by the one with the most memory."""
    step = -(-len(samples) // MAX_POINTS)
    return [
        max(samples[start : start + step], key=lambda sample: sample.own_bytes)
        for start in range(0, len(samples), max(step, 1))
    ]

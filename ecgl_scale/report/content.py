"""What a report holds: the tables and pictures of all runs together, then those of each group of seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecgl_scale.errors import UsageError
from ecgl_scale.report.compare import ablation_table, accuracy_columns, accuracy_tables, summary_table, time_table
from ecgl_scale.report.curves import (
    learning_picture,
    loss_picture,
    matrix_picture,
    sensitivity_pictures,
    task_curves_picture,
)
from ecgl_scale.report.find import Omitted, count_conditions
from ecgl_scale.report.growth import version_table
from ecgl_scale.report.picture import Picture
from ecgl_scale.report.resources import stage_table, stages_picture, timeline_picture
from ecgl_scale.report.runs import FinishedRun, Group, group_runs, own_settings, scopes_of
from ecgl_scale.report.tables import NONE, Table, number_cell, seconds_cell, text_cell, with_minus
from ecgl_scale.report.workers import read_units, run_with_workers, workers_picture, workers_table
from ecgl_scale.units import format_bytes, format_count, format_seconds

MAX_DETAILED = 8
"""Groups with pictures of their own; a page of more is long to read and slow to open."""


AVERAGE = {"task": "Average accuracy over the stream", "seen": "Average accuracy over the stream, seen"}


@dataclass(frozen=True)
class Fact:
    """A number that stands out."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Detail:
    """All that a report says of one group."""

    anchor: str
    title: str
    facts: tuple[Fact, ...]
    learning: tuple[Picture, ...]
    """Pictures of what was learned; the matrix, which is about square, comes first."""
    resources: tuple[Picture, ...]
    stages: Table
    workers: Table | None
    """What each worker took, where there were any."""
    growth: Table | None
    """The versions of a model that was updated."""
    tasks: Table
    runs: Table
    settings: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    """Sections of the config, each with its keys."""
    versions: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Content:
    """All that a report holds."""

    title: str
    subtitle: str
    num_runs: int
    summary: Table
    omitted: Table | None
    """The runs that no number counts, where there are any."""
    omitted_brief: str
    comparison: tuple[Table, ...]
    learning: tuple[Picture, ...]
    sensitivity: tuple[Picture, ...]
    details: tuple[Detail, ...]
    num_groups: int

    def pictures(self) -> Iterator[Picture]:
        """All pictures of the report."""
        yield from (*self.learning, *self.sensitivity)
        for detail in self.details:
            yield from (*detail.learning, *detail.resources)

    def tables(self) -> Iterator[Table]:
        """All tables of the report."""
        yield from (self.summary, *([] if self.omitted is None else [self.omitted]), *self.comparison)
        for detail in self.details:
            optional = [table for table in (detail.workers, detail.growth) if table is not None]
            yield from (detail.stages, *optional, detail.tasks, detail.runs)


def gather(runs: Sequence[FinishedRun], omitted: Sequence[Omitted] = ()) -> Content:
    """Put a report together; nothing is drawn yet."""
    if not runs:
        raise UsageError("there is no run to report on", fix="give the directories of finished runs")
    groups = group_runs(runs)
    tables: list[Table] = []
    if len(groups) > 1:
        tables = accuracy_tables(groups)
        tables += [table for table in (ablation_table(groups), time_table(groups)) if table is not None]
    base_first = sorted(groups, key=lambda group: not group.is_base)[:MAX_DETAILED]
    methods = list(dict.fromkeys(group.about_method.shown for group in groups))
    stores = list(dict.fromkeys(group.store for group in groups))
    title = groups[0].title if len(groups) == 1 else f"{_first_names(methods, 6)} on {_first_names(stores, 4)}"
    seeds = sorted({seed for group in groups for seed in group.seeds})
    of_seeds = f"seed{'s' * (len(seeds) > 1)} {_number_list(seeds)}"
    left_out = f"; {_count(len(omitted), 'run')} left out" if omitted else ""
    return Content(
        title=title,
        subtitle=f"{_count(len(runs), 'run')}{_variants(groups)}, {of_seeds}{left_out}",
        num_runs=len(runs),
        summary=summary_table(groups),
        omitted=_omitted_table(omitted) if omitted else None,
        omitted_brief=f"{_count(len(omitted), 'run')} left out: {count_conditions(omitted)}",
        comparison=tuple(tables),
        learning=tuple(_learning(groups)) if len(groups) > 1 else (),
        sensitivity=tuple(sensitivity_pictures(groups)),
        details=tuple(_detail(group, f"variant-{number}") for number, group in enumerate(base_first, 1)),
        num_groups=len(groups),
    )


def _learning(groups: Sequence[Group]) -> Iterator[Picture]:
    """Pictures of the average accuracy, one for each store and setting."""
    panels: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        panels.setdefault((group.store, group.setting), []).append(group)
    for number, ((store, setting), members) in enumerate(panels.items(), 1):
        for scope in scopes_of(members):
            name, title = f"learning-{number}{'-seen' * (scope == 'seen')}", f"{AVERAGE[scope]}: {store}, {setting}"
            yield learning_picture([group for group in members if scope in group.scopes], name, title, scope)


def _detail(group: Group, anchor: str) -> Detail:
    last = group.runs[-1].results
    curves = [matrix_picture(group, anchor, scope) for scope in group.scopes]
    curves.append(task_curves_picture(group, anchor))
    curves += [
        learning_picture([group], f"{anchor}-learning{'-seen' * (scope == 'seen')}", AVERAGE[scope], scope)
        for scope in group.scopes
    ]
    loss = loss_picture(group, anchor)
    learning = [*(picture for picture in curves if picture.rows), *([] if loss is None else [loss])]
    by_workers = run_with_workers(group)
    units = [] if by_workers is None else read_units(by_workers.path)
    pictures = [timeline_picture(group, anchor), stages_picture(group, anchor)]
    pictures += [] if by_workers is None else [workers_picture(by_workers, units, anchor)]
    return Detail(
        anchor=anchor,
        title=group.title,
        facts=tuple(_facts(group)),
        learning=tuple(learning),
        resources=tuple(picture for picture in pictures if picture is not None),
        stages=stage_table(group, anchor),
        workers=None if by_workers is None else workers_table(by_workers, units, anchor),
        growth=version_table(group.runs[-1], anchor),
        tasks=_task_table(group, anchor),
        runs=_run_table(group, anchor),
        settings=_settings(group),
        versions=tuple((name, str(value or NONE)) for name, value in last.get("versions", {}).items()),
    )


def _facts(group: Group) -> Iterator[Fact]:
    seeds = f"± {group.accuracy.deviation:.1f} over {len(group.runs)} seeds" if group.accuracy else ""
    one = f"seed {group.seeds[0]}"
    if group.accuracy:
        yield Fact("average accuracy", f"{group.accuracy.mean:.1f} %", seeds if len(group.runs) > 1 else one)
    lost = group.forgetting
    if lost is None:
        yield Fact("average forgetting", NONE, "it keeps all data" if group.about_method.keeps_all_data else "")
    else:
        spread = f"± {lost.deviation:.1f} percent points" if len(group.runs) > 1 else "percent points"
        yield Fact("average forgetting", with_minus(f"{lost.mean:+.1f}"), spread)
    yield from _seen_facts(group)
    tasks = f"{len(group.runs[0].results['matrix'])} tasks" + (", the mean" if len(group.runs) > 1 else "")
    yield Fact("time of a run", format_seconds(group.seconds), tasks)
    planned = max((run.plan.get("peak_bytes", 0) for run in group.runs), default=0)
    note = f"planned {format_bytes(planned)}" if planned else ""
    yield Fact("peak memory", format_bytes(group.peak_bytes), note)
    requests = [request for run in group.runs for request in run.forgotten]
    if requests:
        known = sum(request["num_known"] for request in requests)
        carried = list(dict.fromkeys(line for request in requests for line in request["carries"]))
        yield Fact("forgotten on request", f"{known:,} nodes", " ".join(carried))


def _seen_facts(group: Group) -> Iterator[Fact]:
    """Accuracy and forgetting on all that was seen, where each task's own graph was tested too."""
    accuracy, lost = (group.accuracy_in("seen"), group.forgetting_in("seen")) if len(group.scopes) > 1 else (None, None)
    if accuracy is not None:
        shown = "" if lost is None else with_minus(f"forgetting {lost.mean:+.1f}")
        yield Fact("average accuracy, seen", f"{accuracy.mean:.1f} %", shown)


def _task_table(group: Group, name: str) -> Table:
    run, more = group.runs[0].results, group.scopes[1:]
    rows = []
    for number, task in enumerate(run.get("tasks", [])[: len(run["matrix"])]):
        learned = group.spread(lambda run, t=number: run.results["matrix"][t][t])  # type: ignore[misc]
        last = group.spread(lambda run, t=number: run.results["matrix"][-1][t])  # type: ignore[misc]
        ends = group.cell("seen", -1, number) if "seen" in more else None
        classes = ", ".join(map(str, task.get("class_names", task.get("classes", ()))))
        both = (None, None) if learned is None or last is None else (learned.mean, last.mean)
        rows.append(
            (
                number_cell(number, "{:d}"),
                text_cell(classes),
                number_cell(task.get("num_nodes"), "{:,d}"),
                number_cell(both[0]),
                number_cell(both[1]),
                number_cell(None if both[0] is None or both[1] is None else both[1] - both[0], "{:+.1f}"),
                *(number_cell(None if ends is None else ends.mean) for _ in more),
            )
        )
    first = "" if len(group.runs) == 1 else f"Classes and nodes are those of seed {run['seed']}. "
    mean = "" if len(group.runs) == 1 else ", the mean over seeds"
    note = f"{first}Accuracy in percent{mean}, right after the task was learned and at the end of the stream."
    seen = (f"at the end, {scope}" for scope in more)
    columns = ("task", "classes", "nodes", "when learned", "at the end", "change", *seen)
    return Table(f"{name}-task-list", "Tasks", columns, tuple(rows), note)


def _run_table(group: Group, name: str) -> Table:
    rows = tuple(
        (
            number_cell(int(run.results["seed"]), "{:d}"),
            *(number_cell(run.measure(name, scope), "{:.2f}") for scope in run.scopes for name in ("aa", "af")),
            seconds_cell(run.seconds),
            text_cell(str(run.results.get("split_hash", ""))[:12]),
            text_cell(run.path),
        )
        for run in group.runs
    )
    columns = ("seed", *accuracy_columns(group.scopes), "time", "split", "directory")
    return Table(f"{name}-runs", "Runs", columns, rows, "Runs of the same split have the same hash.")


def _omitted_table(omitted: Sequence[Omitted]) -> Table:
    rows = tuple(tuple(map(text_cell, (run.path, run.condition, run.reason or NONE))) for run in omitted)
    return Table("left-out", "Runs left out", ("directory", "state", "why"), rows, "No number on this page is of them.")


def _settings(group: Group) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    """The keys of the config by section, without those that belong to other methods."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for key, value in own_settings(group.runs[0]).items():
        section, _, name = key.rpartition(".")
        shown = ", ".join(map(str, group.seeds)) if key == "seed" else _shown(value)
        shown = group.about_method.shown if key == "method" else shown
        sections.setdefault(section or "run", []).append((name, shown))
    return tuple((section, tuple(pairs)) for section, pairs in sections.items())


def _shown(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return format_count(value) if isinstance(value, int) else str(value)


def _variants(groups: Sequence[Group]) -> str:
    return f" of {len(groups)} variants" if len(groups) > 1 else ""


def _number_list(numbers: Sequence[int]) -> str:
    """Numbers as text: ``0, 1, 2``, or ``0 to 9``."""
    if len(numbers) > 5 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _first_names(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are: a title must not hide that there are others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def save_figures(content: Content, folder: Path) -> int:
    """Write every picture as SVG, PNG and CSV and every table as CSV; returns the number of files."""
    folder.mkdir(parents=True, exist_ok=True)
    num_files = 0
    for picture in content.pictures():
        picture.save(folder)
        num_files += 3
    for table in content.tables():
        (folder / f"{table.name}-table.csv").write_text(table.csv, encoding="utf-8")
        num_files += 1
    return num_files

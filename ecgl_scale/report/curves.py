"""Pictures of what was learned: the performance matrix, accuracy and loss over the stream, sensitivity to a key."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ecgl_scale.report.palette import ON_HIGH, ON_LOW, PAPER, SERIES, SOFT, line_style, ramp_shade, series_shade
from ecgl_scale.report.picture import (
    WHOLE_WIDTH_INCHES,
    WIDTH_INCHES,
    Picture,
    legend_below,
    legend_columns,
    legend_inches,
    log_ticks,
    only_rows,
    whole_ticks,
)
from ecgl_scale.report.runs import SEEN_NOTE, Group, common_seeds, left_out
from ecgl_scale.tasks.measures import Spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LINES = 16
"""More lines in one picture cannot be told apart. The paper's largest table has twelve methods."""
MAX_LABELLED_TASKS = 12
MAX_POINTS = 2000
MAX_TICKS, TICK_SHARE = 10, 0.05
"""Values of a key that are named along its axis, and how near to each other two of them may be."""
SENSITIVITY_NAMES = {
    "bank.diversity_ratio": "share of nodes chosen for diversity",
    "bank.budget": "nodes remembered of each task",
    "learn.lambda": "weight λ of the replay loss",
}


def matrix_picture(group: Group, name: str, scope: str) -> Picture:
    """The performance matrix M[t, j] of a scope, the mean over seeds, as a heat map with its numbers."""
    num_tasks = len(group.runs[0].results["matrix"])
    cells = [[group.cell(scope, t, j) for j in range(t + 1)] for t in range(num_tasks)]
    rows = tuple(
        (t, j, spread.mean, spread.deviation)
        for t, row in enumerate(cells)
        for j, spread in enumerate(row)
        if spread is not None
    )
    side = min(max(0.4 * num_tasks, 1.9), 4.6)

    def draw(figure: Figure) -> None:
        from matplotlib.patches import Rectangle

        axes = figure.add_subplot()
        shown = num_tasks <= 24
        for t, j, value, _ in rows:
            shade = ramp_shade(value / 100)
            axes.add_patch(Rectangle((j, t), 1, 1, facecolor=shade.light, edgecolor=PAPER.light, linewidth=1))
            if shown:
                on = (ON_HIGH if value > 55 else ON_LOW).light
                digits = f"{value:.0f}" if num_tasks > 12 else f"{value:.1f}"
                size = 8.5 if num_tasks <= 14 else 6.5
                axes.text(j + 0.5, t + 0.5, digits, ha="center", va="center", fontsize=size, color=on)
        axes.set(xlim=(0, num_tasks), ylim=(num_tasks, 0), xlabel="tested on task", ylabel="after learning task")
        step = 1 if shown else 5
        axes.set_xticks([j + 0.5 for j in range(0, num_tasks, step)], [str(j) for j in range(0, num_tasks, step)])
        axes.set_yticks([t + 0.5 for t in range(0, num_tasks, step)], [str(t) for t in range(0, num_tasks, step)])
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)

    is_seen = scope == "seen"
    return Picture(
        f"{name}-matrix{'-seen' * is_seen}",
        "Performance matrix" + ", seen" * is_seen,
        ("after_task", "tested_on_task", "accuracy_percent", "deviation"),
        rows,
        draw,
        note=f"Accuracy in percent{_over_seeds(group)}. Down a column one sees a task being forgotten;"
        " the last row gives AA." + f" {SEEN_NOTE}" * is_seen,
        height_inches=side * 0.85 + 0.7,
        width_inches=min(side * 1.35 + 0.7, WIDTH_INCHES),
    )


def _over_seeds(group: Group, what: str = ", the mean") -> str:
    return f"{what} over {len(group.runs)} seeds" if len(group.runs) > 1 else ""


def task_curves_picture(group: Group, name: str) -> Picture:
    """Accuracy on each task from the moment it is learned, in the first scope."""
    num_tasks, scope = len(group.runs[0].results["matrix"]), group.scopes[0]
    lines = {
        j: [(t, spread.mean) for t in range(j, num_tasks) if (spread := group.cell(scope, t, j)) is not None]
        for j in range(num_tasks)
    }
    lines = {j: points for j, points in lines.items() if points}

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for j, points in lines.items():
            shade = series_shade(j) if num_tasks <= len(SERIES) else ramp_shade(0.3 + 0.7 * j / num_tasks)
            axes.plot(*zip(*points, strict=True), color=shade.light, marker="o", label=f"task {j}")
        axes.set(xlabel="after learning task", ylabel="accuracy, %", ylim=(-2, 102))
        whole_ticks(axes)
        only_rows(axes)
        if num_tasks <= MAX_LABELLED_TASKS:
            legend_below(figure, axes, columns=5)

    rows = tuple((j, t, value) for j, points in lines.items() for t, value in points)
    later = "" if num_tasks <= MAX_LABELLED_TASKS else "Stronger colours are later tasks."
    note = f"{_over_seeds(group, 'The mean')}. {later}".strip() if len(group.runs) > 1 else later
    title, columns = "Accuracy of each task over time", ("task", "after_task", "accuracy_percent")
    return Picture(f"{name}-tasks", title, columns, rows, draw, note=note)


def learning_picture(groups: Sequence[Group], name: str, title: str, scope: str) -> Picture:
    """The AA after each task, in a scope: a line a group, with its deviation over seeds."""
    bases = [group for group in groups if group.is_base]
    shown = (bases if len(bases) > 1 else list(groups))[:MAX_LINES]
    lines = {group.label: _average_accuracies(group, scope) for group in shown}

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for number, (label, spreads) in enumerate(lines.items()):
            color, tasks = series_shade(number).light, list(spreads)
            means = [spread.mean for spread in spreads.values()]
            axes.plot(tasks, means, color=color, label=label, **line_style(number))
            if any(spread.deviation for spread in spreads.values()):
                low = [spread.mean - spread.deviation for spread in spreads.values()]
                high = [spread.mean + spread.deviation for spread in spreads.values()]
                axes.fill_between(tasks, low, high, color=color, alpha=0.16, linewidth=0)
        axes.set(xlabel="after learning task", ylabel="AA, %")
        whole_ticks(axes)
        only_rows(axes)
        if len(lines) > 1:
            legend_below(figure, axes, columns=columns_below)

    columns_below = legend_columns(list(lines))
    rows = tuple(
        (label, task, spread.mean, spread.deviation, spread.count)
        for label, spreads in lines.items()
        for task, spread in spreads.items()
    )
    shades = "The band is one standard deviation over seeds." if any(len(g.runs) > 1 for g in shown) else ""
    columns = ("variant", "after_task", "average_accuracy_percent", "deviation", "seeds")
    height = 2.5 + legend_inches(list(lines), columns_below)
    return Picture(name, title, columns, rows, draw, (shades + left_out(groups, shown)).strip(), height)


def _average_accuracies(group: Group, scope: str) -> dict[int, Spread]:
    """The spread of AA after each task that was tested after."""
    found = {}
    for t in range(len(group.runs[0].results["matrix"]) if scope in group.scopes else 0):
        spread = group.spread(lambda run, t=t: _mean(run.measure("matrix", scope)[t][: t + 1]))  # type: ignore[misc]
        if spread is not None:
            found[t] = spread
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def loss_picture(group: Group, name: str) -> Picture | None:
    """The loss of every epoch, task after task, for the first seed: seeds do not share epochs' noise."""
    run = group.runs[0]
    losses = [(task, epoch, loss) for task, row in enumerate(run.losses) for epoch, loss in enumerate(row)]
    known = [loss for _, _, loss in losses if math.isfinite(loss)]
    if not known:
        return None
    step = max(len(losses) // MAX_POINTS, 1)
    rows = tuple((number, *losses[number]) for number in range(0, len(losses), step))
    starts = [sum(map(len, run.losses[:task])) for task in range(len(run.losses))]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.plot([row[0] for row in rows], [row[3] for row in rows], color=series_shade(0).light, linewidth=1.3)
        if min(known) > 0 and max(known) > 20 * min(known):
            axes.set_yscale("log")
            log_ticks(axes.yaxis)
        for task, start in enumerate(starts):
            if task:
                axes.axvline(start, color=SOFT.light, linewidth=0.8, linestyle=(0, (2, 3)))
            if len(starts) <= MAX_LABELLED_TASKS:
                where = axes.get_xaxis_transform()
                axes.text(start, 1.0, f" task {task}", transform=where, color=SOFT.light, fontsize=8.5, va="bottom")
        axes.set(xlabel="epoch, over all tasks", ylabel="training loss", xlim=(0, max(len(losses), 2)))
        axes.minorticks_off()
        only_rows(axes)

    note = f"Seed {run.results['seed']}. New rows and the memory bank's together, as the method weighs them."
    columns = ("epoch_of_run", "task", "epoch", "loss")
    return Picture(f"{name}-loss", "Training loss", columns, rows, draw, note=note)


def sensitivity_pictures(groups: Sequence[Group]) -> list[Picture]:
    """Pictures of AA and AF against every number of the config that varies while all else stays."""
    keys = dict.fromkeys(key for group in groups for key, value in group.changes if _is_number(value))
    pictures = (sensitivity_picture(groups, key) for key in sorted(keys, key=lambda key: key not in SENSITIVITY_NAMES))
    return [picture for picture in pictures if picture is not None]


def sensitivity_picture(groups: Sequence[Group], key: str) -> Picture | None:
    """A picture of AA and AF against one key; None where it never varies while all else stays."""
    lines: dict[tuple[Any, ...], dict[float, Group]] = {}
    for group in groups:
        value: Any = dict(group.changes).get(key)
        if _is_number(value):
            rest = tuple((name, repr(other)) for name, other in group.changes if name != key)
            same = (group.about_method.shown, group.store, group.setting, group.preset, rest)
            lines.setdefault(same, {})[float(value)] = group
    lines = {same: _same_seeds(found) for same, found in lines.items() if len(found) > 1}
    if not lines:
        return None
    labels = _labels(list(lines))
    series = {labels[same]: found for same, found in list(lines.items())[:MAX_LINES]}
    columns_below = legend_columns(list(series), most=3, width_inches=WHOLE_WIDTH_INCHES)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2)
        for axes, kind in zip(panels, ("AA, %", "AF, %"), strict=True):
            for number, (label, found) in enumerate(series.items()):
                _spread_line(axes, found, kind, label, number)
            _set_ticks(axes, sorted({value for found in series.values() for value in found}))
            axes.set(title=kind, xlabel=key)
            only_rows(axes)
        if len(series) > 1:
            legend_below(figure, panels[0], columns=columns_below)

    rows = tuple(
        (label, value, *_numbers(group.accuracy), *_numbers(group.forgetting), len(group.runs))
        for label, found in series.items()
        for value, group in found.items()
    )
    columns = ("variant", key, "aa_percent", "aa_deviation", "af_percent", "af_deviation", "seeds")
    what = SENSITIVITY_NAMES.get(key, key)
    band = any(len(group.runs) > 1 for found in series.values() for group in found.values())
    note = (
        _SAME
        + (_BAND if band else ".")
        + (f" Lines are left out: {len(lines) - len(series)}." if len(lines) > len(series) else "")
    )
    name, title = f"sensitivity-{key.replace('.', '-')}", f"{key}: {what}"
    height = 2.5 + (legend_inches(list(series), columns_below) if len(series) > 1 else 0.0)
    return Picture(name, title, columns, rows, draw, note, height, WHOLE_WIDTH_INCHES)


def _labels(lines: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], str]:
    """A label for each line: its method, and whatever differs between lines."""
    varied = [place for place in (1, 2, 3) if len({same[place] for same in lines}) > 1]
    labels = {}
    for same in lines:
        rest = [f"{name}={value}" for name, value in same[4] if any((name, value) not in other[4] for other in lines)]
        labels[same] = ", ".join([same[0], *(same[place] for place in varied), *rest])
    return labels


def _same_seeds(found: dict[float, Group]) -> dict[float, Group]:
    seeds = common_seeds(found.values())
    return {value: found[value].only(seeds) for value in sorted(found)}


_SAME = "Everything else is the same along a line"
_BAND = "; the band is one standard deviation over seeds."


def _spread_line(axes: Any, found: dict[float, Group], kind: str, label: str, number: int) -> None:
    spreads = [(value, group.accuracy if kind.startswith("AA") else group.forgetting) for value, group in found.items()]
    points = [(value, spread.mean, spread.deviation) for value, spread in spreads if spread is not None]
    if points:
        places, means, deviations = zip(*points, strict=True)
        color = series_shade(number).light
        axes.plot(places, means, color=color, label=label, **line_style(number))
        low = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
        high = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
        axes.fill_between(places, low, high, color=color, alpha=0.16, linewidth=0)


def _set_ticks(axes: Any, places: Sequence[float]) -> None:
    """Set ticks at the values; logarithmic where they are far apart, with a zero left of the smallest."""
    positive = [place for place in places if place > 0]
    is_far = min(places) >= 0 and bool(positive) and max(positive) > 30 * min(positive)
    if is_far and min(places) > 0:
        axes.set_xscale("log")
        log_ticks(axes.xaxis)
    elif is_far:
        axes.set_xscale("symlog", linthresh=min(positive), linscale=0.5)
    if is_far or min(b - a for a, b in pairwise(places)) > TICK_SHARE * (places[-1] - places[0]):
        if len(places) <= MAX_TICKS:
            axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.xaxis.minorticks_off()


def _numbers(spread: Spread | None) -> tuple[float | None, float | None]:
    return (None, None) if spread is None else (spread.mean, spread.deviation)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

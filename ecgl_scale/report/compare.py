"""Tables over several runs: the summary, and those of the paper: accuracies, running times, ablations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from ecgl_scale.report.runs import ABLATIONS, SCOPE_NAMES, SEEN_NOTE, Group, common_seeds, left_out, scopes_of
from ecgl_scale.report.tables import (
    NONE,
    Cell,
    Table,
    bytes_cell,
    number_cell,
    seconds_cell,
    spread_cell,
    text_cell,
)

T = TypeVar("T")

SETTINGS = {"task-il": "Task-incremental", "class-il": "Class-incremental"}
SETTING_NOTES = {
    "task-il": "The classes to choose from are those of the node's own task.",
    "class-il": "The classes to choose from are all those seen so far.",
}


def summary_table(groups: Sequence[Group]) -> Table:
    """The table of all runs, one line a group."""
    scopes = scopes_of(groups)
    columns = ["method", "store", "setting", "preset", *accuracy_columns(scopes), "seeds", "time", "peak memory"]
    rows = [
        (
            text_cell(group.label),
            text_cell(group.store),
            text_cell(group.setting),
            text_cell(group.preset),
            *(cell for scope in scopes for cell in _accuracy_cells(group, scope)),
            number_cell(len(group.runs), "{:d}"),
            seconds_cell(group.seconds),
            bytes_cell(group.peak_bytes),
        )
        for group in groups
    ]
    note = "Mean ± standard deviation over seeds; time is the mean of a run, memory the highest of all."
    note += f" {SEEN_NOTE}" if "seen" in scopes else ""
    return Table("summary", "All runs", tuple(columns), tuple(rows), note + _bare_name_note(groups))


def accuracy_columns(scopes: Iterable[str]) -> list[str]:
    """Names of the columns of AA and AF, of each scope."""
    return [f"{name}{SCOPE_NAMES[scope]} %" for scope in scopes for name in ("AA", "AF")]


def _bare_name_note(groups: Sequence[Group]) -> str:
    """The settings behind a method's bare name, where its variants are named by what they change."""
    names_by_settings: dict[str, list[str]] = {}
    for group in groups:
        if group.is_base and len(group.changes) > 1:
            values = ", ".join(f"{key}={value}" for key, value in group.changes)
            names_by_settings.setdefault(values, []).append(f"{group.label} ({group.store}, {group.setting})")
    if len(names_by_settings) == 1:
        return f" Where a name does not say otherwise: {next(iter(names_by_settings))}."
    return "".join(f" {'; '.join(names)}: {values}." for values, names in names_by_settings.items())


def accuracy_tables(groups: Sequence[Group]) -> list[Table]:
    """Tables of AA and AF, method x store, for each setting and scope; only where there is something to compare."""
    found = []
    for setting, title in SETTINGS.items():
        of_setting = [group for group in groups if group.setting == setting]
        for scope in scopes_of(of_setting):
            members = [group for group in of_setting if group.is_base and scope in group.scopes]
            if len(members) > 1:
                note = SETTING_NOTES[setting] + left_out(of_setting, members)
                found.append(_accuracies(members, scope, f"{title} accuracy", note))
    return found


def _accuracies(members: Sequence[Group], scope: str, title: str, note: str) -> Table:
    stores, labels = _in_order(group.store for group in members), _in_order(group.label for group in members)
    competing = [group for group in members if not group.about_method.keeps_all_data]
    best = {store: _best([group for group in competing if group.store == store], scope) for store in stores}
    rows = []
    for label in labels:
        row = [text_cell(label)]
        for store in stores:
            group = _find(members, label=label, store=store)
            is_best = group in best[store]
            row += [Cell(NONE), Cell(NONE)] if group is None else _accuracy_cells(group, scope, is_best=is_best)
        rows.append(tuple(row))
    bold = ""
    if len(labels) > 1:
        bold = " Best in bold, also where several are, joint training aside: it keeps all data and is the bound."
    is_seen = scope == "seen"
    return Table(
        f"{members[0].setting}-accuracy{'-seen' * is_seen}",
        title + ", seen" * is_seen,
        ("method", *(column for _ in stores for column in accuracy_columns([scope]))),
        tuple(rows),
        note + bold + f" {SEEN_NOTE}" * is_seen,
        over=(("", 1), *((store, 2) for store in stores)),
    )


def _accuracy_cells(group: Group, scope: str, *, is_best: bool = False) -> list[Cell]:
    return [spread_cell(group.accuracy_in(scope), is_best=is_best), spread_cell(group.forgetting_in(scope))]


def _best(groups: Sequence[Group], scope: str) -> list[Group]:
    """The groups with the highest mean, by the digits that are shown; none where there is nothing to compare."""
    known = [(group.accuracy_in(scope), group) for group in groups]
    scored = [(round(accuracy.mean, 1), group) for accuracy, group in known if accuracy is not None]
    highest = max((mean for mean, _ in scored), default=0.0)
    return [group for mean, group in scored if mean == highest] if len(scored) > 1 else []


def time_table(groups: Sequence[Group]) -> Table | None:
    """Time of an epoch and of a test, method x store, as in the paper's running-time table."""
    members = [group for group in groups if group.is_base or _ablation_of(group, groups)]
    if not members:
        return None
    columns = _in_order((group.store, group.setting) for group in members)
    labels = _in_order(group.label for group in members)
    rows = []
    for label in labels:
        row = [text_cell(label)]
        for store, setting in columns:
            group = _find(members, label=label, store=store, setting=setting)
            row += [Cell(NONE), Cell(NONE)] if group is None else [_time(group, "epoch"), _time(group, "test")]
        rows.append(tuple(row))
    return Table(
        "running-time",
        "Running time",
        ("method", *(column for _ in columns for column in ("ms/epoch", "ms/test"))),
        tuple(rows),
        "Milliseconds, the mean over seeds. An epoch: the time of the stage train, all tasks together, by the epochs"
        " run, as in sweep.json. A test, message passing over a graph that is tested on: the time of the stage evaluate"
        " by all tests." + left_out(groups, members),
        over=(("", 1), *((f"{store}, {setting}", 2) for store, setting in columns)),
    )


def _time(group: Group, kind: str) -> Cell:
    found = group.spread(lambda run: run.epoch_seconds if kind == "epoch" else run.test_seconds)
    return number_cell(None if found is None else 1000 * found.mean, "{:,.2f}")


def ablation_table(groups: Sequence[Group]) -> Table | None:
    """Variants that switch parts of a method off or over, below the method itself, with the change of AA."""
    bases = [group for group in groups if group.is_base and any(_base_of(v, groups) is group for v in groups)]
    bases = [base for base in bases if any(_ablation_of(v, groups) and _base_of(v, groups) is base for v in groups)]
    if not bases:
        return None
    columns = _in_order((base.store, base.setting) for base in bases)
    lines: dict[tuple[str, str], dict[tuple[str, str], tuple[Group, Group | None]]] = {}
    for base in bases:
        lines.setdefault((base.about_method.shown, ""), {})[base.store, base.setting] = (base, None)
        for group in groups:
            name = _ablation_of(group, groups)
            if name and _base_of(group, groups) is base:
                lines.setdefault((base.about_method.shown, name), {})[base.store, base.setting] = (group, base)
    rows = []
    for (method, name), found in lines.items():
        row = [text_cell(f"{method}, {name}" if name else method)]
        for column in columns:
            if column not in found:
                row += [Cell(NONE)] * 3
                continue
            group, reference = found[column]
            row += [*_accuracy_cells(group, group.scopes[0]), number_cell(_change(group, reference), "{:+.1f}")]
        rows.append(tuple(row))
    shown = [group for found in lines.values() for group, _ in found.values()]
    return Table(
        "ablation",
        "Ablation",
        ("variant", *(name for _ in columns for name in ("AA %", "AF %", "ΔAA"))),
        tuple(rows),
        "ΔAA is the change against the method itself, in percent points, over the seeds that both have."
        + left_out([group for group in groups if _base_of(group, groups) in bases], shown),
        over=(("", 1), *((f"{store}, {setting}", 3) for store, setting in columns)),
    )


def _change(group: Group, base: Group | None) -> float | None:
    seeds = set() if base is None else common_seeds((group, base))
    if base is None or not seeds:
        return None
    new, old = group.only(seeds).accuracy, base.only(seeds).accuracy
    return None if new is None or old is None else new.mean - old.mean


def _base_of(group: Group, groups: Sequence[Group]) -> Group | None:
    for other in groups:
        same = (other.store, other.method, other.preset, other.setting)
        if other.is_base and same == (group.store, group.method, group.preset, group.setting):
            return other
    return None


def _ablation_of(group: Group, groups: Sequence[Group]) -> str:
    """What a variant has switched over against its base; empty for the base and where a number differs."""
    base = _base_of(group, groups)
    if base is None or base is group:
        return ""
    changed = [(key, value) for (key, value), old in zip(group.changes, base.changes, strict=True) if value != old[1]]
    if any(isinstance(value, int | float) and not isinstance(value, bool) for _, value in changed):
        return ""
    return ", ".join(ABLATIONS.get((key, value), f"{key}={value}") for key, value in changed)


def _find(groups: Sequence[Group], **wanted: str) -> Group | None:
    return next((g for g in groups if all(getattr(g, name) == value for name, value in wanted.items())), None)


def _in_order(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))

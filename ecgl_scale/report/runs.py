"""Finished runs as a report sees them, and the groups of those that differ only in their seed."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ecgl_scale.config.keys import NOT_CHANGES, SECTIONS
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.report.about_method import AboutMethod
from ecgl_scale.report.files import Sample, read_object, read_samples, read_settings
from ecgl_scale.tasks.measures import Spread, seconds_per_epoch, seconds_per_test

NEEDED = ("aa", "af", "matrix", "method", "preset", "setting", "seed", "stages")

SCOPE_NAMES = {"task": "", "seen": " seen"}
"""What tables add to AA and AF."""
SEEN_NOTE = (
    "Seen: every node is tested within the graph of all tasks so far, as a model in use meets it. Otherwise each task"
    " is tested on a graph of its own nodes alone, which tells the model by its neighbours which task a node is of."
)
"""What tests on all that was seen are, in two sentences."""

ABLATIONS: dict[tuple[str, Any], str] = {
    ("bank.importance", False): "without importance",
    ("bank.diversity", False): "without diversity",
    ("bank.select", "random"): "random nodes remembered",
    ("bank.select", "ecgl"): "nodes by importance and diversity",
    ("learn.last_layer", "trained"): "last layer trained",
    ("learn.train_as", "gcn"): "trained as GCN",
}
"""Values that switch a part of the method off or over, and what tables call that."""


@dataclass(frozen=True)
class FinishedRun:
    """A run directory whose ``results.json`` is there; other files are read when they are asked for."""

    path: Path
    results: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> FinishedRun:
        """The results of a run directory, or an error that says what is missing."""
        results = read_object(path / "results.json")
        if not results:
            raise InvalidInputError(
                "this is not the directory of a finished run",
                where=path,
                expected="results.json in it",
                fix="let the run finish: ecgl run --resume; ecgl status says how far it is",
            )
        missing = [name for name in NEEDED if name not in results]
        if missing:
            raise InvalidInputError(f"results.json lacks {', '.join(missing)}", where=path)
        return cls(path, results)

    @property
    def store(self) -> str:
        """The store's name without its folder."""
        return Path(self.results.get("store", "?")).name.removesuffix(".ecgl")

    @property
    def part(self) -> tuple[str, str, str, str]:
        """The part of a report that a run belongs to: variants of one another share it."""
        return self.store, self.results["method"], self.results["preset"], self.results["setting"]

    @property
    def scopes(self) -> tuple[str, ...]:
        """The graphs that it was tested on: each task's own, or the whole graph seen so far, or both."""
        found = self.results.get("eval_scope") or self.settings.get("tasks.eval_scope", "task")
        return ("task", "seen") if found == "both" else (str(found),)

    def measure(self, name: str, scope: str) -> Any:
        """The value of ``aa``, ``af`` or ``matrix`` in a scope; None where it was not tested there."""
        if scope not in self.scopes:
            return None
        return self.results.get(name if scope == self.scopes[0] else f"{name}_{scope}")

    @property
    def about_method(self) -> AboutMethod:
        """What the run says of its method."""
        return AboutMethod.read(str(self.results["method"]), self.results)

    @property
    def seconds(self) -> float:
        """The seconds of all stages together."""
        return math.fsum(stage["seconds"] for stage in self.results["stages"].values())

    @property
    def peak_bytes(self) -> int:
        """The highest peak of all stages."""
        return max((stage["peak_bytes"] for stage in self.results["stages"].values()), default=0)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The keys of ``config.yaml`` by their dotted names, and how many tasks were learned with them.

        An updated model has the config of the run that it goes on from, and more tasks.
        """
        return {**read_settings(self.path / "config.yaml"), "tasks.learned": len(self.results["matrix"])}

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The content of ``plan.json``."""
        return read_object(self.path / "plan.json")

    @cached_property
    def losses(self) -> list[list[float]]:
        """The loss of each epoch, task by task."""
        return [list(row) for row in read_object(self.path / "state.json").get("losses", [])]

    @cached_property
    def forgotten(self) -> list[dict[str, Any]]:
        """What the model was asked to forget, from ``forgotten.json``: counts, and what it may still carry."""
        return list(read_object(self.path / "forgotten.json").get("requests", []))

    @property
    def epoch_seconds(self) -> float | None:
        """The mean time of an epoch; None where the results are old and the config is gone."""
        epochs = self.settings.get("learn.epochs")
        num_tasks = len(self.results["matrix"])
        return seconds_per_epoch(self.results, None if epochs is None else num_tasks * int(epochs))

    @property
    def test_seconds(self) -> float | None:
        """The mean time to test on one task."""
        return seconds_per_test(self.results)

    @cached_property
    def samples(self) -> list[Sample]:
        """The samples of ``memory.jsonl``."""
        return read_samples(self.path / "memory.jsonl")


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    store: str
    method: str
    preset: str
    setting: str
    changes: tuple[tuple[str, Any], ...]
    """Keys of the config that differ between variants of this part, and their values here."""
    is_base: bool
    """Whether its keys have the values that most of the variants have."""
    label: str
    """Method, and whatever sets it apart from the others on the page but store and setting."""
    runs: tuple[FinishedRun, ...]

    @property
    def title(self) -> str:
        """The label with store and setting."""
        return f"{self.label} · {self.store} · {self.setting}"

    @property
    def about_method(self) -> AboutMethod:
        """What its runs say of their method."""
        return self.runs[0].about_method

    def spread(self, value: Callable[[FinishedRun], float | None]) -> Spread | None:
        """The spread of one value over the seeds."""
        return Spread.of([found for run in self.runs if (found := value(run)) is not None])

    @property
    def scopes(self) -> tuple[str, ...]:
        """The graphs that its runs were tested on."""
        return self.runs[0].scopes

    def accuracy_in(self, scope: str) -> Spread | None:
        """The spread of AA over the seeds, in a scope."""
        return self.spread(lambda run: run.measure("aa", scope))

    def forgetting_in(self, scope: str) -> Spread | None:
        """The spread of AF over the seeds, in a scope; None where AF says nothing."""
        return None if self.about_method.keeps_all_data else self.spread(lambda run: run.measure("af", scope))

    @property
    def accuracy(self) -> Spread | None:
        """The spread of AA over the seeds, in the first scope."""
        return self.accuracy_in(self.scopes[0])

    @property
    def forgetting(self) -> Spread | None:
        """The spread of AF over the seeds, in the first scope."""
        return self.forgetting_in(self.scopes[0])

    def cell(self, scope: str, t: int, j: int) -> Spread | None:
        """The spread of the accuracy on task ``j`` after task ``t``, in a scope."""
        return self.spread(lambda run: (run.measure("matrix", scope) or run.results["matrix"])[t][j])

    @property
    def seconds(self) -> float:
        """The mean time of the runs."""
        return statistics.fmean(run.seconds for run in self.runs)

    @property
    def peak_bytes(self) -> int:
        """The highest peak of the runs."""
        return max(run.peak_bytes for run in self.runs)

    def only(self, seeds: set[int]) -> Group:
        """This group with the runs of these seeds alone; with all of them where it has none of these."""
        runs = tuple(run for run in self.runs if int(run.results["seed"]) in seeds)
        return replace(self, runs=runs or self.runs)

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs."""
        return sorted(int(run.results["seed"]) for run in self.runs)


def group_runs(runs: Sequence[FinishedRun]) -> list[Group]:
    """One group for all seeds of a config, in order of first appearance.

    A key counts where it differs between runs of one store, method, preset and setting: what differs only from one
    method or store to the next goes without saying.
    """
    parts: dict[tuple[str, str, str, str], list[FinishedRun]] = {}
    for run in runs:
        parts.setdefault(run.part, []).append(run)
    many_presets = len({part[2] for part in parts}) > 1
    return [group for part, members in parts.items() for group in _variants(part, members, many_presets)]


def scopes_of(groups: Iterable[Group]) -> list[str]:
    """The scopes that any of them was tested in."""
    found = {scope for group in groups for scope in group.scopes}
    return [scope for scope in SCOPE_NAMES if scope in found]


def common_seeds(groups: Iterable[Group]) -> set[int]:
    """Seeds that all of them have: what differs between groups with other seeds may be the seeds' doing."""
    return set.intersection(*(set(group.seeds) for group in groups))


def left_out(groups: Sequence[Group], shown: Sequence[Group]) -> str:
    """A sentence about the groups that a table or a figure does not show; empty where it shows all."""
    told = ""
    for what, is_base in (("Variants of a method", False), ("Methods", True)):
        number = sum(group.is_base == is_base and not any(group is other for other in shown) for group in groups)
        told += f" {what} are left out: {number}." if number else ""
    return told


def own_settings(run: FinishedRun) -> dict[str, Any]:
    """The keys of a run's config without those of other methods."""
    known = {"", *SECTIONS, run.about_method.section}
    return {key: value for key, value in run.settings.items() if key.rpartition(".")[0] in known}


def _variants(part: tuple[str, str, str, str], runs: list[FinishedRun], many_presets: bool) -> list[Group]:
    # a key that some of the runs lack was not there yet when they were made
    keys = sorted(set.intersection(*(set(own_settings(run)) for run in runs)).difference(NOT_CHANGES))
    varied = [key for key in keys if len({repr(run.settings.get(key)) for run in runs}) > 1]
    members: dict[tuple[str, ...], list[FinishedRun]] = {}
    for run in runs:
        members.setdefault(tuple(repr(run.settings.get(key)) for key in varied), []).append(run)
    usual = [_usual(key, place, members) for place, key in enumerate(varied)]
    base = max(
        members,
        key=lambda values: (
            sum(map(str.__eq__, values, usual)),
            len(members[values]),
            sum(_is_default(key, members[values]) for key in varied),
        ),
    )
    method = runs[0].about_method.shown
    name = f"{method} ({part[2]})" if many_presets else method
    groups = []
    for values, found in members.items():
        changes = tuple((key, found[0].settings.get(key)) for key in varied)
        shown = changes if len(varied) == 1 else _differences(changes, values, base)
        label = ", ".join([name, *(f"{key}={value}" for key, value in shown)])
        groups.append(Group(*part, changes, values == base, label, tuple(found)))
    return sorted(groups, key=lambda group: (not group.is_base, [_order(value) for _, value in group.changes]))


def _order(value: Any) -> tuple[bool, float, str]:
    """A key to sort by: numbers by size, then everything else by name."""
    is_number = isinstance(value, int | float)
    return not is_number, float(value) if is_number else 0.0, str(value)


def _usual(key: str, place: int, members: dict[tuple[str, ...], list[FinishedRun]]) -> str:
    """The most common value; among equals the default, else the first that switches nothing off or over."""
    counts = Counter(values[place] for values in members)
    defaults = {values[place] for values, runs in members.items() if _is_default(key, runs)}
    ablations = {repr(value) for name, value in ABLATIONS if name == key}
    return max(counts, key=lambda value: (counts[value], value in defaults, value not in ablations))


def _is_default(key: str, runs: Sequence[FinishedRun]) -> bool:
    """Whether the runs say that they left the key as it is; those from before they said so do not."""
    return any(key not in run.results["changed"] for run in runs if "changed" in run.results)


def _differences(
    changes: tuple[tuple[str, Any], ...], values: tuple[str, ...], base: tuple[str, ...]
) -> list[tuple[str, Any]]:
    return [change for change, value, usual in zip(changes, values, base, strict=True) if value != usual]

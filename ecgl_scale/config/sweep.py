"""What a sweep runs: every combination of the values of some keys, each with several seeds.

A config file may say it itself, in a section ``sweep``; the command line adds to that, or replaces it key by key.

    sweep:
      grid: {method: [finetune, ecgl], "learn.lambda": [0, 1]}    # every combination
      variants: {without importance: {bank.importance: false}}    # keys that are set together, under a name
      seeds: 0-4
      jobs: 1
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from ecgl_scale.config.schema import RunConfig, config_from_mapping
from ecgl_scale.config.text import parse_yaml, read_mapping, set_keys
from ecgl_scale.errors import UsageError

SECTION = "sweep"
KEYS = ("grid", "variants", "seeds", "jobs")
NOT_IN_GRID = {
    "seed": "give the seeds by --seeds",
    "memory": "give --memory, which all runs share",
    "cache": "runs of a sweep share one cache",
}
MAX_NAME = 120
MAX_RUNS = 100_000
RESERVED_NAMES = ("tasks", "sweep.json", "sweep.csv")

Jobs = int | Literal["auto"]


@dataclass(frozen=True)
class Axis:
    """Keys that change together, and the values they take."""

    keys: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    where: str


@dataclass(frozen=True)
class Combination:
    """One row of the table: a config that is run with every seed."""

    name: str
    """The name of its folder."""
    variant: str | None
    settings: dict[str, Any]
    """Values of the keys that the sweep changes."""
    config: RunConfig


@dataclass(frozen=True)
class Sweep:
    """What a sweep runs: every combination with every seed."""

    combinations: tuple[Combination, ...]
    seeds: tuple[int, ...]
    grid: dict[str, list[Any]]
    """Values by key; keys that change together stand with commas between them, and so have lists of values."""
    variants: dict[str, dict[str, Any]]
    jobs: Jobs
    """What the file asks for; ``auto`` where it does not."""

    @property
    def keys(self) -> list[str]:
        """All keys that differ between combinations."""
        return list(dict.fromkeys(key for combination in self.combinations for key in combination.settings))


def load_sweep(
    path: Path, *, grid: Sequence[str] = (), seeds: str | None = None, overrides: Sequence[str] = ()
) -> Sweep:
    """Read a config, with or without a section ``sweep``, and make the combinations; each is checked as a whole.

    ``grid`` has texts such as ``learn.lambda=0,0.1,1`` or, for keys that change together,
    ``preset,learn.train_as=[paper,gcn],[plus,mlp]``. Values are YAML.

    Raises
    ------
    UsageError
        The file, the grid or the seeds make no sense, or a combination is not a valid config.
    """
    mapping, origins = set_keys(read_mapping(path), overrides)
    section = _section_of(mapping.pop(SECTION, None), path)
    own = [parse_axis(text) for text in grid]
    replaced = {key for axis in own for key in axis.keys}
    axes = [axis for axis in _file_axes(section.get("grid"), path) if not replaced & set(axis.keys)] + own
    variants = _variants_of(section.get("variants"), path)
    _refuse_contradictions(axes, variants, [*origins])
    combinations = _combine(mapping, axes, variants, path)
    given = section.get("seeds", combinations[0].config.seed) if seeds is None else seeds
    found = parse_seeds(given, where=path if seeds is None else f"--seeds {seeds}")
    if len(combinations) * len(found) > MAX_RUNS:
        raise UsageError(
            f"a sweep of {len(combinations) * len(found)} runs", where=path, expected=f"at most {MAX_RUNS}"
        )
    return Sweep(
        combinations=combinations,
        seeds=found,
        grid={",".join(axis.keys): [_plain(axis, value) for value in axis.values] for axis in axes},
        variants=variants,
        jobs=parse_jobs(section.get("jobs", "auto"), where=path),
    )


def parse_axis(text: str) -> Axis:
    """Read an axis of the grid: ``KEY=v1,v2`` or ``KEY,KEY=[a,b],[c,d]``."""
    where = f"--grid {text}"
    keys, equals, values = text.partition("=")
    if not equals or not values.strip():
        raise UsageError("a grid makes no sense", where=where, expected="KEY=VALUE,VALUE as in learn.lambda=0,0.1,1")
    return _axis(keys, parse_yaml(f"[{values}]", where=where), where)


def parse_seeds(given: object, *, where: object) -> tuple[int, ...]:
    """Read seeds: ``3``, ``0-4``, ``0,2,7-9``, or a list of numbers."""
    texts = [str(one) for one in given] if isinstance(given, list) else str(given).split(",")
    seeds: list[int] = []
    for text in texts:
        match = re.fullmatch(r"\s*(\d{1,18})\s*(?:-\s*(\d{1,18})\s*)?", text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first >= MAX_RUNS:
            raise UsageError(f"seeds are {given!r}", where=where, expected="numbers and ranges, such as 0-4 or 0,2,7")
        seeds += range(first, last + 1)
    if len(set(seeds)) < max(len(seeds), 1):
        raise UsageError(f"seeds are {given!r}", where=where, expected="one seed or more, each once")
    return tuple(seeds)


def parse_jobs(given: object, *, where: object) -> Jobs:
    """Read how many runs go at a time: a number, or ``auto``."""
    text = str(given)
    if text == "auto":
        return "auto"
    if not re.fullmatch(r"[1-9]\d{0,3}", text):
        raise UsageError(f"jobs is {given!r}", where=where, expected="auto, or a number of runs at a time")
    return int(text)


def _section_of(given: object, path: Path) -> Mapping[str, Any]:
    section = {} if given is None else given
    if not isinstance(section, dict) or any(key not in KEYS for key in section):
        unknown = [str(key) for key in section if key not in KEYS] if isinstance(section, dict) else [repr(section)]
        raise UsageError(
            f"the section sweep makes no sense: {', '.join(unknown)}", where=path, expected=f"keys {', '.join(KEYS)}"
        )
    return section


def _file_axes(given: object, path: Path) -> list[Axis]:
    grid = {} if given is None else given
    if not isinstance(grid, dict):
        raise UsageError("sweep.grid has no keys", where=path, expected="as in `grid: {learn.lambda: [0, 1]}`")
    return [_axis(str(keys), values, f"{path}, sweep.grid.{keys}") for keys, values in grid.items()]


def _axis(keys_text: str, values: object, where: str) -> Axis:
    keys = tuple(key.strip() for key in keys_text.split(","))
    if not all(keys) or len(set(keys)) < len(keys):
        raise UsageError("a grid makes no sense", where=where, expected="each key once, as in learn.lambda=0,0.1,1")
    if not isinstance(values, list) or not values:
        raise UsageError("a key of the grid has no values", where=where, expected="a list, as in learn.lambda=0,0.1,1")
    rows = (
        [(value,) for value in values] if len(keys) == 1 else [tuple(v) if isinstance(v, list) else () for v in values]
    )
    if any(len(row) != len(keys) for row in rows):
        raise UsageError(
            f"{len(keys)} keys change together",
            where=where,
            expected=f"each value a list of {len(keys)}, as in [a,b],[c,d]",
        )
    if len({_text(list(row)) for row in rows}) < len(rows):
        raise UsageError("a value stands twice in the grid", where=where, expected="each value once")
    return Axis(keys, tuple(rows), where)


def _variants_of(given: object, path: Path) -> dict[str, dict[str, Any]]:
    variants = {} if given is None else given
    if not isinstance(variants, dict) or not all(isinstance(keys, dict | None) for keys in variants.values()):
        raise UsageError(
            "sweep.variants makes no sense",
            where=path,
            expected="names and their keys, as in `without importance: {bank.importance: false}`",
        )
    return {str(name): {str(key): value for key, value in (keys or {}).items()} for name, keys in variants.items()}


def _refuse_contradictions(
    axes: Sequence[Axis], variants: Mapping[str, Mapping[str, Any]], set_by_user: Sequence[str]
) -> None:
    owners: dict[str, str] = {key: f"sweep.variants.{name}" for name, keys in variants.items() for key in keys}
    for axis in axes:
        for key in axis.keys:
            if key in owners:
                raise UsageError(f"{key} changes in two places: {owners[key]} and {axis.where}", fix="leave one out")
            owners[key] = axis.where
    for key, where in owners.items():
        if key in NOT_IN_GRID:
            raise UsageError(f"{key} cannot be swept", where=where, fix=NOT_IN_GRID[key])
        if key in set_by_user:
            raise UsageError(
                f"--set gives {key} one value, but the sweep changes it", where=where, fix=f"give --grid {key}=VALUE"
            )


def _combine(
    mapping: Mapping[str, Any], axes: Sequence[Axis], variants: Mapping[str, Mapping[str, Any]], path: Path
) -> tuple[Combination, ...]:
    found: list[Combination] = []
    taken = set(RESERVED_NAMES)
    all_keys = [key for axis in axes for key in axis.keys]
    swept = [*dict.fromkeys([*(key for keys in variants.values() for key in keys), *all_keys])]
    names: list[str | None] = [*variants] or [None]
    for variant, *values in product(names, *(axis.values for axis in axes)):
        of_axes = dict(zip(all_keys, (value for row in values for value in row), strict=True))
        settings = {**({} if variant is None else variants[variant]), **of_axes}
        name = _name_of(variant, of_axes, taken)
        try:
            config = config_from_mapping(_set(mapping, settings), where=path)
        except UsageError as error:
            place = f"{path}, combination {name}" if settings else path
            raise UsageError(error.what, where=place, expected=error.expected, fix=error.fix) from error
        taken.add(name)
        found.append(Combination(name, variant, {**_values_of(config, swept), **settings}, config))
    return tuple(found)


def _values_of(config: RunConfig, keys: Sequence[str]) -> dict[str, Any]:
    """The values of keys, also of those that another variant sets and this one leaves as they are."""
    found = {}
    for key in keys:
        value: Any = config.to_mapping()
        for part in key.split("."):
            value = value[part]
        found[key] = value
    return found


def _set(mapping: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    return set_keys(mapping, [f"{key}={_text(value)}" for key, value in settings.items()])[0]


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)  # which is YAML too


def _plain(axis: Axis, value: tuple[Any, ...]) -> Any:
    return value[0] if len(axis.keys) == 1 else list(value)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Keys without their sections, where that is enough to tell them apart."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)}


def shown_value(value: object) -> str:
    """A value as people type it."""
    return value if isinstance(value, str) else _text(value)


def _name_of(variant: str | None, settings: Mapping[str, Any], taken: set[str]) -> str:
    """A folder's name that says what is in it: ``without-importance_lambda-0.1``."""
    short = short_names([*settings])
    parts = [*([variant] if variant is not None else [])]
    parts += [f"{short[key]}-{shown_value(value)}" for key, value in settings.items()]
    name = "_".join(re.sub(r"[^\w.+-]+", "-", part).strip("-.") for part in parts) or "base"
    if len(name) > MAX_NAME or name in taken:
        digest = hashlib.sha256(_text([variant, settings]).encode()).hexdigest()[:8]
        name = f"{name[:MAX_NAME]}-{digest}"
    return name

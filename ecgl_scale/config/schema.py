"""The config of a run, read from YAML and checked as a whole.

Its keys are in ``sections``, in ``RunConfig`` and, those of a method, in the method's own file.

A value is taken from the command line, else from the file, else from the preset, else from the defaults. All keys
are explicit after loading, and nothing changes afterwards.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, ValidationError, create_model, model_validator

from ecgl_scale.config.keys import NOT_CHANGES, NOT_IN_DIGEST, SECTIONS
from ecgl_scale.config.kinds import Location, Memory, Size
from ecgl_scale.config.messages import usage_error
from ecgl_scale.config.method_sections import describe_methods_key, is_method, method_names, section_classes
from ecgl_scale.config.presets import BEFORE, DEFAULT_PRESET, PRESETS
from ecgl_scale.config.sections import (
    BankConfig,
    EngineConfig,
    InferConfig,
    LearnConfig,
    RankConfig,
    Section,
    values,
)
from ecgl_scale.config.tasks_section import TasksConfig
from ecgl_scale.config.text import dump_yaml, read_mapping, set_keys
from ecgl_scale.errors import UsageError

__all__ = [
    "NOT_IN_DIGEST",
    "BankConfig",
    "EngineConfig",
    "InferConfig",
    "LearnConfig",
    "RankConfig",
    "RunConfig",
    "TasksConfig",
    "changed_keys",
    "config_class",
    "config_from_mapping",
    "load_config",
]

SectionOf = TypeVar("SectionOf", bound=Section)
_MAX_SEED = 2**63 - 1  # torch and numpy both take it


def _checked_method(given: str) -> str:
    if not is_method(given):
        raise ValueError("no such method")
    return given


def _describe_method(schema: dict[str, Any]) -> None:
    names = method_names()
    shown = ", ".join(f"`{name}`" for name in names) + " or `package.module:Class`"
    schema |= {"description": describe_methods_key(), "enum": names, **values(shown)}


_Method = Annotated[str, AfterValidator(_checked_method)]


class RunConfig(Section):
    """A whole run. Build one with ``load_config`` or ``config_from_mapping``, which explain what is wrong.

    These are the keys that hold for every method; a config that is loaded also has a section for each method.
    """

    store: Location = Field(
        description="The graph, as `ecgl ingest` or `ecgl generate` made it.", json_schema_extra=values("path or URL")
    )
    method: _Method = Field(default="ecgl", json_schema_extra=_describe_method)
    preset: Literal["paper", "reference", "plus"] = Field(
        default="plus", description="Values for the keys under Presets."
    )
    setting: Literal["task-il", "class-il"] = Field(
        default="class-il", description="Predict among the task's own classes, or among all seen so far."
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=_MAX_SEED,
        description="Of split, weights and batches.",
        json_schema_extra=values("integer >= 0"),
    )
    memory: Memory | None = Field(
        default=None,
        description="What the run may use in all. `null`: 80 % of the tightest limit around the process.",
        json_schema_extra=values("a size such as `512MiB` or `8GiB`, or `null`"),
    )
    threads: Size | None = Field(default=None, description="Threads that read and compute. `null`: one a core.")
    cache: Location | None = Field(
        default=None,
        description="Folder where task graphs are kept for later runs. `null`: inside the run's own.",
        json_schema_extra=values("path, URL or `null`"),
    )
    tasks: TasksConfig = TasksConfig()
    learn: LearnConfig = LearnConfig()
    bank: BankConfig = BankConfig()
    rank: RankConfig = RankConfig()
    infer: InferConfig = InferConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        name = given.get("preset", DEFAULT_PRESET)
        preset = PRESETS.get(name, {}) if isinstance(name, str) else {}
        filled = dict(given)
        for section in SECTIONS:
            own = filled.get(section)
            own = {} if own is None else own  # `learn:` with all its lines commented out
            usual = preset.get(section, {})
            if isinstance(own, Mapping) and _is_older(section, own):
                usual = {**usual, **BEFORE[section]}
            if isinstance(own, Mapping) and own.get("keep_tests") is True:
                usual = {**usual, "eval_scope": "task"}  # graphs of single tasks are what can be kept
            filled[section] = {**usual, **own} if isinstance(own, Mapping) else own
        return filled

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.setting == "task-il" and self.tasks.kind == "class" and self.tasks.classes_per_task == 1:
            raise UsageError(
                "tasks.classes_per_task is 1, and in task-IL a node is told apart from its task's classes alone",
                fix="set `setting: class-il`, or 2 or more classes a task",
            )
        if self.tasks.context != "none" and self.learn.num_hops and self.rank.features == "logits":
            raise UsageError(
                f"tasks.context is {self.tasks.context} and rank.features logits, but learn.features is "
                f"{self.learn.features}",
                expected="outputs of context nodes to rank by, which are made of features; propagated ones are kept "
                "of the tasks' own nodes alone",
                fix="set `rank.features: raw`, or `learn.features: raw`",
            )
        return self

    def section(self, kind: type[SectionOf]) -> SectionOf:
        """The settings of a method, by the class that it declares them with."""
        for _, value in self:
            if type(value) is kind:
                return value
        raise UsageError(
            f"this config has no section of the class {kind.__name__}", fix="make it with load_config, for this method"
        )

    def to_mapping(self) -> dict[str, Any]:
        """Every key as plain values, named as in a file."""
        return self.model_dump(mode="json", by_alias=True)

    def to_yaml(self) -> str:
        """Every key as YAML; loading it gives an equal config."""
        return dump_yaml(self.to_mapping())

    def digest(self) -> str:
        """sha256 of every key but those in ``NOT_IN_DIGEST``: runs with the same digest give the same results."""
        mapping = self.to_mapping()
        for key in NOT_IN_DIGEST:
            section, _, name = key.rpartition(".")
            del (mapping[section] if section else mapping)[name]
        if mapping["learn"]["head"] == "whole":  # as before there was this key: what was begun then goes on with it
            del mapping["learn"]["head"]
        if mapping["learn"]["last_layer"] == "trained":  # the same
            del mapping["learn"]["last_layer"]
        later = [name for name, value in self if isinstance(value, Section) and value.came_later]
        for name in later:
            if getattr(self, name) == type(getattr(self, name))():
                del mapping[name]
        for key, usual in (("evaluate", "all"), ("context", "none")):  # the same
            if mapping["tasks"][key] == usual:
                del mapping["tasks"][key]
        mapping = {name: value for name, value in mapping.items() if value != {}}  # a section that changes no result
        return hashlib.sha256(json.dumps(mapping, sort_keys=True).encode()).hexdigest()


def _is_older(section: str, given: Mapping[str, Any]) -> bool:
    """Whether a run has written this section before it had all the keys it has."""
    later, kind = BEFORE.get(section, {}), RunConfig.model_fields[section].annotation
    if not later or kind is None or later.keys() <= given.keys():
        return False
    known = {entry.alias or name for name, entry in kind.model_fields.items()}
    return known - later.keys() <= given.keys()


def config_class(method: object = None) -> type[RunConfig]:
    """``RunConfig`` with a section for each built-in method, and one for a method of the user's own that has settings.

    It is made when a config is loaded, as methods declare their sections in their own files: see ``method_sections``.
    """
    return _with_sections(tuple(section_classes(method)))


@cache
def _with_sections(sections: tuple[tuple[str, type[Section]], ...]) -> type[RunConfig]:
    fields: dict[str, Any] = {}
    for name, kind in sections:
        if not name.isidentifier() or name in RunConfig.model_fields or hasattr(RunConfig, name) or name in fields:
            raise UsageError(
                f"the method {name!r} has settings, and its name cannot be that of a section of the config",
                where=kind.__module__,
                expected="a name of letters, digits and underscores that no other section or key has",
            )
        fields[name] = (kind, kind())
    return create_model(RunConfig.__name__, __base__=RunConfig, __module__=__name__, **fields)


def changed_keys(config: RunConfig) -> list[str]:
    """Dotted names of the keys whose values are neither the preset's nor the default, in the order of the schema."""
    usual = type(config).model_validate({"store": str(config.store), "preset": config.preset}).to_mapping()
    found = []
    for section, given in config.to_mapping().items():
        pairs = [(section, given, usual[section])]
        if isinstance(given, dict):
            pairs = [(f"{section}.{name}", value, usual[section][name]) for name, value in given.items()]
        found += [key for key, value, default in pairs if value != default and key not in NOT_CHANGES]
    return found


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file, set keys as in ``learn.epochs=50`` (values are YAML), fill in the preset and check it all.

    Raises
    ------
    UsageError
        No such file, no YAML, an unknown key (with the nearest one), a value of the wrong type or out of range,
        values that contradict each other.
    """
    return config_from_mapping(read_mapping(Path(path)), overrides=overrides, where=path)


def config_from_mapping(
    mapping: Mapping[str, Any], *, overrides: Sequence[str] = (), where: object = None
) -> RunConfig:
    """Make a config from a mapping of what the file would hold, as ``load_config`` does; errors name ``where``."""
    given, origins = set_keys(mapping, overrides)
    if "sweep" in given:
        raise UsageError(
            "this config describes many runs: it has a section sweep",
            where=where,
            fix="use ecgl sweep CONFIG --out DIR",
        )
    kind = config_class(given.get("method"))
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise usage_error(error, kind.model_json_schema(), where=where, origins=origins) from error

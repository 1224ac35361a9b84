"""The generated parts of docs/commands.md: the list of commands, their options, the exit codes.

Each part stands between two marks that name it, so that people's words stay before and after it. Options that several
commands share are one part, to which the commands link.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import typer

from ecgl_scale.base.durable import write_atomically
from ecgl_scale.cli.cluster import ClusterOptions
from ecgl_scale.cli.main import app
from ecgl_scale.cli.options import BuildSettings, IngestSettings
from ecgl_scale.errors import ExitCode, UsageError

BEGIN, END = "<!-- generated from the code, {}: begin -->", "<!-- generated from the code, {}: end -->"
PART = re.compile(BEGIN.format("(.+?)") + ".*?" + END.format(r"\1"), re.DOTALL)
NAME = "ecgl"
NOT_SHOWN = {"help"}
"""Parameters that every command has; the page says so once."""

_WORKERS = tuple(entry.name for entry in fields(ClusterOptions))
_BUILD = tuple(entry.name for entry in fields(BuildSettings) if entry.name not in _WORKERS)
_EDGES = tuple(entry.name for entry in fields(IngestSettings) if entry.name not in (*_BUILD, *_WORKERS))
SHARED = {"edge options": _EDGES, "build options": _BUILD, "worker options": _WORKERS}
"""Parameters that stand in a section of their own, where a command has all of them."""


def page_parts() -> dict[str, str]:
    """Markdown of each generated part, by its name."""
    commands = dict(_commands(_program(), NAME))
    parts = {"commands": _overview(commands), "exit codes": _exit_codes()}
    for name, keys in SHARED.items():
        having = next(command for command in commands.values() if _has(command, keys))
        parts[name] = _table([parameter for parameter in having.params if parameter.name in keys])
    return parts | {name: _section(name, command) for name, command in commands.items()}


@cache
def _program() -> Any:
    return typer.main.get_command(app)


def update_page(path: Path) -> None:
    """Put every part between its marks."""
    page, parts = path.read_text(encoding="utf-8"), page_parts()
    marked = [match[1] for match in PART.finditer(page)]
    missing = [name for name in parts if name not in marked]
    surplus = [name for name in dict.fromkeys(marked) if name not in parts or marked.count(name) > 1]
    if missing or surplus:
        found = [f"no place for {', '.join(missing)}"] if missing else []
        found += [f"too many for {', '.join(surplus)}"] if surplus else []
        raise UsageError(
            f"the page has {' and '.join(found)}",
            where=path,
            expected=f"once for each part: {BEGIN.format('NAME')} ... {END.format('NAME')}",
        )
    write_atomically(path, PART.sub(lambda match: marked_part(match[1], parts[match[1]]), page))


def marked_part(name: str, text: str) -> str:
    """A part as it stands in the page."""
    return f"{BEGIN.format(name)}\n\n{text}\n\n{END.format(name)}"


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Each command as it is typed; of groups only the outermost, which has options."""
    inner = getattr(command, "commands", {})
    if not inner or name == NAME:
        yield name, command
    for inner_name, inner_command in inner.items():
        yield from _commands(inner_command, f"{name} {inner_name}")


def _overview(commands: dict[str, Any]) -> str:
    rows = ["| command | what it does |", "|---|---|"]
    for name, command in commands.items():
        if name != NAME:
            rows.append(f"| [{name}](#{name.replace(' ', '-')}) | {_text(command.help)} |")
    return "\n".join(rows)


def _exit_codes() -> str:
    return "\n".join(["| code | meaning |", "|---|---|", *(f"| {code:d} | {code.meaning} |" for code in ExitCode)])


def _section(name: str, command: Any) -> str:
    """How the command is called, its own parameters, and where those are that it shares."""
    shared = {title: keys for title, keys in SHARED.items() if _has(command, keys)}
    elsewhere = NOT_SHOWN.union(*shared.values())
    own = [parameter for parameter in command.params if parameter.name not in elsewhere]
    links = [f"[{title}](#{title.replace(' ', '-')})" for title in shared]
    parts = [f"`{_usage(name, command)}`", _table(own), f"And the {_listed(links)}." if links else ""]
    return "\n\n".join(part for part in parts if part)


def _listed(names: list[str]) -> str:
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])


def _has(command: Any, keys: tuple[str, ...]) -> bool:
    return {parameter.name for parameter in command.params}.issuperset(keys)


def _usage(name: str, command: Any) -> str:
    if name == NAME:
        return f"{NAME} [OPTIONS] COMMAND ..."
    words = [name]
    for parameter in command.params:
        if _is_argument(parameter):
            words.append(parameter.metavar)
        elif parameter.required:
            words.append(f"{parameter.opts[0]} {parameter.metavar or 'N'}")
    return " ".join([*words, "[OPTIONS]"])


def _table(parameters: list[Any]) -> str:
    rows = ["| option | values | default | meaning |", "|---|---|---|---|"]
    for parameter in sorted(parameters, key=lambda parameter: not _is_argument(parameter)):
        names = [parameter.metavar] if _is_argument(parameter) else [*parameter.opts, *parameter.secondary_opts]
        shown = ", ".join(f"`{_escaped(name)}`" for name in names)
        rows.append(f"| {shown} | {_values(parameter)} | {_default(parameter)} | {_text(parameter.help)} |")
    return "\n".join(rows)


def _is_argument(parameter: Any) -> bool:
    return not parameter.opts[0].startswith("-")


def _values(parameter: Any) -> str:
    """The choices, or a number and its bounds, or our word for it; as ``--help`` has them."""
    if _is_argument(parameter) or parameter.is_flag:
        return ""
    if parameter.metavar:
        return f"`{_escaped(parameter.metavar)}`"
    name, text = parameter.get_help_record(typer.Context(_program()))
    *others, last = name.partition(" ")[2].strip("<>[]").split("|")
    if others:
        return f"{', '.join(f'`{choice}`' for choice in others)} or `{last}`"
    number = "integer" if last.lower().startswith("int") else "number"
    return number + "".join(f" {sign} {bound}" for sign, bound in _bounds(text))


def _bounds(text: str) -> Iterator[tuple[str, str]]:
    """The bounds of a number, from the end of its help: ``[default: 16; x>=1]`` or ``[0.0<=x<=1.0]``."""
    number = r"(\d+)(?:\.0)?"
    for low in re.findall(rf"x>={number}|{number}<=x", text):
        yield ">=", max(low)
    for high in re.findall(rf"x<={number}", text):
        yield "and <=", high


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if parameter.default is None or (parameter.is_flag and not parameter.default):
        return ""
    return f"`{parameter.opts[0] if parameter.is_flag else parameter.default}`"


def _escaped(code: str) -> str:
    return code.replace("|", "\\|")


def _text(words: str) -> str:
    """Help in one line, with options as code."""
    line = _escaped(" ".join(words.split()))
    return re.sub(r"(?<![\w`-])--[a-z][a-z-]*", r"`\g<0>`", line)

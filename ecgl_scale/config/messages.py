"""What is wrong with a config, in our words: the key's full name, its value, what it may be, the nearest known name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ecgl_scale.errors import UsageError

Schema = Mapping[str, Any]

_UNKNOWN = ("extra_forbidden", "invalid_key")
_MAX_SHOWN = 60
_KINDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}


def keys_of(schema: Schema) -> dict[str, dict[str, Schema]]:
    """Properties of each section of a JSON schema; those of the top stand under the empty name."""
    sections: dict[str, dict[str, Schema]] = {"": {}}
    for name, described in schema["properties"].items():
        if "$ref" in described:
            sections[name] = schema["$defs"][described["$ref"].rpartition("/")[2]]["properties"]
        else:
            sections[""][name] = described
    return sections


def describe_values(described: Schema, *, mark: str = "") -> str:
    """Say what a key may be, from its JSON schema; ``mark`` is set around values that are typed as they stand."""
    if "values" in described:
        return str(described["values"]).replace("`", mark)
    if "anyOf" in described:
        return " or ".join(describe_values(choice, mark=mark) for choice in described["anyOf"])
    if "enum" in described or "const" in described:
        *most, last = [f"{mark}{value}{mark}" for value in described.get("enum", [described.get("const")])]
        return f"{', '.join(most)} or {last}" if most else last
    if described["type"] == "array":
        return f"list of {describe_values(described['items'], mark=mark).replace('integer', 'integers', 1)}"
    if described["type"] == "null":
        return f"{mark}null{mark}"
    low = _bound(described, "minimum", "exclusiveMinimum", ">")
    high = _bound(described, "maximum", "exclusiveMaximum", "<")
    return " and ".join(
        [" ".join(part for part in (_KINDS[described["type"]], low) if part), *([high] if high else [])]
    )


def _bound(described: Schema, inclusive: str, exclusive: str, sign: str) -> str:
    if inclusive in described:
        return f"{sign}= {described[inclusive]}"
    return f"{sign} {described[exclusive]}" if exclusive in described else ""


def usage_error(error: ValidationError, schema: Schema, *, where: object, origins: dict[str, str]) -> UsageError:
    """Turn what pydantic found into one error: the first problem in full, the others by name."""
    sections = keys_of(schema)
    # a mistyped name often is the cause of what else is wrong
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] not in _UNKNOWN)
    names = list(dict.fromkeys(_name_of(problem["loc"], sections)[0] for problem in problems))
    first = _explain(problems[0], sections)
    others = f" (also wrong: {', '.join(names[1:])})" if len(names) > 1 else ""
    place = _origin_of(names[0], origins, is_unknown=problems[0]["type"] in _UNKNOWN) or where
    return UsageError(first.what + others, where=place, expected=first.expected, fix=first.fix)


def _origin_of(name: str, origins: dict[str, str], *, is_unknown: bool) -> str | None:
    """The last override that set this key, or the section it is in; or one inside it, if there is no such section."""
    for key, origin in reversed(origins.items()):
        if f"{name}.".startswith(f"{key}.") or (is_unknown and key.startswith(f"{name}.")):
            return origin
    return None


def _name_of(location: Sequence[int | str], sections: Mapping[str, Mapping[str, Schema]]) -> tuple[str, str]:
    """The key as it is typed, and the place inside its value."""
    depth = 2 if location and location[0] in sections else 1
    inside = "".join(f"[{part}]" for part in location[depth:] if isinstance(part, int))
    return ".".join(str(part) for part in location[:depth]), inside


def _explain(problem: Mapping[str, Any], sections: Mapping[str, Mapping[str, Schema]]) -> UsageError:
    name, inside = _name_of(problem["loc"], sections)
    section, _, leaf = name.rpartition(".")
    cause = problem.get("ctx", {}).get("error")
    if isinstance(cause, UsageError):
        return cause
    if problem["type"] in _UNKNOWN:
        return _unknown_key(section, leaf, sections)
    if name in sections:
        shown = " " + _shown(problem["input"]) if name else " no mapping"
        return UsageError(f"{name or 'the config'} is{shown}", expected="a section: keys and values")
    described = sections[section][leaf]
    if problem["type"] == "missing" and len(problem["loc"]) == (2 if section else 1):
        return UsageError(f"the key {name} is missing", expected=f"{name}: {describe_values(described)}")
    if problem["type"] == "missing":
        inside = ""  # the input is the list in which something is missing
    given, known = problem["input"], described.get("enum", [])
    near = difflib.get_close_matches(given, known, n=1) if isinstance(given, str) else []
    return UsageError(
        f"{name}{inside} is {_shown(given)}",
        expected=describe_values(described),
        fix=f"did you mean {near[0]}?" if near else None,
    )


def _unknown_key(section: str, leaf: str, sections: Mapping[str, Mapping[str, Schema]]) -> UsageError:
    full_names = {
        f"{place}.{key}" if place else key: key for place, properties in sections.items() for key in properties
    }
    siblings = [*sections[section], *(name for name in sections if name and not section)]
    elsewhere = [full for full, key in full_names.items() if key == leaf]
    inside = [f"{section}.{near}" if section else near for near in difflib.get_close_matches(leaf, siblings, n=1)]
    anywhere = [
        full
        for near in difflib.get_close_matches(leaf, [*full_names.values()], n=1)
        for full, key in full_names.items()
        if key == near
    ]
    near = elsewhere or inside or anywhere
    return UsageError(
        f"there is no key {f'{section}.{leaf}' if section else leaf}",
        expected=f"{f'in {section}' if section else 'at the top'}: {', '.join(siblings)}",
        fix=f"did you mean {' or '.join(near)}?" if near else None,
    )


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except RecursionError:
        return "nested too deep"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."

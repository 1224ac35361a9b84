"""Config text: YAML read safely into plain mappings, single keys set from the command line, and written back.

Two things differ from plain PyYAML: ``1e-3`` is a number, as people mean it (PyYAML wants ``1.0e-3``), and a key
that stands twice in one mapping is an error instead of the last one winning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ecgl_scale.errors import UsageError
from ecgl_scale.units import MIB, format_bytes

MAX_FILE_BYTES = MIB
"""A config has a few kilobytes; whatever is much larger was not meant to be one."""

_EXPONENT = re.compile(r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)[eE][-+]?[0-9]+\Z")
_RESOLVERS = {
    first: [*known, ("tag:yaml.org,2002:float", _EXPONENT)] if first and first in "-+.0123456789" else known
    for first, known in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


class _Loader(yaml.CSafeLoader):
    yaml_implicit_resolvers = _RESOLVERS

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} stands here twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.CSafeDumper):
    # the loader's rules, so that the text '1e3' is quoted
    yaml_implicit_resolvers = _RESOLVERS


def read_mapping(path: Path) -> dict[str, Any]:
    """Read the mapping that a YAML file holds."""
    try:
        if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(
                f"the config has {format_bytes(path.stat().st_size)}",
                where=path,
                expected=f"a YAML file of at most {format_bytes(MAX_FILE_BYTES)}",
            )
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError("there is no such config", where=path, fix="see configs/ for examples") from error
    except OSError as error:
        raise UsageError(f"the config cannot be read: {error.strerror}", where=path, expected="a YAML file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the config is not text: {error.reason}", where=path, expected="YAML in UTF-8") from error
    value = parse_yaml(text, where=path)
    if not isinstance(value, dict):
        what = "is empty" if value is None else f"holds a {type(value).__name__}"
        raise UsageError(f"the config {what}", where=path, expected="keys and values, such as `store: graph.ecgl`")
    return value


def parse_yaml(text: str, *, where: object) -> Any:
    """Turn YAML text into plain values: only mappings, lists, text, numbers, truth values, dates and null."""
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}, line {mark.line + 1}, column {mark.column + 1}" if mark else where
        raise UsageError(f"not valid YAML: {error.problem or error.context}", where=place) from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:  # odd characters, numbers, keys, nesting
        raise UsageError(f"not valid YAML: {error}", where=where) from error
    finally:
        if loader is not None:
            loader.dispose()


def set_keys(mapping: Mapping[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Set ``learn.epochs=50`` and its like in a copy of the mapping; also say which override set which key."""
    result = dict(mapping)
    origins: dict[str, str] = {}
    for text in overrides:
        where = f"--set {text}"
        key, equals, value_text = text.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts):
            raise UsageError("a key to set makes no sense", where=where, expected="KEY=VALUE, as in learn.epochs=50")
        value = parse_yaml(value_text, where=where)
        section = result
        for depth, part in enumerate(parts[:-1], start=1):
            inner = section.get(part)
            inner = {} if inner is None else inner
            if not isinstance(inner, dict):
                raise UsageError(f"{'.'.join(parts[:depth])} has no keys inside", where=where)
            section[part] = dict(inner)  # the caller's own stays as it is
            section = section[part]
        before = section.get(parts[-1])
        section[parts[-1]] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
        origins[key.strip()] = where
    return result, origins


def dump_yaml(mapping: Mapping[str, Any]) -> str:
    """Write a mapping as YAML that ``parse_yaml`` turns into an equal one, keys in the given order."""
    text: str = yaml.dump(dict(mapping), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text

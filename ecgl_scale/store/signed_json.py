"""JSON files that a store is read by: signed by a checksum of their own, and read back strictly, every fault named."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import Any, TypeVar, get_type_hints

from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.errors import CorruptStoreError, StoreVersionError

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")

Section = TypeVar("Section")


def encode_signed(body: Mapping[str, Any]) -> str:
    """The one text of a body, its checksum last: a file that differs from it in any byte was not written by us."""
    unsigned = {name: value for name, value in body.items() if name != "checksum"}
    checksum = crc32c_of(json.dumps(unsigned, sort_keys=True).encode())
    return json.dumps({**unsigned, "checksum": checksum}, indent=1) + "\n"


def decode_signed(raw: bytes, path: AnyPath, *, form: str, versions: tuple[int, ...]) -> dict[str, Any]:
    """Check that the bytes that were read from ``path`` are a whole body of this form and of one of these versions."""
    try:
        body = json.loads(raw)
        as_written = isinstance(body, dict) and encode_signed(body).encode() == raw
    except (ValueError, RecursionError) as error:
        raise CorruptStoreError(f"the manifest is not JSON: {error}", where=path) from error
    if not isinstance(body, dict) or body.get("format") != form:
        raise CorruptStoreError("this is not the manifest of a graph store", where=path, expected=f'"format": "{form}"')
    if body.get("format_version") not in versions:
        raise StoreVersionError(
            f"the store has format version {body.get('format_version')}",
            where=path,
            expected="version " + " or ".join(map(str, versions)),
            fix="build it again from its source with this version of ecgl_scale",
        )
    if not as_written:
        raise CorruptStoreError("the manifest does not match its own checksum", where=path, fix="build the store again")
    return body


def without_none(section: Any, *optional: str) -> dict[str, Any]:
    """The values of a dataclass; of the ``optional`` ones only those that are there."""
    return {name: value for name, value in asdict(section).items() if value is not None or name not in optional}


def typed(kind: type[Section], value: Any) -> Section:
    """The value, which must be of exactly this type."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.100} is not {kind.__name__}")
    return value


def read_section(kind: type[Section], values: Mapping[str, Any]) -> Section:
    """A dataclass of numbers, texts and lists of whole numbers, with exactly its fields."""
    expected = _types_of(kind)  # type: ignore[arg-type]
    if values.keys() != expected.keys():
        raise ValueError(f"{kind.__name__} has keys {sorted(values)}, expected {sorted(expected)}")
    for name, hint in expected.items():
        if hint == list[int]:
            for value in typed(list, values[name]):
                typed(int, value)
        else:
            typed(hint, values[name])
    return kind(**values)


@cache
def _types_of(kind: type[Any]) -> dict[str, Any]:
    """Types of the fields of a dataclass; a manifest has a section for each of hundreds of files."""
    hints = get_type_hints(kind)
    return {entry.name: hints[entry.name] for entry in fields(kind)}


def safe_name(name: str, manifest: AnyPath, reserved: str) -> str:
    """The name of a file that lies below the manifest's directory and is not the ``reserved`` one."""
    if not _FILE_NAME.fullmatch(name) or len(name) > 255 or name == reserved:
        raise CorruptStoreError(f"the manifest names a file outside the store: {name!r:.300}", where=manifest)
    return name

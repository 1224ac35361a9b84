"""Kinds of values that several keys have: counts, paths and sizes of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from ecgl_scale.base.objects.url import AnyPath, ObjectUrl, location_of
from ecgl_scale.errors import UsageError
from ecgl_scale.units import parse_bytes


def _checked_path(given: object) -> object:
    if isinstance(given, str) and (not given.strip() or "\0" in given):
        raise ValueError("not a path")
    return given


def _checked_location(given: object) -> AnyPath:
    if not isinstance(given, str | Path | ObjectUrl) or not str(given).strip() or "\0" in str(given):
        raise ValueError("not a path")
    return location_of(given)


def _checked_memory(given: object) -> object:
    text = str(given) if isinstance(given, int) and not isinstance(given, bool) else given
    if not isinstance(text, str):
        return text
    try:
        num_bytes = parse_bytes(text)
    except UsageError as error:
        raise ValueError("not a size") from error  # what it may be is told with the key's name
    if num_bytes < 1:
        raise ValueError("no memory at all")
    return text


Size = Annotated[int, Field(ge=1)]
Directory = Annotated[Path, BeforeValidator(_checked_path), Field(strict=False)]
Location = Annotated[
    AnyPath,
    PlainValidator(_checked_location),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "format": "path"}),
]
Memory = Annotated[str, BeforeValidator(_checked_memory)]

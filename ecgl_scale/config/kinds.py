"""Kinds of values that several keys have: counts, paths and sizes of memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from ecgl_scale.errors import UsageError
from ecgl_scale.units import parse_bytes


def _checked_path(given: object) -> object:
    if isinstance(given, str) and (not given.strip() or "\0" in given):
        raise ValueError("not a path")
    return given


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
AnyPath = Annotated[Path, BeforeValidator(_checked_path), Field(strict=False)]
Memory = Annotated[str, BeforeValidator(_checked_memory)]

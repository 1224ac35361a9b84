"""Errors on their way from a worker to the driver: what happened, where, what to do, as JSON; nothing is pickled.

The driver raises the same kind of error with the worker's name, so a user sees the same message and exit code as on
one machine.
"""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

from ecgl_scale import errors
from ecgl_scale.base.durable import as_storage_error
from ecgl_scale.engine.retry import is_worth_another_try
from ecgl_scale.errors import DoesNotFitError, EcglError


def pack_error(error: Exception) -> dict[str, Any]:
    """What the driver needs to know of it, and whether another try may help."""
    is_passing = is_worth_another_try(error)
    if isinstance(error, OSError) and not isinstance(error, EcglError):
        error = as_storage_error(error, Path(error.filename or "."))
    elif isinstance(error, MemoryError) and not isinstance(error, EcglError):
        error = DoesNotFitError(
            "a worker is out of memory", fix="give workers more memory, or let fewer share a machine"
        )
    packed = {"is_passing": is_passing, "trace": "".join(traceback.format_exception(error))}
    if isinstance(error, EcglError):
        given = {name: getattr(error, name) for name in ("what", "where", "expected", "fix")}
        return {**packed, "kind": type(error).__name__, **given}
    what = f"{type(error).__name__}: {error}"
    return {**packed, "kind": "EcglError", "what": what, "where": None, "expected": None, "fix": None}


def pack_error_text(error: Exception) -> str:
    """Pack an error as text, which is what travels."""
    return json.dumps(pack_error(error))


def unpack_error(packed: dict[str, Any], *, work: str, blocks: str, worker: str) -> EcglError:
    """The error, with the worker and the blocks it comes from."""
    kind = getattr(errors, packed["kind"], EcglError)
    if not (isinstance(kind, type) and issubclass(kind, EcglError)):
        kind = EcglError
    origin = f"{work}, {blocks}, on worker {worker}"
    where = origin if packed["where"] is None else f"{packed['where']} ({origin})"
    error: EcglError = kind(packed["what"], where=where, expected=packed["expected"], fix=packed["fix"])
    if kind is EcglError:  # a bug of ours: its trace is on the worker, so it comes with the message
        error.add_note(packed["trace"])
    return error

"""Errors on their way from a worker to the driver: the same kind, words and exit code, with the worker's name."""

from __future__ import annotations

import errno
import inspect
import json

import pytest

from ecgl_scale import errors
from ecgl_scale.engine.cluster.failure import pack_error_text, unpack_error
from ecgl_scale.errors import DoesNotFitError, EcglError, ExitCode, InvalidInputError, StorageError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, EcglError)]


def travelled(error: Exception) -> EcglError:
    packed = json.loads(pack_error_text(error))
    return unpack_error(packed, work="rank.sweep", blocks="block 3", worker="node7-12")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_of_ours_keeps_its_kind_words_and_exit_code(kind: type[EcglError]) -> None:
    given = kind("what", where="/data/x.npz", expected="rows", fix="add some")
    found = travelled(given)
    assert type(found) is kind
    assert found.exit_code == given.exit_code
    assert (found.what, found.expected, found.fix) == ("what", "rows", "add some")
    assert found.where == "/data/x.npz (rank.sweep, block 3, on worker node7-12)"


def test_without_a_place_of_its_own_an_error_names_work_block_and_worker() -> None:
    assert travelled(InvalidInputError("what")).where == "rank.sweep, block 3, on worker node7-12"


@pytest.mark.parametrize(
    ("error", "kind", "is_passing"),
    [
        (OSError(errno.ENOSPC, "full"), StorageError, False),
        (OSError(errno.EIO, "disk"), StorageError, True),
        (OSError(errno.ESTALE, "gone"), StorageError, True),
        (PermissionError(errno.EACCES, "no", "/x"), InvalidInputError, False),
        (MemoryError(), DoesNotFitError, False),
        (ZeroDivisionError("by zero"), EcglError, True),
    ],
)
def test_errors_of_python_become_ours(error: Exception, kind: type[EcglError], is_passing: bool) -> None:
    assert type(travelled(error)) is kind
    assert json.loads(pack_error_text(error))["is_passing"] is is_passing


def test_the_trace_of_a_bug_comes_with_it_and_that_of_a_refusal_does_not() -> None:
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError as error:
        found = travelled(error)
    assert found.exit_code == ExitCode.BUG
    assert found.what == "ZeroDivisionError: by zero"
    assert "test_failure.py" in found.__notes__[0]
    assert not hasattr(travelled(InvalidInputError("what")), "__notes__")


def test_a_worker_cannot_make_the_driver_raise_what_is_no_error_of_ours() -> None:
    packed = {**json.loads(pack_error_text(InvalidInputError("what"))), "kind": "ExitCode"}
    assert type(unpack_error(packed, work="w", blocks="b", worker="x")) is EcglError

"""Every error has its documented exit code, a builtin a caller would catch, and one layout of its message."""

from __future__ import annotations

import inspect

import pytest

from ecgl_scale import errors
from ecgl_scale.errors import EcglError, InvalidInputError, StopRequestedError
from ecgl_scale.store.sources.npy_header import reading

DOCUMENTED: dict[str, tuple[int, type[BaseException]]] = {
    "EcglError": (70, Exception),
    "UsageError": (2, ValueError),
    "InvalidInputError": (3, ValueError),
    "StoreError": (3, Exception),
    "IncompleteStoreError": (3, FileNotFoundError),
    "CorruptStoreError": (3, ValueError),
    "StoreVersionError": (3, ValueError),
    "StoreExistsError": (3, FileExistsError),
    "LockedError": (3, BlockingIOError),
    "DoesNotFitError": (4, MemoryError),
    "StorageError": (5, OSError),
    "ClusterLostError": (75, ConnectionError),
    "StopRequestedError": (75, BaseException),
    "RankLostError": (75, StopRequestedError),
}
CLASSES = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, EcglError | StopRequestedError)
}


def test_every_class_is_documented() -> None:
    assert CLASSES.keys() == DOCUMENTED.keys()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_each_class_has_its_exit_code_and_can_be_caught_as_a_builtin(name: str) -> None:
    code, builtin = DOCUMENTED[name]
    assert CLASSES[name].exit_code == code
    with pytest.raises(builtin, match="what happened"):
        raise CLASSES[name]("what happened", where="here")


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_message_says_what_where_expected_and_fix_in_that_order(name: str) -> None:
    error = CLASSES[name]("the file is short", where="a.npz, row 7", expected="8 rows", fix="fetch it again")
    assert str(error) == "the file is short\n  where: a.npz, row 7\n  expected: 8 rows\n  fix: fetch it again"
    assert (error.what, error.where, error.expected, error.fix) == (
        "the file is short",
        "a.npz, row 7",
        "8 rows",
        "fetch it again",
    )


def test_parts_that_are_not_known_are_left_out() -> None:
    assert str(InvalidInputError("no edges")) == "no edges"
    assert str(InvalidInputError("no edges", fix="add some")) == "no edges\n  fix: add some"


def test_a_request_to_stop_is_taken_for_no_error() -> None:
    """It may come while a file is read: what means damaged input there, any ``Exception``, must not mean a stop."""
    assert not issubclass(StopRequestedError, Exception)
    with pytest.raises(StopRequestedError), reading("x.npz"):
        raise StopRequestedError("stopped by SIGTERM")

"""Every failure a user can meet, each with its exit code; docs/commands.md has its table of codes from here.

A message says what happened, where (path, member, row), what was expected and what to do.
Each class also derives from the built-in error a Python caller would think of catching.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How ``ecgl`` ends; the numbers above 5 are those of sysexits.h and of shells."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """A code that knows what it means."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    DONE = 0, "Done."
    USAGE = 2, "The command line or the config makes no sense. Nothing was written."
    INPUT = 3, "The input, a store or a run is bad, incomplete, corrupt, locked, or already there."
    DOES_NOT_FIT = 4, "It does not fit in memory or on the disk; nothing was left behind."
    STORAGE = 5, "The disk refused: full, quota, I/O error."
    BUG = 70, "A bug of ours; a trace is printed."
    STOPPED = (
        75,
        "Stopped by SIGTERM or SIGUSR2, or a cluster or rank was lost; the same command goes on (`run`: `--resume`).",
    )
    INTERRUPTED = 130, "Ctrl-C."


class _Explained(BaseException):
    """An end that is not a success: what happened, where, what was expected, and what to do."""

    exit_code = ExitCode.BUG

    def __init__(self, what: str, *, where: object = None, expected: str | None = None, fix: str | None = None) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.expected = expected
        self.fix = fix
        super().__init__(self.__str__())

    def __str__(self) -> str:
        lines = [self.what]
        if self.where is not None:
            lines.append(f"  where: {self.where}")
        if self.expected is not None:
            lines.append(f"  expected: {self.expected}")
        if self.fix is not None:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class EcglError(_Explained, Exception):
    """Base of all our errors; raised as such only for our own bugs."""


class UsageError(EcglError, ValueError):
    """The command line, or a function's arguments, make no sense."""

    exit_code = ExitCode.USAGE


class InvalidInputError(EcglError, ValueError):
    """A file given to us is not what it should be."""

    exit_code = ExitCode.INPUT


class StoreError(EcglError):
    """A store cannot be used as it is."""

    exit_code = ExitCode.INPUT


class IncompleteStoreError(StoreError, FileNotFoundError):
    """There is no finished store here: no manifest, or a file it names is missing."""


class CorruptStoreError(StoreError, ValueError):
    """A file differs from what the manifest says of it."""


class StoreVersionError(StoreError, ValueError):
    """The store was written by a version whose format this one does not read."""


class StoreExistsError(StoreError, FileExistsError):
    """The target already exists, and nobody asked to replace it."""


class LockedError(StoreError, BlockingIOError):
    """Another process is writing the same target."""


class DoesNotFitError(EcglError, MemoryError):
    """The plan needs more memory or disk than there is; raised before anything is written."""

    exit_code = ExitCode.DOES_NOT_FIT


class StorageError(EcglError, OSError):
    """The disk refused a read or a write: full, failing, gone."""

    exit_code = ExitCode.STORAGE


class ClusterLostError(EcglError, ConnectionError):
    """The scheduler, or every worker, is gone; what is finished is kept and the work can be resumed."""

    exit_code = ExitCode.STOPPED

    def __init__(self, what: str, *, where: object = None, expected: str | None = None, fix: str | None = None) -> None:
        super().__init__(
            what, where=where, expected=expected, fix=fix or "start the cluster again, then the same command"
        )


class StopRequestedError(_Explained):
    """SIGTERM or SIGUSR2 asked us to stop; what is finished is kept and the work can be resumed.

    As KeyboardInterrupt it is no ``Exception``: it may come anywhere, and what takes errors for damaged input, or for a
    plan that does not fit, must not take a stop for one.
    """

    exit_code = ExitCode.STOPPED


class RankLostError(StopRequestedError):
    """Another process that shares the training has ended, was asked to stop, or does not answer."""

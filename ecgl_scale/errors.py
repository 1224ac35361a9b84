"""Every failure a user can meet, each with its documented exit code (see docs/commands.md).

A message says what happened, where (path, member, row), what was expected and what to do.
Each class also derives from the built-in error a Python caller would think of catching.
"""

from __future__ import annotations


class EcglError(Exception):
    """Base of all our errors; raised as such only for our own bugs."""

    exit_code = 70

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


class UsageError(EcglError, ValueError):
    """The command line, or a function's arguments, make no sense."""

    exit_code = 2


class InvalidInputError(EcglError, ValueError):
    """A file given to us is not what it should be."""

    exit_code = 3


class StoreError(EcglError):
    """A store cannot be used as it is."""

    exit_code = 3


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

    exit_code = 4


class StorageError(EcglError, OSError):
    """The disk refused a read or a write: full, failing, gone."""

    exit_code = 5


class StopRequestedError(EcglError):
    """SIGTERM or SIGUSR2 asked us to stop; what is finished is kept and the work can be resumed."""

    exit_code = 75

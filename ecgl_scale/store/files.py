"""Where the parts of a store get at their files: on a disk, where they are, or by name from elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from ecgl_scale.base.hold import Hold
from ecgl_scale.base.objects.url import AnyPath


class StoreFiles(ABC):
    """The files of a store, or of one folder of it, by their names in the manifest."""

    location: AnyPath
    """What users, errors and descriptions of works call it."""
    directory: Path
    """Where its files are on this machine, or will be."""
    hold: Hold | None = None
    """Keeps the files where they are as long as somebody reads them; None where nobody would take them away."""

    @abstractmethod
    def path(self, name: str) -> Path:
        """The file, there to be opened."""

    @abstractmethod
    def inside(self, folder: str) -> StoreFiles:
        """The files of a folder."""

    @staticmethod
    def of(where: Path | StoreFiles) -> StoreFiles:
        """The files of a directory."""
        return where if isinstance(where, StoreFiles) else LocalFiles(where)


class LocalFiles(StoreFiles):
    """Files that are on this machine."""

    def __init__(self, directory: Path, hold: Hold | None = None) -> None:
        self.location = directory
        self.directory = directory
        self.hold = hold

    def path(self, name: str) -> Path:
        """The file; whether it is there is seen when it is opened."""
        return self.directory / name

    def inside(self, folder: str) -> LocalFiles:
        """The files of a folder."""
        return LocalFiles(self.directory / folder, self.hold)

"""Where a command may put the file it makes: checked before the work, so that no work is in vain and no file lost."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ecgl_scale.base.objects.url import require_directory
from ecgl_scale.errors import InvalidInputError

STORE_MANIFEST = "manifest.json"
STORE_MARK = b'"ecgl-store"'
"""What the manifest of a store says it is; other programs have manifests too, and files may go beside those."""


def check_output_file(path: Path) -> Path:
    """The file to write for ``path``: itself, or what it points to where it is a symbolic link.

    Touches nothing. A file that is there may be replaced; anything else that is there may not, as files are made under
    another name and renamed, which would take the place of a device or a pipe instead of writing to it.

    Raises
    ------
    InvalidInputError
        A directory, something that is no plain file, a place inside a store, or a folder that is not there or may not
        be written to.
    """
    require_directory(path, what="a file to write", fix="write it here, and put it where it belongs afterwards")
    try:
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        found = _mode_of(path)
        _refuse_kind(path, found)
        # The folders as they are, not as they are called: a link may lead into a store.
        folder = Path(os.path.realpath(target.absolute().parent))
        _refuse_folder(path, folder)
        refuse_inside_store(path, folder)
    except OSError as error:  # a name that is too long, a circle of links
        raise _refusal(f"this cannot be a file to write: {error.strerror}", path) from error
    return target


def refuse_inside_store(path: Path, folder: Path | None = None) -> None:
    """Refuse a file or directory to make below a store's: a store with anything more in it can no longer be opened.

    ``folder`` is where ``path`` really is, for those who know it already.
    """
    if folder is None:
        require_directory(path, what="a directory to write", fix="give a path of this machine")
        folder = Path(os.path.realpath(path.absolute().parent))
    for parent in (folder, *folder.parents):
        if _is_store(parent):
            raise InvalidInputError(
                "this would be written into a store",
                where=f"{path}, in the store {parent}",
                expected="a place outside of stores, which nothing may change",
                fix="choose another path",
            )


def _mode_of(path: Path) -> int | None:
    """The mode of what is at ``path``, links followed; None where nothing is there."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _refuse_kind(path: Path, mode: int | None) -> None:
    if not path.name or (mode is not None and stat.S_ISDIR(mode)):
        raise _refusal("the output goes to a file, and this is a directory", path)
    if mode is not None and not stat.S_ISREG(mode):
        raise _refusal("the output would take the place of something that is no plain file", path)


def _refuse_folder(path: Path, folder: Path) -> None:
    if not folder.is_dir():
        raise InvalidInputError(
            "there is no folder for the output",
            where=path,
            expected=f"{folder} to be a folder",
            fix="make it, or choose another path",
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidInputError(
            "the folder of the output may not be written to",
            where=path,
            expected=f"the right to make files in {folder}",
            fix="change its permissions, or choose another path",
        )


def _is_store(folder: Path) -> bool:
    try:
        # Plain files only: a pipe of that name would be waited on for ever.
        manifest = folder / STORE_MANIFEST
        if not manifest.is_file():
            return False
        with manifest.open("rb") as file:  # a store's begins with what it is
            return STORE_MARK in file.read(4096)
    except OSError:  # a folder above that we may not look into: no store of ours
        return False


def _refusal(what: str, path: Path) -> InvalidInputError:
    expected = "a new file, or a plain file that may be replaced"
    return InvalidInputError(what, where=path, expected=expected, fix="choose another path")

"""A model's directory and its versions: which of them counts.

    MODEL/                   a run, a saved model or an update: version 0
    MODEL/versions/0001/     the update of it, a directory as the first is; 0002 the next

A version is complete when its sealed file is there, which is written last. The newest complete one counts; ``MODEL@1``
names another.
"""

from __future__ import annotations

import re
from pathlib import Path

from ecgl_scale.errors import InvalidInputError

SEAL_NAME = "sealed.json"
VERSIONS_NAME = "versions"
FILES_OF_MODELS = (SEAL_NAME, "config.yaml")
_NAMED = re.compile(r"(.+)@(\d{1,9})")
_NUMBER = re.compile(r"\d{4,9}")


def version_directory(given: Path, *, complete: bool = True) -> Path:
    """The directory of the version that is meant: that of ``MODEL@N``, else the newest, by default of complete ones.

    A directory without versions is given back as it is: whoever reads it says what is missing.
    """
    named = _NAMED.fullmatch(str(given))
    if named is not None and not given.exists():
        return _numbered(Path(named[1]), int(named[2]))
    found = [path for path in versions_of(given).values() if not complete or (path / SEAL_NAME).exists()]
    return found[-1] if found else given


def model_of(given: Path) -> Path:
    """The model that a version is of, be it named as ``MODEL@N`` or by its directory; else what was given."""
    named = _NAMED.fullmatch(str(given))
    if named is not None and not given.exists():
        return Path(named[1])
    is_version = given.parent.name == VERSIONS_NAME and _NUMBER.fullmatch(given.name) is not None
    return given.parent.parent if is_version else given


def versions_of(model: Path) -> dict[int, Path]:
    """Directories of a model's later versions by number, ascending, complete or not."""
    inside = model / VERSIONS_NAME
    names = [path.name for path in inside.iterdir()] if inside.is_dir() else []
    numbered = sorted((int(name), name) for name in names if _NUMBER.fullmatch(name))
    return {number: inside / name for number, name in numbered}


def is_model(given: Path) -> bool:
    """Whether a path names a model, or a run: not a store, and nothing that is not there."""
    named = _NAMED.fullmatch(str(given))
    model = Path(named[1]) if named is not None and not given.exists() else given
    return any((path / name).exists() for path in (model, *versions_of(model).values()) for name in FILES_OF_MODELS)


def newest_of(directory: Path) -> Path:
    """The newest complete version of the model that a directory is, or is a version of."""
    return version_directory(model_of(directory))


def next_version(model: Path) -> Path:
    """The directory of the version that comes after the newest complete one, begun or not."""
    complete = [number for number, path in versions_of(model).items() if (path / SEAL_NAME).exists()]
    return model / VERSIONS_NAME / f"{max(complete, default=0) + 1:04d}"


def _numbered(model: Path, number: int) -> Path:
    path = versions_of(model).get(number, model if number == 0 else None)
    if path is None:
        known = ", ".join(str(known) for known in (0, *versions_of(model)))
        raise InvalidInputError(f"the model has no version {number}", where=model, expected=f"one of {known}")
    return path

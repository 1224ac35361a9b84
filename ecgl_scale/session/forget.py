"""``ecgl forget``: a model without some nodes, or without a class, whole or not there.

The new model is made beside its place and gets its name in one rename. Where that place is the model itself it is the
next version: then it counts, and the older ones, which still have the data, are removed; a kill in between leaves some
of them, and doing it again removes them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ecgl_scale.base.durable import fsync_directory, storage_errors
from ecgl_scale.base.events import EventSink, ignore_events
from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.staging import Staging
from ecgl_scale.base.versions import SEAL_NAME, VERSIONS_NAME, model_of, next_version, version_directory, versions_of
from ecgl_scale.engine.journal import read_sealed, write_sealed
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import InvalidInputError, StoreExistsError, UsageError
from ecgl_scale.learn.method.table import method_of
from ecgl_scale.session.basis import KEPT_FOLDERS, SPLIT_NAME, Basis
from ecgl_scale.session.checkpoint import WEIGHTS_DIRECTORY
from ecgl_scale.session.directory import FORGOTTEN_NAME, LOCK_NAME, ORIGIN_NAME, RESULTS_NAME, WORK_NAME
from ecgl_scale.session.forget_files import CARRIED, EVENTS_NAME, ForgettingFiles, Left
from ecgl_scale.session.forget_nodes import Asked
from ecgl_scale.session.learner import BANK_NAME
from ecgl_scale.session.profile import CAPTURE_NAME, PAGE_NAME
from ecgl_scale.session.run_log import LOG_NAME
from ecgl_scale.session.state import STATE_NAME

OWN_NAMES = {
    *CARRIED,
    *KEPT_FOLDERS,
    *(STATE_NAME, SPLIT_NAME, BANK_NAME, RESULTS_NAME, ORIGIN_NAME, FORGOTTEN_NAME, SEAL_NAME, EVENTS_NAME, LOG_NAME),
    *(WEIGHTS_DIRECTORY, WORK_NAME, VERSIONS_NAME, LOCK_NAME, CAPTURE_NAME, PAGE_NAME),
}
"""All that a model's directory may have: what is removed with a version."""


def forget(
    model: Path,
    out: Path,
    asked: Asked,
    *,
    keep_versions: bool = False,
    memory: str | None = None,
    on_event: EventSink = ignore_events,
) -> dict[str, Any]:
    """Write a model without what is asked for to ``out``, and say what left which file and what may still be there.

    Parameters
    ----------
    model
        A finished run, a saved model or an update; of its versions the newest, or ``MODEL@N``.
    out
        A new directory; or the model itself, which then gets another version, and loses the older ones.
    keep_versions
        Keep older versions, which still have the data.

    Raises
    ------
    UsageError
        A class that the model does not know, its last class, or an older version that is to be written into its model.
    InvalidInputError
        A model that is damaged or not finished, an unknown node, or files in the way that are none of the model's.
    LockedError
        Another process is at work on the model.
    """
    basis, root = Basis.open(model), model_of(model)
    is_in_place = out.resolve() in {root.resolve(), basis.directory.resolve()}
    if keep_versions and not is_in_place:
        raise UsageError("--keep-versions is for a model that is written into itself", expected="--out MODEL")
    if is_in_place and basis.directory.resolve() != version_directory(root).resolve():
        raise UsageError(
            "a version is written into its model, and it is not the newest one",
            where=basis.directory,
            expected=f"the newest version of {root}, or another --out",
        )
    gone, about = asked.resolve(basis)
    config = basis.saved.config
    resources = Resources.of(config.memory if memory is None else memory, config.threads, on_event=on_event)
    with _locked(root) if is_in_place else _free_place(out) as others:
        removed = [] if keep_versions else others
        _refuse_other_files(removed)
        target = next_version(root) if is_in_place else out
        with Staging(target, marker=SEAL_NAME) as staging:
            with storage_errors(target):
                left = ForgettingFiles(basis, staging.path, resources, asked.location(basis)).write(gone)
                entry = {**about, **_report(basis, left, has_class=asked.class_name is not None)}
                _note(basis.directory, staging.path, entry)
                basis.seal.seal_again(staging.path)
            staging.commit()
        with storage_errors(root):
            for directory in removed:
                _remove_version(directory)
    kept = [*([] if is_in_place else [basis.directory]), *(others if keep_versions else [])]
    return {"out": str(target), **entry, "elsewhere": _elsewhere(basis, kept), "num_removed_versions": len(removed)}


# --- the place


@contextmanager
def _free_place(out: Path) -> Iterator[list[Path]]:
    """A new directory, or an empty one; no version is in the way."""
    if os.path.lexists(out):
        if not out.is_dir() or any(out.iterdir()):
            raise StoreExistsError(
                "there is something here already", where=out, fix="choose another --out, or the model itself"
            )
        out.rmdir()
    yield []


@contextmanager
def _locked(model: Path) -> Iterator[list[Path]]:
    """The model to ourselves, and the directories of its versions, the newest complete one being the last."""
    with storage_errors(model):
        lock = take_lock(model / LOCK_NAME, target=model)
    try:
        newest = version_directory(model)
        versions = list(versions_of(model).values())
        begun = versions[versions.index(newest) + 1 if newest in versions else 0 :]
        for path in begun:
            os.close(take_lock(path / LOCK_NAME, target=path))
            raise InvalidInputError(
                "an update of the model was begun and is not finished, and has the data too",
                where=path,
                fix="finish it with ecgl update --resume, or remove its directory",
            )
        own = [path for path in model.iterdir() if path.name not in (VERSIONS_NAME, LOCK_NAME)]
        yield [*([model] if own else []), *versions]
    finally:
        os.close(lock)


def _refuse_other_files(directories: Sequence[Path]) -> None:
    """Files that somebody has put beside a model's, such as predictions, may have the data too, and are not ours."""
    for directory in directories:
        for path in sorted(directory.iterdir()):
            if path.name not in OWN_NAMES and not (path.name.startswith(".") and path.name.endswith(".partial")):
                raise InvalidInputError(
                    "this is none of the model's files, and may name nodes that are to be forgotten",
                    where=path,
                    fix="move it out of the model's directory, or remove it",
                )


def _remove_version(directory: Path) -> None:
    """Remove a version, its seal first; the first version shares its directory with all others."""
    (directory / SEAL_NAME).unlink(missing_ok=True)
    fsync_directory(directory)
    if directory.parent.name == VERSIONS_NAME:
        shutil.rmtree(directory)
        return
    for path in directory.iterdir():
        if path.name in (VERSIONS_NAME, LOCK_NAME):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


# --- what is said


def _note(source: Path, target: Path, entry: dict[str, Any]) -> None:
    """Write down what was forgotten, after all that was forgotten before."""
    earlier = read_sealed(source / FORGOTTEN_NAME)["requests"] if (source / FORGOTTEN_NAME).exists() else []
    write_sealed(target / FORGOTTEN_NAME, {"requests": [*earlier, entry]})


def _report(basis: Basis, left: Left, *, has_class: bool) -> dict[str, Any]:
    """What left which file, and what may still be there; no node is named."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "num_known": left.num_known,
        "rows": left.rows,
        "exact": left.is_exact,
        "carries": list(_carries(basis, left, has_class=has_class)),
    }


def _carries(basis: Basis, left: Left, *, has_class: bool) -> Iterator[str]:
    config, method = basis.saved.config, method_of(basis.saved.config)
    if left.is_exact:
        yield "What was learned is a sum over rows, from which theirs were taken away: nothing of them is left in it."
    elif left.num_known:
        yield "The weights were trained on them, and may still carry what was learned from them."
        if left.has_state:
            yield f"So may what the method {method.name} keeps besides its rows ({method.stores})."
    if has_class:
        yield "The outputs of the class are zero, and it is never predicted until nodes of it are learned again."
    if left.num_known and config.learn.scale == "standard":
        yield "Features are scaled by means and deviations of the first task's training nodes, as they were then."
    if left.num_known:
        yield "Accuracies and losses of the past have counted them."


def _elsewhere(basis: Basis, kept: Sequence[Path]) -> list[str]:
    """Where the data still is, as far as we know."""
    config = basis.saved.config
    found = [f"{path} is as it was, and still has them." for path in kept]
    if config.cache is not None:
        found.append(f"Task graphs in the cache {config.cache} may have their rows: remove it.")
    found.append(
        f"The store {config.store} may still have them: ecgl drop, then ecgl compact. Else they can be learned again."
    )
    return found

"""``ecgl update``: a finished model learns one more task, of nodes that have come since."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ecgl_scale.base.events import EventSink, ignore_events
from ecgl_scale.base.versions import next_version, versions_of
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.session.basis import Basis
from ecgl_scale.session.run import run


def open_update(
    model: Path, store: object, out: Path, *, where: str | None = None, overrides: Sequence[str] = ()
) -> tuple[Basis, RunConfig, Path]:
    """What an update begins from, its config, and its own directory: where ``out`` is the model, its next version."""
    basis = Basis.open(model, where)
    config = basis.config_for(store, list(overrides))
    own = {path.resolve() for path in (model, basis.directory)}
    target = next_version(out) if out.resolve() in own or versions_of(out) else out
    return basis, config, target


def update(
    model: Path,
    store: object,
    out: Path,
    *,
    where: str | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    on_event: EventSink = ignore_events,
) -> dict[str, Any]:
    """Learn one more task on top of a model, into ``out``; returns what ``results.json`` holds.

    Parameters
    ----------
    model
        A finished run, a saved model or an earlier update.
    store
        The model's store, which may have grown.
    where
        A condition that chooses among nodes which are in no task yet. Without: the nodes that the model has not seen.
    overrides
        Keys of the config that change no result, as in ``memory=4GiB``.

    Raises
    ------
    UsageError
        Another setting, or new classes for a head that cannot grow. Nothing has been written.
    InvalidInputError
        A model that is damaged or not finished, another store, or nothing to learn. Nothing has been written.
    """
    basis, config, target = open_update(model, store, out, where=where, overrides=overrides)
    return run(config, target, resume=resume, on_event=on_event, basis=basis)

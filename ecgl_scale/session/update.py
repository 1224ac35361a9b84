"""``ecgl update``: a finished model learns one more task, of nodes that have come since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecgl_scale.base.events import EventSink, ignore_events
from ecgl_scale.base.versions import next_version, versions_of
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.session.basis import Basis
from ecgl_scale.session.directory import read_results
from ecgl_scale.session.run import run
from ecgl_scale.session.setup import open_store


@dataclass(frozen=True, eq=False)
class Update:
    """An update that may begin: what from, with which config, and where to."""

    basis: Basis
    config: RunConfig
    target: Path
    """Its own directory: where the model itself was asked to be updated, that of its next version."""

    @classmethod
    def open(
        cls, model: Path, store: object, out: Path, *, where: str | None = None, overrides: Sequence[str] = ()
    ) -> Update:
        """Open the model and find out where the update goes; nothing is written."""
        basis = Basis.open(model, where)
        config = basis.config_for(store, list(overrides))
        own = {path.resolve() for path in (model, basis.directory)}
        target = next_version(out) if out.resolve() in own or versions_of(out) else out
        return cls(basis, config, target)

    def done_before(self) -> dict[str, Any] | None:
        """The results of the model itself, where it is this very update of a store that has not changed since.

        So a command that is repeated with ``--resume`` after it has finished does nothing, wherever it was to write.
        """
        if self.target.exists() or not self.basis.is_update_by(self.basis.asked):
            return None
        is_same = open_store(self.config).identity == self.basis.seal.store_identity
        return read_results(self.basis.directory) if is_same else None


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
    job = Update.open(model, store, out, where=where, overrides=overrides)
    done = job.done_before() if resume else None
    return done or run(job.config, job.target, resume=resume, on_event=on_event, basis=job.basis)

"""Finished blocks of an inference on disk, so that a killed one goes on where it was.

The note says which step was under way and which of its blocks, and of those it reads, are finished, with what
``Matrices.restore`` must know of their rows. It is replaced after the rows are in their files, and files that it no
longer names go after that.

A note writes whole matrices, hundreds of bytes a node: what takes a second to compute takes about as long to write.
So it comes after ten seconds of work, not after one as others do. A kill costs that much; an inference that is shorter,
such as most tests of tasks, writes nothing; and of a long one the layers that nobody reads any more are not written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.journal import Journal
from ecgl_scale.engine.work import Json
from ecgl_scale.infer.layout import Layout
from ecgl_scale.infer.matrices import Crcs, Matrices

VERSION = 2
PATIENCE = 10.0


@dataclass(frozen=True)
class Finished:
    """What an earlier call left."""

    layout: Layout
    step: int
    """The one that was under way."""
    crcs: dict[int, Crcs]
    """By step, those of the finished blocks: of that step, and of the ones it reads."""


class StepJournal:
    """Notes of one inference in ``directory``; ``identity`` says which."""

    def __init__(self, directory: Path, identity: dict[str, Json]) -> None:
        self._journal = Journal(directory, {**identity, "version": VERSION}, patience=PATIENCE)
        self._crcs: dict[int, Crcs] = {}
        self._unsaved: dict[int, list[Block]] = {}
        self._step = -1

    def load(self) -> Finished | None:
        """Where an earlier call of this very inference was; None where there was none, or its note is damaged."""
        entry = self._journal.load()
        try:
            return None if entry is None else _read(entry)
        except (LookupError, TypeError, ValueError, AttributeError):
            return None

    def begin(self, step: int, saved: Crcs) -> None:
        """A step starts, or goes on after those blocks that are ``saved``."""
        self._step = step
        self._crcs[step], self._unsaved[step] = dict(saved), []

    def finish(self, block: Block, layout: Layout, matrices: Matrices) -> None:
        """Note a finished block of the step, and write what is finished where enough time has passed."""
        self._unsaved[self._step].append(block)
        if self._journal.is_due:
            self._save(layout, matrices)

    def drop(self, *, but: set[int]) -> None:
        """Nobody will read the other steps' matrices any more."""
        for step in set(self._crcs) - but:
            del self._crcs[step], self._unsaved[step]

    def _save(self, layout: Layout, matrices: Matrices) -> None:
        for step, blocks in self._unsaved.items():
            if blocks:
                self._crcs[step] |= matrices.save(step, blocks)
                self._unsaved[step] = []
        self._journal.save({"layout": layout.to_json(), "step": self._step, "crcs": self._crcs})
        matrices.remove_files(but=set(self._crcs))

    def clear(self) -> None:
        """The inference is done, or begins anew."""
        self._journal.clear()


def _read(entry: dict[str, Json]) -> Finished:
    crcs = {int(step): {int(index): int(crc) for index, crc in found.items()} for step, found in entry["crcs"].items()}
    return Finished(Layout.from_json(entry["layout"]), int(entry["step"]), crcs)

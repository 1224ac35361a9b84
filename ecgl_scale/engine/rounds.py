"""Rows that every round of a stage makes anew from those of the round before: ranks after a sweep, sums of columns.

In memory as many arrays as are needed at once take turns, or one that blocks change in place. In files every round has
a directory of its own, so that a block that is done twice finds what it began with; the driver forgets old rounds.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ecgl_scale.engine.place import FilePlace, HeldPlace, Place, make_place, open_place
from ecgl_scale.engine.work import Json

if TYPE_CHECKING:
    from ecgl_scale.engine.resources import Resources


class Rounds(Protocol):
    """A place for the rows of each round."""

    def at(self, number: int) -> Place:
        """The rows of one round."""
        ...

    def forget(self, number: int) -> None:
        """Nobody will read the rows of this round again."""
        ...

    def describe(self) -> Json:
        """So that ``open_rounds`` finds them in another process."""
        ...


@dataclass(frozen=True, eq=False)
class HeldRounds:
    """Arrays that take turns."""

    places: tuple[HeldPlace, ...]

    def at(self, number: int) -> HeldPlace:
        """The array whose turn it is."""
        return self.places[number % len(self.places)]

    def forget(self, number: int) -> None:
        """The array is used again."""

    def describe(self) -> Json:
        """As little as a place in memory can it be described."""
        return self.places[0].describe()


@dataclass(frozen=True)
class FileRounds:
    """A directory for each round."""

    first: FilePlace
    """Round 0; the others are beside it."""

    def at(self, number: int) -> FilePlace:
        """The directory of this number."""
        return replace(self.first, directory=self.first.directory.with_name(str(number)))

    def forget(self, number: int) -> None:
        """Remove its files."""
        shutil.rmtree(self.at(number).directory, ignore_errors=True)

    def describe(self) -> Json:
        """That of the first."""
        return self.first.describe()


def open_rounds(description: Json) -> FileRounds:
    """Rounds in files that another process has described."""
    return FileRounds(open_place(description))


def make_rounds(resources: Resources, name: str, cuts: Sequence[int], dtype: str, *, in_memory: int) -> Rounds:
    """Rounds of rows that are cut at ``cuts``: in files, or as so many arrays where the executor shares memory."""
    made = [make_place(resources, str(Path(name) / "0"), cuts, dtype)]
    if isinstance(made[0], FilePlace):
        return FileRounds(made[0])
    made += [make_place(resources, name, cuts, dtype) for _ in range(in_memory - 1)]
    return HeldRounds(tuple(place for place in made if isinstance(place, HeldPlace)))

"""How far a run has come: one small JSON file that is replaced as a whole, and names the files that belong to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ecgl_scale.base.signals import uninterrupted
from ecgl_scale.engine.clock import StageRecord
from ecgl_scale.engine.journal import read_sealed, write_sealed
from ecgl_scale.errors import EcglError, InvalidInputError
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.tasks.metrics import Accuracy

STATE_NAME = "state.json"
STATE_VERSION = 1
MATRICES = ("macro", "micro", "macro_seen", "micro_seen")
Rows = tuple[tuple[float, ...], ...]

Step = Literal["train", "remember", "evaluate"]


@dataclass(frozen=True)
class RunState:
    """The next thing to do is ``step`` of ``task``, from ``epoch`` on."""

    digest: str
    """A digest of the config's keys that change results."""
    store_id: str
    split_hash: str
    task: int = 0
    step: Step = "train"
    epoch: int = 0
    checkpoint: str | None = None
    """Weights and optimizer after the last finished epoch; None before the first."""
    checkpoint_place: str = ""
    """What the checkpoint says of itself: a file of another moment is refused."""
    macro: Rows = ()
    """Rows of the performance matrix, percent; the last may be unfinished."""
    micro: Rows = ()
    macro_seen: Rows = ()
    """Rows of the matrix on the whole graph seen so far, where tests are made there too."""
    micro_seen: Rows = ()
    losses: Rows = ()
    """Loss of each epoch of each task."""
    stages: dict[str, StageRecord] = field(default_factory=dict)
    generation: int = 0
    """The generation of the store that the run has begun with, and stays with."""
    new_from: int = 0
    """Nodes from this id on are new to the model."""
    is_finished: bool = False
    stopped: str = ""
    """What asked the last process to stop, for scripts that have lost its exit code; empty while one is at work."""

    @classmethod
    def of(cls, setup: RunSetup) -> RunState:
        """The state of a run that is about to begin."""
        graph = setup.graph
        return cls(
            setup.config.digest(),
            graph.short_identity,
            setup.stream.split_hash,
            generation=graph.generation,
            new_from=graph.num_nodes,
        )

    @property
    def macro_rows(self) -> tuple[Rows, Rows]:
        """Rows of the first and of the second scope's matrix."""
        return self.macro, self.macro_seen

    @property
    def micro_rows(self) -> tuple[Rows, Rows]:
        """Rows of both, of the share of all nodes that is right."""
        return self.micro, self.micro_seen

    def row(self, task: int, *, is_seen: bool) -> tuple[Accuracy, ...]:
        """What was measured after a task so far, of one scope."""
        known = (rows[is_seen][task : task + 1] for rows in (self.macro_rows, self.micro_rows))
        pairs = zip(*(sum(rows, ()) for rows in known), strict=True)
        return tuple(Accuracy(*pair) for pair in pairs)

    def with_row(self, task: int, row: Sequence[Accuracy], *, is_seen: bool) -> RunState:
        """The state with what was measured after a task, of one scope; earlier tasks without a row have none."""
        rows: dict[str, Any] = {}
        for kind in ("macro", "micro"):
            name = f"{kind}_seen" if is_seen else kind
            values = tuple(getattr(accuracy, kind) for accuracy in row)
            rows[name] = (*padded_rows(getattr(self, name), task), values)
        return replace(self, **rows)

    def write(self, directory: Path) -> None:
        """Replace the state of a run directory."""
        write_sealed(directory / STATE_NAME, {"version": STATE_VERSION, **asdict(self)})

    @classmethod
    def read(cls, directory: Path) -> RunState | None:
        """The state of a run directory; None where there is none."""
        path = directory / STATE_NAME
        try:
            return cls._from_json(read_sealed(path))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InvalidInputError(
                f"the state of the run cannot be read: {error}",
                where=path,
                fix="start the run anew in another directory",
            ) from error

    @classmethod
    def note_stop(cls, directory: Path, reason: str) -> None:
        """Say in a run directory that its run was stopped and can go on; the rest stays as it was written last."""
        with suppress(EcglError), uninterrupted():  # a second signal often follows the first
            state = cls.read(directory)
            if state is not None:
                replace(state, stopped=reason).write(directory)

    @classmethod
    def _from_json(cls, found: dict[str, Any]) -> RunState:
        if found.pop("version", None) != STATE_VERSION:
            raise ValueError("it was written by another version")
        for name in (*MATRICES, "losses"):
            found[name] = tuple(tuple(row) for row in found.get(name, ()))
        found["stages"] = {name: StageRecord(**record) for name, record in found["stages"].items()}
        return cls(**found)


def padded_rows(rows: Rows, num_tasks: int) -> Rows:
    """Rows of a performance matrix; those of tasks after which nobody has tested have no values."""
    known = rows[:num_tasks]
    return (*known, *((math.nan,) * (task + 1) for task in range(len(known), num_tasks)))

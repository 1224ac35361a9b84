"""How far a run has come: one small JSON file that is replaced as a whole, and names the files that belong to it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ecgl_scale.base.signals import uninterrupted
from ecgl_scale.engine.clock import StageRecord
from ecgl_scale.engine.journal import read_sealed, write_sealed
from ecgl_scale.errors import EcglError, InvalidInputError
from ecgl_scale.session.setup import RunSetup

STATE_NAME = "state.json"
STATE_VERSION = 1

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
    macro: tuple[tuple[float, ...], ...] = ()
    """Rows of the performance matrix, percent; the last may be unfinished."""
    micro: tuple[tuple[float, ...], ...] = ()
    losses: tuple[tuple[float, ...], ...] = ()
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
        for name in ("macro", "micro", "losses"):
            found[name] = tuple(tuple(row) for row in found[name])
        found["stages"] = {name: StageRecord(**record) for name, record in found["stages"].items()}
        return cls(**found)

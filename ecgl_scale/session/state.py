"""How far a run has come: one small JSON file that is replaced as a whole, and names the files that belong to it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ecgl_scale.base.durable import crc32c_of, write_atomically
from ecgl_scale.errors import InvalidInputError

STATE_NAME = "state.json"
STATE_VERSION = 1

Step = Literal["train", "remember", "evaluate"]


@dataclass(frozen=True)
class StageRecord:
    """What all of a stage's turns have taken so far, those before a resumption included."""

    seconds: float = 0.0
    peak_bytes: int = 0
    planned_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def add(self, *, seconds: float, peak_bytes: int, read_bytes: int, written_bytes: int) -> StageRecord:
        """One more turn."""
        return replace(
            self,
            seconds=self.seconds + seconds,
            peak_bytes=max(self.peak_bytes, peak_bytes),
            read_bytes=self.read_bytes + read_bytes,
            written_bytes=self.written_bytes + written_bytes,
        )


@dataclass(frozen=True)
class RunState:
    """The next thing to do is ``step`` of ``task``, from ``epoch`` on."""

    digest: str
    """Of the config's keys that change results."""
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
    is_finished: bool = False

    def write(self, directory: Path) -> None:
        """Replace the state of a run directory."""
        entry = {"version": STATE_VERSION, **asdict(self)}
        write_atomically(directory / STATE_NAME, json.dumps({**entry, "check": _check_of(entry)}, indent=1))

    @classmethod
    def read(cls, directory: Path) -> RunState | None:
        """The state of a run directory; None where there is none."""
        path = directory / STATE_NAME
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return cls._from_json(found)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InvalidInputError(
                f"the state of the run cannot be read: {error}",
                where=path,
                fix="start the run anew in another directory",
            ) from error

    @classmethod
    def _from_json(cls, found: dict[str, Any]) -> RunState:
        check = found.pop("check", None)
        if found.get("version") != STATE_VERSION:
            raise ValueError("it was written by another version")
        if check != _check_of(found):
            raise ValueError("it differs from what was written")
        del found["version"]
        for name in ("macro", "micro", "losses"):
            found[name] = tuple(tuple(row) for row in found[name])
        found["stages"] = {name: StageRecord(**record) for name, record in found["stages"].items()}
        return cls(**found)


def _check_of(entry: dict[str, Any]) -> str:
    return f"{crc32c_of(json.dumps(entry, sort_keys=True).encode()):08x}"

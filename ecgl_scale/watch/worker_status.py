"""What each worker of a run does and has done, from the run's ``workers.json``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ecgl_scale.report.files import read_object

SILENT_SECONDS = 30.0
"""Workers give a sign of life every few seconds, also while they work; one that does not for so long may be lost."""


@dataclass(frozen=True)
class WorkerStatus:
    """What is known of one worker."""

    name: str
    host: str
    pid: int
    work: str
    """The last kind of work that it was given."""
    is_busy: bool
    """Whether it has been given blocks that are not done yet."""
    num_blocks: int
    num_blocks_again: int
    """Blocks that it did after they had failed, or were lost, elsewhere."""
    busy_seconds: float
    peak_bytes: int
    memory_bytes: int
    """What it may use; 0 where that is not known."""
    heard_seconds: float
    """The seconds since it was last heard of."""
    is_silent: bool
    """Whether it should be at work and was not heard of for ``SILENT_SECONDS``."""


def read_workers(run: Path, *, now: float, is_running: bool) -> tuple[WorkerStatus, ...]:
    """The workers of a run; none where it has none, or its table cannot be read."""
    workers = read_object(run / "workers.json").get("workers", {})
    try:
        return tuple(_status(name, entry, now, is_running) for name, entry in workers.items())
    except (AttributeError, LookupError, TypeError, ValueError):
        return ()


def _status(name: str, entry: dict[str, object], now: float, is_running: bool) -> WorkerStatus:
    numbers = {key: float(str(entry[key])) for key in ("heard", "seconds")}
    counts = {key: int(str(entry[key])) for key in ("pid", "num_blocks", "num_blocks_again")}
    sizes = {key: int(str(entry[key])) for key in ("peak_bytes", "memory_bytes")}
    heard_seconds = max(now - numbers["heard"], 0.0)
    is_busy = is_running and entry["since"] is not None
    return WorkerStatus(
        name=name,
        host=str(entry["host"]),
        work=str(entry["work"]),
        is_busy=is_busy,
        busy_seconds=numbers["seconds"],
        heard_seconds=heard_seconds,
        is_silent=is_busy and heard_seconds > SILENT_SECONDS,
        **counts,
        **sizes,
    )

"""``workers.json``: what each worker of a run has done and took, and when it was last heard of; for ``ecgl status``.

The file is replaced at most every two seconds, and at the end. A process that resumes a run counts on from what is in
it. A table that cannot be written stops no run. A run without workers has none.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ecgl_scale.base.durable import write_atomically
from ecgl_scale.base.events import (
    Event,
    EventSink,
    StepStarted,
    WorkerJoined,
    WorkerReported,
    WorkersHeard,
    WorkerStarted,
    ignore_events,
)
from ecgl_scale.errors import EcglError

WORKERS_NAME = "workers.json"
WRITE_SECONDS = 2.0
TAKEN = ("num_blocks", "num_blocks_again", "seconds", "peak_bytes", "read_bytes", "written_bytes")
"""What results say of a worker, besides who it is."""


@dataclass(frozen=True)
class WorkerEntry:
    """What is known of one worker; all that it has done is of the whole run."""

    host: str = ""
    pid: int = 0
    threads: int = 0
    memory_bytes: int = 0
    """What it may use; 0 where it joined later and nobody asked."""
    work: str = ""
    """The last kind of work that it was given."""
    since: float | None = None
    """When it was given the blocks that it works on; None where it has none."""
    heard: float = 0.0
    """When it last gave a sign of life, in seconds since 1970."""
    num_blocks: int = 0
    num_blocks_again: int = 0
    """Blocks that it did after they had failed, or were lost, elsewhere."""
    seconds: float = 0.0
    """The seconds that it was busy."""
    peak_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def with_report(self, event: WorkerReported, now: float) -> WorkerEntry:
        """The entry after some blocks more."""
        return replace(
            self,
            work=event.work,
            since=None,
            heard=now,
            num_blocks=self.num_blocks + event.num_blocks,
            num_blocks_again=self.num_blocks_again + (event.num_blocks if event.tries > 1 else 0),
            seconds=self.seconds + event.seconds,
            peak_bytes=max(self.peak_bytes, event.peak_bytes),
            read_bytes=self.read_bytes + event.read_bytes,
            written_bytes=self.written_bytes + event.written_bytes,
        )


class WorkerTable:
    """Follows the events of a run, keeps the file, and passes the events on. Thread-safe."""

    def __init__(self, path: Path, then: EventSink = ignore_events, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._then = then
        self._now = now
        self._lock = threading.Lock()
        self._entries = _read(path)
        self._written_at = 0.0

    def __call__(self, event: Event) -> None:
        """Take in an event and pass it on."""
        with self._lock:
            if self._take_in(event) and self._now() - self._written_at >= WRITE_SECONDS:
                self._write()
        self._then(event)

    def results(self) -> dict[str, Any]:
        """What ``results.json`` says of workers; nothing where there were none."""
        if not self._entries:
            return {}
        keys = ("host", "threads", "memory_bytes", *TAKEN)
        return {"workers": {name: {key: getattr(entry, key) for key in keys} for name, entry in self._entries.items()}}

    def close(self) -> None:
        """Write the table for the last time: nobody is at work any more."""
        with self._lock:
            if self._entries:
                self._rest()
                self._write()

    def _take_in(self, event: Event) -> bool:
        now = self._now()
        if isinstance(event, WorkerJoined):
            about = {name: value for name, value in asdict(event).items() if name != "worker"}
            self._entries[event.worker] = replace(self._of(event.worker), **about, heard=now)
        elif isinstance(event, WorkerStarted):
            self._entries[event.worker] = replace(self._of(event.worker), work=event.work, since=now)
        elif isinstance(event, WorkerReported):
            self._entries[event.worker] = self._of(event.worker).with_report(event, now)
        elif isinstance(event, WorkersHeard):
            for name, heard in event.heard.items():
                entry = self._of(name)
                self._entries[name] = replace(entry, heard=max(entry.heard, heard))
        elif isinstance(event, StepStarted) and self._entries:
            self._rest()
        else:
            return False
        return True

    def _of(self, name: str) -> WorkerEntry:
        return self._entries.get(name, WorkerEntry())

    def _rest(self) -> None:
        self._entries = {name: replace(entry, since=None) for name, entry in self._entries.items()}

    def _write(self) -> None:
        self._written_at = self._now()
        workers = {name: asdict(entry) for name, entry in sorted(self._entries.items())}
        with suppress(OSError, EcglError):
            write_atomically(self._path, json.dumps({"version": 1, "workers": workers}, indent=1) + "\n")


def _read(path: Path) -> dict[str, WorkerEntry]:
    """The entries of an earlier process of the run; none where they cannot be read."""
    known = {field.name for field in fields(WorkerEntry)}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["workers"]
        entries = {name: WorkerEntry(**{key: entry[key] for key in known}) for name, entry in found.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    return {name: replace(entry, since=None) for name, entry in entries.items()}

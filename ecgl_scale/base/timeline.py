"""Memory over time: ``memory.jsonl``, written while a run goes and tied to its steps through its events.

A line a tenth of a second, with the highest memory since the line before. When there are ``MAX_LINES`` of them, pairs
are joined and lines come half as often, so the file stays below 2 MB however long the run is. A process that resumes
a run appends after a line of its own; counters start from zero there.
Memory: the lines in the file, once, while pairs are joined. A sample takes about 0.2 ms.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from ecgl_scale.base.durable import write_atomically
from ecgl_scale.base.events import Event, EventSink, Note, StageStarted, StepStarted, ignore_events
from ecgl_scale.base.memory import PeakSampler
from ecgl_scale.errors import EcglError

TIMELINE_NAME = "memory.jsonl"
TIMELINE_VERSION = 1
MAX_LINES = 8192
SAMPLE_SECONDS = 0.1

_STATUS = {"RssAnon:": "anon_bytes", "RssFile:": "file_bytes", "RssShmem:": "shmem_bytes"}
_HIGHEST = ("anon_bytes", "file_bytes", "shmem_bytes", "device_bytes")


@dataclass(frozen=True)
class MemorySample:
    """One line of the file. Bytes and faults are of this process; counters count from its start."""

    time: float
    """Seconds since 1970."""
    stage: str
    """The step of the run: extract, train, remember, evaluate; empty between them."""
    part: str
    """The stage that was last begun within that step."""
    anon_bytes: int = 0
    """RssAnon; with ``shmem_bytes`` what a plan counts."""
    file_bytes: int = 0
    """RssFile: mapped files, which the kernel may take back at any time."""
    shmem_bytes: int = 0
    minor_faults: int = 0
    major_faults: int = 0
    """Pages that had to come from the disk."""
    read_bytes: int = 0
    written_bytes: int = 0
    device_bytes: int = 0
    """What torch has allocated on all GPUs; 0 where there are none."""

    def joined(self, later: MemorySample) -> MemorySample:
        """One sample for two: the later one's time and counters, the higher memory of both."""
        return replace(later, **{name: max(getattr(self, name), getattr(later, name)) for name in _HIGHEST})


class MemoryTimeline:
    """Samples from ``__enter__`` to ``__exit__``, called by the sampler, and passes on the events it is given."""

    def __init__(
        self,
        path: Path,
        sampler: PeakSampler,
        then: EventSink = ignore_events,
        *,
        sample_seconds: float = SAMPLE_SECONDS,
    ) -> None:
        self._path = path
        self._sampler = sampler
        self._then = then
        self._sample_seconds = sample_seconds
        self._line_seconds = sample_seconds
        self._stage = self._part = ""
        self._pending: MemorySample | None = None
        self._num_lines = 0
        self._last_line = 0.0
        self._file: TextIO | None = None
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Note where the run is, and pass the event on."""
        if isinstance(event, StepStarted):
            self._sample(is_last=True)
            self._stage, self._part = event.step, ""
            self._sample(is_last=True)
        elif isinstance(event, StageStarted):
            self._part = event.stage
        self._then(event)

    def __enter__(self) -> MemoryTimeline:
        try:
            self._open()
        except (OSError, EcglError) as error:
            self._give_up(error)
        self._sampler.call_every(self._sample_seconds, self._sample)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sampler.call_every(self._sample_seconds, None)
        self._sample(is_last=True)
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _open(self) -> None:
        lines = _lines(self._path)
        self._num_lines = len(lines)
        for line in lines:
            self._line_seconds = max(self._line_seconds, line.get("line_seconds", 0.0))
        if lines:  # the last line of a killed process may lack its end
            write_atomically(self._path, _text(lines))
        self._file = self._path.open("a", encoding="utf-8", buffering=1)
        self._write(
            {
                "version": TIMELINE_VERSION,
                "started": round(time.time(), 3),
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "line_seconds": self._line_seconds,
            }
        )

    def _sample(self, *, is_last: bool = False) -> None:
        sample = take_sample(self._stage, self._part)
        with self._lock:
            if self._file is None:
                return
            self._pending = sample if self._pending is None else self._pending.joined(sample)
            if is_last or sample.time - self._last_line >= 0.9 * self._line_seconds:  # waits are never exact
                line, self._pending, self._last_line = self._pending, None, sample.time
                try:
                    self._write(asdict(line))
                    if self._num_lines >= MAX_LINES:
                        self._thin()
                except (OSError, EcglError) as error:
                    self._give_up(error)

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._num_lines += 1

    def _thin(self) -> None:
        if self._file is not None:
            self._file.close()
        self._line_seconds *= 2
        lines = join_pairs(_lines(self._path))
        if len(lines) > 3 * MAX_LINES // 4:  # thousands of steps of a line or two each
            lines = join_pairs(lines, across_stages=True)
        lines[0]["line_seconds"] = self._line_seconds
        write_atomically(self._path, _text(lines))
        self._file = self._path.open("a", encoding="utf-8", buffering=1)
        self._num_lines = len(lines)

    def _give_up(self, error: Exception) -> None:
        """Write no more: a full disk must not end the run for a picture of it; what needs the disk will say so."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
        self._then(Note(f"no more memory samples, {self._path} cannot be written: {error}"))


def take_sample(stage: str, part: str) -> MemorySample:
    """What this process holds and has done so far; zeros where the kernel does not say."""
    memory = dict.fromkeys(_STATUS.values(), 0)
    for line in _proc("status"):
        name, _, rest = line.partition("\t")
        if name in _STATUS:
            memory[_STATUS[name]] = int(rest.split()[0]) * 1024
    disk = dict(line.split(": ", 1) for line in _proc("io"))
    # the name in brackets may hold spaces: minor faults are the 8th field after it, major ones the 10th
    fields = "".join(_proc("stat")).rpartition(")")[2].split()
    return MemorySample(
        round(time.time(), 3),
        stage,
        part,
        minor_faults=int(fields[7]) if fields else 0,
        major_faults=int(fields[9]) if fields else 0,
        read_bytes=int(disk.get("read_bytes", 0)),
        written_bytes=int(disk.get("write_bytes", 0)),
        device_bytes=_device_bytes(),
        **memory,
    )


def join_pairs(lines: list[dict[str, Any]], *, across_stages: bool = False) -> list[dict[str, Any]]:
    """Join every two neighbouring samples of one process; those of two stages only with ``across_stages``."""
    joined: list[dict[str, Any]] = []
    previous: dict[str, Any] | None = None
    for line in lines:
        is_pair = previous is not None and "stage" in line and (across_stages or line["stage"] == previous["stage"])
        if previous is not None and is_pair:
            joined[-1] = asdict(MemorySample(**previous).joined(MemorySample(**line)))
            previous = None
        else:
            joined.append(line)
            previous = line if "stage" in line else None
    return joined


def _device_bytes() -> int:
    torch = sys.modules.get("torch")  # never imported for this: without it there is no device memory of ours
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return sum(int(cuda.memory_allocated(device)) for device in range(cuda.device_count()))


def _proc(name: str) -> list[str]:
    try:
        return Path("/proc/self", name).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of the file; a torn one is left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    found = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and ("stage" in entry or "version" in entry):
            found.append(entry)
    return found


def _text(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)

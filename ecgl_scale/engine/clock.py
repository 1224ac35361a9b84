"""What each stage of a job takes: seconds, peak memory, bytes to and from the disk. One clock for every command."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ecgl_scale.base.events import EventSink, StageFinished, StepStarted, ignore_events
from ecgl_scale.base.memory import PeakSampler, give_back_freed


@dataclass(frozen=True)
class StageRecord:
    """What all turns of a stage have taken so far, those before a resumption included."""

    seconds: float = 0.0
    peak_bytes: int = 0
    planned_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def add(self, *, seconds: float, peak_bytes: int, read_bytes: int, written_bytes: int) -> StageRecord:
        """The record with one more turn of the stage."""
        return replace(
            self,
            seconds=self.seconds + seconds,
            peak_bytes=max(self.peak_bytes, peak_bytes),
            read_bytes=self.read_bytes + read_bytes,
            written_bytes=self.written_bytes + written_bytes,
        )


class StageClock:
    """Adds up the turns of every stage; the stages of a job follow each other."""

    def __init__(
        self,
        sampler: PeakSampler,
        on_event: EventSink = ignore_events,
        *,
        records: Mapping[str, StageRecord] | None = None,
    ) -> None:
        self.records = dict(records or {})
        self._sampler = sampler
        self._on_event = on_event

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each stage."""
        return {name: record.seconds for name, record in self.records.items()}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what happens inside, also where it fails, and say when it ends."""
        self._sampler.restart()
        started, (read_before, written_before) = time.perf_counter(), disk_bytes()
        try:
            yield
        finally:
            read, written = disk_bytes()
            seconds, peak_bytes = time.perf_counter() - started, self._sampler.restart()
            self.records[name] = self.records.get(name, StageRecord()).add(
                seconds=seconds,
                peak_bytes=peak_bytes,
                read_bytes=read - read_before,
                written_bytes=written - written_before,
            )
            self._on_event(StageFinished(name, seconds, peak_bytes))

    @contextmanager
    def step(self, name: str, planned_bytes: int) -> Iterator[None]:
        """A stage that the plan of a run speaks of: it is announced, and begins without what the last one freed."""
        self._on_event(StepStarted(name, planned_bytes))
        give_back_freed()
        with self.stage(name):
            yield


def disk_bytes() -> tuple[int, int]:
    """Bytes this process has made the disk read and write; zeros where the kernel does not say."""
    found = {"read_bytes": 0, "write_bytes": 0}
    try:
        for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(": ")
            if name in found:
                found[name] = int(value)
    except OSError:
        pass
    return found["read_bytes"], found["write_bytes"]

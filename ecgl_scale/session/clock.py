"""What each stage of a run takes: seconds, peak memory, bytes to and from the disk."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ecgl_scale.base.events import EventSink, StageFinished, StepStarted
from ecgl_scale.base.memory import PeakSampler, give_back_freed
from ecgl_scale.session.state import StageRecord


class StageClock:
    """Adds up the turns of every stage; stages of one process follow each other."""

    def __init__(
        self,
        records: dict[str, StageRecord],
        sampler: PeakSampler,
        on_event: EventSink,
        planned_bytes: Mapping[str, int],
    ) -> None:
        self.records = dict(records)
        self._planned_bytes = planned_bytes
        self._sampler = sampler
        self._on_event = on_event

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time what happens inside, also where it fails; what it has freed is not the next one's."""
        self._on_event(StepStarted(name, self._planned_bytes.get(name, 0)))
        give_back_freed()
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

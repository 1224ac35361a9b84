"""How far one stage of a run is, from the events it has written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class StageProgress:
    """A stage that has begun, and what it has done since."""

    stage: str
    unit: str
    total: int | None
    done: int | None = None
    """None before its first sign."""
    done_before: int = 0
    since: float = 0.0
    """The rate is counted from here, when ``done_before`` was done: a resumed stage has not done all of it now."""
    until: float = 0.0
    """The time of the last sign."""

    @property
    def rate(self) -> float | None:
        """Units a second; None where too little has been done to tell."""
        if self.done is None or self.done <= self.done_before or self.until <= self.since:
            return None
        return (self.done - self.done_before) / (self.until - self.since)

    @property
    def seconds_left(self) -> float | None:
        """The seconds that the rest takes at the rate so far; None where that is not known."""
        if self.total is None or self.done is None or not self.rate:
            return None
        return max(self.total - self.done, 0) / self.rate

    def with_done(self, done: int, time: float, *, since: float | None = None) -> StageProgress:
        """The progress once ``done`` units are done; ``since`` is when the last one began, where that is known."""
        if self.done is not None:
            return replace(self, done=done, until=time)
        if since is not None:
            return replace(self, done=done, until=time, done_before=done - 1, since=since)
        return replace(self, done=done, until=time, done_before=done, since=time)


def after_event(progress: StageProgress | None, event: dict[str, Any]) -> StageProgress | None:
    """The progress after an event; None where no stage is known to go on."""
    kind, time = event.get("event"), float(event.get("time", 0.0))
    if kind in ("TaskStarted", "TaskFinished", "StepStarted", "RunStopped"):
        return None
    if kind == "StageStarted":
        total = event.get("total")
        return StageProgress(str(event.get("stage")), str(event.get("unit")), None if total is None else int(total))
    is_own = progress is not None and event.get("stage") == progress.stage
    if progress is None or (kind == "StageFinished" and is_own):
        return None
    if kind == "BlockFinished" and is_own:
        return progress.with_done(int(event["done"]), time)
    if kind == "EpochFinished":
        return progress.with_done(int(event["epoch"]) + 1, time, since=time - float(event.get("seconds", 0.0)))
    return progress

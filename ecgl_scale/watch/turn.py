"""How far one stage of a run is, from the events it has written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Turn:
    """A stage that has begun, and what it has done since."""

    stage: str
    unit: str
    total: int | None
    done: int | None = None
    """None before its first sign."""
    before: int = 0
    since: float = 0.0
    """What was done, and when: the rate is that since then, as a resumed stage has not done all of it now."""
    at: float = 0.0

    @property
    def rate(self) -> float | None:
        """Units a second; None where too little has been done to tell."""
        if self.done is None or self.done <= self.before or self.at <= self.since:
            return None
        return (self.done - self.before) / (self.at - self.since)

    @property
    def seconds_left(self) -> float | None:
        """At the rate so far."""
        if self.total is None or self.done is None or not self.rate:
            return None
        return max(self.total - self.done, 0) / self.rate

    def reach(self, done: int, time: float, *, since: float | None = None) -> Turn:
        """With so much done; ``since`` is when the last unit began, where that is known."""
        if self.done is not None:
            return replace(self, done=done, at=time)
        if since is not None:
            return replace(self, done=done, at=time, before=done - 1, since=since)
        return replace(self, done=done, at=time, before=done, since=time)


def follow(turn: Turn | None, event: dict[str, Any]) -> Turn | None:
    """The turn after an event; None where no stage is known to go on."""
    kind, time = event.get("event"), float(event.get("time", 0.0))
    if kind in ("TaskStarted", "TaskFinished", "StepStarted", "RunStopped"):
        return None
    if kind == "StageStarted":
        total = event.get("total")
        return Turn(str(event.get("stage")), str(event.get("unit")), None if total is None else int(total))
    is_own = turn is not None and event.get("stage") == turn.stage
    if turn is None or (kind == "StageFinished" and is_own):
        return None
    if kind == "BlockFinished" and is_own:
        return turn.reach(int(event["done"]), time)
    if kind == "EpochFinished":
        return turn.reach(int(event["epoch"]) + 1, time, since=time - float(event.get("seconds", 0.0)))
    return turn

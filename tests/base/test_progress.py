"""How far a job is: amounts, rates and time left from events, and the lines a log gets."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ecgl_scale.base.events import (
    BlockFinished,
    EpochFinished,
    Event,
    Note,
    StageFinished,
    StageStarted,
    StepStarted,
    TaskFinished,
    TaskStarted,
    WorkerReported,
)
from ecgl_scale.base.progress import PlainLines, Progress, ProgressTracker, format_memory
from ecgl_scale.units import GIB, MIB


@dataclass
class Clock:
    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass
class Job:
    """Events at moments, and what is said of them."""

    clock: Clock = field(default_factory=Clock)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = PlainLines(self.said.append, self.clock)

    def at(self, seconds: float, *events: Event) -> list[str]:
        self.clock.seconds = seconds
        del self.said[:]
        for event in events:
            self.lines(event)
        return self.said


def test_the_rate_is_that_since_the_first_sign_so_a_resumed_stage_is_not_faster() -> None:
    clock = Clock()
    tracker = ProgressTracker(clock)
    assert tracker.follow(StageStarted("train task 0", 200, "epochs")) is None
    clock.seconds = 1.0
    tracker.follow(EpochFinished(0, 99, 0.5, 0.1))
    clock.seconds = 11.0
    found = tracker.follow(EpochFinished(0, 119, 0.4, 0.1))
    assert found == Progress("train task 0", "epochs", 120, 200, 2.0)
    assert (found.seconds_left, found.time_left) == (40.0, "40.0 s left")
    assert (found.amount, found.speed) == ("120 of 200 epochs", "2/s")


def test_without_a_total_there_is_a_rate_but_no_time_left() -> None:
    clock = Clock()
    tracker = ProgressTracker(clock)
    tracker.follow(StageStarted("read", None, "bytes"))
    clock.seconds = 2.0
    found = tracker.follow(BlockFinished("read", 6 * MIB))
    assert found is not None
    assert (found.amount, found.speed, found.seconds_left) == ("6 MiB", "3 MiB/s", None)


def test_a_stage_that_was_never_started_tells_nothing() -> None:
    assert ProgressTracker().follow(BlockFinished("read", 1)) is None
    assert ProgressTracker().follow(EpochFinished(0, 0, 1.0, 1.0)) is None


@pytest.mark.parametrize(
    ("rate", "shown"), [(0.0312, "32.1 s each"), (0.51, "0.51/s"), (13.24, "13.2/s"), (1234.5, "1,234/s")]
)
def test_rates_have_three_digits_or_a_separator(rate: float, shown: str) -> None:
    assert Progress("s", "rows", 1, 2, rate).speed == shown


def test_memory_is_shown_against_the_plan_where_there_is_one() -> None:
    assert format_memory(512 * MIB, GIB) == "512 MiB of 1 GiB planned"
    assert format_memory(512 * MIB, 0) == "512 MiB"


def test_a_long_stage_says_a_line_every_30_seconds_with_rate_time_left_and_memory_of_the_plan() -> None:
    job = Job()
    job.at(0, TaskStarted(1, 5), StepStarted("train", GIB), StageStarted("train task 1", 200, "epochs"))
    assert job.at(1, EpochFinished(1, 0, 0.5, 1.0)) == []
    assert job.at(29, EpochFinished(1, 28, 0.5, 1.0)) == []
    (line,) = job.at(31, EpochFinished(1, 30, 0.5, 1.0))
    assert line.startswith("task 2 of 5, train: 31 of 200 epochs (16%), 1/s, 2 min 49 s left, memory ")
    assert line.endswith(" of 1 GiB planned")
    assert job.at(32, EpochFinished(1, 31, 0.5, 1.0)) == []


def test_the_end_of_a_step_is_said_and_that_of_its_parts_is_not() -> None:
    job = Job()
    job.at(0, TaskStarted(0, 2), StepStarted("extract", GIB), StageStarted("sort edges", 10, "edges"))
    assert job.at(1, StageFinished("sort edges", 1.0, MIB)) == []
    assert job.at(2, StageFinished("extract", 2.0, 512 * MIB)) == [
        "task 1 of 2, extract: 2.0 s, peak 512 MiB of 1 GiB planned"
    ]
    assert job.at(3, TaskFinished(0, 2, (80.0,))) == ["task 1 of 2 learned: AA 80.0"]
    assert job.at(4, TaskStarted(1, 2), TaskFinished(1, 2, (80.0, 90.0))) == ["task 2 of 2 learned: AA 85.0"]


def test_outside_of_a_run_every_stage_that_was_started_says_its_end() -> None:
    job = Job()
    job.at(0, StageStarted("sort edges", 10, "edges"))
    assert job.at(1, StageFinished("sort edges", 1.0, MIB)) == ["sort edges: 1.0 s, peak 1 MiB"]
    assert job.at(1, StageFinished("unheard of", 1.0, MIB)) == []
    assert job.at(1, Note("by the way")) == ["by the way"]


def test_lines_say_how_many_workers_do_a_stage() -> None:
    job = Job()

    def reported(worker: str) -> WorkerReported:
        return WorkerReported(worker, "rank.sweep", 1, 1, 0.1, 0, 0, 0)

    job.at(0.0, StageStarted("sweeps", 10, "sweeps"), BlockFinished("sweeps", 1), reported("0"), reported("1"))
    assert ", 2 workers, " in job.at(40.0, reported("0"), BlockFinished("sweeps", 4))[0]
    assert Progress("sweeps", "sweeps", 1, 2, None, 1).by_whom == "1 worker"
    job.at(50.0, StageStarted("train", 10, "epochs"), BlockFinished("train", 1))
    assert "worker" not in job.at(90.0, BlockFinished("train", 2))[0]

"""The memory timeline: tied to steps, bounded, appended to on resumption, never the end of a run."""

from __future__ import annotations

import json
import mmap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale.base import timeline
from ecgl_scale.base.events import BlockFinished, Event, Note, StageStarted, StepStarted
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.base.timeline import MemoryTimeline, join_pairs, take_sample
from tests.report.made_runs import sample, samples


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_sample_says_what_the_kernel_says() -> None:
    found = take_sample("train", "epoch")
    assert abs(found.anon_bytes + found.shmem_bytes - own_memory_bytes()) < 32 << 20
    assert found.file_bytes > 0
    assert found.minor_faults > 0
    assert (found.stage, found.part) == ("train", "epoch")
    assert abs(found.time - time.time()) < 10


def test_memory_that_a_step_takes_is_seen_in_its_lines_and_events_are_passed_on(tmp_path: Path) -> None:
    events: list[Event] = []
    path = tmp_path / "memory.jsonl"
    with PeakSampler(0.002) as sampler, MemoryTimeline(path, sampler, events.append, sample_seconds=0.01) as running:
        running(StepStarted("extract"))
        time.sleep(0.05)
        running(StepStarted("train"))
        running(StageStarted("train task 0", 3, "epochs"))
        held = np.ones(8 << 20)
        time.sleep(0.1)
        running(BlockFinished("train task 0", 1))
        del held
        running(StepStarted("evaluate"))
    head, *lines = lines_of(path)
    assert head["version"] == 1
    peaks = {stage: max(e["anon_bytes"] for e in lines if e["stage"] == stage) for stage in ("extract", "train")}
    assert peaks["train"] - peaks["extract"] > 60 << 20
    assert {line["part"] for line in lines if line["stage"] == "train"} >= {"train task 0"}
    assert lines[-1]["stage"] == "evaluate"
    assert [type(event).__name__ for event in events][:2] == ["StepStarted", "StepStarted"]
    assert len(events) == 5


def test_a_second_process_appends_after_a_line_of_its_own_and_mends_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "memory.jsonl"
    with PeakSampler() as sampler, MemoryTimeline(path, sampler):
        pass
    before = lines_of(path)
    with path.open("a") as file:
        file.write('{"time": 12, "stage": "tr')
    with PeakSampler() as sampler, MemoryTimeline(path, sampler):
        pass
    after = lines_of(path)
    assert after[: len(before)] == before
    assert ["version" in line for line in after].count(True) == 2


def test_the_file_stays_bounded_and_keeps_peaks_and_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_LINES", 20)
    path = tmp_path / "memory.jsonl"
    with PeakSampler(0.001) as sampler, MemoryTimeline(path, sampler, sample_seconds=0.002) as running:
        running(StepStarted("train"))
        with mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:  # never memory freed before
            held.write(b"1" * (32 << 20))
            time.sleep(0.02)
        time.sleep(0.6)
    lines = lines_of(path)
    assert len(lines) <= 21
    assert lines[0]["line_seconds"] > 0.002
    assert max(line["anon_bytes"] for line in lines[1:]) - lines[-1]["anon_bytes"] > 25 << 20
    faults = [line["minor_faults"] for line in lines[1:]]
    assert faults == sorted(faults)


def test_pairs_of_one_stage_are_joined_to_the_higher_memory_and_the_later_counters() -> None:
    lines = [
        *samples(count=0),
        *(sample(1.0 + n, "train", n, anon_bytes=100 - n) for n in range(3)),
        sample(9.0, "x", 7),
    ]
    joined = join_pairs(lines)
    assert [line.get("stage") for line in joined] == [None, "train", "train", "x"]
    assert (joined[1]["anon_bytes"], joined[1]["minor_faults"], joined[1]["time"]) == (100, 1, 2.0)
    assert len(join_pairs(joined, across_stages=True)) == 3


def test_a_folder_that_cannot_be_written_costs_the_timeline_not_the_run(tmp_path: Path) -> None:
    events: list[Event] = []
    path = tmp_path / "gone" / "memory.jsonl"
    with PeakSampler() as sampler, MemoryTimeline(path, sampler, events.append, sample_seconds=0.01) as running:
        running(StepStarted("train"))
        time.sleep(0.03)
    notes = [event.text for event in events if isinstance(event, Note)]
    assert len(notes) == 1
    assert "no more memory samples" in notes[0]

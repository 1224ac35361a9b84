"""``ecgl status`` tells a living run from a finished, a stopped and a killed one, by files alone."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from ecgl_scale.base.lock import take_lock
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.watch.stage_progress import after_event
from ecgl_scale.watch.status import RunWatcher, holds_lock
from tests.report.made_runs import MIB, events, make_run, samples, write_lines


def unfinished(path: Path) -> Path:
    """In the second of three tasks, after two of four epochs."""
    run = make_run(path, is_finished=False)
    state = {"macro": [[90.0]], "losses": [[1.0, 0.5], [0.9]], "task": 1, "step": "train", "epoch": 1}
    (run / "state.json").write_text(json.dumps(state))
    write_lines(run / "events.jsonl", events()[:8])
    write_lines(run / "memory.jsonl", samples(count=6))
    return run


def hold(run: Path, **changed: Any) -> None:
    """As if a process that is gone had held it."""
    (run / ".lock").write_text(json.dumps({"host": socket.gethostname(), "pid": 1 << 22, **changed}))


def test_a_run_whose_process_holds_the_lock_is_running(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "a")
    lock = take_lock(run / ".lock", target=run)
    try:
        found = RunWatcher(run, now=lambda: 110.0).read_status()
        assert holds_lock(run / ".lock", os.getpid())
    finally:
        os.close(lock)
    assert (found.condition, found.resume) == ("running", "")
    assert str(os.getpid()) in found.reason
    assert (found.num_tasks, found.num_tasks_finished) == (3, 1)
    assert (found.step, found.epoch, found.num_epochs) == ("train", 2, 4)
    assert (found.first_loss, found.last_loss) == (1.0, 0.5)
    assert (found.average_accuracy, found.average_forgetting) == (90.0, None)
    assert found.own_bytes == 206 * MIB
    assert (found.peak_bytes, found.planned_bytes) == (206 * MIB, 250 * MIB)
    assert not holds_lock(run / ".lock", os.getpid())


def test_a_killed_run_says_how_to_go_on(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "a")
    hold(run)
    found = RunWatcher(run).read_status()
    assert found.condition == "killed"
    assert "is gone" in found.reason
    assert found.resume == f"ecgl run {run}/config.yaml --out {run} --resume"


def test_a_run_that_was_stopped_says_by_what_until_it_is_resumed(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "a")
    hold(run)
    watcher = RunWatcher(run)
    assert watcher.read_status().condition == "killed"
    with (run / "events.jsonl").open("a") as file:
        file.write('{"time": 120, "event": "RunStopped", "reason": "StopRequestedError: stopped by SIGTERM"}\n')
        file.write('{"time": 121, "event": "TaskSt')
    found = watcher.read_status()
    assert (found.condition, found.reason) == ("stopped", "StopRequestedError: stopped by SIGTERM")
    with (run / "events.jsonl").open("a") as file:
        file.write('arted", "task": 1, "num_tasks": 3}\n')
    assert watcher.read_status().condition == "killed"


def test_a_finished_run_has_nothing_to_resume(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    hold(run)
    found = RunWatcher(run).read_status()
    assert (found.condition, found.resume, found.num_tasks_finished) == ("finished", "", 3)
    assert found.average_accuracy == 80.0
    assert found.average_forgetting == -15.0


def test_a_run_on_another_machine_is_judged_by_its_signs_of_life(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "a")
    hold(run, host="far-away")
    last = (run / "memory.jsonl").stat().st_mtime
    assert RunWatcher(run, now=lambda: last + 5).read_status().condition == "running"
    silent = RunWatcher(run, now=lambda: last + 5000).read_status()
    assert silent.condition == "unknown"
    assert silent.resume


def test_a_run_killed_before_its_first_file_is_shown_too(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "a")
    for name in ("state.json", "plan.json", "events.jsonl", "memory.jsonl"):
        (run / name).unlink()
    found = RunWatcher(run).read_status()
    assert (found.condition, found.num_tasks, found.num_tasks_finished, found.epoch) == ("killed", None, 0, 0)


def test_a_stage_tells_its_rate_and_the_time_left(tmp_path: Path) -> None:
    run = unfinished(tmp_path / "a")
    stage = {"time": 200.0, "event": "StageStarted", "stage": "train task 1", "total": 10, "unit": "epochs"}
    step = {"time": 199.0, "event": "StepStarted", "step": "train", "planned_bytes": 240 * MIB}
    watcher = RunWatcher(run)
    write_lines(run / "events.jsonl", [*events()[:6], step, stage])
    found = watcher.read_status()
    assert (found.stage, found.done, found.total, found.rate) == ("train task 1", None, 10, None)
    assert found.step_planned_bytes == 240 * MIB
    epoch = {"event": "EpochFinished", "task": 1, "loss": 0.5, "seconds": 0.5}
    with (run / "events.jsonl").open("a") as file:
        file.writelines(json.dumps({"time": 201.0 + n / 2, "epoch": n + 4, **epoch}) + "\n" for n in range(2))
    found = watcher.read_status()  # resumed after four epochs, two of which have taken a second
    assert (found.done, found.rate, found.seconds_left) == (6, 2.0, 2.0)


@pytest.mark.parametrize("kind", ["TaskStarted", "StepStarted", "StageFinished", "RunStopped"])
def test_a_stage_is_over_when_it_ends_or_something_else_begins(kind: str) -> None:
    begun = after_event(None, {"event": "StageStarted", "stage": "rank", "total": None, "unit": "rows"})
    assert begun is not None
    first = after_event(begun, {"event": "BlockFinished", "stage": "rank", "done": 5, "time": 10.0})
    second = after_event(first, {"event": "BlockFinished", "stage": "rank", "done": 9, "time": 12.0})
    assert second is not None
    assert (second.rate, second.seconds_left) == (2.0, None)
    assert after_event(second, {"event": "BlockFinished", "stage": "other", "done": 70, "time": 13.0}) == second
    assert after_event(second, {"event": kind, "stage": "rank", "time": 14.0}) is None


def test_any_other_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="not the directory of a run"):
        RunWatcher(tmp_path)

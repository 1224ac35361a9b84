"""``ecgl status`` of a sweep: what is finished, running, failed and to do, by files alone."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ecgl_scale.base.lock import take_lock
from ecgl_scale.cli import status as cli_status
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.watch.sweep_status import SweepWatcher
from tests.cli_runner import run_cli
from tests.report.made_runs import events, make_run, write_lines

STATUSES = {"ecgl": ("finished", "finished"), "gem": ("finished", "running"), "lwf": ("failed", "waiting")}


def make_sweep(path: Path) -> Path:
    """Three finished, one that was begun, one that failed before it had a directory, one that waits."""
    combinations = []
    for method, statuses in STATUSES.items():
        runs = []
        for seed, status in enumerate(statuses):
            name = f"method-{method}/seed-{seed}"
            if status in ("finished", "running"):
                make_run(path / name, method=method, seed=seed, is_finished=status == "finished")
            message = "the disk is on fire\n  fix: pour water" if status == "failed" else None
            runs.append({"seed": seed, "path": name, "status": status, "message": message})
        combinations.append({"name": f"method-{method}", "settings": {"method": method}, "runs": runs})
    (path / "sweep.json").write_text(json.dumps({"seeds": [0, 1], "combinations": combinations}))
    state = {"macro": [[90.0]], "losses": [[1.0]], "task": 1, "step": "train"}
    (path / "method-gem/seed-1/state.json").write_text(json.dumps(state))
    begun = {"time": 102.0, "event": "StageStarted", "stage": "train task 1", "total": 4, "unit": "epochs"}
    write_lines(path / "method-gem/seed-1/events.jsonl", [*events()[:6], begun, *events()[6:8]])
    return path


@contextmanager
def locked(*folders: Path) -> Iterator[None]:
    locks = [take_lock(folder / ".lock", target=folder) for folder in folders]
    try:
        yield
    finally:
        for lock in locks:
            os.close(lock)


def conditions(sweep: Path) -> list[str]:
    return [run.condition for run in SweepWatcher(sweep).read_status().runs]


def test_while_it_runs_it_says_which_run_goes_on_and_how_far_that_is(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    with locked(sweep, sweep / "method-gem/seed-1"):
        shown = run_cli("status", sweep)
        found = json.loads(run_cli("status", sweep, "--json").stdout)
    assert shown.code == 0, shown.stderr
    head, table = shown.stdout.split("\n\n")
    lines = dict(line.split(maxsplit=1) for line in head.splitlines())
    assert lines["sweep"] == f"{sweep} (3 combinations x 2 seeds)"
    assert lines["state"] == f"running: process {os.getpid()} on {socket.gethostname()}"
    assert lines["runs"] == "3 of 6 finished, 1 running, 1 failed, 1 to do"
    assert lines["now"].startswith("method-gem/seed-1: task 2 of 3, ")
    assert "2 of 4 epochs (50%)" in lines["now"]
    assert len(lines["now"]) < 80 - len("now 1  ")
    assert lines["failed"] == "method-lwf/seed-0: the disk is on fire"
    rows = [line.split() for line in table.splitlines()]
    assert rows[1] == ["method-ecgl", "80.5", "±", "0.5", "2", "0", "0", "0"]
    assert rows[2:] == [["method-gem", "80.0", "1", "1", "0", "0"], ["method-lwf", "-", "0", "0", "1", "1"]]
    counts = [found[name] for name in ("num_runs", "num_finished", "num_running", "num_failed", "num_to_do")]
    assert counts == [6, 3, 1, 1, 1]
    assert found["combinations"][0]["accuracy"] == {"mean": 80.5, "deviation": 0.5, "count": 2}
    assert found["combinations"][1]["runs"][1]["now"]["done"] == 2


def test_after_a_crash_nothing_runs_whatever_the_record_says(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    (sweep / ".lock").write_text(json.dumps({"host": socket.gethostname(), "pid": 1 << 22}))
    assert conditions(sweep) == ["finished", "finished", "finished", "stopped", "failed", "waiting"]
    shown = run_cli("status", sweep, "--watch").stdout
    assert "stopped: no process has it" in shown
    assert "2 to do (1 of them begun)" in shown
    assert "the same ecgl sweep command again" in shown


def test_a_run_that_was_just_started_is_running_before_it_has_a_directory(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    record = json.loads((sweep / "sweep.json").read_text())
    record["combinations"][2]["runs"][1]["status"] = "running"
    (sweep / "sweep.json").write_text(json.dumps(record))
    with locked(sweep):
        assert "method-lwf/seed-1: starts" in run_cli("status", sweep).stdout
    assert conditions(sweep)[-1] == "waiting"


def test_a_run_that_has_ended_since_the_record_was_written_counts_as_finished(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    watcher = SweepWatcher(sweep)
    assert watcher.read_status().combinations[1].accuracy is not None
    results = json.loads((sweep / "method-gem/seed-0/results.json").read_text())
    (sweep / "method-gem/seed-1/results.json").write_text(json.dumps({**results, "aa": 82.0}))
    found = watcher.read_status().combinations[1]
    assert [run.condition for run in found.runs] == ["finished", "finished"]
    assert str(found.accuracy) == "81.0 ± 1.0"


def test_a_sweep_on_another_machine_is_judged_by_its_runs(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    for folder in (sweep, sweep / "method-gem/seed-1"):
        (folder / ".lock").write_text('{"host": "far-away", "pid": 3}')
    last = (sweep / "method-gem/seed-1/memory.jsonl").stat().st_mtime
    assert SweepWatcher(sweep, now=lambda: last + 5).read_status().condition == "running"
    assert SweepWatcher(sweep, now=lambda: last + 5000).read_status().condition == "unknown"


def test_a_combination_of_a_sweep_is_not_taken_for_a_run(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    (sweep / "method-ecgl" / "config.yaml").touch()
    shown = run_cli("status", sweep / "method-ecgl")
    assert shown.code == 3
    assert f"ecgl status {sweep} shows the whole sweep" in shown.stderr


def test_a_record_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        SweepWatcher(tmp_path)


def test_into_a_file_every_line_has_amount_rate_time_left_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    run = sweep / "method-gem/seed-1"
    state = json.loads((run / "state.json").read_text())

    def finish(_: float) -> None:
        (run / "state.json").write_text(json.dumps({**state, "is_finished": True}))

    monkeypatch.setattr(cli_status.time, "sleep", finish)
    with locked(run):
        first, *rest = run_cli("status", run, "--watch").stdout.splitlines()
    for part in ("task 2 of 3, ", "2 of 4 epochs (50%), ", "/s, ", " left, ", "memory ", " planned, ", "AA 90.0"):
        assert part in first
    assert any(line.split() == ["state", "finished"] for line in rest)


def test_what_ended_a_run_that_will_go_on_is_told(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    record = json.loads((sweep / "sweep.json").read_text())
    record["combinations"][1]["runs"][1] |= {"status": "stopped", "message": "killed by SIGKILL"}
    (sweep / "sweep.json").write_text(json.dumps(record))
    lines = dict(line.split(maxsplit=1) for line in run_cli("status", sweep).stdout.split("\n\n")[0].splitlines())
    assert lines["stopped"] == "method-gem/seed-1: killed by SIGKILL"

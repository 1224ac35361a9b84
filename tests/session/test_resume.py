"""A run that is killed or stopped goes on with ``--resume`` and ends with the results of an undisturbed one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.cli_runner import Result, run_cli
from tests.faults.running import start_child
from tests.session.streams import Drawn, draw_graph, events_of, read_json, without_clocks, write_config, write_store

pytestmark = pytest.mark.faults

EPOCHS = 15
STEPS = ("train", "remember", "evaluate")
NUM_KILLS = 10
NUM_KILLS_AT_WRITES = 8
HELD_SECONDS = 30.0
EARLY_CALLS = ("open", "os.mkdir", "os.rename", "os.truncate")
MAX_EARLY_KILLS = 40


@pytest.fixture(scope="module")
def config(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With dropout and batches, which are drawn anew by a process that goes on."""
    return write_config(
        tmp_path_factory.mktemp("config") / "run.yaml",
        store,
        tasks={"eval_scope": "both"},
        learn={
            "hidden": [24],
            "epochs": EPOCHS,
            "lr": 0.02,
            "dropout": 0.2,
            "batching": "minibatch",
            "batch_rows": 150,
            "device": "cpu",
        },
    )


@pytest.fixture(scope="module")
def undisturbed(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("clean") / "run"
    ran = run_cli("--quiet", "run", config, "--out", run)
    assert ran.code == 0, ran.stderr
    return run


def _slow(epoch_seconds: float) -> None:
    """In a child: save every epoch, and leave time to be killed in each; a thread is enough for small models."""
    import torch

    from ecgl_scale.learn.train import Trainer
    from ecgl_scale.session import checkpoint

    torch.set_num_threads(1)
    checkpoint.SECONDS_BETWEEN = 0.0
    run_epoch: Any = Trainer.run_epoch

    def slow(*arguments: Any, **settings: Any) -> Any:
        time.sleep(epoch_seconds)
        return run_epoch(*arguments, **settings)

    Trainer.run_epoch = slow  # type: ignore[method-assign]


def _die_at_write(number: int, is_after: bool) -> None:
    """In a child: be killed at the n-th file that takes its name, just before or just after it has it."""
    _slow(0.0)
    take_name: Any = Path.replace
    count = 0

    def counting(path: Path, target: Any) -> Path:
        nonlocal count
        count += 1
        if count == number and not is_after:
            os.kill(os.getpid(), signal.SIGKILL)
        taken: Path = take_name(path, target)
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return taken

    Path.replace = counting  # type: ignore[assignment, method-assign]


def _die_early(number: int) -> None:
    """In a child: be killed just before the n-th file or folder is opened for writing, made, renamed or cut."""
    import sys

    count = 0

    def counting(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        is_written = event in EARLY_CALLS and (event != "open" or arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if not is_written or "/early/" not in f"{arguments[0]}/":
            return
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(counting)


def _arguments(config: Path, run: Path) -> list[object]:
    return ["--quiet", "run", config, "--out", run, "--resume"]


def _start(config: Path, run: Path, *, epoch_seconds: float = 0.01) -> ForkServerProcess:
    return start_child(_slow, (epoch_seconds,), *_arguments(config, run))


def _finish(config: Path, run: Path, undisturbed: Path) -> None:
    ran = run_cli(*_arguments(config, run))
    assert ran.code == 0, ran.stderr
    _check_equal(run, undisturbed)


def _check_equal(run: Path, undisturbed: Path) -> None:
    found, wanted = (read_json(path / "results.json") for path in (run, undisturbed))
    assert without_clocks(found) == without_clocks(wanted)
    assert found["stages"].keys() == wanted["stages"].keys()
    assert pq.read_table(run / "metrics.parquet").equals(pq.read_table(undisturbed / "metrics.parquet"))
    assert (run / "bank.arrow").read_bytes() == (undisturbed / "bank.arrow").read_bytes()
    for one in (run, undisturbed):
        assert not (one / "work").exists()
        assert [path.name for path in one.rglob(".*") if "tasks" not in path.parts] == [".lock"]
    assert all(path.name.endswith(".ecgl") for path in (run / "tasks").iterdir())


def _wait_until(condition: Callable[[], bool], child: ForkServerProcess) -> None:
    deadline = time.monotonic() + 60
    while not condition() and child.exitcode is None and time.monotonic() < deadline:
        time.sleep(0.002)


def _state(run: Path) -> dict[str, Any]:
    path = run / "state.json"
    return read_json(path) if path.exists() else {"task": 0, "epoch": 0, "step": "train"}


def _epochs_said(run: Path) -> int:
    path = run / "events.jsonl"
    return path.read_text().count('"EpochFinished"') if path.exists() else 0


def _stop(child: ForkServerProcess, number: signal.Signals) -> None:
    assert child.pid is not None
    os.kill(child.pid, number)
    child.join(60)


def test_killed_at_ten_random_moments_a_run_ends_with_the_results_of_an_undisturbed_one(
    config: Path, undisturbed: Path, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    number, places = 0, []
    while len(places) < NUM_KILLS:
        run = tmp_path / f"run-{number}"
        said = _epochs_said(run)
        child = _start(config, run, epoch_seconds=0.02)
        _wait_until(lambda: _epochs_said(run) > said or not child.is_alive(), child)  # noqa: B023 (called here)
        time.sleep(float(rng.uniform(0, 0.25)))
        _stop(child, signal.SIGKILL)
        if child.exitcode == 0:  # it was quicker
            _check_equal(run, undisturbed)
            number += 1
            continue
        assert child.exitcode == -signal.SIGKILL
        state = _state(run)
        places.append((number, state["task"], STEPS.index(state["step"]), state["epoch"]))
    assert places == sorted(places), "a kill lost work that was saved"
    assert len(set(places)) >= 4, "the kills came at too few different moments"
    _finish(config, run, undisturbed)


def test_killed_at_any_write_a_run_goes_on(config: Path, undisturbed: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    run = tmp_path / "run"
    codes = []
    for kill in range(NUM_KILLS_AT_WRITES):
        number = int(rng.integers(1, 40)) if kill else 1
        child = start_child(_die_at_write, (number, bool(rng.integers(2)) and kill > 0), *_arguments(config, run))
        child.join(60)
        codes.append(child.exitcode)
    assert codes.count(-signal.SIGKILL) >= 4
    assert set(codes) <= {-signal.SIGKILL, 0}
    _finish(config, run, undisturbed)


def test_a_kill_between_the_config_and_the_first_state_can_be_resumed(
    config: Path, undisturbed: Path, tmp_path: Path
) -> None:
    child = start_child(_die_at_write, (1, True), *_arguments(config, tmp_path / "run"))
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert (tmp_path / "run" / "config.yaml").exists()
    assert not (tmp_path / "run" / "state.json").exists()
    _finish(config, tmp_path / "run", undisturbed)


def test_killed_at_each_of_its_first_steps_on_disk_a_run_begins_or_goes_on_by_the_same_command(
    config: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """Each process begins with what the one before has left, and comes a step further."""
    run, left = tmp_path / "early" / "run", [set[str]()]
    while "state.json" not in left[-1]:
        assert len(left) < MAX_EARLY_KILLS, "the kills never came past the first state"
        child = start_child(_die_early, (len(left),), *_arguments(config, run))
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        left.append({path.name for path in run.iterdir()} if run.exists() else set())
    for names in ({".lock", ".config.yaml.partial"}, {".lock", "config.yaml"}):
        assert names in left
    _finish(config, run, undisturbed)


def test_a_resumed_run_goes_on_with_the_epoch_after_the_saved_one(
    config: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = _start(config, run, epoch_seconds=0.03)
    _wait_until(lambda: _state(run)["task"] == 1 and _state(run)["epoch"] >= 4, child)
    _stop(child, signal.SIGKILL)
    saved, before = _state(run), len(events_of(run, "EpochFinished"))
    assert (saved["task"], saved["step"]) == (1, "train")
    assert 4 <= saved["epoch"] < EPOCHS
    _finish(config, run, undisturbed)
    again = events_of(run, "EpochFinished")[before:]
    assert [(event["task"], event["epoch"]) for event in again] == [
        (task, epoch) for task in (1, 2) for epoch in range(saved["epoch"] if task == 1 else 0, EPOCHS)
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_stopped_run_exits_with_75_and_can_be_resumed(
    config: Path, undisturbed: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    child = _start(config, run, epoch_seconds=0.03)
    _wait_until(lambda: _state(run)["epoch"] >= 3, child)
    _stop(child, number)
    assert child.exitcode == 75
    assert events_of(run, "RunStopped")[-1]["reason"] == _state(run)["stopped"] == f"stopped by {number.name}"
    assert not (run / "results.json").exists()
    _finish(config, run, undisturbed)
    assert _state(run)["stopped"] == ""


def test_a_stopped_run_says_how_to_go_on(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ecgl_scale.session.learner import Learner

    monkeypatch.setattr(Learner, "train_epoch", lambda *_: signal.raise_signal(signal.SIGTERM))
    run = tmp_path / "run"
    stopped = run_cli("run", config, "--out", run)
    assert stopped.code == 75
    assert "--resume" in stopped.stderr
    assert (run / "run.log").read_text().splitlines()[-1] == "  fix: go on with the same command and --resume"
    assert events_of(run, "RunStopped")[-1]["reason"] == "stopped by SIGTERM"
    assert "same command again" not in run_cli("status", run).stdout  # without --resume that would be refused


def test_a_run_stopped_while_it_is_planned_is_not_to_be_resumed(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ecgl_scale.session.run.plan_run", lambda *_: signal.raise_signal(signal.SIGTERM))
    stopped = run_cli("run", config, "--out", tmp_path / "run")
    assert stopped.code == 75
    assert "run the same command again" in stopped.stderr
    assert not (tmp_path / "run").exists()


def test_status_says_that_ctrl_c_stopped_a_run(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ecgl_scale.session.learner import Learner

    monkeypatch.setattr(Learner, "train_epoch", lambda *_: signal.raise_signal(signal.SIGINT))
    assert run_cli("run", config, "--out", tmp_path / "run").code == 130
    assert "stopped by Ctrl-C\n" in run_cli("status", tmp_path / "run").stdout


def test_while_a_run_goes_on_its_directory_is_refused_to_all_others(
    config: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = _start(config, run, epoch_seconds=HELD_SECONDS)
    _wait_until(lambda: (run / "events.jsonl").exists() and bool(events_of(run, "StageStarted")), child)
    before = {path: path.read_bytes() for path in run.glob("*.json")}
    resumed = run_cli("run", config, "--out", run, "--resume")
    assert resumed.code == 3
    assert "another process" in resumed.stderr
    assert str(child.pid) in resumed.stderr
    assert run_cli("run", config, "--out", run).code == 3
    assert {path: path.read_bytes() for path in run.glob("*.json")} == before
    _stop(child, signal.SIGKILL)
    _finish(config, run, undisturbed)


def test_resuming_a_finished_run_gives_its_results_and_touches_nothing(
    config: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ecgl_scale.session.learner import Learner

    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    before = _bytes_of(run)
    (run / "work" / "rows").mkdir(parents=True)  # as if killed after the last state was written
    monkeypatch.setattr(Learner, "train_epoch", lambda *_: pytest.fail("it trains again"))
    ran = run_cli("run", config, "--out", run, "--resume", "--json")
    assert ran.code == 0, ran.stderr
    assert json.loads(ran.stdout) == read_json(undisturbed / "results.json")
    assert not (run / "work").exists()
    assert {name: content for name, content in _bytes_of(run).items() if name != ".lock"} == {
        name: content for name, content in before.items() if name != ".lock"
    }


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_results_that_are_gone_or_damaged_are_written_again_without_training(
    config: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    from ecgl_scale.session.learner import Learner

    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    (run / "results.json").unlink() if content is None else (run / "results.json").write_text(content)
    monkeypatch.setattr(Learner, "train_epoch", lambda *_: pytest.fail("it trains again"))
    _finish(config, run, undisturbed)


@pytest.fixture(scope="module")
def interrupted(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed while it was learning the last task."""
    run = tmp_path_factory.mktemp("interrupted") / "run"
    child = _start(config, run, epoch_seconds=0.03)
    _wait_until(lambda: _state(run)["task"] == 2 and _state(run)["epoch"] >= 2, child)
    _stop(child, signal.SIGKILL)
    assert child.exitcode == -signal.SIGKILL
    return run


def _bytes_of(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


def _remove(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [_cut, _flip, _remove, _empty])
@pytest.mark.parametrize("name", ["checkpoint", "bank.arrow", "state.json"])
def test_a_damaged_file_of_a_run_is_told_and_nothing_is_overwritten(
    config: Path, interrupted: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(interrupted, run)
    path = run / "weights" / _state(run)["checkpoint"] if name == "checkpoint" else run / name
    damage(path)
    before = _bytes_of(run)
    ran = run_cli("run", config, "--out", run, "--resume")
    assert ran.code == 3, ran.stderr
    assert path.name in ran.stderr
    kept = {"state.json", "bank.arrow", "split.parquet", "config.yaml"} | {
        name for name in before if name.startswith("weights/")
    }
    after = _bytes_of(run)
    assert {name: after.get(name) for name in kept} == {name: before.get(name) for name in kept}
    assert "results.json" not in after


def test_a_bank_of_fewer_tasks_is_refused(config: Path, interrupted: Path, tmp_path: Path) -> None:
    from ecgl_scale.learn.bank import MemoryBank

    run = tmp_path / "run"
    shutil.copytree(interrupted, run)
    MemoryBank.load(run / "bank.arrow").for_tasks([0]).save(run / "bank.arrow")
    ran = run_cli("run", config, "--out", run, "--resume")
    assert ran.code == 3
    assert "tasks [0]" in ran.stderr
    assert "tasks [0, 1]" in ran.stderr


def test_a_checkpoint_of_another_moment_is_refused(config: Path, interrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(interrupted, run)
    name = _state(run)["checkpoint"]
    other = {"checkpoint-0.safetensors": "checkpoint-1.safetensors"}.get(name, "checkpoint-0.safetensors")
    shutil.copy(run / "weights" / other, run / "weights" / name)
    ran = run_cli("run", config, "--out", run, "--resume")
    assert ran.code == 3
    assert "a checkpoint is of task" in ran.stderr


@pytest.mark.parametrize("what", ["features", "edges", "labels"])
def test_a_store_that_has_changed_under_its_name_is_refused(drawn: Drawn, tmp_path: Path, what: str) -> None:
    store, run = tmp_path / "graph.ecgl", tmp_path / "run"
    config = write_config(tmp_path / "run.yaml", write_store(store, drawn))
    _stop_at_epoch(config, run, 2)
    other = draw_graph(seed=1)
    changed = {
        "features": replace(drawn, x=other.x),
        "edges": replace(drawn, edge_index=other.edge_index),
        "labels": replace(drawn, y=other.y),
    }[what]
    write_store(store, changed, overwrite=True)
    before = _bytes_of(run)
    ran = run_cli("run", config, "--out", run, "--resume")
    assert ran.code == 2
    assert "the run was begun with another store" in ran.stderr
    assert _without_lock(_bytes_of(run)) == _without_lock(before)
    write_store(store, drawn, overwrite=True)
    assert run_cli("--quiet", "run", config, "--out", run, "--resume").code == 0


def _without_lock(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name != ".lock"}


def _stop_at_epoch(config: Path, run: Path, epoch: int) -> Result:
    """Stop a run of this process at the beginning of an epoch of its first task."""
    from ecgl_scale.session.learner import Learner

    train: Any = Learner.train_epoch

    def stop(learner: Learner, task: Any, number: int) -> Any:
        return signal.raise_signal(signal.SIGTERM) if number == epoch else train(learner, task, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "train_epoch", stop)
        ran = run_cli("--quiet", "run", config, "--out", run)
    assert ran.code == 75
    return ran

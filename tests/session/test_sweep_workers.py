"""A sweep whose runs are done by workers that know them from a description alone: the table is the same."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path

import pytest

from ecgl_scale.base.heartbeat import Heartbeat
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import ExitCode
from ecgl_scale.session.sweep import run_work
from ecgl_scale.session.sweep.run_work import HEARTBEAT_NAME, RunWork
from tests.resources import at
from tests.session.streams import read_json, write_config
from tests.session.test_executors import use
from tests.session.test_sweep import FAILS, WAITS, fake, given_to, statuses, sweep, wait_until

__all__ = ["fake"]


@pytest.fixture
def config(store: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "run.yaml", store)


@pytest.mark.usefixtures("fake")
def test_runs_by_workers_that_are_lost_now_and_then_make_the_same_table(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--grid", f"learn.lambda=1,{FAILS},2")
    local = sweep(config, tmp_path / "local", *arguments, "--jobs", 2)
    script = ScriptedExecutor(
        tmp_path / "counts",
        failures={("sweep.run", 0): [OSError(errno.EIO, "disk"), RuntimeError("lost")]},
        after={("sweep.run", 2): RuntimeError("the worker was lost"), ("sweep.run", 1): RuntimeError("so was this")},
    )
    use(script, monkeypatch)
    out = tmp_path / "sweep"
    ran = sweep(config, out, *arguments)
    assert (ran.code, ran.stderr.replace(str(out), "")) == (
        local.code,
        local.stderr.replace(str(tmp_path / "local"), ""),
    )
    assert read_json(out / "sweep.json")["combinations"] == read_json(tmp_path / "local/sweep.json")["combinations"]
    assert [script.times_run("sweep.run", index) for index in range(3)] == [3, 2, 2]
    assert len(given_to(out / "lambda-2" / "seed-0")) == 1  # it had its results when its worker was lost
    assert [given["goes_on"] for given in given_to(out / f"lambda-{FAILS}" / "seed-0")] == [False, True]
    assert sweep(config, out, *arguments).code == local.code
    assert [script.times_run("sweep.run", index) for index in range(3)] == [3, 3, 2]


@pytest.mark.usefixtures("fake")
def test_a_run_may_use_what_its_worker_has(config: Path, tmp_path: Path) -> None:
    work = RunWork(tmp_path / "sweep", ["one/seed-0"], threading.Event(), token="token")
    (tmp_path / "sweep" / "one").mkdir(parents=True)
    (tmp_path / "sweep" / "one" / "config.yaml").write_bytes(config.read_bytes())
    worker = RunWork.open(work.describe(), at("8GiB", 3))
    assert worker.uses_all_threads
    assert worker.run(Block(0, 0, 1), None, None).exit_code == 0
    (given,) = given_to(tmp_path / "sweep" / "one" / "seed-0")
    assert given["threads"] == 3
    assert (4 << 30) < int(given["memory"]) < (8 << 30)  # what this process holds is taken off


def test_a_worker_that_is_too_small_for_a_run_is_refused_before_the_first_starts(config: Path, tmp_path: Path) -> None:
    workers = ("--workers", 1, "--worker-memory", "400MiB")
    ran = sweep(config, tmp_path / "sweep", "--grid", "learn.lambda=1,2", *workers)
    assert ran.code == ExitCode.DOES_NOT_FIT
    assert "give at least --worker-memory " in ran.stderr
    assert "worker 0 on " in ran.stderr
    assert not (tmp_path / "sweep").exists()


@pytest.mark.usefixtures("fake")
def test_stopped_it_stops_its_runs_elsewhere_and_goes_on_when_called_again(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(ScriptedExecutor(tmp_path / "counts"), monkeypatch)
    out = tmp_path / "sweep"
    waits = out / f"lambda-{WAITS}" / "seed-0" / "waits"
    thread = threading.Thread(target=lambda: wait_until(waits.exists) and os.kill(os.getpid(), signal.SIGTERM))
    thread.start()
    ran = sweep(config, out, "--grid", f"learn.lambda={WAITS},2")
    thread.join()
    assert ran.code == ExitCode.STOPPED, ran.stderr
    assert [*statuses(out).values()] == ["stopped", "waiting"]
    assert (out / HEARTBEAT_NAME).read_text().endswith("ended")
    assert sweep(config, out, "--grid", f"learn.lambda={WAITS},2").code == 0
    assert [given["goes_on"] for given in given_to(waits.parent)] == [False, True]


@pytest.mark.usefixtures("fake")
def test_a_run_elsewhere_ends_when_its_sweep_has_ended(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_work, "LISTEN_SECONDS", 0.05)
    out = tmp_path / "sweep"
    (out / "one").mkdir(parents=True)
    write_config(out / "one" / "config.yaml", read_json(config)["store"], learn={"lambda": WAITS})
    end = threading.Event()
    thread = threading.Thread(target=lambda: wait_until((out / "one/seed-0/waits").exists) and end.set())
    with Heartbeat(out / HEARTBEAT_NAME, end, every_seconds=0.05) as heartbeat:
        described = RunWork(out, ["one/seed-0"], end, token=heartbeat.token).describe()
        thread.start()
        ended = RunWork.open(described, at("3GiB", 1)).run(Block(0, 0, 1), None, None)
    thread.join()
    assert ended.exit_code == ExitCode.STOPPED

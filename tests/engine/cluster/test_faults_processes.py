"""Processes of a cluster that are lost or asked to stop, as a user starts them: codes, messages, what is left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.cluster.processes import (
    Processes,
    end,
    group_is_gone,
    processes,
    start,
    wait_until,
)
from tests.engine.cluster.script import Script
from tests.faults.running import leftovers, run_cli
from tests.warm.process import WarmProcess

pytestmark = pytest.mark.faults

SWEEPS = ("--tol", 0, "--max-iter", 12, "--ignore-features")
SLOW = 0.3


@pytest.fixture(scope="module")
def undisturbed(store: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("clean") / "scores.parquet"
    assert run_cli("--quiet", "rank", store, "--out", out, *SWEEPS).code == 0
    return out.read_bytes()


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    return Script(tmp_path_factory.mktemp("script") / "script")


@pytest.fixture(scope="module")
def cluster(script: Script, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    script.begin()
    with processes(tmp_path_factory.mktemp("cluster"), 2, environment=script.environment) as found:
        yield found


def begin_ranking(script: Script, store: Path, out: Path, *where: object) -> WarmProcess:
    """A ranking whose sweeps take long enough to be met in the middle of one, some sweeps after the first."""
    script.begin()
    script.plan("rank.sweep", 0, f"sleep:{SLOW}")
    driver = start("--quiet", "rank", store, "--out", out, *SWEEPS, *where, environment=script.environment)
    assert wait_until(lambda: script.times_begun("rank.sweep", 0) >= 7 or driver.poll() is not None)
    assert driver.poll() is None, driver.communicate()[1]
    return driver


def finish(script: Script, store: Path, out: Path, undisturbed: bytes, *where: object) -> dict[str, Any]:
    """The same command again ends with the same file; returns what it says of its sweeps."""
    script.begin()
    ran = run_cli("--quiet", "rank", store, "--out", out, *SWEEPS, *where, "--json")
    assert ran.code == 0, ran.stderr
    assert out.read_bytes() == undisturbed
    assert leftovers(out.parent) == []
    importance: dict[str, Any] = json.loads(ran.stdout)["importance"]
    return importance


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGUSR2, 75), (signal.SIGINT, 130)])
def test_a_driver_that_is_asked_to_stop_in_a_sweep_leaves_in_time_and_goes_on(
    cluster: Processes, script: Script, store: Path, undisturbed: bytes, tmp_path: Path, number: int, code: int
) -> None:
    out = tmp_path / "scores.parquet"
    driver = begin_ranking(script, store, out, "--scheduler", cluster.file)
    asked = time.monotonic()
    driver.send_signal(number)
    _, said = driver.communicate(timeout=60)
    assert driver.returncode == code, said
    assert time.monotonic() - asked < 30
    assert "Traceback" not in said
    assert not out.exists()
    assert not list(tmp_path.rglob("*.token"))
    assert finish(script, store, out, undisturbed, "--scheduler", cluster.file)["resumed_from"] > 0


def test_a_driver_that_is_killed_goes_on_with_the_same_workers(
    cluster: Processes, script: Script, store: Path, undisturbed: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "scores.parquet"
    driver = begin_ranking(script, store, out, "--scheduler", cluster.file)
    driver.kill()
    driver.communicate()
    assert not list(tmp_path.glob(".*.token"))
    assert finish(script, store, out, undisturbed, "--scheduler", cluster.file)["resumed_from"] > 0


def test_a_worker_that_is_asked_to_leave_finishes_its_unit(
    cluster: Processes, script: Script, store: Path, undisturbed: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "scores.parquet"
    driver = begin_ranking(script, store, out, "--scheduler", cluster.file)
    leaving = cluster.workers.pop(0)
    cluster.start_worker()
    code, said = end(leaving)
    assert code == 0, said
    _, said = driver.communicate(timeout=60)
    assert driver.returncode == 0, said
    assert out.read_bytes() == undisturbed
    assert set(script.begun("rank.sweep").values()) == {1 + 12}, "a unit that was under way was begun again"
    assert group_is_gone(leaving.pid)


def test_workers_of_a_command_end_with_it_also_when_it_is_killed(
    script: Script, store: Path, undisturbed: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "scores.parquet"
    driver = begin_ranking(script, store, out, "--workers", 2, "--worker-threads", 1)
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate()
    assert wait_until(lambda: group_is_gone(driver.pid), 20)
    assert not list(tmp_path.rglob("*.partial"))
    assert not list(tmp_path.glob(".*.token"))
    assert finish(script, store, out, undisturbed)["resumed_from"] > 0


def test_a_lost_scheduler_ends_the_driver_with_75_and_a_new_one_goes_on(
    script: Script, store: Path, undisturbed: bytes, tmp_path: Path
) -> None:
    folder, out = tmp_path / "cluster", tmp_path / "out" / "scores.parquet"
    folder.mkdir()
    out.parent.mkdir()
    script.begin()
    lost = Processes(folder / "scheduler.json", environment=script.environment)
    scheduler = lost.start_scheduler()
    lost.start_worker()
    driver = begin_ranking(script, store, out, "--scheduler", lost.file)
    asked = time.monotonic()
    scheduler.kill()
    _, said = driver.communicate(timeout=60)
    scheduler.communicate()
    assert driver.returncode == 75, said
    assert time.monotonic() - asked < 30
    assert "the scheduler of the cluster is gone" in said
    assert "Traceback" not in said
    assert wait_until(lambda: lost.workers[0].poll() is not None, 30), "a worker outlives its scheduler"
    lost.workers[0].communicate()
    assert not list(tmp_path.rglob("*.token"))
    with processes(folder, 1, environment=script.environment) as again:
        found = finish(script, store, out, undisturbed, "--scheduler", again.file)
        assert found["resumed_from"] > 0
        assert script.times_begun("rank.sweep", 0) == 1 + 12 - found["resumed_from"]

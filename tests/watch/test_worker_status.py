"""``ecgl status`` shows each worker of a run, and says of one that is silent that it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ecgl_scale.base.events import WorkerJoined, WorkerReported, WorkersHeard, WorkerStarted
from ecgl_scale.cli.status import MOST_WORKERS, describe_workers, worker_line
from ecgl_scale.session.worker_table import WorkerTable
from ecgl_scale.watch.status import RunWatcher
from ecgl_scale.watch.worker_status import read_workers
from tests.cli_runner import run_cli
from tests.report.made_runs import MIB, make_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two workers, of which one works since second 100 and was last heard of at 104."""
    run = make_run(tmp_path / "run")
    table = WorkerTable(run / "workers.json", now=lambda: 100.0)
    table(WorkerJoined("0", "north", 7, 4, 800 * MIB))
    table(WorkerReported("0", "ingest.block", 3, 2, 1.5, 10, 20, 200 * MIB))
    table(WorkerStarted("0", "rank.sweep"))
    table(WorkersHeard({"0": 104.0, "late": 90.0}))
    table._write()  # as it would be two seconds later
    return run


def test_a_worker_is_silent_when_it_should_work_and_is_not_heard_of(run: Path) -> None:
    early, late = (read_workers(run, now=now, is_running=True) for now in (110.0, 135.0))
    assert [worker.is_silent for worker in early] == [False, False]
    assert [worker.is_silent for worker in late] == [True, False]
    assert [worker.is_busy for worker in late] == [True, False]
    assert not any(worker.is_silent for worker in read_workers(run, now=135.0, is_running=False))


def test_a_line_says_what_a_worker_does(run: Path) -> None:
    first, second = read_workers(run, now=106.0, is_running=True)
    assert worker_line(first, "running") == (
        "rank.sweep, 3 blocks done (3 tried again), peak 200 MiB of 800 MiB, heard 2.0 s ago"
    )
    assert worker_line(second, "running") == "no work yet, 0 blocks done, heard 16.0 s ago"
    silent = read_workers(run, now=150.0, is_running=True)[0]
    assert worker_line(silent, "running").endswith("silent for 46.0 s")
    waits = replace(first, is_busy=False)
    assert worker_line(waits, "running").startswith("waits after rank.sweep, 3 blocks")
    assert worker_line(first, "finished").endswith("peak 200 MiB of 800 MiB")


def test_status_prints_the_workers_of_a_run(run: Path) -> None:
    ran = run_cli("status", run)
    assert "worker 0     rank.sweep, 3 blocks done" in ran.stdout
    found = json.loads(run_cli("status", run, "--json").stdout)
    assert [(worker["name"], worker["host"], worker["pid"]) for worker in found["workers"]] == [
        ("0", "north", 7),
        ("late", "", 0),
    ]


def test_of_many_workers_the_silent_ones_come_first_and_the_rest_are_counted(run: Path) -> None:
    found = RunWatcher(run).read_status()
    silent = replace(found.workers[0], name="lost", is_silent=True)
    many = tuple(replace(found.workers[0], name=str(number)) for number in range(MOST_WORKERS + 4))
    lines = describe_workers(replace(found, workers=(*many, silent)))
    assert next(iter(lines)) == "worker lost"
    assert len(lines) == MOST_WORKERS + 1
    assert lines["and"] == "5 workers more; --json has them all"


def test_a_table_that_is_torn_or_odd_is_none(run: Path) -> None:
    for text in ("{", '{"workers": {"0": {}}}', '{"workers": [1]}'):
        (run / "workers.json").write_text(text)
        assert read_workers(run, now=0.0, is_running=True) == ()

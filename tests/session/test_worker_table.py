"""The table of a run's workers adds up what they report, and is on disk soon enough for others to see."""

from __future__ import annotations

from pathlib import Path

from ecgl_scale.base.events import (
    Event,
    Note,
    StepStarted,
    WorkerJoined,
    WorkerReported,
    WorkersHeard,
    WorkerStarted,
)
from ecgl_scale.session.worker_table import WorkerTable
from tests.session.streams import read_json

JOINED = WorkerJoined("0", "north", 7, 4, 1 << 30)


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def report(worker: str, *, blocks: int = 2, tries: int = 1, peak: int = 100) -> WorkerReported:
    return WorkerReported(worker, "rank.sweep", blocks, tries, 0.5, 10, 20, peak)


def test_what_workers_report_is_added_up_by_worker(tmp_path: Path) -> None:
    heard: list[Event] = []
    table = WorkerTable(tmp_path / "workers.json", heard.append, Clock())
    events: list[Event] = [JOINED, report("0"), report("0", blocks=3, tries=2, peak=300), report("1", peak=50)]
    for event in events:
        table(event)
    assert heard == events
    assert table.results()["workers"]["0"] == {
        "host": "north",
        "threads": 4,
        "memory_bytes": 1 << 30,
        "num_blocks": 5,
        "num_blocks_again": 3,
        "seconds": 1.0,
        "peak_bytes": 300,
        "read_bytes": 20,
        "written_bytes": 40,
    }
    assert table.results()["workers"]["1"]["host"] == ""


def test_the_file_is_replaced_every_two_seconds_and_at_the_end(tmp_path: Path) -> None:
    path, clock = tmp_path / "workers.json", Clock()
    table = WorkerTable(path, now=clock)
    table(JOINED)
    assert read_json(path)["workers"]["0"]["num_blocks"] == 0
    clock.now += 1.9
    table(report("0"))
    assert read_json(path)["workers"]["0"]["num_blocks"] == 0
    clock.now += 0.1
    table(WorkerStarted("0", "infer.layers"))
    found = read_json(path)["workers"]["0"]
    assert (found["num_blocks"], found["work"], found["since"], found["heard"]) == (2, "infer.layers", 1002.0, 1001.9)
    table(WorkersHeard({"0": 1001.0}))
    table.close()
    assert (read_json(path)["workers"]["0"]["since"], read_json(path)["workers"]["0"]["heard"]) == (None, 1001.9)


def test_a_worker_has_nothing_to_do_when_the_next_step_begins(tmp_path: Path) -> None:
    path, clock = tmp_path / "workers.json", Clock()
    table = WorkerTable(path, now=clock)
    table(WorkerStarted("0", "rank.sweep"))
    assert read_json(path)["workers"]["0"]["since"] == 1000.0
    clock.now += 2.0
    table(StepStarted("train"))
    assert read_json(path)["workers"]["0"]["since"] is None


def test_a_process_that_resumes_a_run_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "workers.json"
    for _ in range(2):
        table = WorkerTable(path)
        table(JOINED)
        table(report("0"))
        table.close()
    assert read_json(path)["workers"]["0"]["num_blocks"] == 4
    path.write_text("{")
    assert WorkerTable(path).results() == {}


def test_a_run_without_workers_has_no_table(tmp_path: Path) -> None:
    table = WorkerTable(tmp_path / "workers.json")
    table(Note("alone"))
    table(StepStarted("train"))
    table.close()
    assert table.results() == {}
    assert not list(tmp_path.iterdir())


def test_a_table_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    table = WorkerTable(tmp_path / "missing" / "workers.json")
    table(JOINED)
    table.close()
    assert table.results()["workers"]["0"]["host"] == "north"

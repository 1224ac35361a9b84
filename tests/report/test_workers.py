"""A report shows what each worker of a run took, and how evenly the work was shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ecgl_scale.report.content import gather
from ecgl_scale.report.page import render_page
from ecgl_scale.report.runs import FinishedRun
from ecgl_scale.report.workers import MOST_DRAWN, covered_seconds, read_units, workers_picture
from tests.report.made_runs import MIB, events, make_run, samples, write_lines


def reported(time: float, worker: str, seconds: float, peak: int) -> dict[str, Any]:
    took = {"seconds": seconds, "read_bytes": 5, "written_bytes": 6, "peak_bytes": peak}
    return {"time": time, "event": "WorkerReported", "worker": worker, "work": "rank.sweep", "num_blocks": 4, **took}


def with_workers(path: Path, num_workers: int = 2) -> Path:
    """Worker 0 works from second 0 to 2 of a run that began at second 100, every other one from 0.5 to 1."""
    run = make_run(path)
    units = [reported(102.0, "0", 2.0, 300 * MIB)]
    units += [reported(101.0, str(number), 0.5, (200 - number) * MIB) for number in range(1, num_workers)]
    write_lines(run / "events.jsonl", events() + units)
    results = json.loads((run / "results.json").read_text())
    results["workers"] = {
        unit["worker"]: {"host": "north", "memory_bytes": 400 * MIB, **unit, "num_blocks_again": 1} for unit in units
    }
    (run / "results.json").write_text(json.dumps(results))
    return run


@pytest.fixture
def run(tmp_path: Path) -> FinishedRun:
    return FinishedRun.read(with_workers(tmp_path / "run"))


def test_units_are_placed_in_the_seconds_of_running(run: FinishedRun) -> None:
    first, second = read_units(run.path)
    assert (first.worker, first.start, first.stop, first.peak_bytes) == ("0", 0.0, 2.0, 300 * MIB)
    assert (second.worker, second.start, second.stop, second.num_blocks) == ("1", 0.5, 1.0, 4)


def test_the_pause_before_a_resumption_does_not_count(run: FinishedRun) -> None:
    write_lines(run.path / "memory.jsonl", samples() + samples(started=500.0))
    write_lines(run.path / "events.jsonl", [reported(101.0, "0", 1.0, 1), reported(502.0, "0", 1.0, 1)])
    assert [round(unit.stop, 3) for unit in read_units(run.path)] == [1.0, 3.9 + 2.0]


def test_a_torn_or_odd_line_is_left_out(run: FinishedRun) -> None:
    odd = {**reported(101.0, "0", 1.0, 1), "seconds": None}
    (run.path / "events.jsonl").write_text(json.dumps(odd) + "\n" + json.dumps(reported(101.0, "0", 1.0, 1))[:-5])
    assert read_units(run.path) == []


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [([], 0.0), ([(0, 1), (2, 3)], 2.0), ([(0, 4), (1, 2), (3, 6)], 6.0), ([(1, 2), (0, 1)], 2.0)],
)
def test_time_that_several_share_counts_once(spans: list[tuple[float, float]], seconds: float) -> None:
    assert covered_seconds(spans) == seconds


def test_the_page_says_how_long_each_worker_worked_and_waited(run: FinishedRun) -> None:
    content = gather([run])
    table = content.details[0].workers
    assert table is not None
    assert [[cell.text for cell in row[:9]] for row in table.rows] == [
        ["0", "north", "4", "1", "2.0 s", "0 ms", "300 MiB", "400 MiB", "0.75"],
        ["1", "north", "4", "1", "500 ms", "1.5 s", "199 MiB", "400 MiB", "0.50"],
    ]
    page = render_page(content)
    assert 'id="title-variant-1-workers"' in page
    assert "worker 1" in page


def test_of_many_workers_those_with_the_highest_peaks_are_drawn(tmp_path: Path) -> None:
    run = FinishedRun.read(with_workers(tmp_path / "many", num_workers=14))
    picture = workers_picture(run, read_units(run.path), "a")
    assert picture is not None
    svg = picture.render("svg").decode()
    assert svg.count("worker ") == MOST_DRAWN
    assert "worker 9" in svg
    assert "4 are left out" in picture.note
    assert len(picture.rows) == 14


def test_a_run_without_workers_says_nothing_of_them(tmp_path: Path) -> None:
    detail = gather([FinishedRun.read(make_run(tmp_path / "alone"))]).details[0]
    assert detail.workers is None
    assert not [picture for picture in detail.resources if picture.name.endswith("workers")]

"""The accuracy benchmark runs on a tiny graph: it fills its record, goes on from it, and renders it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import accuracy, harness, learners
from bench.accuracy_record import Job, Record, digest_of
from bench.accuracy_table import render

NUM_NODES, NUM_CLASSES = 80, 4
WANTED = ("reference_fixed", "plus")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_bench: None) -> Path:
    """A graph whose classes show in its features, beside a fixed split of it."""
    rng = np.random.default_rng(0)
    labels = np.arange(NUM_NODES) % NUM_CLASSES
    x = np.eye(NUM_CLASSES, 6)[labels] + 0.1 * rng.random((NUM_NODES, 6))
    edges = rng.integers(0, NUM_NODES, (2, 200))
    directory = tmp_path / "data"
    (directory / "splits").mkdir(parents=True)
    np.savez(directory / "tiny.npz", edge_index=edges, num_nodes=NUM_NODES, y=labels, x=x.astype(np.float32))
    np.savez(directory / "splits" / "tiny.npz", split=(np.arange(NUM_NODES) // NUM_CLASSES % 3).astype(np.int8))
    tiny = accuracy.Graph("tiny", 8, ("tasks.classes_per_task=2", "learn.hidden=[8]"), has_split=True)
    monkeypatch.setattr(accuracy, "GRAPHS", {"tiny": tiny})
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    return directory


def make_jobs(data: Path, *, epochs: int = 2, score: str = "test") -> list[Job]:
    work = data.parent / "work"
    work.mkdir(exist_ok=True)
    rows = {name: accuracy.ROWS[name] for name in WANTED}
    settings = ["task-il", "class-il"]
    return list(accuracy.make_jobs(["tiny"], rows, settings, [0, 1], data=data, work=work, epochs=epochs, score=score))


def test_a_record_is_filled_gone_on_with_and_rendered(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = make_jobs(data)
    assert len(jobs) == 8
    accuracy.run(jobs[:3], Record("accuracy"))
    assert "3 of 3 runs to do" in capsys.readouterr().out
    accuracy.run(jobs, Record("accuracy"))
    assert "5 of 8 runs to do" in capsys.readouterr().out
    rows = Record("accuracy").rows
    assert [(row["row"], row["setting"]) for row in rows] == [
        (name, setting) for name in WANTED for setting in ("task-il", "class-il")
    ]
    for row in rows:
        assert row["aa"]["n"] == len(row["seeds"]) == 2
        assert row["aa"]["mean"] == pytest.approx(np.mean(row["aa"]["all"]))
        assert row["config"]["learn"]["epochs"] == 2
    fixed, drawn = ({run["split_hash"] for run in row["seeds"].values()} for row in (rows[0], rows[2]))
    assert (len(fixed), len(drawn)) == (1, 2)
    table = render(rows, rows)
    assert table.count("| `plus` |") == 2
    assert "(2)" in table
    assert not [path for path in (data.parent / "work").iterdir() if path.name.startswith("run-")]


def test_values_of_another_config_are_not_taken_for_done(data: Path) -> None:
    record = Record("accuracy")
    first, other = make_jobs(data)[4], make_jobs(data, epochs=3)[4]
    accuracy.run([first], record)
    assert record.has(first)
    assert digest_of(first.config) != digest_of(other.config)
    assert not record.has(other)


def test_the_choice_is_made_on_validation_nodes(data: Path) -> None:
    assert {job.config.tasks.score for job in make_jobs(data, score="valid")} == {"valid"}
    assert {job.config.tasks.score for job in make_jobs(data)} == {"test"}


@pytest.mark.parametrize(("text", "seeds"), [("0-4", [0, 1, 2, 3, 4]), ("3", [3]), ("0,2", [0, 2])])
def test_seeds_are_a_range_or_a_list(text: str, seeds: list[int]) -> None:
    assert accuracy.parse_seeds(text) == seeds


def test_learners_are_tested_both_ways_and_rendered(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = data.parent / "work"
    work.mkdir()
    monkeypatch.setattr(learners, "ROWS", {name: learners.ROWS[name] for name in ("analytic", "plus")})
    jobs = list(accuracy.make_jobs(["tiny"], learners.ROWS, ["class-il"], [0], data=data, work=work, epochs=2))
    narrow = [replace(job, overrides=(*job.overrides, "analytic.width=16")) for job in jobs]
    accuracy.run(narrow, Record(learners.CASE.name))
    rows = Record(learners.CASE.name).rows
    assert [row["row"] for row in rows] == ["analytic", "plus"]
    assert all(0 <= row["aa_seen"]["mean"] <= 100 and row["peak_bytes"]["mean"] > 0 for row in rows)
    table = learners.render(rows)
    assert table.index("E-CGL `plus`") < table.index("`analytic`")
    assert set(learners.ROWS) <= set(learners.NAMES)

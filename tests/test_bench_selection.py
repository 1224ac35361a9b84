"""The benchmark of selections runs on a tiny graph: every way to choose at every budget, from its own record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import accuracy, harness, selection
from bench.accuracy_record import Record

NUM_NODES, NUM_CLASSES = 80, 4


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_bench: None) -> Path:
    rng = np.random.default_rng(0)
    labels = np.arange(NUM_NODES) % NUM_CLASSES
    x = (np.eye(NUM_CLASSES, 6)[labels] + 0.1 * rng.random((NUM_NODES, 6))).astype(np.float32)
    edges = rng.integers(0, NUM_NODES, (2, 200))
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "tiny.npz", edge_index=edges, num_nodes=NUM_NODES, y=labels, x=x)
    tiny = accuracy.Graph("tiny", 8, ("tasks.classes_per_task=2", "learn.hidden=[8]"))
    monkeypatch.setattr(accuracy, "GRAPHS", {"tiny": tiny})
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    return tmp_path / "data"


def test_every_selection_is_run_at_every_budget_and_rendered(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = data.parent / "work"
    work.mkdir()
    jobs = list(selection.make_jobs(["tiny"], selection.SELECTS, [4, 6], [0, 1], data=data, work=work, epochs=2))
    banks = [(job.seed, job.config.bank.budget, job.config.bank.select) for job in jobs]
    assert banks == [(seed, budget, select) for seed in (0, 1) for budget in (4, 6) for select in selection.SELECTS]
    assert {(job.config.setting, job.config.preset, job.config.learn.epochs) for job in jobs} == {
        ("class-il", "plus", 2)
    }
    accuracy.run(jobs[:10], Record(selection.CASE))
    accuracy.run(jobs[:11], Record(selection.CASE))
    assert "1 of 11 runs to do" in capsys.readouterr().out
    table = selection.render(Record(selection.CASE).rows)
    lines = table.splitlines()
    assert [line.split(" |")[0] for line in lines[2:]] == ["| tiny, 4", "| tiny, 6"]
    assert lines[2].count("(2)") == 3
    assert lines[3].count("(1)") == len(selection.SELECTS)
    assert all(line.count("**") == 2 for line in lines[2:])
    assert (harness.RESULTS / "selection.json").exists()

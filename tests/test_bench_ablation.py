"""The ablation runs every variant on a tiny graph, those that are methods of its own too, and renders a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import ablation, accuracy, harness
from bench.accuracy_record import Record

NUM_NODES, NUM_CLASSES = 80, 4


def test_every_variant_is_run_in_both_scopes_and_rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(NUM_NODES) % NUM_CLASSES
    x = (np.eye(NUM_CLASSES, 6)[labels] + 0.1 * rng.random((NUM_NODES, 6))).astype(np.float32)
    np.savez(tmp_path / "tiny.npz", edge_index=rng.integers(0, NUM_NODES, (2, 200)), num_nodes=NUM_NODES, y=labels, x=x)
    graphs = {"tiny": accuracy.Graph("tiny", 8, ("tasks.classes_per_task=2", "learn.hidden=[8]"))}
    monkeypatch.setattr(accuracy, "GRAPHS", graphs)
    monkeypatch.setattr(ablation, "GRAPHS", graphs)
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    work = tmp_path / "work"
    work.mkdir()
    places = {"data": tmp_path, "work": work}
    jobs = list(accuracy.make_jobs(["tiny"], ablation.ROWS, ["class-il"], [0], **places, epochs=2, score="valid"))
    assert {job.row for job in jobs} == set(ablation.NAMES)
    accuracy.run(jobs, Record(ablation.CASE.name))
    lines = ablation.render(Record(ablation.CASE.name).rows).splitlines()
    assert lines[2] == "| | tiny |"
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[4:]] == list(ablation.NAMES.values())
    assert all(line.endswith("(1) |") and line.count("±") == 2 for line in lines[4:])

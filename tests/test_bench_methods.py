"""The benchmark of all methods runs one sweep, and its table has a line for each method."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from bench import harness, methods
from bench.accuracy import GRAPHS, Graph
from bench.methods_table import render
from ecgl_scale.learn.methods import METHODS


def test_every_method_there_is_has_a_row() -> None:
    assert {settings["method"] for settings in methods.METHODS.values()} == set(METHODS)


def test_a_sweep_becomes_a_record_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GRAPHS, "tiny", Graph("tiny", 20, ("tasks.classes_per_task=2",)))
    monkeypatch.setitem(methods.EPOCHS, "tiny", 2)
    store = tmp_path / "tiny.ecgl"
    size = ("--nodes", "300", "--classes", "4", "--features", "8")
    subprocess.run(harness.ecgl("--quiet", "generate", "sbm", str(store), *size), check=True)
    config, out = tmp_path / "tiny.yaml", tmp_path / "sweep"
    methods.write_config("tiny", ["finetune", "ecgl"], ["class-il"], store=store, path=config)
    subprocess.run(harness.ecgl("--quiet", "sweep", str(config), "--seeds", "0", "--out", str(out)), check=True)
    rows = methods.collect("tiny", out)
    assert [row["method"] for row in rows] == ["finetune", "ecgl"]
    assert [row["seeds"] for row in rows] == [[0], [0]]
    assert rows[0]["kept_bytes"] == 0 < rows[1]["kept_bytes"]
    assert all(0 <= row["aa"]["mean"] <= 100 and row["peak_bytes"] > 0 for row in rows)
    table = render(json.loads(json.dumps(rows)))
    assert "tiny, 2 epochs a task" in table
    assert table.count("\n| ") == 3

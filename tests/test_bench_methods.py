"""The benchmark of all methods runs one sweep, and its table has a line for each method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import methods, methods_products, paper
from bench.accuracy import GRAPHS, Graph
from bench.methods_table import render
from ecgl_scale.learn.method.table import built_in_methods
from tests.cli_runner import run_cli


def test_every_method_there_is_has_a_row() -> None:
    assert {settings["method"] for settings in methods.METHODS.values()} == set(built_in_methods())


@pytest.mark.usefixtures("warm_runs")
def test_a_sweep_becomes_a_record_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GRAPHS, "tiny", Graph("tiny", 20, ("tasks.classes_per_task=2",)))
    monkeypatch.setitem(methods.EPOCHS, "tiny", 2)
    store = tmp_path / "tiny.ecgl"
    size = ("--nodes", "300", "--classes", "4", "--features", "8")
    assert run_cli("--quiet", "generate", "sbm", store, *size).code == 0
    config, out = tmp_path / "tiny.yaml", tmp_path / "sweep"
    methods.write_config("tiny", ["finetune", "ecgl"], ["class-il"], store=store, path=config)
    assert run_cli("--quiet", "sweep", config, "--seeds", 0, "--out", out).code == 0
    rows = methods.collect("tiny", out)
    assert [row["method"] for row in rows] == ["finetune", "ecgl"]
    assert [row["seeds"] for row in rows] == [[0], [0]]
    assert rows[0]["kept_bytes"] == 0 < rows[1]["kept_bytes"]
    assert all(0 <= row["aa"]["mean"] <= 100 and row["peak_bytes"] > 0 for row in rows)
    table = render(json.loads(json.dumps(rows)))
    assert "tiny, 2 epochs a task" in table
    assert table.count("\n| ") == 3


def test_the_products_case_tells_time_and_peak_of_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: methods_products.METHODS[name] for name in ("ecgl", "cat")}
    monkeypatch.setattr(methods_products, "METHODS", some)
    graph = ("--nodes", "300", "--classes", "4", "--features", "8")
    result = methods_products.run(tmp_path, graph, memory="1GiB", epochs=1, cat_steps=2, classes_per_task=2)
    assert set(result["methods"]) == {"ecgl", "cat"}
    assert result["all_within_budget"]
    assert all(row["num_tasks"] == 2 and row["seconds"] > 0 for row in result["methods"].values())
    assert [path.name for path in tmp_path.iterdir()] == ["products.yaml"]


@pytest.mark.usefixtures("warm_bench")
def test_the_papers_tables_are_swept_and_reported_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = tmp_path / "configs"
    configs.mkdir()
    text = (paper.CONFIGS / "table-running-time.yaml").read_text(encoding="utf-8")
    (configs / "table-running-time.yaml").write_text(text.replace("classes_per_task: 3", "classes_per_task: 2"))
    monkeypatch.setattr(paper, "CONFIGS", configs)
    store = tmp_path / "tiny.ecgl"
    size = ("--nodes", "300", "--classes", "4", "--features", "8")
    assert run_cli("--quiet", "generate", "sbm", store, *size).code == 0
    result = paper.run(store, tmp_path, ["learn.epochs=1", "bank.budget=20"], seeds="0", jobs=1)
    (rows,) = result["sweeps"].values()
    assert [row["name"] for row in rows] == ["E-CGL", "trained-as-GCN"]
    assert all(row["train_ms_per_epoch"] > 0 for row in rows)
    assert result["report_bytes"] > 10_000

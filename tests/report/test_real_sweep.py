"""The report of a sweep that was really run: its numbers are the sweep's, and its pages open in a browser."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from ecgl_scale.session.sweep import run_work
from tests.cli_runner import run_cli
from tests.report.browser import needs_chromium, numbers, visit, watched
from tests.session.streams import read_json, write_config

ONE_RUN = "lambda-1_method-ecgl/seed-0"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory, warm_commands: Path) -> Path:
    """Two methods with two weights; the weight that is no default comes first."""
    folder = tmp_path_factory.mktemp("real")
    size = ("--nodes", 600, "--classes", 6, "--features", 16, "--signal", 2, "--seed", 0)
    assert run_cli("--quiet", "generate", "sbm", folder / "graph.ecgl", *size).code == 0
    config = write_config(folder / "run.yaml", folder / "graph.ecgl")
    grid = ("--grid", "learn.lambda=0,1", "--grid", "method=ecgl,finetune", "--seeds", "0", "--set", "learn.epochs=5")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_work, "CHILD", (str(warm_commands / "child"),))
        ran = run_cli("--quiet", "sweep", config, *grid, "--out", folder / "sweep")
    assert ran.code == 0, ran.stderr
    return folder / "sweep"


def test_the_sweeps_table_and_the_report_have_the_same_times_and_the_default_stands_for_the_method(sweep: Path) -> None:
    figures = sweep.parent / "figures"
    assert run_cli("--quiet", "report", sweep, "--figures", figures).code == 0
    _, *rows = csv.reader((figures / "running-time-table.csv").read_text().splitlines())
    shown = {name: (float(train), float(test)) for name, train, test in rows}
    expected = {
        f"{entry['method']}, learn.lambda=1.0": (entry["train_ms_per_epoch"]["mean"], entry["inference_ms"]["mean"])
        for entry in read_json(sweep / "sweep.json")["combinations"]
        if entry["settings"]["learn.lambda"] == 1
    }
    assert shown.keys() == expected.keys()
    for name, times in expected.items():
        assert shown[name] == pytest.approx(times)
    results = read_json(sweep / ONE_RUN / "results.json")
    assert results["num_epochs"] == 3 * 5
    assert expected["ecgl, learn.lambda=1.0"][0] == pytest.approx(1000 * results["stages"]["train"]["seconds"] / 15)


def open_report(of: Path, folder: Path) -> tuple[dict[str, Any], str]:
    page = folder / "page.html"
    made = run_cli("--quiet", "report", of, "--html", page)
    assert made.code == 0, made.stderr
    page.write_text(watched(page.read_text(encoding="utf-8")), encoding="utf-8")
    return visit(page, folder / "profile", "--window-size=1200,900")


@needs_chromium
@pytest.mark.parametrize(
    ("place", "sections", "first_column"),
    [
        (".", ["summary", "comparison", "learning", "sensitivity", "details"], "method"),
        (ONE_RUN, ["summary", "details"], "task"),
    ],
)
def test_the_page_of_a_sweep_and_of_one_of_its_runs_open_without_an_error_or_a_request(
    sweep: Path, tmp_path: Path, place: str, sections: list[str], first_column: str
) -> None:
    found, said = open_report(sweep / place, tmp_path)
    assert found["errors"] == []
    assert found["requests"] == []
    assert "CONSOLE" not in said
    assert [name for name, _ in found["sections"]] == sections
    assert all(height > 80 for _, height in found["sections"])
    assert (found["names"][0], found["flat"]) == (first_column, 0)
    assert found["pictures"] >= 5
    assert numbers(found["descending"]) == sorted(numbers(found["before"]), reverse=True)
    assert numbers(found["ascending"]) == sorted(numbers(found["before"]))
    assert found["mark"] == "descending"

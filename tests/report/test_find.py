"""A report counts every seed once, in the order of its sweep, and says which runs it leaves out and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.report.content import gather
from ecgl_scale.report.find import Omitted, find_runs
from ecgl_scale.report.page import render_page
from tests.cli_runner import run_cli
from tests.report.made_runs import make_run
from tests.watch.test_sweep_status import make_sweep


def test_runs_of_a_sweep_that_have_not_finished_are_named_with_their_reason(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    runs, omitted = find_runs([sweep])
    assert len(runs) == 3
    assert [(str(run.path.relative_to(sweep)), run.condition) for run in omitted] == [
        ("method-lwf/seed-0", "failed"),
        ("method-gem/seed-1", "stopped"),
        ("method-lwf/seed-1", "waiting"),
    ]
    assert omitted[0].reason == "the disk is on fire"
    page = render_page(gather(runs, omitted))
    for text in ("3 runs left out", "1 failed, 1 stopped, 1 waiting", "the disk is on fire", "method-lwf/seed-1"):
        assert text in page


def test_the_terminal_and_json_name_them_too(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    lines = run_cli("report", sweep).stdout.splitlines()
    assert "left out: 3 runs (1 failed, 1 stopped, 1 waiting)" in lines
    assert f"  {sweep}/method-lwf/seed-0: failed, the disk is on fire" in lines
    left_out = json.loads(run_cli("report", sweep, "--json").stdout)["left_out"]
    assert left_out[0] == {
        "path": f"{sweep}/method-lwf/seed-0",
        "condition": "failed",
        "reason": "the disk is on fire",
    }


def test_a_run_that_was_killed_among_others_is_left_out_and_a_folder_that_only_has_a_config_is_no_run(
    tmp_path: Path,
) -> None:
    make_run(tmp_path / "0")
    make_run(tmp_path / "1", seed=1, is_finished=False)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "config.yaml").write_text("store: x\n")
    runs, omitted = find_runs([tmp_path])
    assert [run.path.name for run in runs] == ["0"]
    assert [(run.path.name, run.condition) for run in omitted] == [("1", "killed")]


def test_a_run_that_is_given_twice_counts_once_and_a_copy_of_it_does_not_count(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    runs, omitted = find_runs([run, tmp_path / "a", make_run(tmp_path / "copy")])
    assert len(runs) == 1
    assert omitted == [Omitted(tmp_path / "copy", "repeated", f"settings and seed of {run}")]
    others = [make_run(tmp_path / "b", seed=1), make_run(tmp_path / "c", bank__budget=3)]
    assert len(find_runs([run, *others])[0]) == 3


def test_a_sweep_has_the_order_of_its_grid(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    record = json.loads((sweep / "sweep.json").read_text())
    record["combinations"].reverse()
    (sweep / "sweep.json").write_text(json.dumps(record))
    assert [run.results["method"] for run in find_runs([tmp_path])[0]] == ["gem", "ecgl", "ecgl"]


def test_a_sweep_without_a_finished_run_says_what_there_is(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path / "sweep")
    for results in sweep.rglob("results.json"):
        results.unlink()
    with pytest.raises(InvalidInputError, match="none of the 6 runs here has finished: 1 failed, 4 stopped, 1 waiting"):
        find_runs([sweep])

"""A report shows tests on each task's own graph and on all that was seen beside each other, and says what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ecgl_scale.report.compare import summary_table
from ecgl_scale.report.content import gather, save_figures
from ecgl_scale.report.page import render_page
from ecgl_scale.report.runs import SEEN_NOTE, FinishedRun, group_runs
from ecgl_scale.report.tables import NONE
from ecgl_scale.tasks.measures import seconds_per_test
from tests.cli_runner import run_cli
from tests.report.made_runs import make_run


def rewrite(path: Path, **changed: Any) -> Path:
    """The run with other results."""
    results = json.loads((path / "results.json").read_text())
    (path / "results.json").write_text(json.dumps({**results, **changed}))
    return path


def with_both(path: Path, *, loss: float = 20.0) -> Path:
    """The run, tested on all that was seen too, where it is so much worse."""
    results = json.loads((path / "results.json").read_text())
    matrix = [[None if value is None else value - loss for value in row] for row in results["matrix"]]
    return rewrite(path, eval_scope="both", aa_seen=results["aa"] - loss, af_seen=results["af"] - 1, matrix_seen=matrix)


def test_tables_and_pictures_are_of_both_scopes(tmp_path: Path) -> None:
    paths = [with_both(make_run(tmp_path / name, method=name)) for name in ("ecgl", "gem")]
    runs = [FinishedRun.read(path) for path in paths]
    content = gather(runs)
    assert content.summary.columns[4:8] == ("AA %", "AF %", "AA seen %", "AF seen %")
    aa = runs[0].results["aa"]
    assert [cell.key for cell in content.summary.rows[0][4:8]] == pytest.approx([aa, -15.0, aa - 20, -16.0])
    tables = {table.name: table for table in content.tables()}
    seen = tables["class-il-accuracy-seen"]
    assert seen.columns == ("method", "AA seen %", "AF seen %")
    assert seen.rows[0][1].key == pytest.approx(aa - 20)
    assert tables["variant-1-task-list"].columns[-1] == "at the end, seen"
    assert tables["variant-1-runs"].columns[1:5] == ("AA %", "AF %", "AA seen %", "AF seen %")
    pictures = {picture.name: picture for picture in content.pictures()}
    assert pictures.keys() >= {
        "learning-1",
        "learning-1-seen",
        "variant-1-matrix",
        "variant-1-matrix-seen",
        "variant-1-learning-seen",
    }
    for (t, j, value, _), (*place, other, _) in zip(
        pictures["variant-1-matrix"].rows, pictures["variant-1-matrix-seen"].rows, strict=True
    ):
        assert ([t, j], value - 20) == (place, pytest.approx(other))
    assert SEEN_NOTE.count(". ") == 1  # two sentences
    assert all(SEEN_NOTE in one.note for one in (content.summary, seen, pictures["variant-1-matrix-seen"]))
    page = render_page(content)
    for text in ("AA seen %", "average accuracy, seen", "Performance matrix, seen", "as a model in use meets it"):
        assert text in page
    save_figures(content, tmp_path / "figures")
    assert "AA seen %" in (tmp_path / "figures" / "summary-table.csv").read_text()
    assert (tmp_path / "figures" / "variant-1-matrix-seen.csv").exists()


def test_runs_of_one_scope_have_their_own_columns_alone(tmp_path: Path) -> None:
    task, old = (
        make_run(tmp_path / "task", tasks__eval_scope="task"),
        make_run(tmp_path / "old", tasks__eval_scope="seen"),
    )
    new = with_both(make_run(tmp_path / "new", tasks__eval_scope="both"))
    only_seen = rewrite(make_run(tmp_path / "seen", tasks__eval_scope="seen"), eval_scope="seen", aa_seen=1.0)

    def table_of(*paths: Path) -> Any:
        return summary_table(group_runs([FinishedRun.read(path) for path in paths]))

    assert table_of(task).columns[4:6] == ("AA %", "AF %")
    assert SEEN_NOTE not in table_of(task).note
    for path in (old, only_seen):
        assert table_of(path).columns[4:6] == ("AA seen %", "AF seen %")
        assert table_of(path).rows[0][4].key == FinishedRun.read(path).results["aa"]
    mixed = table_of(task, old, new)
    shown = {row[0].text.rpartition("=")[2]: [cell.text != NONE for cell in row[4:8:2]] for row in mixed.rows}
    assert sorted(shown.values()) == [[False, True], [True, False], [True, True]]


def test_rows_that_were_not_tested_leave_gaps(tmp_path: Path) -> None:
    path = make_run(tmp_path / "last")
    matrix = json.loads((path / "results.json").read_text())["matrix"]
    last = FinishedRun.read(rewrite(path, matrix=[[None] * 3, [None] * 3, matrix[2]], af=None))
    content = gather([last])
    pictures = {picture.name: picture for picture in content.pictures()}
    assert [row[1] for row in pictures["variant-1-learning"].rows] == [2]
    assert "Performance matrix" in render_page(content)
    none = FinishedRun.read(rewrite(path, matrix=[[None] * 3] * 3, aa=None))
    content = gather([none])
    assert {picture.name for picture in content.pictures()}.isdisjoint({"variant-1-learning", "variant-1-matrix"})
    assert "Training loss" in render_page(content)


def test_the_command_prints_both_scopes(tmp_path: Path) -> None:
    path = with_both(make_run(tmp_path / "run"))
    ran = run_cli("report", path)
    assert ran.code == 0, ran.stderr
    assert "AA seen %" in ran.stdout.splitlines()[0]
    assert SEEN_NOTE in ran.stdout
    [found] = json.loads(run_cli("report", path, "--json").stdout)["groups"]
    assert found["scopes"] == ["task", "seen"]
    assert found["accuracy_seen"]["mean"] == pytest.approx(found["accuracy"]["mean"] - 20)


def test_a_tests_time_is_by_the_graphs_that_were_gone_through() -> None:
    stages, whole = {"evaluate": {"seconds": 12.0}}, [[1.0, None], [1.0, 2.0]]
    assert seconds_per_test({"stages": stages, "matrix": whole}) == 4.0
    assert seconds_per_test({"stages": stages, "matrix": whole, "eval_scope": "seen"}) == 6.0
    assert seconds_per_test({"stages": stages, "matrix": whole, "eval_scope": "both"}) == 2.4
    assert seconds_per_test({"stages": stages, "matrix": [[None, None], whole[1]]}) == 6.0
    assert seconds_per_test({"stages": stages, "matrix": [[None, None]] * 2}) is None

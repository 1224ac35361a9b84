"""Runs are grouped by what was asked of them, not by their seed; tables compare like with like."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.report.compare import ablation_table, accuracy_tables, summary_table, time_table
from ecgl_scale.report.curves import sensitivity_pictures
from ecgl_scale.report.runs import FinishedRun, Group, Spread, group_runs
from ecgl_scale.report.tables import NONE, Table
from tests.report.made_runs import make_comparison, make_run


def groups_of(paths: list[Path]) -> list[Group]:
    return group_runs([FinishedRun.read(path) for path in paths])


def line_of(table: Table | None, name: str) -> list[str]:
    assert table is not None
    return next([cell.text for cell in row] for row in table.rows if row[0].text == name)


def test_seeds_of_one_config_are_one_group_with_mean_and_deviation(tmp_path: Path) -> None:
    (group,) = groups_of([make_run(tmp_path / str(seed), seed=seed) for seed in (0, 2)])
    assert group.seeds == [0, 2]
    assert group.label == "ecgl"
    assert group.accuracy == Spread(81.0, 1.0, 2)
    assert str(group.accuracy) == "81.0 ± 1.0"


def test_a_key_of_another_method_or_one_that_is_new_makes_no_group(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1, bank__new=3)]
    assert len(groups_of(paths)) == 1


def test_variants_are_named_by_what_sets_them_apart_from_the_usual(tmp_path: Path) -> None:
    labels = [group.label for group in groups_of(make_comparison(tmp_path)) if group.store == "one"]
    assert "ecgl" in labels
    assert {"ecgl, bank.budget=50", "ecgl, bank.budget=100", "ecgl, bank.importance=False"} < set(labels)


def test_a_single_varied_key_is_shown_for_every_value(tmp_path: Path) -> None:
    groups = groups_of([make_run(tmp_path / str(budget), bank__budget=budget) for budget in (400, 30)])
    assert {group.label for group in groups} == {"ecgl, bank.budget=400", "ecgl, bank.budget=30"}
    assert sum(group.is_base for group in groups) == 1


def test_of_two_variants_the_one_with_the_default_is_the_method_itself(tmp_path: Path) -> None:
    groups = groups_of([make_run(tmp_path / kind, learn__train_as=kind) for kind in ("gcn", "mlp")])
    assert {group.label: group.is_base for group in groups} == {
        "ecgl, learn.train_as=mlp": True,
        "ecgl, learn.train_as=gcn": False,
    }


def test_one_table_a_setting_has_methods_by_stores_and_the_best_that_is_no_bound_in_bold(tmp_path: Path) -> None:
    task, klass = accuracy_tables(groups_of(make_comparison(tmp_path)))
    assert task.title.startswith("Task")
    assert klass.over == (("", 1), ("one", 2), ("two", 2))
    assert [row[0].text for row in klass.rows] == ["finetune", "ecgl", "joint"]
    assert line_of(klass, "ecgl")[1:3] == ["80.5 ± 0.5", "-15.0 ± 0.0"]
    assert line_of(klass, "joint")[2] == NONE
    assert [row[0].text for row in klass.rows if row[1].is_best] == ["ecgl"]


def test_an_ablation_is_compared_over_the_seeds_it_has(tmp_path: Path) -> None:
    table = ablation_table(groups_of(make_comparison(tmp_path)))
    assert line_of(table, "ecgl")[1] == "80.5 ± 0.5"
    assert line_of(table, "ecgl, without importance")[1:] == ["77.0", "-15.0", "-3.0"]
    assert table is not None
    assert not any("budget" in row[0].text for row in table.rows)


def test_running_time_is_that_of_an_epoch_and_of_a_test(tmp_path: Path) -> None:
    table = time_table(groups_of([make_run(tmp_path / "a")]))
    assert line_of(table, "ecgl")[1:] == ["20.00", "750.00"]  # 4.5 s for 1 + 2 + 3 tests


def test_a_varied_number_becomes_a_sensitivity_curve_over_common_seeds(tmp_path: Path) -> None:
    (picture,) = sensitivity_pictures(groups_of(make_comparison(tmp_path)))
    assert picture.title.startswith("bank.budget")
    assert [row[1] for row in picture.rows] == [50.0, 100.0, 200.0]
    assert {row[-1] for row in picture.rows} == {1}  # seed 1 was run with the usual budget only


@pytest.mark.parametrize(
    ("values", "scale"), [((0.0, 0.01, 1.0, 100.0), "symlog"), ((0.01, 1.0), "log"), ((0.0, 0.5, 1.0), "linear")]
)
def test_values_far_apart_are_on_a_logarithmic_axis_where_zero_has_a_place(
    tmp_path: Path, values: tuple[float, ...], scale: str
) -> None:
    groups = groups_of([make_run(tmp_path / str(value), learn__lambda=value) for value in values])
    (picture,) = sensitivity_pictures(groups)
    figure = Figure()
    picture.draw(figure)
    assert {axes.get_xscale() for axes in figure.axes} == {scale}


def test_the_summary_can_be_read_by_a_program(tmp_path: Path) -> None:
    lines = summary_table(groups_of([make_run(tmp_path / "a")])).csv.splitlines()
    assert lines[0].startswith("method,store,setting")
    assert lines[1].startswith("ecgl,graph,class-il,plus,80.0,-15.0,1,")


def test_a_directory_without_results_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="not the directory of a finished run"):
        FinishedRun.read(tmp_path)
    (tmp_path / "results.json").write_text('{"aa": 1}')
    with pytest.raises(InvalidInputError, match="lacks af, matrix"):
        FinishedRun.read(tmp_path)


def test_only_results_are_needed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    for name in ("config.yaml", "plan.json", "state.json", "events.jsonl", "memory.jsonl"):
        (run / name).unlink()
    (group,) = groups_of([run])
    assert (group.label, group.runs[0].losses, group.runs[0].samples) == ("ecgl", [], [])

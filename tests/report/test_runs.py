"""Runs are grouped by what was asked of them, not by their seed; tables compare like with like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.report.compare import ablation_table, accuracy_tables, summary_table, time_table
from ecgl_scale.report.content import gather
from ecgl_scale.report.curves import learning_picture, sensitivity_pictures
from ecgl_scale.report.runs import FinishedRun, Group, group_runs
from ecgl_scale.report.tables import NONE, Table
from ecgl_scale.tasks.measures import Spread, seconds_per_epoch
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


def test_a_model_before_its_update_is_no_seed_of_the_one_after_it(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name) for name in ("before", "after")]
    results = json.loads((paths[0] / "results.json").read_text())
    results["matrix"] = [row[:2] for row in results["matrix"][:2]]
    (paths[0] / "results.json").write_text(json.dumps(results))
    assert {group.label for group in groups_of(paths)} == {"ecgl, tasks.learned=2", "ecgl, tasks.learned=3"}
    assert "tasks.learned=2" in learning_picture(groups_of(paths), "lines", "lines", "task").csv


def test_a_key_of_another_method_or_one_that_is_new_makes_no_group(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1, bank__new=3)]
    assert len(groups_of(paths)) == 1


def test_a_key_that_changes_no_result_makes_no_group(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / "a", learn__device="cpu"), make_run(tmp_path / "b", seed=1, learn__device="cuda")]
    assert len(groups_of(paths)) == 1


def test_what_a_run_says_of_its_method_is_believed(tmp_path: Path) -> None:
    about = {"category": "bound", "section": "ewc", "keeps_all_data": True, "is_reconstruction": True}
    paths = [make_run(tmp_path / str(seed), method="mine:Own", seed=seed, about_method=about) for seed in (0, 1)]
    groups = groups_of(paths)
    assert [group.forgetting for group in groups] == [None, None]
    # The section ewc is its own now, and differs from seed to seed.
    assert [group.label for group in groups] == [
        f"mine:Own (reconstruction), ewc.lambda={1.0 + seed}" for seed in (0, 1)
    ]


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


def balanced_grid(folder: Path) -> list[Group]:
    """Of two weights of two methods the first that is met is not the default, and the worse one."""
    paths = []
    for method in ("ecgl", "finetune"):
        for weight, gain in ((0.0, -30.0), (1.0, 0.0)):
            changed = ["learn.epochs", *(["learn.lambda"] if weight == 0 else [])]
            path = folder / f"{method}-{weight:g}"
            paths.append(make_run(path, method=method, gain=gain, changed=changed, learn__lambda=weight))
    return groups_of(paths)


def test_of_a_balanced_grid_the_default_stands_for_the_method_and_the_others_are_counted(tmp_path: Path) -> None:
    groups = balanced_grid(tmp_path)
    defaults = ["ecgl, learn.lambda=1.0", "finetune, learn.lambda=1.0"]
    assert [group.label for group in groups if group.is_base] == defaults
    (accuracies,) = accuracy_tables(groups)
    times, curves = time_table(groups), learning_picture(groups, "name", "title", "task")
    assert times is not None
    assert [row[0].text for row in accuracies.rows] == [row[0].text for row in times.rows] == defaults
    assert [*dict.fromkeys(row[0] for row in curves.rows)] == defaults
    assert line_of(accuracies, "ecgl, learn.lambda=1.0")[1] == "80.0"
    for note in (accuracies.note, times.note, curves.note):
        assert "Variants of a method are left out: 2." in note


def test_old_runs_that_do_not_name_their_changes_are_taken_as_they_come(tmp_path: Path) -> None:
    groups = groups_of([make_run(tmp_path / str(weight), learn__lambda=weight) for weight in (0.0, 1.0)])
    assert [group.label for group in groups if group.is_base] == ["ecgl, learn.lambda=0.0"]
    paths = [tmp_path / "0.0", make_run(tmp_path / "new", changed=[], learn__lambda=1.0)]
    assert [group.label for group in groups_of(paths) if group.is_base] == ["ecgl, learn.lambda=1.0"]


def test_all_that_show_the_highest_mean_are_in_bold(tmp_path: Path) -> None:
    gains = {"ecgl": 0.0, "gem": 0.04, "finetune": -1.0, "joint": 5.0}
    (table,) = accuracy_tables(groups_of([make_run(tmp_path / m, method=m, gain=gain) for m, gain in gains.items()]))
    assert [row[0].text for row in table.rows if row[1].is_best] == ["ecgl", "gem"]


def test_an_ablation_says_how_many_variants_it_leaves_out_and_so_do_figures_with_too_many_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = groups_of(make_comparison(tmp_path))
    table = ablation_table(groups)
    assert table is not None
    assert "Variants of a method are left out: 2." in table.note  # two budgets
    monkeypatch.setattr("ecgl_scale.report.curves.MAX_LINES", 2)
    curves = learning_picture([group for group in groups if group.store == "two"], "name", "title", "task")
    assert "Methods are left out: 1." in curves.note


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
    assert line_of(table, "ecgl")[1:] == ["208.33", "750.00"]  # 2.5 s for 3 x 4 epochs, 4.5 s for 1 + 2 + 3 tests
    assert table is not None
    assert "the epochs run" in table.note


def test_an_epochs_time_is_by_the_epochs_that_were_run_where_the_results_say_so() -> None:
    stages = {"train": {"seconds": 6.0}, "evaluate": {"seconds": 3.0}}
    assert seconds_per_epoch({"stages": stages, "num_epochs": 3}, 12) == 2.0
    assert seconds_per_epoch({"stages": stages}, 12) == 0.5
    assert seconds_per_epoch({"stages": stages}, None) is None
    assert seconds_per_epoch({"stages": {}}, 12) is None


def test_a_reconstruction_is_called_so_wherever_it_is_shown(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / "ecgl"), make_run(tmp_path / "base", method="dygrain", gain=1.0)]
    paths.append(make_run(tmp_path / "gcn", method="dygrain", learn__train_as="gcn"))
    paths.append(make_run(tmp_path / "low", method="dygrain", learn__lambda=0.5))
    content = gather([FinishedRun.read(path) for path in paths])
    assert "dygrain (reconstruction)" in content.title
    tables = {table.name: table for table in (content.summary, *content.comparison)}
    assert tables.keys() == {"summary", "class-il-accuracy", "ablation", "running-time"}
    names = [row[0].text for table in tables.values() for row in table.rows]
    names += [str(row[0]) for picture in (*content.learning, *content.sensitivity) for row in picture.rows]
    found = [name for name in names if "dygrain" in name]
    assert len(found) > 8
    assert all(name.startswith("dygrain (reconstruction)") for name in found)


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
    assert lines[0] == (
        "method,store,setting,preset,AA %,AA % deviation,AF %,AF % deviation,seeds,time (seconds),peak memory (bytes)"
    )
    assert lines[1].startswith("ecgl,graph,class-il,plus,80.0,0.0,-15.0,0.0,1,")


def test_what_is_missing_is_empty_for_a_program(tmp_path: Path) -> None:
    lines = summary_table(groups_of([make_run(tmp_path / "a", method="joint")])).csv.splitlines()
    assert lines[1].startswith("joint,graph,class-il,plus,80.0,0.0,,1,")


def test_a_grid_says_what_the_name_of_the_method_alone_stands_for(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / f"{budget}-{ratio}", bank__budget=budget, bank__diversity_ratio=ratio)
        for budget in (10, 200)
        for ratio in (0.25, 1.0)
    ]
    note = summary_table(groups_of(runs)).note
    assert note.endswith("Where a name does not say otherwise: bank.budget=10, bank.diversity_ratio=0.25.")
    assert "otherwise" not in summary_table(groups_of(runs[:2])).note  # one key: every name has its value


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

"""Grids, variants and seeds become combinations; what makes no sense is refused before anything is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ecgl_scale.config.schema import load_config
from ecgl_scale.config.sweep import Sweep, load_sweep, parse_axis, parse_seeds
from ecgl_scale.errors import UsageError

PAPER = sorted((Path(__file__).parents[2] / "configs" / "paper").glob("*.yaml"))


def write(path: Path, **sections: Any) -> Path:
    path.write_text(json.dumps({"store": "graph.ecgl", **sections}))
    return path


def load(tmp_path: Path, *grid: str, sections: dict[str, Any] | None = None, **settings: Any) -> Sweep:
    return load_sweep(write(tmp_path / "run.yaml", **(sections or {})), grid=grid, **settings)


@pytest.mark.parametrize(
    ("text", "keys", "values"),
    [
        ("learn.lambda=0,0.1,1e-3", ("learn.lambda",), [(0,), (0.1,), (0.001,)]),
        ("learn.features=raw,propagated:2", ("learn.features",), [("raw",), ("propagated:2",)]),
        ("learn.hidden=[256],[64, 32],[]", ("learn.hidden",), [([256],), ([64, 32],), ([],)]),
        ("bank.importance=true,false", ("bank.importance",), [(True,), (False,)]),
        ("tasks.column=null,year", ("tasks.column",), [(None,), ("year",)]),
        ("store,bank.budget=[a.ecgl,5],[b.ecgl,7]", ("store", "bank.budget"), [("a.ecgl", 5), ("b.ecgl", 7)]),
    ],
)
def test_values_of_a_grid_are_yaml(text: str, keys: tuple[str, ...], values: list[tuple[Any, ...]]) -> None:
    axis = parse_axis(text)
    assert (axis.keys, [*axis.values]) == (keys, values)


@pytest.mark.parametrize(
    ("given", "seeds"),
    [("0-4", (0, 1, 2, 3, 4)), ("3", (3,)), (3, (3,)), ("0, 2, 7-8", (0, 2, 7, 8)), ([1, 5], (1, 5))],
)
def test_seeds(given: object, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(given, where="here") == seeds


@pytest.mark.parametrize("given", ["", "a", "4-0", "0-", "-1", "1,1", "0-2,1", "0.5", "0-99999999999", [], [[1]], None])
def test_seeds_that_make_no_sense(given: object) -> None:
    with pytest.raises(UsageError, match="seeds are"):
        parse_seeds(given, where="here")


def test_every_combination_is_there_once_and_its_folder_says_what_it_is(tmp_path: Path) -> None:
    sweep = load(tmp_path, "method=finetune,ecgl", "learn.lambda=0,0.5", seeds="0-1")
    assert [combination.name for combination in sweep.combinations] == [
        "method-finetune_lambda-0",
        "method-finetune_lambda-0.5",
        "method-ecgl_lambda-0",
        "method-ecgl_lambda-0.5",
    ]
    last = sweep.combinations[-1]
    assert last.settings == {"method": "ecgl", "learn.lambda": 0.5}
    assert (last.config.method, last.config.learn.lambda_, sweep.seeds) == ("ecgl", 0.5, (0, 1))
    assert sweep.grid == {"method": ["finetune", "ecgl"], "learn.lambda": [0, 0.5]}


def test_keys_that_change_together_are_not_crossed_and_a_preset_still_fills_in(tmp_path: Path) -> None:
    sweep = load(tmp_path, "preset,learn.train_as=[paper,mlp],[plus,gcn]")
    assert [(c.config.preset, c.config.learn.train_as, c.config.bank.quota) for c in sweep.combinations] == [
        ("paper", "mlp", "none"),
        ("plus", "gcn", "class"),
    ]


def test_the_section_of_a_file_is_enough(tmp_path: Path) -> None:
    section = {
        "variants": {"E-CGL": {}, "no importance": {"bank.select": "ecgl", "bank.importance": False}},
        "grid": {"setting": ["task-il", "class-il"]},
        "seeds": "0-2",
        "jobs": 1,
    }
    sweep = load(tmp_path, sections={"sweep": section})
    assert [combination.name for combination in sweep.combinations] == [
        "E-CGL_setting-task-il",
        "E-CGL_setting-class-il",
        "no-importance_setting-task-il",
        "no-importance_setting-class-il",
    ]
    assert [combination.settings["bank.importance"] for combination in sweep.combinations] == [True, True, False, False]
    assert (sweep.seeds, sweep.jobs, sweep.variants) == ((0, 1, 2), 1, section["variants"])


def test_the_command_line_wins_over_the_file_key_by_key(tmp_path: Path) -> None:
    section = {"grid": {"method": ["finetune", "joint"], "setting": ["task-il"]}, "seeds": "0-4"}
    sweep = load(tmp_path, "method=ecgl", sections={"sweep": section}, seeds="7", overrides=["learn.epochs=3"])
    (only,) = sweep.combinations
    assert only.settings == {"setting": "task-il", "method": "ecgl"}
    assert (only.config.learn.epochs, sweep.seeds) == (3, (7,))


def test_without_a_grid_there_is_one_combination_and_the_configs_own_seed(tmp_path: Path) -> None:
    sweep = load(tmp_path, sections={"seed": 9})
    assert ([combination.name for combination in sweep.combinations], sweep.seeds) == (["base"], (9,))


def test_the_store_may_be_in_the_grid_alone(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("seed: 0\n")
    sweep = load_sweep(tmp_path / "run.yaml", grid=["store=/a/x.ecgl,/b/x.ecgl"])
    assert len({combination.name for combination in sweep.combinations}) == 2


def test_folders_have_different_names_that_every_file_system_takes(tmp_path: Path) -> None:
    sweep = load(tmp_path, "store=a/b.ecgl,a-b.ecgl,../../etc," + "x" * 300)
    names = [combination.name for combination in sweep.combinations]
    assert len(set(names)) == 4
    assert all("/" not in name and not name.startswith(".") and len(name) < 200 for name in names)
    tasks = load(tmp_path, sections={"sweep": {"variants": {"tasks": {}, "sweep.json": {}}}})
    assert not {"tasks", "sweep.json"} & {combination.name for combination in tasks.combinations}


@pytest.mark.parametrize(
    ("grid", "overrides", "message"),
    [
        (["learn.lambda"], [], "a grid makes no sense"),
        (["learn.lambda="], [], "a grid makes no sense"),
        (["=1,2"], [], "a grid makes no sense"),
        (["learn.lambda=1,1"], [], "stands twice"),
        (["learn.lambda=1,[2"], [], "not valid YAML"),
        (["learn.lambda=1,-2"], [], "learn.lambda is -2"),
        (["learn.lambada=1,2"], [], "no key learn.lambada"),
        (["method=ecgl,magic"], [], "method is 'magic'"),
        (["preset,method=[paper]"], [], "2 keys change together"),
        (["preset,method=paper,plus"], [], "2 keys change together"),
        (["preset,preset=[paper,plus]"], [], "each key once"),
        (["seed=1,2"], [], "seed cannot be swept"),
        (["memory=1GiB,2GiB"], [], "memory cannot be swept"),
        (["method=ecgl", "method=joint"], [], "changes in two places"),
        (["method=ecgl,joint"], ["method=joint"], "--set gives method one value"),
        (["tasks.kind=class,time"], [], "tasks.column is null"),
    ],
)
def test_a_grid_that_makes_no_sense(tmp_path: Path, grid: list[str], overrides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(tmp_path, *grid, overrides=overrides)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ([1], "the section sweep makes no sense"),
        ({"girds": {}}, "girds"),
        ({"grid": ["method"]}, "sweep.grid has no keys"),
        ({"grid": {"method": "ecgl"}}, "has no values"),
        ({"grid": {"method": []}}, "has no values"),
        ({"variants": ["a"]}, "sweep.variants makes no sense"),
        ({"variants": {"a": 1}}, "sweep.variants makes no sense"),
        ({"variants": {"a": {"bank.x": 1}}}, "no key bank.x"),
        ({"variants": {"a": {"method": "ecgl"}}, "grid": {"method": ["ecgl"]}}, "changes in two places"),
        ({"seeds": "x"}, "seeds are"),
        ({"jobs": 0}, "jobs is 0"),
    ],
)
def test_a_section_that_makes_no_sense(tmp_path: Path, section: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(tmp_path, sections={"sweep": section})


def test_an_error_names_the_combination(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="combination method-ecgl_lambda--1"):
        load(tmp_path, "method=ecgl", "learn.lambda=1,-1")


def test_a_config_of_a_sweep_is_no_config_of_a_run(tmp_path: Path) -> None:
    path = write(tmp_path / "run.yaml", sweep={"seeds": "0-1"})
    with pytest.raises(UsageError, match="use ecgl sweep"):
        load_config(path)


def test_there_is_a_config_for_each_table_and_figure_of_the_paper() -> None:
    assert {path.stem for path in PAPER} == {
        *("table-task-il", "table-class-il", "table-running-time", "table-ablation"),
        *("figure-diversity-ratio", "figure-budget", "figure-lambda"),
    }


@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_the_papers_configs_have_its_hyper_parameters(path: Path) -> None:
    sweep = load_sweep(path, overrides=["store=other.ecgl", "learn.epochs=200"])
    assert sweep.seeds == (0, 1, 2, 3, 4)
    assert len(sweep.combinations) >= 2
    for combination in sweep.combinations:
        config = combination.config
        assert (str(config.store), config.preset, config.learn.hidden) == ("other.ecgl", "paper", (256,))
        assert (config.learn.lr, config.learn.weight_decay) == (0.005, 0.0005)
        if "figure" not in path.stem:
            assert (config.learn.lambda_, config.bank.diversity_ratio) == (1.0, 0.25)
    text = path.read_text(encoding="utf-8")
    assert f"ecgl sweep configs/paper/{path.name}" in text
    assert load_sweep(path).combinations[0].config.learn.epochs == 200

"""``ecgl plan``, ``run`` and ``infer`` as a shell sees them: what they print, and what they say of bad input."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.session.learner import Learner
from tests.cli_runner import Result, run_cli
from tests.faults.running import start_child
from tests.session.naive_run import NaiveRun
from tests.session.streams import Drawn, draw_graph, read_json, without_clocks, write_config, write_store


@pytest.fixture(scope="module")
def config(store: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(
        tmp_path_factory.mktemp("config") / "run.yaml",
        store,
        cache=str(cache),
        learn={"hidden": [24], "epochs": 3, "lr": 0.02},
    )


@pytest.fixture(scope="module")
def finished(config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    run = tmp_path_factory.mktemp("finished") / "run"
    ran = run_cli("run", config, "--out", run, "--json")
    assert ran.code == 0, ran.stderr
    return run, ran


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


# --- what the commands print


def test_run_prints_its_results_as_one_json_object(finished: tuple[Path, Result]) -> None:
    run, ran = finished
    assert json.loads(ran.stdout) == read_json(run / "results.json")


def test_run_prints_the_matrix_and_where_the_results_are(config: Path, tmp_path: Path) -> None:
    keys = ("--set", "method=finetune", "--set", "tasks.eval_scope=both")
    ran = run_cli("run", config, "--out", tmp_path / "run", *keys)
    assert ran.code == 0, ran.stderr
    results = read_json(tmp_path / "run" / "results.json")
    assert f"AA {results['aa']:.1f}, AF {results['af']:.1f}" in ran.stdout
    assert str(tmp_path / "run" / "results.json") in ran.stdout
    rows = [line.split() for line in ran.stdout.splitlines() if re.match(r"\s+\d ", line)]
    assert [[float(value) for value in row[1:]] for row in rows] == [
        [round(value, 1) for value in row if value is not None] for row in [*results["matrix"], *results["matrix_seen"]]
    ]
    assert "on the whole graph seen so far" in ran.stdout


def test_quiet_runs_print_nothing(config: Path, tmp_path: Path) -> None:
    ran = run_cli("--quiet", "run", config, "--out", tmp_path / "run", "--set", "method=finetune")
    assert (ran.code, ran.stdout, ran.stderr) == (0, "", "")


def test_the_config_a_run_keeps_repeats_it(finished: tuple[Path, Result], tmp_path: Path) -> None:
    run, _ = finished
    ran = run_cli("run", run / "config.yaml", "--out", tmp_path / "again", "--json")
    assert ran.code == 0, ran.stderr
    assert without_clocks(json.loads(ran.stdout)) == without_clocks(read_json(run / "results.json"))


def test_plan_prints_a_table_or_one_json_object(config: Path) -> None:
    shown = run_cli("plan", config)
    assert shown.code == 0, shown.stderr
    for word in ("extract", "train", "remember", "evaluate", "fits the budget"):
        assert word in shown.stdout
    found = json.loads(run_cli("plan", config, "--memory", "8GiB", "--json").stdout)
    keys = {"budget_bytes", "budget_from", "held_bytes", "peak_bytes", "fits", "seconds", "stages", "dropped_classes"}
    assert found.keys() == keys | {"worker"}
    assert found["worker"] is None
    assert found["dropped_classes"] == []
    assert found["budget_bytes"] == 8 << 30
    assert found["fits"] is True


@pytest.mark.parametrize("options", [(), ("--no-progress",), ("--log-level", "warning"), ("--quiet",)])
def test_classes_that_are_in_no_task_are_said_once(config: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    order = ("--set", "tasks.class_order=[5, 3, 1, 0, 2]", "--set", "learn.epochs=1")
    said = ["class 4 (150 nodes) is in no task: not in the class order", "class 2 (150 nodes) is in no task: alone in"]
    for command in (("plan", config), ("run", config, "--out", tmp_path / "run"), ("run", config, "--dry-run")):
        ran = run_cli(*options, *command, *order)
        assert ran.code == 0, ran.stderr
        counts = [ran.stderr.count(words) for words in said]
        assert counts == ([0, 0] if "--quiet" in options else [1, 1]), ran.stderr
    if not options:
        found = json.loads(run_cli("plan", config, *order, "--json").stdout)["dropped_classes"]
        assert [(gone["label"], gone["num_nodes"]) for gone in found] == [(4, 150), (2, 150)]


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--out", "run")])
def test_a_dry_run_plans_and_writes_nothing(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run_cli("run", config, "--dry-run", *arguments)
    assert ran.code == 0, ran.stderr
    assert "evaluate" in ran.stdout
    if "--json" in arguments:
        assert json.loads(ran.stdout)["fits"] is True
    assert list(tmp_path.iterdir()) == []


def test_infer_predicts_every_node_as_a_dense_network_does(
    finished: tuple[Path, Result], store: Path, drawn: Drawn, tmp_path: Path
) -> None:
    run, _ = finished
    ran = run_cli("infer", run, store, "--out", tmp_path / "found.parquet", "--json")
    assert ran.code == 0, ran.stderr
    about = json.loads(ran.stdout)
    assert (about["num_nodes"], about["num_classes"]) == (900, 6)
    assert [stage["stage"] for stage in about["plan"]["stages"]] == ["infer", "write"]
    assert 0 < about["peak_bytes"] <= 1.1 * about["plan"]["peak_bytes"]
    assert "plan: peak " in ran.stderr
    table = pq.read_table(tmp_path / "found.parquet").to_pydict()
    naive = NaiveRun(run, drawn)
    logits = naive.logits(naive.layers, np.arange(900))
    assert table["node"] == list(range(900))
    assert table["label"] == np.array(naive.stream.classes)[logits.argmax(axis=1)].tolist()
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.allclose(table["score"], shares.max(axis=1), atol=1e-4)
    assert [path.name for path in tmp_path.iterdir()] == ["found.parquet"]


def test_infer_gives_label_ids_where_classes_came_in_another_order(config: Path, store: Path, tmp_path: Path) -> None:
    keys = ("--set", "tasks.class_order=[5, 3, 1, 0]", "--set", "learn.features=propagated:1")
    assert run_cli("--quiet", "run", config, "--out", tmp_path / "run", *keys).code == 0
    ran = run_cli("infer", tmp_path / "run", store, "--out", tmp_path / "found.parquet")
    assert ran.code == 0, ran.stderr
    labels = pq.read_table(tmp_path / "found.parquet").column("label").to_pylist()
    assert set(labels) <= {0, 1, 3, 5}
    assert len(labels) == 900


# --- bad input: the code, the words, and nothing overwritten


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("learn.epoch=3", ["there is no key learn.epoch", "did you mean learn.epochs?"]),
        ("bnak.budget=3", ["there is no key bnak", "did you mean bank?"]),
        ("learn.epochs=0", ["learn.epochs", "0"]),
        ("learn.lr=-1", ["learn.lr", "-1"]),
        ("learn.hidden=[0]", ["learn.hidden"]),
        ("tasks.fractions=[0.5, 0.5, 0.5]", ["tasks.fractions"]),
        ("bank.diversity_ratio=2", ["bank.diversity_ratio", "2"]),
        ("setting=domain-il", ["setting", "task-il", "class-il"]),
        ("method=ecgll", ["method", "ecgl"]),
        ("preset=best", ["preset", "plus"]),
        ("memory=much", ["memory", "much"]),
        ("tasks.kind=time", ["tasks.column"]),
        ("learn.epochs", ["learn.epochs"]),
        ("tasks.class_order=[0, 77]", ["77"]),
        ("tasks.class_order=[0, 0]", ["tasks.class_order", "twice"]),
        ("tasks.split=store", ["split"]),
        ("infer.partitions=901", ["infer.partitions is 901", "900 nodes"]),
    ],
)
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_key_or_value_that_is_wrong_exits_with_2_and_is_named(
    config: Path, tmp_path: Path, command: str, key: str, words: list[str]
) -> None:
    out = ("--out", tmp_path / "run") if command == "run" else ()
    ran = run_cli(command, config, "--set", key, *out)
    assert ran.code == 2, ran.stderr
    assert all(word in ran.stderr for word in words), ran.stderr
    assert not (tmp_path / "run").exists()


def test_a_time_column_that_is_not_there_exits_with_2(config: Path, tmp_path: Path) -> None:
    keys = ("--set", "tasks.kind=time", "--set", "tasks.column=month")
    ran = run_cli("run", config, "--out", tmp_path / "run", *keys)
    assert ran.code == 2
    assert "month" in ran.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("replaced", "word"), [({"y": None}, "no labels"), ({"x": None}, "no features"), ({"x": None, "y": None}, "no ")]
)
def test_a_store_without_labels_or_features_exits_with_2(
    drawn: Drawn, tmp_path: Path, replaced: dict[str, Any], word: str
) -> None:
    store = write_store(tmp_path / "graph.ecgl", drawn, **replaced, num_nodes=900)
    config = write_config(tmp_path / "run.yaml", store)
    for command in (("plan", config), ("run", config, "--out", tmp_path / "run")):
        ran = run_cli(*command)
        assert ran.code == 2, ran.stderr
        assert f"the store has {word}" in ran.stderr
        assert str(store) in ran.stderr
    assert not (tmp_path / "run").exists()


def test_a_store_whose_labels_are_all_unknown_or_of_one_class_has_no_tasks(drawn: Drawn, tmp_path: Path) -> None:
    for name, labels in (("unknown", np.full(900, -1)), ("single", np.zeros(900, np.int64))):
        store = write_store(tmp_path / f"{name}.ecgl", drawn, y=labels)
        ran = run_cli("run", write_config(tmp_path / f"{name}.yaml", store), "--out", tmp_path / "run")
        assert ran.code == 3, ran.stderr
        assert {"unknown": "no node has a label", "single": "there is no task"}[name] in ran.stderr
    assert not (tmp_path / "run").exists()


def test_a_store_that_is_not_there_exits_with_3(tmp_path: Path) -> None:
    ran = run_cli("run", write_config(tmp_path / "run.yaml", tmp_path / "none.ecgl"), "--out", tmp_path / "run")
    assert ran.code == 3
    assert "none.ecgl" in ran.stderr
    assert not (tmp_path / "run").exists()


def test_a_config_that_is_not_there_or_no_yaml_exits_with_2(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("learn: {epochs: 3\n")
    for name in ("none.yaml", "bad.yaml"):
        ran = run_cli("run", tmp_path / name, "--out", tmp_path / "run")
        assert ran.code == 2
        assert name in ran.stderr


def test_a_run_without_a_directory_exits_with_2(config: Path) -> None:
    ran = run_cli("run", config)
    assert ran.code == 2
    assert "--out" in ran.stderr


def test_an_existing_directory_or_file_exits_with_3_and_stays_as_it_is(
    config: Path, finished: tuple[Path, Result], tmp_path: Path
) -> None:
    run, _ = finished
    before = _contents(run)
    ran = run_cli("run", config, "--out", run)
    assert ran.code == 3
    assert "already exists" in ran.stderr
    assert "--resume" in ran.stderr
    assert _contents(run) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target in ("mine", "file"):
        assert run_cli("run", config, "--out", tmp_path / target).code == 3
    assert _contents(tmp_path) == {"mine/notes.txt": b"mine", "file": b"mine"}


def test_nothing_is_made_inside_a_store(config: Path, tmp_path: Path) -> None:
    store = tmp_path / "other.ecgl"
    assert run_cli("--quiet", "generate", "kron", store, "--scale", "4").code == 0
    (tmp_path / "way_in").symlink_to(store / "edges")
    before = _contents(store)
    for command in (("run", config, "--out"), ("sweep", config, "--out"), ("generate", "kron", "--scale", "4")):
        for place in (store / "new", tmp_path / "way_in" / "new"):
            refused = run_cli(*command, place)
            assert refused.code == 3, refused.stderr
            assert "into a store" in refused.stderr
    assert _contents(store) == before


def test_an_empty_directory_is_used(config: Path, tmp_path: Path) -> None:
    assert run_cli("--quiet", "run", config, "--out", tmp_path, "--set", "method=finetune").code == 0
    assert (tmp_path / "results.json").exists()


def test_a_directory_of_another_config_exits_with_2_and_names_the_keys(
    config: Path, finished: tuple[Path, Result]
) -> None:
    run, _ = finished
    before = _contents(run)
    keys = ("--set", "learn.epochs=5", "--set", "seed=3", "--set", "learn.lambda=2")
    ran = run_cli("run", config, "--out", run, "--resume", *keys, "--memory", "1GiB", "--set", "threads=1")
    assert ran.code == 2
    assert "these keys differ: learn.epochs, learn.lambda, seed\n" in ran.stderr  # memory and threads may differ
    assert str(run / "config.yaml") in ran.stderr
    assert _contents(run) == before


@pytest.mark.parametrize("left", [None, [], [".lock"], [".lock", ".config.yaml.partial"]])
def test_resuming_where_nothing_was_begun_begins(config: Path, tmp_path: Path, left: list[str] | None) -> None:
    run = tmp_path / "run"
    for name in left or []:
        run.mkdir(exist_ok=True)
        (run / name).write_text("{")  # torn, as a kill may leave it
    if left == []:
        run.mkdir()
    ran = run_cli("--quiet", "run", config, "--out", run, "--resume", "--set", "method=finetune")
    assert ran.code == 0, ran.stderr
    assert (run / "results.json").exists()
    assert not (run / ".config.yaml.partial").exists()


@pytest.mark.parametrize("names", [["notes.txt"], [".lock", "notes.txt"], ["run.log"], ["plan.json", "results.json"]])
def test_resuming_in_a_directory_of_something_else_exits_with_3_and_touches_nothing(
    config: Path, tmp_path: Path, names: list[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in names:
        (run / name).write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = _contents(tmp_path)
    for place in (run, tmp_path / "file"):
        ran = run_cli("run", config, "--out", place, "--resume")
        assert ran.code == 3
        assert "this is not the directory of a run" in ran.stderr
    assert _contents(tmp_path) == before


def test_a_plan_over_budget_exits_with_4_and_writes_nothing(config: Path, tmp_path: Path) -> None:
    for command in (("plan", config), ("run", config, "--dry-run"), ("run", config, "--out", tmp_path / "run")):
        ran = run_cli(*command, "--memory", "16MiB")
        assert ran.code == 4, ran.stderr
        assert "the budget is 16 MiB" in ran.stderr
    assert not (tmp_path / "run").exists()


def test_the_budget_that_a_refusal_names_is_enough(config: Path, tmp_path: Path) -> None:
    """In new processes, as a user would, since memory that this one holds goes up and down."""
    said = tmp_path / "said"
    refused = start_child(_say_to, (str(said),), "run", config, "--out", tmp_path / "run", "--memory", "16MiB")
    refused.join(60)
    assert refused.exitcode == 4
    named = re.search(r"--memory \d+MiB", said.read_text())
    assert named is not None
    enough = start_child(_say_to, (str(said),), "run", config, "--out", tmp_path / "run", *named[0].split())
    enough.join(60)
    assert enough.exitcode == 0, said.read_text()


def _say_to(path: str) -> None:
    """In a child: errors go to a file."""
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)


def test_a_json_plan_over_budget_is_still_printed(config: Path) -> None:
    ran = run_cli("plan", config, "--memory", "16MiB", "--json")
    assert ran.code == 4
    assert json.loads(ran.stdout)["fits"] is False


# --- ecgl infer


def _infer(run: Path, store: Path, out: Path) -> Result:
    out.write_text("old")
    ran = run_cli("infer", run, store, "--out", out)
    assert out.read_text() == "old", "it was overwritten"
    assert [path.name for path in out.parent.iterdir() if path.name.startswith(".")] == []
    return ran


def test_infer_refuses_a_store_of_another_width(finished: tuple[Path, Result], tmp_path: Path) -> None:
    store = write_store(tmp_path / "wide.ecgl", draw_graph(num_features=20))
    ran = _infer(finished[0], store, tmp_path / "found.parquet")
    assert ran.code == 2
    assert "the store has 20 features, the run was trained on 16" in ran.stderr


def test_infer_refuses_a_store_without_features(finished: tuple[Path, Result], drawn: Drawn, tmp_path: Path) -> None:
    store = write_store(tmp_path / "bare.ecgl", drawn, x=None)
    ran = _infer(finished[0], store, tmp_path / "found.parquet")
    assert ran.code == 2
    assert "the store has no features" in ran.stderr


def _more_classes(run: Path) -> None:
    path = run / "weights" / "model.json"
    path.write_text(json.dumps({**read_json(path), "classes": list(range(9))}))


def _other_widths(run: Path) -> None:
    SharedWeights.create(16, [24], 9).save(run / "weights" / "model.safetensors")


def _other_hidden(run: Path) -> None:
    """The file of a run with another hidden width: as many features and classes."""
    SharedWeights.create(16, [32], 6).save(run / "weights" / "model.safetensors")


def _more_layers(run: Path) -> None:
    SharedWeights.create(16, [24, 24], 6).save(run / "weights" / "model.safetensors")


def _other_features(run: Path) -> None:
    SharedWeights.create(20, [24], 6).save(run / "weights" / "model.safetensors")


def _no_biases(run: Path) -> None:
    SharedWeights.create(16, [24], 6, bias=False).save(run / "weights" / "model.safetensors")


def _bad_config(run: Path) -> None:
    (run / "config.yaml").write_text("store: a.ecgl\nlearn: {epoch: 3}\n")


def _cut_weights(run: Path) -> None:
    path = run / "weights" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])


def _no_weights(run: Path) -> None:
    (run / "weights" / "model.safetensors").unlink()


def _cut_about(run: Path) -> None:
    (run / "weights" / "model.json").write_text("{")


def _no_scaling(run: Path) -> None:
    path = run / "weights" / "model.json"
    path.write_text(json.dumps({**read_json(path), "scaling": {"kind": "loud"}}))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_more_classes, "6 outputs for 9 classes"),
        (_other_widths, "9 outputs for 6 classes"),
        (_other_hidden, "widths [16, 24, 6], as the config has them"),
        (_more_layers, "the weights have the widths [16, 24, 24, 6]"),
        (_other_features, "the weights have the widths [20, 24, 6]"),
        (_no_biases, "the model has a bias by its config"),
        (_bad_config, "there is no key learn.epoch"),
        (_cut_weights, "model.safetensors"),
        (_no_weights, "model.safetensors"),
        (_cut_about, "not the directory of a finished run"),
        (_no_scaling, ""),
    ],
)
def test_infer_refuses_weights_that_do_not_fit_or_are_damaged(
    finished: tuple[Path, Result], store: Path, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    damage(run)
    ran = _infer(run, store, tmp_path / "found.parquet")
    assert ran.code == 3, ran.stderr
    assert words in ran.stderr


def test_infer_refuses_what_is_no_run(store: Path, tmp_path: Path) -> None:
    for run in (tmp_path, tmp_path / "none", store):
        ran = _infer(run, store, tmp_path / "found.parquet")
        assert ran.code == 3
        assert "not the directory of a finished run" in ran.stderr


def test_infer_refuses_an_unfinished_run(
    config: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Learner, "remember", fail)
    stopped = run_cli("run", config, "--out", tmp_path / "run")
    assert stopped.code == 5, stopped.stderr
    ran = _infer(tmp_path / "run", store, tmp_path / "found.parquet")
    assert ran.code == 3
    assert "--resume" in ran.stderr


def test_infer_over_budget_exits_with_4(finished: tuple[Path, Result], store: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.parquet"
    out.write_text("old")
    ran = run_cli("infer", finished[0], store, "--out", out, "--memory", "16MiB")
    assert ran.code == 4, ran.stderr
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["found.parquet"]


@pytest.mark.parametrize("place", ["store", "directory", "missing folder", "weights", "split"])
def test_infer_looks_at_its_output_before_it_computes(
    finished: tuple[Path, Result], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy.ecgl"
    shutil.copytree(finished[0], run)
    shutil.copytree(store, copy)
    (tmp_path / "mine").mkdir()
    out, words = {
        "store": (copy / "manifest.json", "into a store"),
        "directory": (tmp_path / "mine", "this is a directory"),
        "missing folder": (tmp_path / "none" / "found.parquet", "there is no folder"),
        "weights": (run / "weights" / "model.safetensors", "belongs to the run"),
        "split": (run / "split.parquet", "belongs to the run"),
    }[place]
    before = _contents(tmp_path)

    def compute(*_: object, **__: object) -> None:
        pytest.fail("it was computed in vain")

    monkeypatch.setattr("ecgl_scale.session.infer_whole.infer_logits", compute)
    ran = run_cli("infer", run, copy, "--out", out)
    assert ran.code == 3, ran.stderr
    assert words in ran.stderr
    assert _contents(tmp_path) == before
    assert not (tmp_path / "none").exists()


def test_infer_that_fails_while_it_writes_leaves_no_part_of_a_file(
    finished: tuple[Path, Result], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    out = tmp_path / "found.parquet"
    out.write_text("old")
    monkeypatch.setattr("ecgl_scale.session.score_table.scores_of", fail)
    ran = run_cli("infer", finished[0], store, "--out", out)
    assert ran.code == 5, ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["found.parquet"]
    assert out.read_text() == "old"


def test_infer_keeps_to_the_memory_and_threads_of_the_run(
    finished: tuple[Path, Result], store: Path, tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "found.parquet"
    shutil.copytree(finished[0], run)
    text = (run / "config.yaml").read_text()
    assert "memory: null" in text
    (run / "config.yaml").write_text(text.replace("memory: null", "memory: 16MiB"))
    refused = run_cli("infer", run, store, "--out", out)
    assert refused.code == 4
    assert "the budget is 16 MiB" in refused.stderr
    ran = run_cli("infer", run, store, "--out", out, "--memory", "2GiB", "--json")
    assert ran.code == 0, ran.stderr
    assert json.loads(ran.stdout)["plan"]["budget_bytes"] == 2 << 30


def test_infer_says_that_it_does_not_know_the_task_of_a_node(config: Path, store: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "found.parquet"
    assert run_cli("--quiet", "run", config, "--out", run, "--set", "setting=task-il").code == 0
    ran = run_cli("--log-level", "warning", "infer", run, store, "--out", out)
    assert ran.code == 0, ran.stderr
    assert "predicted among all 6 classes (class-il)" in ran.stderr
    assert run_cli("--quiet", "infer", run, store, "--out", out).stderr == ""


def test_infer_on_a_store_with_fewer_nodes_than_partitions_says_so(
    finished: tuple[Path, Result], store: Path, tmp_path: Path
) -> None:
    run, out = tmp_path / "run", tmp_path / "found.parquet"
    shutil.copytree(finished[0], run)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("partitions: auto", "partitions: 5000"))
    ran = run_cli("infer", run, store, "--out", out)
    assert ran.code == 0, ran.stderr
    assert "infer.partitions is 5000; the store is cut into its 900 nodes" in ran.stderr

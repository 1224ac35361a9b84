"""``ecgl update`` as users type it: versions, what it refuses and with which code, kills, ranks and workers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from ecgl_scale.base.lock import take_lock
from ecgl_scale.session.run import run
from ecgl_scale.session.update import update
from ecgl_scale.store.graph import GraphStore
from tests.cli_runner import Result, run_cli
from tests.session.growing import append_part
from tests.session.streams import FEW_EPOCHS, Drawn, config_of, draw_graph, read_json, write_store
from tests.session.test_update import CLASSES, check_same

PAIRS = ("label in 2, 3", "label in 4, 5")


@pytest.fixture(scope="module")
def first(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the first two classes."""
    out = tmp_path_factory.mktemp("first") / "model"
    run(config_of(store, None, *CLASSES, "tasks.class_order=[0, 1]"), out)
    return out


@pytest.fixture(scope="module")
def whole(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on all."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run(config_of(store, None, *CLASSES), out)
    return out


@pytest.fixture
def model(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "model"))


def _update(model: object, store: object, out: object, *more: object) -> Result:
    return run_cli("--quiet", "update", model, store, "--out", out, *more)


# --- versions


def test_a_model_updated_in_its_own_directory_has_versions(model: Path, store: Path, whole: Path) -> None:
    for pair in PAIRS:
        ran = _update(model, store, model, "--where", pair)
        assert ran.code == 0, ran.stderr
    check_same(model / "versions" / "0002", whole)
    for name, num_tasks in ((model, 3), (f"{model}@0", 1), (f"{model}@1", 2), (model / "versions" / "0001", 2)):
        shown = run_cli("status", name, "--json")
        assert json.loads(shown.stdout)["num_tasks_finished"] == num_tasks
        reported = json.loads(run_cli("report", name, "--json").stdout)
        assert [group["num_runs"] for group in reported["groups"]] == [1]
        verified = run_cli("verify", name)
        assert verified.code == 0, verified.stderr
        assert f"{num_tasks} task" in verified.stdout
        predicted = model.parent / "found.parquet"
        assert _infer(name, store, predicted).code == 0
        assert set(np.unique(pq.read_table(predicted)["label"])) <= set(range(2 * num_tasks))
    assert "no version 7" in run_cli("status", f"{model}@7").stderr
    assert len(json.loads(run_cli("report", model.parent, "--json").stdout)["groups"]) == 1


def _infer(model: object, store: Path, out: Path) -> Result:
    return run_cli("--quiet", "infer", model, store, "--out", out)


def test_an_older_version_can_be_the_beginning_of_another_model(model: Path, store: Path, tmp_path: Path) -> None:
    for pair in PAIRS:
        assert _update(model, store, model, "--where", pair).code == 0
    assert _update(f"{model}@1", store, tmp_path / "other", "--where", PAIRS[1]).code == 0
    check_same(tmp_path / "other", model / "versions" / "0002")


def test_repeated_with_resume_an_update_in_place_does_nothing_more(model: Path, store: Path) -> None:
    for _ in range(2):
        ran = _update(model, store, model, "--where", PAIRS[0], "--resume")
        assert ran.code == 0, ran.stderr
    assert [path.name for path in (model / "versions").iterdir()] == ["0001"]
    assert _update(model, store, model, "--where", PAIRS[0]).code == 3


# --- kills


@pytest.mark.parametrize("place", ["sealed.json", "results.json", "origin.json", "bank.arrow"])
def test_an_update_that_dies_leaves_the_old_version_and_goes_on(
    model: Path, store: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    assert _update(model, store, model, "--where", PAIRS[0]).code == 0
    real = Path.replace

    def dying(path: Path, target: Path) -> Path:
        if Path(target).name == place:
            raise KeyboardInterrupt
        return real(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dying)
        with pytest.raises(KeyboardInterrupt):
            update(model, store, model, where=PAIRS[1])
    assert json.loads(run_cli("report", model, "--json").stdout)["groups"]
    assert _infer(model, store, model.parent / "found.parquet").code == 0
    assert set(np.unique(pq.read_table(model.parent / "found.parquet")["label"])) <= {0, 1, 2, 3}
    refused = _update(model, store, model, "--where", PAIRS[1])
    assert refused.code == 3
    assert "--resume" in refused.stderr
    if place != "origin.json":  # before which nothing was begun
        assert _update(model, store, model, "--where", "label == 4", "--resume").code == 2
    ran = _update(model, store, model, "--where", PAIRS[1], "--resume")
    assert ran.code == 0, ran.stderr
    check_same(model / "versions" / "0002", whole)


def test_status_says_how_an_update_goes_on(model: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("ecgl_scale.session.run._evaluate", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            update(model, store, model, where=PAIRS[0])
    shown = json.loads(run_cli("status", model, "--json").stdout)
    assert shown["condition"] == "stopped"
    command = f"ecgl update {model} {store} --out {model}/versions/0001 --where '{PAIRS[0]}' --resume"
    assert shown["resume"] == command
    assert _update(model, store, model / "versions" / "0001", "--where", PAIRS[0], "--resume").code == 0
    assert json.loads(run_cli("status", model, "--json").stdout)["num_tasks_finished"] == 2


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


# --- ranks and workers


@pytest.mark.usefixtures("warm_runs")
@pytest.mark.parametrize("options", [("--ranks", 2), ("--workers", 2)], ids=["ranks", "workers"])
def test_an_update_may_be_shared_by_processes(
    model: Path, store: Path, tmp_path: Path, options: tuple[object, ...]
) -> None:
    assert _update(model, store, tmp_path / "alone", "--where", PAIRS[0]).code == 0
    ran = _update(model, store, tmp_path / "shared", "--where", PAIRS[0], *options)
    assert ran.code == 0, ran.stderr
    check_same(tmp_path / "shared", tmp_path / "alone")


# --- what is refused


def _refuse(ran: Result, code: int, words: str, out: Path) -> None:
    assert ran.code == code, ran.stderr
    assert words in ran.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--where", "label == 2", "--set", "learn.epochs=5"], 2, "these differ: learn.epochs"),
        (["--where", "label == 2", "--set", "setting=task-il"], 2, "these differ: setting"),
        (["--where", "label"], 2, "this is no condition"),
        (["--where", "month == 3"], 2, "no node column 'month'"),
        (["--where", "label == two"], 2, "is no value of the column"),
        (["--where", "label in 0, 1"], 3, "are in a task already"),
        (["--where", "year == 1999"], 3, "there is nothing to learn: of 0"),
        (["--new-nodes", "--where", "label == 2"], 2, "exclude each other"),
        ([], 3, "the store has no new nodes"),
        (["--where", "label == 2", "--memory", "1MiB"], 4, "memory"),
    ],
)
def test_an_update_that_makes_no_sense_is_refused(
    first: Path, store: Path, tmp_path: Path, options: list[str], code: int, words: str
) -> None:
    _refuse(_update(first, store, tmp_path / "out", *options), code, words, tmp_path / "out")


def test_a_foreign_store_is_refused(first: Path, drawn: Drawn, tmp_path: Path) -> None:
    smaller = write_store(tmp_path / "smaller.ecgl", draw_graph(600))
    relabelled = write_store(tmp_path / "labels.ecgl", replace(drawn, y=(drawn.y + 1) % 6))
    for other in (smaller, relabelled):
        _refuse(
            _update(first, other, tmp_path / "out", "--where", "label == 2"), 3, "of another store", tmp_path / "out"
        )


def test_new_nodes_without_labels_are_nothing_to_learn(drawn: Drawn, tmp_path: Path) -> None:
    store, model = tmp_path / "graph.ecgl", tmp_path / "model"
    append_part(store, drawn, 0)
    run(config_of(store, None, FEW_EPOCHS), model)
    append_part(store, replace(drawn, y=np.full_like(drawn.y, -1)), 1)
    ran = _update(model, store, model)
    assert ran.code == 3
    assert (
        "there is nothing to learn: of 250 nodes that were given, 0 are in a task already, 250 have no label"
        in ran.stderr
    )
    assert not (model / "versions").exists()


def test_a_single_new_class_is_for_class_il(store: Path, tmp_path: Path) -> None:
    order = "tasks.class_order=[0, 1, 2, 3]"
    for setting in ("class-il", "task-il"):
        run(config_of(store, None, *CLASSES, order, f"setting={setting}"), tmp_path / setting)
    _refuse(
        _update(tmp_path / "task-il", store, tmp_path / "out", "--where", "label == 5"),
        3,
        "all of class 5",
        tmp_path / "out",
    )
    assert _update(tmp_path / "class-il", store, tmp_path / "out", "--where", "label == 5").code == 0
    assert read_json(tmp_path / "out" / "weights" / "model.json")["classes"] == [0, 1, 2, 3, 5]


def test_more_rows_of_a_known_class_are_a_task(drawn: Drawn, tmp_path: Path) -> None:
    store, model = tmp_path / "graph.ecgl", tmp_path / "model"
    append_part(store, drawn, 0)
    run(config_of(store, None, FEW_EPOCHS), model)
    append_part(store, drawn, 1)
    ran = _update(model, store, model, "--json")
    assert ran.code == 0, ran.stderr
    results = json.loads(ran.stdout)
    assert results["tasks"][-1] == {"name": "generation 1", "classes": [0, 1, 2, 3, 4, 5], "num_nodes": 250}
    assert read_json(model / "versions" / "0001" / "weights" / "model.json")["classes"] == list(range(6))


def test_a_head_that_cannot_grow_refuses_new_classes(store: Path, tmp_path: Path) -> None:
    run(config_of(store, None, *CLASSES, "tasks.class_order=[0, 1]", "learn.head=whole"), tmp_path / "model")
    _refuse(
        _update(tmp_path / "model", store, tmp_path / "out", "--where", PAIRS[0]),
        2,
        "learn.head is whole",
        tmp_path / "out",
    )


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _exchange_bank(model: Path) -> None:
    other = model.parent / "second"
    config = config_of(model.parent / "second.ecgl", None, *CLASSES, "tasks.class_order=[0, 1]", "seed=1")
    write_store(model.parent / "second.ecgl", draw_graph())
    run(config, other)
    shutil.copy(other / "bank.arrow", model / "bank.arrow")


def _other_setting(model: Path) -> None:
    text = (model / "config.yaml").read_text()
    (model / "config.yaml").write_text(text.replace("epochs: 3", "epochs: 4"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_exchange_bank, "bank.arrow"),
        (_other_setting, "a key differs that changes results"),
        (lambda model: _cut(model / "split.parquet"), "another than was written"),
        (lambda model: _cut(model / "sealed.json"), "the seal of the model cannot be read"),
        (lambda model: (model / "bank.arrow").unlink(), "a file of the model is gone"),
        (lambda model: (model / "sealed.json").unlink(), "this model has no seal"),
        (shutil.rmtree, "not the directory of a finished run"),
    ],
)
def test_a_model_that_is_damaged_or_another_is_refused(
    model: Path, store: Path, tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    damage(model)
    _refuse(_update(model, store, tmp_path / "out", "--where", PAIRS[0]), 3, words, tmp_path / "out")


def test_a_target_that_is_something_else_or_locked_is_refused(
    model: Path, store: Path, tmp_path: Path, whole: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    for target in (tmp_path / "mine", Path(shutil.copytree(whole, tmp_path / "run"))):
        for options in ([], ["--resume"]):
            ran = _update(model, store, target, "--where", PAIRS[0], *options)
            assert ran.code in (2, 3), ran.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["diary.txt"]
    (tmp_path / "busy").mkdir()
    lock = take_lock(tmp_path / "busy" / ".lock", target="busy")
    assert lock >= 0
    ran = _update(model, store, tmp_path / "busy", "--where", PAIRS[0])
    assert ran.code == 3
    assert "another process is writing this target" in ran.stderr
    _refuse(_update(model, store, store / "model", "--where", PAIRS[0]), 3, "into a store", store / "model")
    GraphStore.open(store)

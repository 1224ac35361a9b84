"""The Python objects: the example of the documentation as it is written there, and the manners of sklearn."""

from __future__ import annotations

import gc
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from ecgl_scale import ECGL, GraphStore, TaskStream
from ecgl_scale.config.schema import config_from_mapping
from ecgl_scale.errors import DoesNotFitError, InvalidInputError, UsageError
from ecgl_scale.session.run import run
from tests.cli_runner import run_cli
from tests.session.streams import Drawn, draw_graph, read_json, write_store

SETTINGS: dict[str, Any] = {"hidden": [24], "budget": 40, "diversity_ratio": 0.25, "epochs": 6, "lr": 0.02}


@pytest.fixture(scope="module")
def graph(store: Path) -> GraphStore:
    return GraphStore.open(store)


@pytest.fixture(scope="module")
def tasks(graph: GraphStore) -> TaskStream:
    return TaskStream.class_incremental(graph, classes_per_task=2, seed=0)


@pytest.fixture(scope="module")
def learned(graph: GraphStore, tasks: TaskStream) -> ECGL:
    return learn(ECGL(**SETTINGS), graph, tasks)


def learn(model: ECGL, graph: GraphStore, tasks: TaskStream) -> ECGL:
    for task in tasks:
        model.fit_task(graph, task)
        model.evaluate(graph, tasks.seen(task))
    return model


def test_the_documented_example_runs_as_it_is_written(
    drawn: Drawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of interface.md, with a smaller graph under the same name and fewer epochs."""
    monkeypatch.chdir(tmp_path)
    write_store(Path("arxiv.ecgl"), drawn)

    graph = GraphStore.open("arxiv.ecgl")
    tasks = TaskStream.class_incremental(graph, classes_per_task=4, seed=0)
    model = ECGL(hidden=[256], budget=3000, diversity_ratio=0.25, epochs=3, lr=5e-3, memory="8GiB", device="auto")
    print(model.plan(graph, tasks))  # noqa: T201
    for task in tasks:
        model.fit_task(graph, task)
        print(task.index, model.evaluate(graph, tasks.seen(task)))  # noqa: T201
    print(model.matrix_.average_accuracy(), model.matrix_.average_forgetting())  # noqa: T201
    model.save("arxiv.model")

    *shown, first, second, last = capsys.readouterr().out.splitlines()
    assert "extract" in "".join(shown)
    matrix = model.matrix_.values
    assert first == f"0 {[float(matrix[0, 0])]}"
    assert second == f"1 {matrix[1].tolist()}"
    assert last == f"{matrix[1].mean()} {matrix[1, 0] - matrix[0, 0]}"
    wanted = ["bank.arrow", "config.yaml", "sealed.json", "split.parquet", "state.json", "weights"]
    assert sorted(path.name for path in Path("arxiv.model").iterdir()) == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arxiv.ecgl", "arxiv.model"]


@pytest.mark.parametrize("method", ["ecgl", "finetune", "joint"])
@pytest.mark.parametrize(("setting", "preset"), [("class-il", "plus"), ("task-il", "reference")])
def test_its_matrix_is_that_of_a_run_of_the_same_settings(
    graph: GraphStore, tasks: TaskStream, tmp_path: Path, cache: Path, method: str, setting: str, preset: str
) -> None:
    model = ECGL(**SETTINGS, method=method, setting=setting, preset=preset, config={"cache": str(cache)})
    learn(model, graph, tasks)
    config = config_from_mapping(
        {
            "store": str(graph.path),
            "cache": str(cache),
            "method": method,
            "setting": setting,
            "preset": preset,
            "learn": {"hidden": [24], "epochs": 6, "lr": 0.02},
            "bank": {"budget": 40, "diversity_ratio": 0.25},
        }
    )
    results = run(config, tmp_path / "run")
    assert model.matrix_.to_lists() == results["matrix"]
    assert model.matrix_.average_accuracy() == results["aa"]
    assert tasks.split_hash == results["split_hash"]


def test_what_is_learned_ends_in_an_underscore_and_is_not_there_before(learned: ECGL, drawn: Drawn) -> None:
    fresh = ECGL(**SETTINGS)
    for name in ("weights_", "bank_", "matrix_"):
        assert not hasattr(fresh, name)
        assert hasattr(learned, name)
    assert learned.weights_.widths == (16, 24, 6)
    assert learned.bank_.tasks == [0, 1, 2]
    rows = drawn.x[learned.bank_.node_ids]
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)  # the preset scales rows to length 1
    np.testing.assert_allclose(learned.bank_.rows, rows / lengths, rtol=1e-6)


def test_the_constructor_stores_what_it_is_given_and_parameters_can_be_read_and_set() -> None:
    hidden = [3, 4]
    model = ECGL(hidden=hidden, epochs=-5, preset="nonsense")
    params = model.get_params()
    assert params.keys() == {name for name in inspect.signature(ECGL.__init__).parameters if name != "self"}
    assert params["hidden"] is hidden
    assert (params["epochs"], params["preset"], params["seed"]) == (-5, "nonsense", 0)
    assert model.set_params(epochs=7, lr=0.5) is model
    assert (model.epochs, model.get_params()["lr"]) == (7, 0.5)
    assert ECGL(**model.get_params()).get_params() == model.get_params()
    assert repr(ECGL(epochs=7, preset="paper")) == "ECGL(epochs=7, preset='paper')"
    with pytest.raises(UsageError, match="no such parameter: epoch"):
        model.set_params(epochs=1, epoch=3)
    assert model.epochs == 7


def test_parameters_that_make_no_sense_are_told_when_they_are_used(graph: GraphStore, tasks: TaskStream) -> None:
    with pytest.raises(UsageError, match=r"learn\.epochs"):
        ECGL(epochs=0).fit_task(graph, tasks[0])
    with pytest.raises(UsageError, match="did you mean"):
        ECGL(config={"learn.epoch": 3}).plan(graph, tasks)
    with pytest.raises(DoesNotFitError):
        ECGL(memory="1MiB").plan(graph, tasks).require()


def test_other_keys_of_the_config_go_by_their_dotted_names(graph: GraphStore, tasks: TaskStream) -> None:
    model = ECGL(**SETTINGS, config={"bank.select": "random", "learn.bias": False})
    model.fit_task(graph, tasks[0])
    assert np.isnan(model.bank_.importance).all()
    assert all(bias is None for _, bias in model.weights_.layers)


def test_tasks_come_in_order(graph: GraphStore, tasks: TaskStream) -> None:
    model = ECGL(**SETTINGS)
    with pytest.raises(UsageError, match="task 1 cannot be learned now"):
        model.fit_task(graph, tasks[1])
    model.fit_task(graph, tasks[0])
    with pytest.raises(UsageError, match="task 2 cannot be learned now"):
        model.fit_task(graph, tasks[2])
    other = TaskStream.class_incremental(graph, classes_per_task=2, seed=1)
    with pytest.raises(UsageError, match="task 1 cannot be learned now"):
        model.fit_task(graph, other[1])
    model.fit_task(graph, tasks[1])
    with pytest.raises(UsageError, match="task 1 cannot be learned now"):
        model.fit_task(graph, tasks[1])


def test_the_first_task_begins_anew_with_the_same_bits(graph: GraphStore, tasks: TaskStream, learned: ECGL) -> None:
    before = learned.matrix_.to_lists()
    again = ECGL(**SETTINGS)
    again.fit_task(graph, tasks[0])
    again.evaluate(graph, [tasks[0]])
    learn(again, graph, tasks)
    assert again.matrix_.to_lists() == before


def test_nothing_can_be_evaluated_or_saved_before_it_is_learned(
    graph: GraphStore, tasks: TaskStream, tmp_path: Path
) -> None:
    model = ECGL(**SETTINGS)
    with pytest.raises(UsageError, match="nothing has been learned yet"):
        model.evaluate(graph, [tasks[0]])
    with pytest.raises(UsageError, match="nothing has been learned yet"):
        model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_tasks_of_another_stream_cannot_be_evaluated(graph: GraphStore, learned: ECGL) -> None:
    other = TaskStream.class_incremental(graph, classes_per_task=3, seed=1)
    with pytest.raises(UsageError, match="not of this stream"):
        learned.evaluate(graph, [other[0]])


def test_only_all_seen_tasks_fill_a_row_of_the_matrix(graph: GraphStore, tasks: TaskStream) -> None:
    model = ECGL(**SETTINGS).fit_task(graph, tasks[0]).fit_task(graph, tasks[1])
    [alone] = model.evaluate(graph, [tasks[1]])
    assert np.isnan(model.matrix_.values).all()
    row = model.evaluate(graph, tasks.seen(tasks[1]))
    assert row[1] == alone
    assert model.matrix_.values[1, :2].tolist() == row


def test_a_model_is_not_saved_into_a_store(learned: ECGL, graph: GraphStore) -> None:
    for place in (graph.path, graph.path / "model"):
        with pytest.raises(InvalidInputError, match="into a store"):
            learned.save(place)
    GraphStore.open(graph.path)


def test_saved_weights_are_read_again(learned: ECGL, tmp_path: Path) -> None:
    learned.save(tmp_path / "model")
    loaded = ECGL.load_weights(tmp_path / "model")
    for (weight, bias), (other_weight, other_bias) in zip(loaded.arrays(), learned.weights_.arrays(), strict=True):
        assert np.array_equal(weight, other_weight)
        assert np.array_equal(np.asarray(bias), np.asarray(other_bias))
    assert read_json(tmp_path / "model" / "weights" / "model.json")["classes"] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(InvalidInputError):
        ECGL.load_weights(tmp_path / "none")


def test_a_saved_model_is_loaded_and_evaluates_as_before(
    learned: ECGL, graph: GraphStore, tasks: TaskStream, tmp_path: Path
) -> None:
    learned.save(tmp_path / "model")
    loaded = ECGL.load(tmp_path / "model")
    assert loaded.matrix_ == learned.matrix_
    assert loaded.classes_ == learned.classes_ == tuple(range(6))
    wanted, found = learned._config(graph), loaded._config(graph)
    assert found == wanted
    assert loaded.evaluate(graph, list(tasks)) == learned.evaluate(graph, list(tasks))
    assert loaded.matrix_ == learned.matrix_
    loaded.save(tmp_path / "again")
    names = ["bank.arrow", "split.parquet", "weights/model.json"]
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
    again = ECGL.load(tmp_path / "again").weights_.arrays()
    assert all(np.array_equal(one, two) for one, two in zip(again[0], learned.weights_.arrays()[0], strict=True))


def test_a_model_of_the_first_tasks_knows_their_classes_only(
    graph: GraphStore, tasks: TaskStream, tmp_path: Path
) -> None:
    model = ECGL(**{**SETTINGS, "setting": "task-il"}).fit_task(graph, tasks[0])
    assert model.classes_ == (0, 1)
    assert model.weights_.num_classes == 2
    with pytest.raises(UsageError, match="task 1 has classes that are not learned yet"):
        model.evaluate(graph, [tasks[1]])
    model.fit_task(graph, tasks[1])
    assert model.classes_ == (0, 1, 2, 3)
    model.save(tmp_path / "model")
    assert read_json(tmp_path / "model" / "weights" / "model.json")["classes"] == [0, 1, 2, 3]
    seen = tasks.seen(tasks[1])
    assert ECGL.load(tmp_path / "model").evaluate(graph, seen) == model.evaluate(graph, seen)


def test_every_parameter_and_key_is_loaded_as_it_was(graph: GraphStore, tasks: TaskStream, tmp_path: Path) -> None:
    keys = {"rank.tol": 1e-6, "learn.bias": False, "threads": 1, "ewc.lambda": 3.0, "tasks.column": None}
    model = ECGL([8], budget=7, epochs=1, setting="task-il", preset="paper", seed=3, memory="2GiB", config=keys)
    model.fit_task(graph, tasks[0]).save(tmp_path / "model")
    loaded = ECGL.load(tmp_path / "model")
    assert loaded._config(graph) == model._config(graph)
    params = loaded.get_params()
    assert {name: value for name, value in model.get_params().items() if params[name] != value}.keys() <= {"config"}


@pytest.mark.parametrize("method", ["ecgl", "ewc", "gem", "joint"])
def test_a_loaded_model_goes_on_as_if_it_had_never_been_saved(
    graph: GraphStore, tasks: TaskStream, tmp_path: Path, method: str
) -> None:
    wanted = learn(ECGL(**SETTINGS, method=method), graph, tasks)
    model = ECGL(**SETTINGS, method=method)
    for task in tasks:
        model.fit_task(graph, task)
        model.evaluate(graph, tasks.seen(task))
        model.save(tmp_path / f"model-{task.index}")
        model = ECGL.load(tmp_path / f"model-{task.index}")
        assert model.bank_.tasks == (list(range(task.index + 1)) if method == "ecgl" else [])
    assert model.matrix_ == wanted.matrix_
    check_same_weights(model, wanted)


def test_a_stream_may_grow_while_a_model_learns_it(graph: GraphStore, learned: ECGL) -> None:
    tasks = TaskStream.class_incremental(graph, classes_per_task=2, class_order=[0, 1])
    model = learn(ECGL(**SETTINGS), graph, tasks)
    for condition in ("label in 2, 3", "label in 4, 5"):
        tasks = tasks.add(graph, condition)
        model.fit_task(graph, tasks[-1])
        model.evaluate(graph, tasks)
    assert model.matrix_ == learned.matrix_
    check_same_weights(model, learned)


def check_same_weights(model: ECGL, wanted: ECGL) -> None:
    for found, other in zip(model.weights_.parameters(), wanted.weights_.parameters(), strict=True):
        assert torch.equal(found, other)


def test_a_loaded_model_refuses_tasks_it_was_not_trained_on(learned: ECGL, graph: GraphStore, tmp_path: Path) -> None:
    learned.save(tmp_path / "model")
    other = TaskStream.class_incremental(graph, classes_per_task=2, seed=1)
    with pytest.raises(UsageError, match="not those the model was trained on"):
        ECGL.load(tmp_path / "model").evaluate(graph, [other[0]])
    with pytest.raises(InvalidInputError, match="nor of a saved model"):
        ECGL.load(tmp_path)


def test_infer_predicts_with_a_saved_model(learned: ECGL, graph: GraphStore, tasks: TaskStream, tmp_path: Path) -> None:
    learned.save(tmp_path / "model")
    ran = run_cli("infer", tmp_path / "model", graph.path, "--out", tmp_path / "found.parquet")
    assert ran.code == 0, ran.stderr
    config = learned._config(graph)
    run(config, tmp_path / "run")
    assert run_cli("infer", tmp_path / "run", graph.path, "--out", tmp_path / "same.parquet").code == 0
    assert pq.read_table(tmp_path / "found.parquet").equals(pq.read_table(tmp_path / "same.parquet"))
    assert ECGL.load(tmp_path / "run").evaluate(graph, list(tasks)) == learned.evaluate(graph, list(tasks))


@pytest.mark.parametrize("config", [{"store": "a.ecgl", "learn": {"epoch": 3}}, "none", [1]])
def test_infer_refuses_a_saved_model_whose_config_is_damaged(
    learned: ECGL, graph: GraphStore, tmp_path: Path, config: Any
) -> None:
    learned.save(tmp_path / "model")
    (tmp_path / "model" / "config.yaml").write_text(json.dumps(config))
    ran = run_cli("infer", tmp_path / "model", graph.path, "--out", tmp_path / "found.parquet")
    assert ran.code == 3, ran.stderr
    assert "the model's config cannot be read" in ran.stderr


def test_its_own_directory_goes_with_it_and_a_given_one_stays(
    graph: GraphStore, tasks: TaskStream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = ECGL(**SETTINGS, method="finetune")
    for _ in range(2):  # the second time it begins anew, in a directory of its own again
        model.fit_task(graph, tasks[0])
        assert len(list(tmp_path.glob("ecgl-*"))) == 1
    del model
    gc.collect()
    assert list(tmp_path.glob("ecgl-*")) == []
    ECGL(**SETTINGS, method="finetune", directory=tmp_path / "mine").fit_task(graph, tasks[0])
    gc.collect()
    assert list((tmp_path / "mine" / "tasks").glob("*.ecgl"))


def test_a_stream_of_another_store_is_refused(tasks: TaskStream, tmp_path: Path) -> None:
    other = GraphStore.open(write_store(tmp_path / "other.ecgl", draw_graph(600)))
    with pytest.raises(UsageError):
        ECGL(**SETTINGS).fit_task(other, tasks[0])

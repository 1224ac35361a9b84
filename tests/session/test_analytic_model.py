"""Models of the closed-form learner: they go on, serve some nodes or all, and forget as if nothing had been there."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ecgl_scale import ECGL, GraphStore, TaskStream
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.infer.model_input import ModelInput
from ecgl_scale.learn.tensors import load_tensors
from ecgl_scale.session.forget import forget
from ecgl_scale.session.forget_nodes import Asked
from ecgl_scale.session.infer import Asked as AskedNodes
from ecgl_scale.session.infer import infer_store
from ecgl_scale.session.run import run
from ecgl_scale.session.saved_model import load_model
from ecgl_scale.session.update import update
from tests.session.streams import Drawn, config_of, read_json, without_clocks, write_store

KEYS = ("method=analytic", "analytic.width=48", "threads=1")
PYTHON = {"analytic.width": 48, "analytic.ridge": 0.1, "threads": 1, "learn.scale": "none"}
SOME = np.arange(0, 900, 7)


@pytest.fixture(scope="module")
def trained(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("analytic") / "model"
    run(config_of(store, None, *KEYS), out)
    return out


def state_of(model: Path) -> dict[str, Any]:
    newest = max(model.glob("weights/method-*.safetensors"), key=lambda path: int(path.stem.rpartition("-")[2]))
    return load_tensors(newest)[0]


def test_a_chain_of_updates_is_the_run_on_all_tasks(store: Path, trained: Path, tmp_path: Path) -> None:
    run(config_of(store, None, *KEYS, "tasks.class_order=[0, 1]"), tmp_path / "first")
    update(tmp_path / "first", store, tmp_path / "second", where="label in 2, 3")
    update(tmp_path / "second", store, tmp_path / "third", where="label in 4, 5")
    found, wanted = read_json(tmp_path / "third" / "results.json"), read_json(trained / "results.json")
    assert found["matrix"] == wanted["matrix"]
    assert found["final_losses"] == wanted["final_losses"]
    one, other = state_of(tmp_path / "third"), state_of(trained)
    assert one.keys() == other.keys()
    for name, array in other.items():
        np.testing.assert_array_equal(one[name], array, err_msg=name)


def test_a_class_that_comes_back_adds_to_its_sums(store: Path, tmp_path: Path) -> None:
    by_year = ("tasks.kind=time", "tasks.column=year")
    run(config_of(store, None, *KEYS, *by_year), tmp_path / "model")
    counts = state_of(tmp_path / "model")["train.counts"]
    stream = TaskStream.time_incremental(GraphStore.open(store), column="year", seed=0)
    wanted = sum(np.bincount(stream.labels_of(task.train_ids), minlength=6) for task in stream)
    np.testing.assert_array_equal(counts, wanted)


def test_some_nodes_have_the_predictions_that_all_have(store: Path, trained: Path, tmp_path: Path) -> None:
    infer_store(trained, store, tmp_path / "all.parquet")
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("node\n" + "\n".join(map(str, SOME[::9])) + "\n")
    about = infer_store(trained, store, tmp_path / "some.parquet", asked=AskedNodes(nodes=nodes))
    assert about["num_predicted"] == SOME[::9].size
    whole, some = (pq.read_table(tmp_path / f"{name}.parquet").to_pandas() for name in ("all", "some"))
    own = whole.set_index("node").loc[SOME[::9]]
    assert own["label"].tolist() == some["label"].tolist()
    np.testing.assert_allclose(own["score"], some["score"], rtol=1e-5)


@pytest.fixture(scope="module")
def words(drawn: Drawn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a graph with bags of words."""
    x = (np.random.default_rng(1).random((len(drawn.x), 1500)) < 0.004).astype(np.float32)
    return write_store(tmp_path_factory.mktemp("words") / "graph.ecgl", replace(drawn, x=x))


@pytest.mark.parametrize("scale", ["none", "row_l2", "standard"])
def test_words_have_the_predictions_of_their_dense_rows(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: str
) -> None:
    """Of all nodes and of some, though a store that the model is asked for later may be multiplied the other way."""
    run(config_of(words, None, *KEYS, f"learn.scale={scale}"), tmp_path / "model")
    assert load_model(tmp_path / "model").made_on(GraphStore.open(words)).multiplies_first == (scale != "standard")
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("node\n" + "\n".join(map(str, SOME[::9])) + "\n")
    infer_store(tmp_path / "model", words, tmp_path / "first.parquet")
    infer_store(tmp_path / "model", words, tmp_path / "some.parquet", asked=AskedNodes(nodes=nodes))
    monkeypatch.setattr(ModelInput, "on", lambda made, graph, *, keeps_zeros: made)
    infer_store(tmp_path / "model", words, tmp_path / "last.parquet")
    first, last, some = (pq.read_table(tmp_path / f"{name}.parquet").to_pandas() for name in ("first", "last", "some"))
    np.testing.assert_allclose(first["score"], last["score"], atol=1e-5)
    assert np.mean(first["label"] == last["label"]) > 0.995
    np.testing.assert_allclose(first.set_index("node").loc[SOME[::9]]["score"], some["score"], atol=1e-5)


def test_random_numbers_of_another_numpy_are_noticed(store: Path, trained: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(trained, tmp_path / "other"))
    (other / "sealed.json").unlink()
    about = read_json(other / "weights" / "model.json")
    (other / "weights" / "model.json").write_text(json.dumps({**about, "input_crc32c": about["input_crc32c"] ^ 1}))
    with pytest.raises(InvalidInputError, match="random features cannot be drawn again"):
        infer_store(other, store, tmp_path / "p.parquet")


def learned(graph: GraphStore, stream: TaskStream) -> ECGL:
    model = ECGL(method="analytic", config=PYTHON)
    for task in stream:
        model.fit_task(graph, task)
    return model


def head_of(model: ECGL) -> Any:
    """In float64, from the sums that a model keeps."""
    directory = Path(model._temporary_directory()) / "saved"
    model.save(directory)
    from ecgl_scale.config.schema import load_config
    from ecgl_scale.learn.methods.analytic import Analytic

    return Analytic._solve(state_of(directory), load_config(directory / "config.yaml"))[1]


@pytest.mark.parametrize("by", ["class", "year", "class, of words"])
def test_after_nodes_are_forgotten_the_head_is_that_of_a_graph_without_them(store: Path, words: Path, by: str) -> None:
    """Also where their neighbours have learned with them; in a stream by years classes are of several tasks."""
    graph = GraphStore.open(words if by == "class, of words" else store)
    stream = (
        TaskStream.class_incremental(graph, classes_per_task=2, seed=0)
        if by != "year"
        else TaskStream.time_incremental(graph, column="year", seed=0)
    )
    model = learned(graph, stream)
    before = head_of(model)
    about = model.forget(nodes=SOME)
    assert about["exact"] is True
    never = learned(graph, stream.without(graph, SOME))
    wanted = head_of(never)
    assert np.abs(head_of(model) - wanted).max() <= 1e-8 * np.abs(wanted).max()
    assert np.abs(before - wanted).max() > 1e-3 * np.abs(wanted).max()
    np.testing.assert_array_equal(model.predict(graph), never.predict(graph))


def test_after_a_class_is_forgotten_the_head_is_that_of_a_graph_without_it(store: Path) -> None:
    graph = GraphStore.open(store)
    stream = TaskStream.class_incremental(graph, classes_per_task=2, seed=0)
    model = learned(graph, stream)
    assert model.forget(label=3)["exact"] is True
    head, wanted = head_of(model), head_of(learned(graph, stream.without(graph, label=3)))
    assert np.abs(head - wanted).max() <= 1e-8 * np.abs(wanted).max()
    assert not head[:, 3].any()
    assert model.forget(label=5)["exact"] is True
    assert set(model.predict(graph)) <= {0, 1, 2, 4}


def test_no_sum_of_a_forgotten_class_is_left_in_the_model(store: Path, trained: Path, tmp_path: Path) -> None:
    forget(trained, tmp_path / "left", Asked(class_name="2"))
    kept, left = (sorted(path.name for path in (m / "weights").glob("sums-*")) for m in (trained, tmp_path / "left"))
    assert set(kept) - set(left) == {"sums-2-1.safetensors"}
    assert state_of(tmp_path / "left")["train.counts"][2] == 0


def test_rows_that_cannot_be_read_any_more_are_not_forgotten_by_halves(
    store: Path, trained: Path, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(store, tmp_path / "moved.ecgl"))
    gone = tmp_path / "nothing.ecgl"
    with pytest.raises(InvalidInputError, match="rows to be forgotten cannot be read"):
        forget(trained, tmp_path / "left", Asked(SOME, store=gone))
    assert not (tmp_path / "left").exists()
    about = forget(trained, tmp_path / "left", Asked(SOME, store=moved))
    assert about["rows"]["weights/method-2.safetensors"] > 0
    assert without_clocks(read_json(tmp_path / "left" / "results.json"))["aa"] > 0

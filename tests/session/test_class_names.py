"""Classes keep their names: in the order of a config, tasks, results, the report, saved models and predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from ecgl_scale import ECGL, GraphStore, TaskStream
from ecgl_scale.base.events import Note
from ecgl_scale.errors import UsageError
from ecgl_scale.session.saved_model import load_model
from tests.cli_runner import run_cli

WORDS = np.array(["delta", "alpha", "gamma", "beta"])
NUM_NODES = 120


def make_store(path: Path, words: np.ndarray = WORDS) -> GraphStore:
    rng = np.random.default_rng(3)
    kind = np.arange(NUM_NODES) % 4
    x = np.eye(4, dtype=np.float32)[kind] + rng.normal(0, 0.1, (NUM_NODES, 4)).astype(np.float32)
    edges = rng.integers(0, NUM_NODES // 4, (2, 300)) * 4 + rng.integers(0, 4, 300)
    labels = np.where(np.arange(NUM_NODES) % 10 == 9, "", words[kind])
    return GraphStore.from_edge_index(edges, x, labels, path)


def write_config(folder: Path, store: Path, order: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(
        f"store: {store}\nseed: 1\ntasks: {{classes_per_task: 2, class_order: {order}}}\n"
        "learn: {hidden: [8], epochs: 30, lr: 0.05}\nbank: {budget: 8}\n"
    )
    return path


def test_tasks_are_called_by_the_names_of_their_classes(tmp_path: Path) -> None:
    graph = make_store(tmp_path / "g.ecgl")
    assert graph.class_names == ("delta", "alpha", "gamma", "beta")
    stream = TaskStream.class_incremental(graph, class_order=["beta", "alpha", "gamma", "delta"])
    assert [task.name for task in stream] == ["classes alpha, beta", "classes delta, gamma"]
    assert [task.classes for task in stream] == [(1, 3), (0, 2)]
    notes: list[str] = []
    TaskStream.class_incremental(
        graph,
        class_order=["beta", "alpha"],
        on_event=lambda event: notes.append(event.text) if isinstance(event, Note) else None,
    )
    assert any("class delta" in note for note in notes)
    with pytest.raises(UsageError, match=r"no node has label omega[\s\S]*delta, alpha, gamma, beta"):
        TaskStream.class_incremental(graph, class_order=["omega"])


def test_an_order_of_numbers_with_gaps_is_one_of_names(tmp_path: Path) -> None:
    graph = make_store(tmp_path / "g.ecgl", np.array(["1", "2", "5", "6"]))
    for order in ([5, 1, 2, 6], ["5", "1", "2", "6"]):
        stream = TaskStream.class_incremental(graph, class_order=order)
        assert [task.name for task in stream] == ["classes 1, 5", "classes 2, 6"]
    with pytest.raises(UsageError, match="no node has label 0"):
        TaskStream.class_incremental(graph, class_order=[0, 1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on classes with names."""
    path = tmp_path_factory.mktemp("names")
    make_store(path / "g.ecgl")
    config = write_config(path, path / "g.ecgl", "[gamma, delta, beta, alpha]")
    assert run_cli("run", config, "--out", path / "run").code == 0
    return path


def test_results_report_and_model_have_the_names(folder: Path) -> None:
    results = json.loads((folder / "run" / "results.json").read_text())
    assert [task["class_names"] for task in results["tasks"]] == [["delta", "gamma"], ["alpha", "beta"]]
    assert run_cli("report", folder / "run", "--html", folder / "out.html").code == 0
    page = (folder / "out.html").read_text()
    assert "alpha, beta" in page
    model = load_model(folder / "run")
    assert model.class_names == ("delta", "gamma", "alpha", "beta")
    assert model.classes == (0, 2, 1, 3)


def test_models_saved_from_python_have_the_names(tmp_path: Path) -> None:
    graph = make_store(tmp_path / "g.ecgl")
    stream = TaskStream.class_incremental(graph)
    model = ECGL(hidden=[4], budget=4, epochs=1)
    for task in stream:
        model.fit_task(graph, task)
    model.save(tmp_path / "model")
    assert load_model(tmp_path / "model").class_names == ("delta", "alpha", "gamma", "beta")
    ECGL.load(tmp_path / "model").save(tmp_path / "again")
    assert load_model(tmp_path / "again").class_names == ("delta", "alpha", "gamma", "beta")


def test_predictions_have_the_names_and_on_request_the_keys(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    assert run_cli("infer", folder / "run", folder / "g.ecgl", "--out", out).code == 0
    table = pq.read_table(out)
    assert table.column_names == ["node", "label", "class", "score"]
    names = GraphStore.open(folder / "g.ecgl").class_names
    assert names is not None
    assert table["class"].to_pylist() == [names[label] for label in table["label"].to_pylist()]
    assert np.mean(np.array(table["class"].to_pylist()) == WORDS[np.arange(NUM_NODES) % 4]) > 0.5
    assert run_cli("infer", folder / "run", folder / "g.ecgl", "--out", out, "--id").code == 2


def test_classes_of_another_store_are_found_by_their_names(folder: Path, tmp_path: Path) -> None:
    """The same graph, whose classes come in another order, and one of which it calls otherwise."""
    words = np.array(["delta", "alpha", "omega", "beta"])
    rng = np.random.default_rng(3)
    kind = np.arange(NUM_NODES) % 4
    x = np.eye(4, dtype=np.float32)[kind] + rng.normal(0, 0.1, (NUM_NODES, 4)).astype(np.float32)
    edges = rng.integers(0, NUM_NODES // 4, (2, 300)) * 4 + rng.integers(0, 4, 300)
    labels = words[kind]
    labels[:4] = ["beta", "omega", "alpha", "delta"]
    np.savez(tmp_path / "g.npz", edge_index=edges, x=x, y=labels, name=np.arange(NUM_NODES) * 10)
    command = ["ingest", "npz", tmp_path / "g.npz", tmp_path / "g.ecgl", "--id-column", "name"]
    assert run_cli(*command, "--keep-duplicates", "--keep-self-loops").code == 0
    tables = []
    for store, name, more in ((folder / "g.ecgl", "a", ()), (tmp_path / "g.ecgl", "b", ("--id",))):
        out = tmp_path / f"{name}.parquet"
        result = run_cli("infer", folder / "run", store, "--out", out, *more)
        assert result.code == 0, result.stderr
        tables.append(pq.read_table(out))
    assert tables[1].column_names == ["node", "name", "label", "class", "score"]
    assert tables[1]["name"].to_pylist() == [10 * row for row in range(NUM_NODES)]
    assert tables[1]["class"].equals(tables[0]["class"])
    number_of = {"beta": 0, "omega": 1, "alpha": 2, "delta": 3, "gamma": 4}
    assert tables[1]["label"].to_pylist() == [number_of[name] for name in tables[1]["class"].to_pylist()]
    (tmp_path / "n.txt").write_text("30\n1190\n")
    some = ("--id", "--nodes", tmp_path / "n.txt", "--out", tmp_path / "some.parquet")
    assert run_cli("infer", folder / "run", tmp_path / "g.ecgl", *some).code == 0
    assert pq.read_table(tmp_path / "some.parquet")["name"].to_pylist() == [30, 1190]

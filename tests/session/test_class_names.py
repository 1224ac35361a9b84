"""Classes keep their names: in the order of a config, tasks, results, the report, saved models and predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
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

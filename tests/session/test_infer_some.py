"""``ecgl infer`` of some nodes and of a table that is brought up to date: what a whole inference gives."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ecgl_scale import ECGL, GraphStore
from ecgl_scale.session.infer_some import first_new_node
from ecgl_scale.session.saved_model import load_model
from ecgl_scale.session.score_table import METADATA_KEY
from ecgl_scale.store.edges.plan import BuildOptions
from tests.cli_runner import run_cli
from tests.session.streams import Drawn, draw_graph, write_config, write_store


def train(store: Path, folder: Path, **sections: Any) -> Path:
    learn = {"hidden": [24], "epochs": 2, "lr": 0.02, **sections.pop("learn", {})}
    config = write_config(folder / "run.yaml", store, learn=learn, **sections)
    ran = run_cli("--quiet", "run", config, "--out", folder / "run")
    assert ran.code == 0, ran.stderr
    return folder / "run"


def infer(run: Path, store: Path, out: Path, *options: object) -> pa.Table:
    ran = run_cli("infer", run, store, "--out", out, *options)
    assert ran.code == 0, ran.stderr
    assert not list(out.parent.glob(".*.work"))
    return pq.read_table(out)


@pytest.fixture(scope="module", params=["raw", "propagated:2"])
def run(request: pytest.FixtureRequest, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(store, tmp_path_factory.mktemp("run"), learn={"features": request.param})


def test_the_nodes_of_a_file_are_predicted_as_all_are(run: Path, store: Path, tmp_path: Path) -> None:
    whole = infer(run, store, tmp_path / "whole.parquet")
    np.save(tmp_path / "nodes.npy", np.array([880, 3, 3, 17]))
    some = infer(run, store, tmp_path / "some.parquet", "--nodes", tmp_path / "nodes.npy")
    assert some.column("node").to_pylist() == [3, 17, 880]
    wanted = whole.take([3, 17, 880])
    assert some.column("label").equals(wanted.column("label"))
    np.testing.assert_allclose(some.column("score").to_numpy(), wanted.column("score").to_numpy(), rtol=1e-6)
    said = json.loads(some.schema.metadata[METADATA_KEY])
    graph = GraphStore.open(store)
    assert (said["nodes"], said["store"], said["generation"]) == ("some", graph.identity, 0)
    assert said["model"] == json.loads(whole.schema.metadata[METADATA_KEY])["model"]


def test_infer_says_how_many_nodes_it_has_predicted(run: Path, store: Path, tmp_path: Path) -> None:
    (tmp_path / "nodes.txt").write_text("5\n899\n")
    options = ("--nodes", tmp_path / "nodes.txt", "--out", tmp_path / "some.parquet")
    about = json.loads(run_cli("infer", run, store, *options, "--json").stdout)
    assert (about["num_predicted"], about["num_nodes"]) == (2, 900)
    assert 2 <= about["neighbourhood"] < 450
    assert 0 < about["peak_bytes"] <= 1.1 * about["plan"]["peak_bytes"]
    assert [stage["stage"] for stage in about["plan"]["stages"]] == ["infer", "write"]
    assert "2 of 900 nodes" in run_cli("infer", run, store, *options).stdout


def test_a_table_of_a_store_that_has_not_changed_is_copied(
    run: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = infer(run, store, tmp_path / "old.parquet")

    def compute(*_: object) -> None:
        pytest.fail("nothing has changed")

    monkeypatch.setattr("ecgl_scale.infer.some_nodes.NodeInference._compute", compute)
    monkeypatch.setattr("ecgl_scale.session.infer_some.infer_whole", compute)
    fresh = infer(run, store, tmp_path / "new.parquet", "--update", tmp_path / "old.parquet")
    assert fresh.equals(whole, check_metadata=True)
    assert infer(run, store, tmp_path / "old.parquet", "--update", tmp_path / "old.parquet").equals(whole)
    for update in ((), ("--update", tmp_path / "old.parquet")):
        assert infer(run, store, tmp_path / "none.parquet", "--nodes", "new", *update).num_rows == 0


@pytest.mark.parametrize("case", ["store", "some", "foreign", "damaged", "rows", "missing"])
def test_a_table_that_cannot_be_gone_on_from_is_refused(run: Path, store: Path, tmp_path: Path, case: str) -> None:
    old, out = tmp_path / "old.parquet", tmp_path / "new.parquet"
    infer(run, store, old)
    expected = {
        "store": "predictions are of another store",
        "some": "some nodes alone",
        "foreign": "do not say which model",
        "damaged": "cannot be read",
        "rows": "not those of all nodes in order",
        "missing": "cannot be read",
    }[case]
    if case == "store":
        store = write_store(tmp_path / "other.ecgl", draw_graph(seed=1))
    elif case == "some":
        (tmp_path / "nodes.txt").write_text("0\n1\n")
        infer(run, store, old, "--nodes", tmp_path / "nodes.txt")
    elif case == "foreign":
        pq.write_table(pa.table({"node": [0], "label": [0], "score": [0.5]}), old)
    elif case == "damaged":
        old.write_bytes(old.read_bytes()[:-100])
    elif case == "rows":
        table = pq.read_table(old)
        pq.write_table(table.take(np.arange(900)[::-1]), old)
    else:
        old.unlink()
    out.write_text("old")
    ran = run_cli("infer", run, store, "--out", out, "--update", old)
    assert ran.code == 3, ran.stderr
    assert expected in ran.stderr
    assert out.read_text() == "old"


def test_a_table_of_another_model_is_written_anew(run: Path, store: Path, tmp_path: Path) -> None:
    table, model = tmp_path / "table.parquet", train(store, tmp_path, seed=5)
    infer(run, store, table)
    ran = run_cli("infer", model, store, "--out", table, "--update", table)
    assert ran.code == 0, ran.stderr
    assert "the model has changed" in ran.stderr
    assert pq.read_table(table).equals(infer(model, store, tmp_path / "whole.parquet"), check_metadata=True)


def test_nodes_that_do_not_exist_and_options_that_exclude_each_other_are_refused(
    run: Path, store: Path, tmp_path: Path
) -> None:
    nodes, old = tmp_path / "nodes.txt", tmp_path / "old.parquet"
    nodes.write_text("5\n900\n")
    infer(run, store, old)
    for options, code, words in [
        (("--nodes", nodes), 3, "900"),
        (("--nodes", tmp_path / "none.npy"), 3, "none.npy"),
        (("--nodes", nodes, "--update", old), 2, "--nodes FILE or --update"),
        (("--id",), 2, "--id"),
        (("--nodes", nodes, "--id"), 2, "no keys"),
    ]:
        ran = run_cli("infer", run, store, "--out", tmp_path / "new.parquet", *options)
        assert ran.code == code, ran.stderr
        assert words in ran.stderr
        assert not (tmp_path / "new.parquet").exists()


def test_a_model_without_its_seal_knows_no_new_nodes(run: Path, store: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "sealed.json").unlink()
    ran = run_cli("infer", tmp_path / "run", store, "--out", tmp_path / "new.parquet", "--nodes", "new")
    assert ran.code == 2, ran.stderr
    assert "does not say which nodes" in ran.stderr


def test_new_nodes_of_a_store_with_fewer_nodes_are_refused(run: Path, tmp_path: Path) -> None:
    store = write_store(tmp_path / "small.ecgl", draw_graph(600))
    ran = run_cli("infer", run, store, "--out", tmp_path / "new.parquet", "--nodes", "new")
    assert ran.code == 3, ran.stderr
    assert "learned from 900 nodes, and the store has 600" in ran.stderr


def test_some_nodes_within_a_budget_that_is_too_small_exit_with_4(run: Path, store: Path, tmp_path: Path) -> None:
    (tmp_path / "nodes.txt").write_text("5\n")
    ran = run_cli(
        "infer", run, store, "--out", tmp_path / "new.parquet", "--nodes", tmp_path / "nodes.txt", "--memory", "16MiB"
    )
    assert ran.code == 4, ran.stderr
    assert "the budget is 16 MiB" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["nodes.txt"]


def test_a_model_in_python_predicts_nodes_in_the_order_asked_for(run: Path, store: Path, tmp_path: Path) -> None:
    labels = infer(run, store, tmp_path / "whole.parquet").column("label").to_numpy()
    model, graph = ECGL.load(run), GraphStore.open(store)
    np.testing.assert_array_equal(model.predict(graph), labels)
    np.testing.assert_array_equal(model.predict(graph, [880, 3, 3]), labels[[880, 3, 3]])
    assert model.predict(graph, []).size == 0


def grow(store: Path, drawn: Drawn, seed: int) -> None:
    """Forty more nodes with edges to each other and to a few old ones, and a few edges among old ones."""
    graph, rng = GraphStore.open(store), np.random.default_rng(seed)
    first = graph.num_nodes
    new, old = rng.integers(first, first + 40, (2, 30)), rng.integers(0, first, (2, 3))
    across = np.stack([rng.integers(first, first + 40, 3), rng.integers(0, first, 3)])
    edges = np.concatenate([new, old, across, across[::-1]], axis=1)
    rows = rng.integers(0, 900, 40)
    graph.append(edges, drawn.x[rows], drawn.y[rows], columns={"year": drawn.year[rows]})


@pytest.fixture(scope="module", params=["directed", "symmetric", "sparse"])
def growing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Drawn]:
    """A store of 900 nodes and few edges, so that most nodes do not hear of what is new."""
    drawn, folder = draw_graph(), tmp_path_factory.mktemp("growing")
    x = drawn.x * (np.abs(drawn.x) > 3) if request.param == "sparse" else drawn.x
    few = replace(drawn, edge_index=drawn.edge_index[:, ::6], x=x)
    options = BuildOptions(symmetrise=request.param != "directed")
    return write_store(folder / "g.ecgl", few, options=options), few


@pytest.mark.parametrize("settings", [{}, {"encoder": "sage"}, {"encoder": "sgc", "hidden": [24, 20]}])
def test_an_updated_table_is_that_of_a_whole_inference(
    growing: tuple[Path, Drawn], tmp_path: Path, settings: dict[str, Any]
) -> None:
    store = tmp_path / "g.ecgl"
    shutil.copytree(growing[0], store)
    model = train(store, tmp_path, learn=settings, infer={"backend": "numba"})
    table = tmp_path / "table.parquet"
    infer(model, store, table)
    for number in range(1, 3):
        grow(store, growing[1], number)
        whole = infer(model, store, tmp_path / "whole.parquet")
        new = infer(model, store, tmp_path / "new.parquet", "--nodes", "new", "--update", table)
        about = json.loads(run_cli("infer", model, store, "--out", table, "--update", table, "--json").stdout)
        assert pq.read_table(table).equals(whole, check_metadata=True)
        assert 40 <= about["num_predicted"] < 700
        assert new.equals(whole.slice(860 + 40 * number))
        assert json.loads(whole.schema.metadata[METADATA_KEY])["generation"] == number
    since_model = infer(model, store, tmp_path / "new.parquet", "--nodes", "new")
    assert since_model.equals(whole.slice(900))
    has_learned_all = replace(load_model(model), more={"num_nodes": 980})
    assert first_new_node(has_learned_all, GraphStore.open(store)) == 940  # what the last append has brought


def test_a_table_of_a_later_generation_is_refused_for_an_earlier_one(
    growing: tuple[Path, Drawn], tmp_path: Path
) -> None:
    store, table = tmp_path / "g.ecgl", tmp_path / "table.parquet"
    shutil.copytree(growing[0], store)
    model = train(store, tmp_path)
    grow(store, growing[1], 1)
    infer(model, store, table)
    ran = run_cli("infer", model, f"{store}#generation=0", "--out", tmp_path / "new.parquet", "--update", table)
    assert ran.code == 3, ran.stderr
    assert "predictions are of another store" in ran.stderr

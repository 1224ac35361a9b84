"""``ecgl append`` from outside: every source, what it prints, and with which code it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale import GraphStore
from tests.cli_runner import run_cli
from tests.store.graphs import bytes_of
from tests.store.layouts import write_arxiv, write_cora, write_reddit
from tests.test_cli import write_npz

NEW = {
    "edge_index": np.array([[4, 0, 5, 1], [0, 4, 4, 2]]),
    "x": np.full((2, 2), 7, np.float32),
    "y": np.array([2, -1]),
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Four nodes, two features, two classes; edges 0->1, 1->2, 2->0, 3->1."""
    path = tmp_path / "g.ecgl"
    assert run_cli("ingest", "npz", write_npz(tmp_path / "old.npz"), path).code == 0
    return path


def write_new(path: Path, **changed: Any) -> Path:
    np.savez(path, **{name: array for name, array in (NEW | changed).items() if array is not None})
    return path


def edges_of(store: Path) -> set[tuple[int, ...]]:
    return set(map(tuple, GraphStore.open(store).to_edge_index().T.tolist()))


OLD_EDGES = {(0, 1), (1, 2), (2, 0), (3, 1)}


def test_append_npz_adds_nodes_and_edges_and_says_so(store: Path, tmp_path: Path) -> None:
    ran = run_cli("append", "npz", write_new(tmp_path / "new.npz"), store)
    assert ran.code == 0, ran.stderr
    assert ran.stdout.startswith(f"{store}: generation 1: 2 new nodes, 3 new edges, ")
    assert ran.stdout.endswith("; now 6 nodes, 7 edges\n")
    graph = GraphStore.open(store)
    assert edges_of(store) == OLD_EDGES | {(4, 0), (0, 4), (5, 4)}
    assert graph.column("label").tolist() == [0, 1, -1, 1, 2, -1]
    assert graph.require_features().rows_dense([4, 5]).tolist() == [[7, 7], [7, 7]]
    assert run_cli("verify", store).code == 0


def test_append_json_has_what_info_has_and_what_came(store: Path, tmp_path: Path) -> None:
    ran = run_cli("append", "npz", write_new(tmp_path / "new.npz"), store, "--json")
    found = json.loads(ran.stdout)
    assert (found["generation"], found["new_nodes"], found["new_edges"]) == (1, 2, 3)
    assert (found["num_nodes"], found["num_edges"], found["dropped_duplicates"]) == (6, 7, 2)
    assert 0 < found["written_bytes"] < found["total_bytes"]


def test_edges_alone_and_nodes_alone_can_be_appended(store: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    np.save(tmp_path / "y.npy", np.array([2, 0, 2]))
    assert run_cli("append", "edges", store, "--features", tmp_path / "x.npy", "--labels", tmp_path / "y.npy").code == 0
    (tmp_path / "more.csv").write_text("src,dst\n6,0\n0,6\n0,1\n")
    assert run_cli("append", "edges", tmp_path / "more.csv", store).code == 0
    np.savez(tmp_path / "only.npz", edge_index=np.array([[5], [6]]))
    assert run_cli("append", "npz", tmp_path / "only.npz", store, "--columns", _no_columns(tmp_path)).code == 0
    graph = GraphStore.open(store)
    assert (graph.num_nodes, graph.generation) == (7, 3)
    assert graph.column("label").tolist() == [0, 1, -1, 1, 2, 0, 2]
    assert edges_of(store) == OLD_EDGES | {(6, 0), (0, 6), (5, 6)}
    assert run_cli("verify", store).code == 0


def _no_columns(folder: Path) -> Path:
    np.savez(folder / "none.npz")
    return folder / "none.npz"


def test_options_that_the_store_has_may_be_repeated_and_others_are_exit_2(store: Path, tmp_path: Path) -> None:
    new = write_new(tmp_path / "new.npz")
    before = bytes_of(store)
    for option, value in (
        ("--symmetrise", ()),
        ("--keep-duplicates", ()),
        ("--keep-self-loops", ()),
        ("--add-self-loops", ()),
        ("--features-as", ("sparse",)),
        ("--feature-dtype", ("float16",)),
    ):
        ran = run_cli("append", "npz", new, store, option, *value)
        assert (ran.code, ran.stdout) == (2, ""), option
        assert "the store was built with" in ran.stderr
    assert bytes_of(store) == before
    assert run_cli("append", "npz", new, store, "--features-as", "dense", "--feature-dtype", "float32").code == 0


BAD = {
    "an edge to an unknown node": ({"edge_index": np.array([[4, 0], [0, 6]])}, ["row 1", "ids from 0 to 5", "0 -> 6"]),
    "another number of features": ({"x": np.ones((2, 3))}, ["3 features each", "expected: 2"]),
    "features that are no numbers": ({"x": np.array([["a", "b"]] * 2)}, ["strings"]),
    "no features": ({"x": None, "num_nodes": np.array(2)}, ["no features"]),
    "a new column": ({"year": np.array([1, 2])}, ["no node column 'year'", "label"]),
    "features of other nodes": ({"x": np.ones((3, 2))}, ["3 nodes", "label array"]),
}


@pytest.mark.parametrize(("changed", "words"), BAD.values(), ids=BAD)
def test_what_does_not_fit_the_store_is_exit_3_with_file_and_row(
    store: Path, tmp_path: Path, changed: dict[str, Any], words: list[str]
) -> None:
    before = bytes_of(store)
    new = write_new(tmp_path / "new.npz", **changed)
    ran = run_cli("append", "npz", new, store)
    assert (ran.code, ran.stdout) == (3, "")
    for word in words:
        assert word in ran.stderr
    assert str(new) in ran.stderr or "new" in ran.stderr
    assert bytes_of(store) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.ecgl", "new.npz", "old.npz"]


def test_an_unknown_node_is_named_with_the_line_of_its_file(store: Path, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("src,dst\n0,1\n1,4\n")
    ran = run_cli("append", "edges", tmp_path / "more.csv", store)
    assert ran.code == 3
    assert f"{tmp_path / 'more.csv'}, row 3" in ran.stderr
    assert "ids from 0 to 3" in ran.stderr


@pytest.mark.parametrize("missing", ["nothing.ecgl", "old.npz"])
def test_a_store_that_is_not_there_is_exit_3(store: Path, tmp_path: Path, missing: str) -> None:
    assert store.exists()
    ran = run_cli("append", "npz", write_new(tmp_path / "new.npz"), tmp_path / missing)
    assert ran.code == 3
    assert "there is no store here" in ran.stderr


def test_an_address_of_an_older_generation_is_exit_3(store: Path, tmp_path: Path) -> None:
    new = write_new(tmp_path / "new.npz")
    assert run_cli("append", "npz", new, store).code == 0
    ran = run_cli("append", "npz", new, f"{store}#generation=0")
    assert ran.code == 3
    assert "the store has grown since: this is an append to generation 0" in ran.stderr
    edges = tmp_path / "edges.csv"
    edges.write_text("0,1\n")
    for source in (("npz", new), ("edges", edges)):
        ahead = run_cli("append", *source, f"{store}#generation=7")
        assert ahead.code == 2
        assert "the store has no generation 7" in ahead.stderr


def test_folders_in_ogbs_layout_are_appended(tmp_path: Path) -> None:
    first = write_arxiv(tmp_path / "a")
    store = tmp_path / "g.ecgl"
    assert run_cli("ingest", "ogb", first.folder, store).code == 0
    ran = run_cli("append", "ogb", first.folder, store)
    assert ran.code == 0, ran.stderr
    graph = GraphStore.open(store)
    assert graph.num_nodes == 120
    assert graph.column("year").tolist() == [*first.year, *first.year]
    assert ran.stdout.startswith(f"{store}: generation 1: 60 new nodes, 0 new edges")


def test_files_in_dgls_layout_are_appended(tmp_path: Path) -> None:
    for write, name in ((write_cora, "cora"), (write_reddit, "reddit")):
        folder = tmp_path / name
        folder.mkdir()
        write(folder)
        store = tmp_path / f"{name}.ecgl"
        assert run_cli("ingest", "dgl", folder, store).code == 0
        before = GraphStore.open(store)
        ran = run_cli("append", "dgl", folder, store)
        assert ran.code == 0, ran.stderr
        assert GraphStore.open(store).num_nodes == 2 * before.num_nodes
        assert GraphStore.open(store).num_edges == before.num_edges


def test_ingest_takes_the_number_of_nodes_from_the_features(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    (tmp_path / "e.csv").write_text("src,dst\n0,2\n")
    assert run_cli("ingest", "edges", tmp_path / "e.csv", tmp_path / "a", "--features", tmp_path / "x.npy").code == 0
    assert GraphStore.open(tmp_path / "a").num_nodes == 3
    for options in ((), ("--nodes", 0)):
        ran = run_cli("ingest", "edges", tmp_path / "e.csv", tmp_path / "b", *options)
        assert ran.code == 2
        assert "--nodes N" in ran.stderr

"""Appends to stores with names: keys lead to nodes of all generations, and classes keep their numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.base.events import Note
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.append import append_store
from ecgl_scale.store.build import build_store
from ecgl_scale.store.node_list import read_node_list
from ecgl_scale.store.sources.edges import open_edge_files
from ecgl_scale.store.sources.npz import open_npz_source
from ecgl_scale.store.verify import verify_store
from tests.cli_runner import run_cli
from tests.resources import at


def write_nodes(path: Path, keys: list[Any], labels: list[Any], **more: Any) -> Path:
    """An npz of nodes with features, keys and labels."""
    x = np.arange(2 * len(keys), dtype=np.float32).reshape(-1, 2) + 1
    edges = more.pop("edge_index", np.empty((2, 0), np.int64))
    np.savez(path, edge_index=edges, x=x, id=np.array(keys), y=np.array(labels), year=np.arange(len(keys)), **more)
    return path


def ingest(folder: Path, keys: list[Any], labels: list[Any], edges: Any = ((0,), (1,))) -> Path:
    path = write_nodes(folder / "first.npz", keys, labels, edge_index=np.array(edges))
    build_store(open_npz_source(path, id_column="id"), folder / "g.ecgl", at())
    return folder / "g.ecgl"


def append(store: Path, keys: list[Any], labels: list[Any], edges: Any = ((), ()), **how: Any) -> GraphStore:
    given = np.array(edges, np.int64).reshape(2, -1)
    path = write_nodes(store.parent / "next.npz", keys, labels, edge_index=given)
    append_store(open_npz_source(path, id_column="id", adds=True), store, how.pop("resources", at()), **how)
    return GraphStore.open(store)


@pytest.mark.parametrize("make", [str, lambda key: 7 * int(key)])
def test_keys_of_all_generations_lead_to_their_rows(tmp_path: Path, make: Any) -> None:
    keys = [make(key) for key in range(10)]
    store = ingest(tmp_path, keys[:4], ["a", "b", "a", "b"])
    append(store, keys[4:7], ["b", "", "c"])
    graph = append(store, keys[7:], ["d", "a", "c"])
    assert graph.keys is not None
    assert graph.keys.rows_of(keys[::-1]).tolist() == list(range(10))[::-1]
    assert graph.keys.keys_of([9, 0, 5, 9]).to_pylist() == [keys[9], keys[0], keys[5], keys[9]]
    assert graph.keys.rows_of([make(77)]).tolist() == [-1]
    assert graph.class_names == ("a", "b", "c", "d")
    assert graph.column("label").tolist() == [0, 1, 0, 1, 1, -1, 2, 3, 0, 2]
    assert verify_store(store, at()).num_rows == 10
    before = GraphStore.open(store, generation=0)
    assert before.class_names == ("a", "b")
    assert before.keys is not None
    assert before.keys.rows_of(keys).tolist() == [0, 1, 2, 3, *[-1] * 6]


def test_numbers_as_labels_go_on_with_and_without_gaps(tmp_path: Path) -> None:
    store = ingest(tmp_path, list("abc"), [0, 1, 2])
    graph = append(store, list("de"), [3, -1])
    assert (graph.class_names, graph.num_classes) == (None, 4)
    graph = append(store, list("f"), [9])
    assert graph.class_names == ("0", "1", "2", "3", "9")
    graph = append(store, list("gh"), [5, 1])
    assert graph.class_names == ("0", "1", "2", "3", "9", "5")
    assert graph.column("label").tolist() == [0, 1, 2, 3, -1, 4, 5, 1]
    assert GraphStore.open(store, generation=1).class_names is None


def test_edges_by_key_lead_between_old_and_new_nodes(tmp_path: Path) -> None:
    store = ingest(tmp_path, list("abc"), [0, 1, 0], edges=((0, 1), (1, 2)))
    pq.write_table(pa.table({"id": ["d", "e"], "year": [1, 2]}), tmp_path / "c.parquet")
    np.save(tmp_path / "x.npy", np.ones((2, 2), np.float32))
    (tmp_path / "e.csv").write_text("src,dst\na,d\nd,c\ne,b\n")
    command = ["append", "edges", tmp_path / "e.csv", store, "--features", tmp_path / "x.npy", "--id"]
    result = run_cli(*command, "--columns", tmp_path / "c.parquet")
    assert result.code == 0, result.stderr
    graph = GraphStore.open(store)
    assert sorted(map(tuple, graph.to_edge_index().T.tolist())) == [(0, 1), (0, 3), (1, 2), (3, 2), (4, 1)]
    (tmp_path / "e.csv").write_text("src,dst\na,d\nzz,c\n")
    refused = run_cli("append", "edges", tmp_path / "e.csv", store, "--id")
    assert refused.code == 3
    assert "'zz' is not a key" in refused.stderr
    assert f"{tmp_path / 'e.csv'}, column src, row 3" in refused.stderr
    assert GraphStore.open(store).generation == 1


def test_a_key_that_is_there_is_refused_with_its_row(tmp_path: Path) -> None:
    store = ingest(tmp_path, list("abc"), [0, 1, 0])
    with pytest.raises(InvalidInputError, match=r"the key 'b': row 1[\s\S]*id.npy, row 2[\s\S]*--on-existing skip"):
        append(store, list("deb"), [0, 1, 1])
    with pytest.raises(InvalidInputError, match=r"two nodes have the key 'd'[\s\S]*rows 0 and 2"):
        append(store, list("ded"), [0, 1, 1])
    graph = GraphStore.open(store)
    assert graph.generation == 0
    assert not (store / "generations").exists()


@pytest.mark.parametrize("is_sparse", [False, True])
def test_nodes_that_are_there_are_skipped_and_edges_find_them(tmp_path: Path, is_sparse: bool) -> None:
    store = ingest(tmp_path, list("abc"), ["x", "y", ""], edges=((0,), (1,)))
    if is_sparse:
        build_store(
            open_npz_source(tmp_path / "first.npz", id_column="id"), store, at(), features_as="sparse", overwrite=True
        )
    notes: list[str] = []
    resources = at(on_event=lambda event: notes.append(event.text) if isinstance(event, Note) else None)
    # nodes 3 to 7 are b, d, c, e, a: two of them are new
    edges = ((3, 4, 6, 7, 0), (4, 5, 3, 6, 6))
    graph = append(store, list("bdcea"), ["y", "z", "x", "", ""], edges, on_existing="skip", resources=resources)
    assert graph.num_nodes == 5
    assert graph.keys is not None
    assert graph.keys.keys_of(np.arange(5)).to_pylist() == list("abcde")
    assert graph.column("label").tolist() == [0, 1, -1, 2, -1]
    assert graph.column("year").tolist() == [0, 1, 2, 1, 3]
    rows = graph.require_features().rows(np.array([3, 4]))
    dense = rows if isinstance(rows, np.ndarray) else None
    if dense is not None:
        np.testing.assert_array_equal(dense, [[3, 4], [7, 8]])
    found = sorted(map(tuple, graph.to_edge_index().T.tolist()))
    assert found == [(0, 1), (0, 4), (1, 3), (3, 2), (4, 1)]
    assert any("3 of 5 nodes are in the store already" in note for note in notes)
    assert any("1 node that is there without a label came with one" in note for note in notes)
    verify_store(store, at())


def test_an_append_that_is_repeated_writes_nothing_and_says_so(tmp_path: Path) -> None:
    store = ingest(tmp_path, list("abc"), ["x", "y", ""])
    edges, x, columns = (tmp_path / name for name in ("came.csv", "came.npy", "came.parquet"))
    edges.write_text("src,dst\nd,c\na,d\n")
    np.save(x, np.ones((2, 2), np.float32))
    pq.write_table(pa.table({"id": list("cd"), "label": [None, "z"], "year": [2, 7]}), columns)
    files = (edges, store, "--features", x, "--columns", columns, "--id-column", "id", "--id")
    again = ("append", "edges", *files, "--on-existing", "skip")
    assert run_cli(*again).code == 0
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    said = run_cli(*again)
    assert (said.code, said.stdout) == (0, f"{store}: every node and edge is there already, so nothing is written\n")
    told = json.loads(run_cli(*again, "--json").stdout)
    assert [told[name] for name in ("generation", "new_nodes", "new_edges", "written_bytes")] == [1, 0, 0, 0]
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    assert [path.name for path in (store / "generations").iterdir() if path.name.startswith(".")] == []


def test_an_append_of_nodes_that_are_all_there_brings_edges_alone(tmp_path: Path) -> None:
    store = ingest(tmp_path, list("abc"), ["x", "y", ""])
    graph = append(store, list("cb"), ["", "y"], ((3, 4), (4, 0)), on_existing="skip")
    assert graph.num_nodes == 3
    assert sorted(map(tuple, graph.to_edge_index().T.tolist())) == [(0, 1), (1, 0), (2, 1)]
    with pytest.raises(InvalidInputError, match="node 5 of an edge does not exist"):
        append(store, list("cb"), ["", "y"], ((5,), (0,)), on_existing="skip")


def test_a_label_that_changes_is_refused(tmp_path: Path) -> None:
    store = ingest(tmp_path, list("abc"), ["x", "y", ""])
    with pytest.raises(InvalidInputError, match=r"changes: z, in the store it is y[\s\S]*row 1 \(row 1 of the store\)"):
        append(store, list("dbe"), ["x", "z", "x"], on_existing="skip")
    assert GraphStore.open(store).generation == 0


def test_other_keys_than_those_of_the_store_are_refused(tmp_path: Path) -> None:
    store = ingest(tmp_path, list("abc"), [0, 1, 0])
    with pytest.raises(InvalidInputError, match=r"other keys than the store: 'id' of int64[\s\S]*'id' of string"):
        append(store, [1, 2], [0, 1])
    path = write_nodes(tmp_path / "n.npz", list("de"), [0, 1])
    with pytest.raises(InvalidInputError, match="other keys than the store: none"):
        append_store(open_npz_source(path, adds=True), store, at())
    plain = tmp_path / "plain.ecgl"
    build_store(open_npz_source(tmp_path / "first.npz"), plain, at())
    with pytest.raises(InvalidInputError, match="nodes of the store have no keys"):
        append_store(open_npz_source(path, id_column="id", adds=True), plain, at())


def test_edges_by_key_without_keys_are_refused(tmp_path: Path) -> None:
    path = write_nodes(tmp_path / "first.npz", list("abc"), [0, 1, 0])
    build_store(open_npz_source(path), tmp_path / "g.ecgl", at())
    (tmp_path / "e.csv").write_text("src,dst\na,b\n")
    with pytest.raises(UsageError, match="nodes have no keys"):
        append_store(open_edge_files([tmp_path / "e.csv"], num_nodes=0, by_key=True), tmp_path / "g.ecgl", at())
    assert run_cli("append", "edges", tmp_path / "e.csv", tmp_path / "g.ecgl", "--id").code == 2


def csv_graph(folder: Path, keys: list[str]) -> Any:
    """A table of nodes in text and an edge, read as ``ingest edges`` and ``append edges`` do."""
    (folder / "n.csv").write_text("id,year\n" + "".join(f"{key},{row}\n" for row, key in enumerate(keys)))
    (folder / "e.csv").write_text("0,1\n")
    return open_edge_files([folder / "e.csv"], num_nodes=len(keys), columns=folder / "n.csv", id_column="id")


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        (["7", "-3", "0"], "int64"),
        (["7", "007", "0"], "string"),
        (["+7", "8", "9"], "string"),
        (["7", "8", "-0"], "string"),
        (["7", "8", "9223372036854775808"], "string"),
        (["1.0", "2.0", "3.0"], "string"),
        (["2001-02-03", "true", "NA"], "string"),
    ],
)
def test_keys_in_text_are_what_the_file_says(tmp_path: Path, keys: list[str], kind: str) -> None:
    build_store(csv_graph(tmp_path, keys), tmp_path / "g.ecgl", at())
    found = GraphStore.open(tmp_path / "g.ecgl").keys
    assert found is not None
    assert found.type == kind
    assert [str(key) for key in found.keys_of([0, 1, 2]).to_pylist()] == keys


def test_keys_in_text_follow_the_store_or_are_refused(tmp_path: Path) -> None:
    build_store(csv_graph(tmp_path, ["007", "x"]), tmp_path / "g.ecgl", at())
    append_store(csv_graph(tmp_path, ["7", "8"]), tmp_path / "g.ecgl", at())
    keys = GraphStore.open(tmp_path / "g.ecgl").keys
    assert keys is not None
    assert keys.keys_of([0, 1, 2, 3]).to_pylist() == ["007", "x", "7", "8"]
    build_store(csv_graph(tmp_path, ["7", "8"]), tmp_path / "n.ecgl", at())
    with pytest.raises(InvalidInputError, match=r"other keys than the store: 'id' of string[\s\S]*of int64"):
        append_store(csv_graph(tmp_path, ["9", "007"]), tmp_path / "n.ecgl", at())
    append_store(csv_graph(tmp_path, ["9"]), tmp_path / "n.ecgl", at())
    (tmp_path / "asked.csv").write_text("id\n007\n")
    with pytest.raises(InvalidInputError, match=r"'007' is not a whole number[\s\S]*asked.csv, row 2"):
        read_node_list(tmp_path / "asked.csv", GraphStore.open(tmp_path / "n.ecgl"), by_key=True)


@pytest.mark.parametrize("keys", [["a", "b", "c", "d"], [7, 5, 9, -1]])
def test_append_in_python_takes_keys(tmp_path: Path, keys: list[Any]) -> None:
    graph = GraphStore.open(ingest(tmp_path, keys[:2], [0, 1]))
    new = {"x": np.ones((2, 2), np.float32), "y": [1, 0], "columns": {"year": np.array([1, 2])}}
    grown = graph.append(((0,), (3,)), **new, keys=keys[2:])
    assert grown.keys is not None
    assert grown.keys.rows_of(keys).tolist() == [0, 1, 2, 3]
    with pytest.raises(InvalidInputError, match="the store has a node with the key"):
        grown.append(**new, keys=keys[1:3])
    with pytest.raises(InvalidInputError, match="other keys than the store: none"):
        grown.append(**new)
    with pytest.raises(InvalidInputError, match="keys are of double"):
        grown.append(**new, keys=[0.5, 1.5])

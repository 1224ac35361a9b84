"""Keys of nodes: written and indexed out of core, found again, and refused where they are none."""

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

from ecgl_scale import GraphStore
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.errors import CorruptStoreError, InvalidInputError, UsageError
from ecgl_scale.store.build import build_store
from ecgl_scale.store.format import KEY_INDEX_NAME, KEYS_NAME
from ecgl_scale.store.keys.sort import sort_pairs
from ecgl_scale.store.node_list import read_node_list
from ecgl_scale.store.sources.edges import open_edge_files
from ecgl_scale.store.sources.npz import open_npz_source
from ecgl_scale.store.verify import verify_store
from ecgl_scale.units import MIB
from tests.cli_runner import run_cli
from tests.resources import at

EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
TEXTS = ["libc6", "python3-numpy", "ünïcode", "a", "python3-nump"]
NUMBERS = [40, -7, 2**62, 0, 41]


def store_of(path: Path, keys: Any, **arrays: Any) -> GraphStore:
    np.savez(path / "g.npz", edge_index=EDGES, num_nodes=len(keys), name=np.array(keys), **arrays)
    build_store(open_npz_source(path / "g.npz", id_column="name"), path / "g.ecgl", at(), overwrite=True)
    return GraphStore.open(path / "g.ecgl")


@pytest.mark.parametrize("keys", [TEXTS, NUMBERS])
def test_keys_lead_to_rows_and_back(tmp_path: Path, keys: list[Any]) -> None:
    found = store_of(tmp_path, keys, year=np.arange(5)).keys
    assert found is not None
    assert (found.name, found.type) == ("name", "string" if keys is TEXTS else "int64")
    assert found.rows_of(keys).tolist() == [0, 1, 2, 3, 4]
    assert found.rows_of([keys[3], keys[1], keys[3]]).tolist() == [3, 1, 3]
    assert found.keys_of([4, 0, 4]).to_pylist() == [keys[4], keys[0], keys[4]]
    unknown = "libc" if keys is TEXTS else 42
    assert found.rows_of([unknown, keys[2]]).tolist() == [-1, 2]
    assert found.rows_of([]).tolist() == []
    assert found.keys_of(np.empty(0, np.int64)).to_pylist() == []


def test_keys_are_no_column_of_numbers_and_the_manifest_names_them(tmp_path: Path) -> None:
    graph = store_of(tmp_path, TEXTS, year=np.arange(5))
    manifest = json.loads((tmp_path / "g.ecgl" / "manifest.json").read_text())
    assert manifest["keys"] == {"name": "name", "type": "string"}
    assert list(manifest["columns"]) == ["year"]
    assert {KEYS_NAME, KEY_INDEX_NAME} <= set(manifest["files"])
    assert graph.nodes is not None
    assert graph.nodes.names == ["year"]


def test_keys_of_another_type_are_refused(tmp_path: Path) -> None:
    keys = store_of(tmp_path, TEXTS).keys
    assert keys is not None
    for given in ([1, 2], ["a", None], [0.5]):
        with pytest.raises(UsageError, match="no keys of column 'name'"):
            keys.rows_of(given)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "npz"])
@pytest.mark.parametrize("keys", [TEXTS, NUMBERS])
def test_keys_come_from_every_table_of_columns(tmp_path: Path, kind: str, keys: list[Any]) -> None:
    table = pa.table({"id": keys, "year": [2000, 2001, 2002, 2003, 2004]})
    path = tmp_path / f"columns.{kind}"
    if kind == "parquet":
        pq.write_table(table.set_column(0, "id", table["id"].dictionary_encode()), path)
    elif kind == "arrow":
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    elif kind == "npz":
        np.savez(path, id=np.array(keys), year=np.arange(2000, 2005))
    else:
        path.write_text("id,year\n" + "".join(f"{key},{2000 + row}\n" for row, key in enumerate(keys)))
    (tmp_path / "e.csv").write_text("0,1\n3,4\n")
    source = open_edge_files([tmp_path / "e.csv"], num_nodes=5, columns=path, id_column="id")
    build_store(source, tmp_path / "g.ecgl", at())
    graph = GraphStore.open(tmp_path / "g.ecgl")
    assert graph.keys is not None
    assert graph.keys.rows_of(keys[::-1]).tolist() == [4, 3, 2, 1, 0]
    assert graph.column("year").tolist() == [2000, 2001, 2002, 2003, 2004]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["a", "b", "c", "b", "d"], r"two nodes have the key 'b'[\s\S]*name.npy, rows 1 and 3"),
        ([5, 4, 3, 5, 1], r"two nodes have the key 5[\s\S]*rows 0 and 3"),
        (["a", "b", "", "c", "d"], r"a node has no key[\s\S]*row 2"),
        (["a", "b", "c" * 1025, "", "d"], r"more than 1,024 bytes[\s\S]*row 2"),
        ([0.5, 1.5, 2.5, 3.5, 4.5], r"dtype float64[\s\S]*text or whole number"),
    ],
)
def test_wrong_keys_are_refused_with_their_rows(tmp_path: Path, keys: list[Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        store_of(tmp_path, keys)
    assert [path.name for path in tmp_path.iterdir()] == ["g.npz"]


def test_null_keys_and_missing_columns_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a", None, "c"], "year": [1, 2, 3]}), tmp_path / "c.parquet")
    (tmp_path / "e.csv").write_text("0,1\n")
    edges = [tmp_path / "e.csv"]
    nulls = open_edge_files(edges, num_nodes=3, columns=tmp_path / "c.parquet", id_column="id")
    with pytest.raises(InvalidInputError, match=r"a node has no key[\s\S]*column id, row 1"):
        build_store(nulls, tmp_path / "g.ecgl", at())
    missing = open_edge_files(edges, num_nodes=3, id_column="key")
    with pytest.raises(InvalidInputError, match="no column 'key' of keys"):
        build_store(missing, tmp_path / "g.ecgl", at())
    assert not (tmp_path / "g.ecgl").exists()


def test_an_index_of_many_runs_is_the_one_of_a_single_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for codes in (
        rng.permutation(100_000) - 50_000,
        rng.integers(0, 1 << 64, 100_000, np.uint64),
        np.arange(100_000)[::-1].copy(),
        rng.integers(0, 3000, 100_000) ** 3,
    ):
        seen = []

        def check(codes: Any, rows: Any, seen: list[int] = seen) -> None:
            seen.append(rows.size)
            assert np.all(codes[1:] >= codes[:-1])

        found, rows = sort_pairs(
            (codes[first : first + 7777] for first in range(0, codes.size, 7777)),
            tmp_path,
            run_rows=9000,
            row_dtype=np.dtype(np.uint32),
            check=check,
        )
        order = np.argsort(codes, kind="stable")
        np.testing.assert_array_equal(rows, order)
        np.testing.assert_array_equal(found, codes[order])
        assert max(seen) <= 9000
        assert list(tmp_path.iterdir()) == []


def test_texts_with_the_same_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def same_hash(offsets: Any, data: Any, out: Any) -> None:
        del offsets, data
        out[:] = 7

    monkeypatch.setattr("ecgl_scale.store.keys.read.hash_texts", same_hash)
    keys = store_of(tmp_path, TEXTS).keys
    assert keys is not None
    assert keys.rows_of([*TEXTS[::-1], "other"]).tolist() == [4, 3, 2, 1, 0, -1]
    with pytest.raises(InvalidInputError, match=r"'b'[\s\S]*rows 1 and 3"):
        store_of(tmp_path, ["a", "b", "c", "b"])


def test_a_large_set_of_keys_is_indexed_within_a_small_budget(tmp_path: Path) -> None:
    num_nodes, spare_bytes = 2_000_000, 96 * MIB
    rng = np.random.default_rng(1)
    keys = pa.array(np.char.add("package-", rng.permutation(num_nodes).astype("U7")).tolist())
    pq.write_table(pa.table({"id": keys}), tmp_path / "c.parquet", row_group_size=100_000)
    np.array([[0, 1]], "<u4").tofile(tmp_path / "e.u32")
    wanted = rng.integers(0, num_nodes, 1000)
    expected = keys.take(pa.array(wanted))
    del keys
    source = open_edge_files([tmp_path / "e.u32"], num_nodes=num_nodes, columns=tmp_path / "c.parquet", id_column="id")
    pa.default_memory_pool().release_unused()
    resources = at(own_memory_bytes() + spare_bytes, threads=1)
    with PeakSampler() as sampler:
        build_store(source, tmp_path / "g.ecgl", resources)
    assert sampler.peak_bytes <= resources.budget.total_bytes
    found = GraphStore.open(tmp_path / "g.ecgl").keys
    assert found is not None
    assert found.rows_of(expected).tolist() == wanted.tolist()
    assert found.keys_of(wanted).equals(expected)


def test_nodes_are_named_by_key_in_files(tmp_path: Path) -> None:
    graph = store_of(tmp_path, TEXTS)
    (tmp_path / "n.txt").write_text("ünïcode\nlibc6\n")
    (tmp_path / "n.csv").write_text('score,name\n1,"libc6"\n2,a\n')
    np.save(tmp_path / "n.npy", np.array(["a", "libc6"]))
    pq.write_table(pa.table({"key": ["a", "ünïcode"]}), tmp_path / "n.parquet")
    for name, rows in (("n.txt", [0, 2]), ("n.csv", [0, 3]), ("n.npy", [0, 3]), ("n.parquet", [2, 3])):
        assert read_node_list(tmp_path / name, graph, by_key=True).tolist() == rows
    (tmp_path / "n.csv").write_text("name\nlibc6\nlibc7\n")
    with pytest.raises(InvalidInputError, match=r"'libc7' is not a key of the store[\s\S]*n.csv, row 3"):
        read_node_list(tmp_path / "n.csv", graph, by_key=True)
    np.save(tmp_path / "n.npy", np.array([1, 2]))
    with pytest.raises(InvalidInputError, match="nodes are named by int64"):
        read_node_list(tmp_path / "n.npy", graph, by_key=True)
    numbered = store_of(tmp_path, NUMBERS)
    (tmp_path / "n.txt").write_text("41\n-7\n")
    assert read_node_list(tmp_path / "n.txt", numbered, by_key=True).tolist() == [1, 4]


def write_edges(path: Path, src: list[Any], dst: list[Any]) -> Path:
    table = pa.table({"src": src, "dst": dst})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    else:
        header = "" if path.name.startswith("bare") else "src,dst\n"
        path.write_text(header + "".join(f"{a},{b}\n" for a, b in zip(src, dst, strict=True)))
    return path


@pytest.mark.parametrize("name", ["e.parquet", "e.arrow", "e.csv", "bare.csv"])
@pytest.mark.parametrize("keys", [TEXTS, NUMBERS])
def test_edges_by_key_are_those_by_number(tmp_path: Path, name: str, keys: list[Any]) -> None:
    np.savez(tmp_path / "k.npz", id=np.array(keys))
    path = write_edges(tmp_path / name, [keys[i] for i in EDGES[0]], [keys[i] for i in EDGES[1]])
    source = open_edge_files([path], num_nodes=5, columns=tmp_path / "k.npz", id_column="id", by_key=True)
    build_store(source, tmp_path / "g.ecgl", at())
    np.testing.assert_array_equal(GraphStore.open(tmp_path / "g.ecgl").to_edge_index(), EDGES)


@pytest.mark.parametrize(("name", "row"), [("e.parquet", 2), ("e.arrow", 2), ("e.csv", 4), ("bare.csv", 3)])
def test_an_unknown_key_of_an_edge_is_refused_with_its_file_and_row(tmp_path: Path, name: str, row: int) -> None:
    np.savez(tmp_path / "k.npz", id=np.array(TEXTS))
    path = write_edges(tmp_path / name, ["a", "libc6", "a"], ["libc6", "a", "libc7"])
    source = open_edge_files([path], num_nodes=5, columns=tmp_path / "k.npz", id_column="id", by_key=True)
    with pytest.raises(InvalidInputError, match="'libc7' is not a key of the store") as caught:
        build_store(source, tmp_path / "g.ecgl", at())
    assert str(caught.value.where) == f"{path}, column dst, row {row}"
    assert caught.value.fix == "correct it, or append a node with this key"
    assert not (tmp_path / "g.ecgl").exists()


def test_missing_keys_and_keys_of_another_type_in_edges_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "k.npz", id=np.array(NUMBERS))
    given = {"num_nodes": 5, "columns": tmp_path / "k.npz", "id_column": "id", "by_key": True}
    write_edges(tmp_path / "null.parquet", [40, None], [0, 0])
    write_edges(tmp_path / "text.csv", ["40", "x1"], ["0", "0"])
    np.zeros(4, "<u4").tofile(tmp_path / "raw.u32")
    for name, message in (("null.parquet", r"names no node[\s\S]*row 1"), ("text.csv", r"'x1' is not a whole number")):
        source = open_edge_files([tmp_path / name], **given)
        with pytest.raises(InvalidInputError, match=message):
            build_store(source, tmp_path / "g.ecgl", at())
    with pytest.raises(InvalidInputError, match="do not name nodes by keys"):
        open_edge_files([tmp_path / "raw.u32"], **given)


def test_verify_finds_an_index_that_is_of_other_keys(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    good, other = store_of(tmp_path, TEXTS), store_of(tmp_path / "other", [*TEXTS[1:], TEXTS[0]])
    assert verify_store(good.path, at()).num_rows == 5
    for name, how in ((KEY_INDEX_NAME, "does not lead from the key of row 0"), (KEYS_NAME, "does not lead")):
        files = dict(good.manifest.files) | {name: other.manifest.files[name]}
        target = tmp_path / f"mixed-{name}.ecgl"
        shutil.copytree(Path(str(good.path)), target)
        shutil.copy(Path(str(other.path)) / name, target / name)
        replace(good.manifest, files=files).write(target)
        with pytest.raises(CorruptStoreError, match=how):
            verify_store(target, at())


def test_the_command_line_takes_keys_and_shows_them(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": TEXTS, "label": ["x", None, "y", None, None]}), tmp_path / "c.parquet")
    edges = write_edges(tmp_path / "e.csv", ["a", "libc6"], ["libc6", "a"])
    store = tmp_path / "g.ecgl"
    command = ["ingest", "edges", edges, store, "--nodes", 5, "--columns", tmp_path / "c.parquet"]
    assert run_cli(*command, "--id").code == 2
    assert run_cli(*command, "--id", "--id-column", "id").code == 0
    shown = run_cli("info", store).stdout
    assert "id: string" in shown
    assert "2: x, y" in shown
    about = json.loads(run_cli("info", store, "--json").stdout)
    assert about["keys"] == {"name": "id", "type": "string"}
    assert about["class_names"] == ["x", "y"]
    edges.write_text("src,dst\na,nobody\n")
    refused = run_cli(*command, "--id", "--id-column", "id", "--overwrite")
    assert refused.code == 3
    assert f"{edges}, column dst, row 2" in refused.stderr


def test_scores_of_a_ranking_have_the_keys_on_request(tmp_path: Path) -> None:
    store_of(tmp_path, TEXTS)
    out = tmp_path / "scores.parquet"
    for more, rows in (((), [0, 1, 2, 3, 4]), (("--topk", 2), None)):
        assert run_cli("rank", tmp_path / "g.ecgl", "--out", out, "--ignore-features", "--id", *more).code == 0
        table = pq.read_table(out)
        assert table.column_names == ["node", "name", "importance"]
        assert table["name"].to_pylist() == [TEXTS[row] for row in rows or table["node"].to_pylist()]

"""Nodes named in files: by row number in every format, and what is refused with its row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.node_list import read_node_list


@pytest.fixture
def graph(tmp_path: Path) -> GraphStore:
    return GraphStore.from_edge_index(np.array([[0, 1], [1, 2]]), num_nodes=10, path=tmp_path / "g.ecgl")


def write_list(path: Path, rows: list[int]) -> Path:
    if path.suffix == ".npy":
        np.save(path, np.array(rows, np.int32))
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({"node": rows, "score": [0.0] * len(rows)}), path)
    elif path.suffix == ".arrow":
        table = pa.table({"node": pa.array(rows, pa.uint16())})
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    else:
        header = "score,node\n" if path.name.startswith("named") else ""
        prefix = "0.5," if header else ""
        path.write_text(header + "".join(f"{prefix}{row}\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ["n.npy", "n.parquet", "n.arrow", "n.txt", "n.csv", "named.csv"])
def test_every_format_gives_the_same_sorted_rows(graph: GraphStore, tmp_path: Path, name: str) -> None:
    found = read_node_list(write_list(tmp_path / name, [7, 3, 3, 9]), graph, by_key=False)
    assert found.dtype == np.int64
    assert found.tolist() == [3, 7, 9]


@pytest.mark.parametrize(
    ("name", "row"), [("n.npy", 1), ("n.parquet", 1), ("n.txt", 2), ("n.csv", 2), ("named.csv", 3)]
)
def test_a_row_that_is_not_there_is_refused_with_its_place(
    graph: GraphStore, tmp_path: Path, name: str, row: int
) -> None:
    path = write_list(tmp_path / name, [7, 10])
    with pytest.raises(InvalidInputError, match="not one of 10 nodes") as caught:
        read_node_list(path, graph, by_key=False)
    assert str(caught.value.where).startswith(str(path))
    assert str(caught.value.where).endswith(f"row {row}")


def test_words_blank_lines_and_other_formats_are_refused(graph: GraphStore, tmp_path: Path) -> None:
    path = tmp_path / "n.txt"
    path.write_text("1\nlibc6\n")
    with pytest.raises(InvalidInputError, match="'libc6' is not a whole number") as caught:
        read_node_list(path, graph, by_key=False)
    assert str(caught.value.where).endswith("row 2")
    path.write_text("1\n\n2\n")
    with pytest.raises(InvalidInputError, match="names no node") as caught:
        read_node_list(path, graph, by_key=False)
    assert str(caught.value.where).endswith("row 2")
    with pytest.raises(InvalidInputError, match="no such file"):
        read_node_list(tmp_path / "missing.txt", graph, by_key=False)
    (tmp_path / "n.json").write_text("[1]")
    with pytest.raises(InvalidInputError, match="format"):
        read_node_list(tmp_path / "n.json", graph, by_key=False)
    (tmp_path / "two.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInputError, match="does not name the column"):
        read_node_list(tmp_path / "two.csv", graph, by_key=False)


def test_an_empty_list_names_nobody(graph: GraphStore, tmp_path: Path) -> None:
    np.save(tmp_path / "n.npy", np.empty(0, np.int64))
    (tmp_path / "n.txt").write_text("")
    assert read_node_list(tmp_path / "n.npy", graph, by_key=False).size == 0
    assert read_node_list(tmp_path / "n.txt", graph, by_key=False).size == 0


def test_keys_are_refused_where_the_store_has_none(graph: GraphStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the store has no keys"):
        read_node_list(write_list(tmp_path / "n.txt", [1]), graph, by_key=True)

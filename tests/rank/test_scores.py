"""Scores go to Parquet and come back; a file that fails half-way leaves the old one."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ecgl_scale.errors import EcglError, InvalidInputError, StorageError
from ecgl_scale.rank import scores as scores_module
from ecgl_scale.rank.scores import read_scores, write_scores

RANDOM = np.random.default_rng(0)
BOTH = {"importance": RANDOM.random(1000), "diversity": RANDOM.random(1000)}


@pytest.fixture(autouse=True)
def few_rows_at_once(monkeypatch):
    monkeypatch.setattr(scores_module, "ROWS_AT_ONCE", 64)


def test_all_nodes_are_written_in_order_and_come_back_bit_for_bit(tmp_path):
    path = tmp_path / "scores.parquet"
    write_scores(path, None, BOTH)
    table = pq.read_table(path)
    assert table.schema.names == ["node", "importance", "diversity"]
    assert table.schema.types == [pa.int64(), pa.float64(), pa.float64()]
    assert table["node"].to_pylist() == [*range(1000)]
    for name, values in BOTH.items():
        assert read_scores(path, name, 1000).tobytes() == values.tobytes()
    assert [entry.name for entry in tmp_path.iterdir()] == ["scores.parquet"]


@pytest.mark.parametrize("count", [0, 1, 64, 65, 300])
def test_chosen_nodes_are_written_with_their_scores(tmp_path, count):
    nodes = np.sort(RANDOM.choice(1000, count, replace=False))
    write_scores(tmp_path / "scores.parquet", nodes, BOTH)
    table = pq.read_table(tmp_path / "scores.parquet")
    assert table["node"].to_pylist() == nodes.tolist()
    assert table["diversity"].to_pylist() == BOTH["diversity"][nodes].tolist()


@pytest.mark.parametrize("size", [1, 63, 64, 128])
def test_any_number_of_nodes_comes_back(tmp_path, size):
    write_scores(tmp_path / "s.parquet", None, {"importance": BOTH["importance"][:size]})
    np.testing.assert_array_equal(read_scores(tmp_path / "s.parquet", "importance", size), BOTH["importance"][:size])


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "scores.parquet"
    write_scores(path, None, {"importance": BOTH["diversity"]})
    old = path.read_bytes()

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match="No space left"):
        write_scores(path, None, BOTH)
    assert path.read_bytes() == old
    monkeypatch.undo()
    monkeypatch.setattr(scores_module, "ROWS_AT_ONCE", 64)
    monkeypatch.setattr(scores_module, "_rows", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_scores(path, None, BOTH)
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["scores.parquet"]


def test_an_existing_file_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "scores.parquet"
    (tmp_path / ".scores.parquet.partial").write_bytes(b"of a killed run")
    write_scores(path, None, {"importance": BOTH["diversity"]})
    with path.open("rb") as reader:
        write_scores(path, None, {"importance": BOTH["importance"]})
        np.testing.assert_array_equal(pq.read_table(reader)["importance"].to_numpy(), BOTH["diversity"])
    np.testing.assert_array_equal(read_scores(path, "importance", 1000), BOTH["importance"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["scores.parquet"]


@pytest.mark.parametrize("name", ["missing/scores.parquet", "directory"])
def test_a_path_that_cannot_be_written_is_refused(tmp_path, name):
    (tmp_path / "directory").mkdir()
    with pytest.raises(EcglError, match=name):
        write_scores(tmp_path / name, None, BOTH)
    assert [entry.name for entry in tmp_path.iterdir()] == ["directory"]


@pytest.mark.parametrize("kind", ["missing", "text", "empty", "directory", "cut"])
def test_a_file_that_is_no_parquet_is_refused(tmp_path, kind):
    path = tmp_path / "scores.parquet"
    write_scores(path, None, BOTH)
    content = path.read_bytes()
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes({"text": b"node,importance\n", "empty": b"", "cut": content[:-20]}[kind])
    with pytest.raises(InvalidInputError, match=r"scores\.parquet"):
        read_scores(path, "importance", 1000)


@pytest.mark.parametrize(
    "columns",
    [
        {"node": np.arange(1000)},
        {"importance": BOTH["importance"]},
        {"node": np.arange(1000), "diversity": BOTH["diversity"]},
        {"node": np.arange(1000)[::-1], "importance": BOTH["importance"]},
        {"node": np.arange(999), "importance": BOTH["importance"][:999]},
        {"node": np.arange(1001), "importance": np.ones(1001)},
        {"node": np.arange(1000), "importance": [str(i) for i in range(1000)]},
        {"node": [str(i) for i in range(1000)], "importance": BOTH["importance"]},
    ],
    ids=["no score", "no node", "other score", "reversed", "too few", "too many", "text scores", "text nodes"],
)
def test_scores_of_other_nodes_or_of_another_kind_are_refused(tmp_path, columns):
    pq.write_table(pa.table(columns), tmp_path / "scores.parquet")
    with pytest.raises(InvalidInputError, match=r"scores\.parquet"):
        read_scores(tmp_path / "scores.parquet", "importance", 1000)

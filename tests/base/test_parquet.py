"""A Parquet file is written whole or not at all, and as small as its columns allow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from ecgl_scale.base.parquet import write_parquet
from ecgl_scale.errors import InvalidInputError

COLUMNS = {"node": np.int64, "label": np.int32}


def batches(*sizes: int) -> Iterator[list[np.ndarray[Any, Any]]]:
    for size in sizes:
        yield [np.arange(size), np.arange(size) % 3]


def test_batches_become_one_table_of_the_given_types(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(path, COLUMNS, batches(5, 0, 2), repeated=["label"], metadata={b"made": b"here"})
    table = pq.read_table(path)
    assert table["node"].to_pylist() == [0, 1, 2, 3, 4, 0, 1]
    assert table["label"].to_pylist() == [0, 1, 2, 0, 1, 0, 1]
    assert [str(field.type) for field in table.schema] == ["int64", "int32"]
    assert table.schema.metadata[b"made"] == b"here"
    assert list(tmp_path.iterdir()) == [path]


def test_only_repeated_columns_have_a_dictionary(tmp_path: Path) -> None:
    write_parquet(tmp_path / "t", COLUMNS, batches(100), repeated=["label"])
    group = pq.ParquetFile(tmp_path / "t").metadata.row_group(0)
    assert [group.column(i).has_dictionary_page for i in range(2)] == [False, True]


def test_a_batch_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"old")

    def failing() -> Iterator[list[np.ndarray[Any, Any]]]:
        yield from batches(5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_parquet(path, COLUMNS, failing())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="nowhere"):
        write_parquet(tmp_path / "nowhere" / "t.parquet", COLUMNS, batches(1))

"""Scores as a Parquet file: ``node`` and a column for each ranking, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ecgl_scale.base.arrow import as_arrow, as_numpy
from ecgl_scale.base.parquet import ROWS_AT_ONCE, read_parquet, write_parquet, write_tables
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.keys.read import StoreKeys

ROWS_WITH_KEYS = 1 << 16


def write_scores(
    path: Path,
    nodes: NDArray[np.int64] | None,
    scores: Mapping[str, NDArray[np.float64]],
    keys: StoreKeys | None = None,
) -> None:
    """Write the scores of ``nodes`` (all nodes in order where None), with their ``keys`` where these are given.

    Memory: ``ROWS_AT_ONCE`` rows, a few times; with keys ``ROWS_WITH_KEYS``.
    """
    num_rows = next(iter(scores.values())).size if nodes is None else nodes.size

    def batches(max_rows: int) -> Iterator[list[NDArray[Any]]]:
        for start in range(0, num_rows, max_rows):
            stop = min(start + max_rows, num_rows)
            ids = np.arange(start, stop) if nodes is None else nodes[start:stop]
            yield [ids, *(_rows(values, ids, nodes) for values in scores.values())]

    if keys is None:
        write_parquet(path, {"node": np.int64, **dict.fromkeys(scores, np.float64)}, batches(ROWS_AT_ONCE))
        return
    name = keys.name if keys.name not in ("node", *scores) else "key"
    numbers = [(column, pa.float64()) for column in scores]
    of_keys = pa.string() if keys.type == "string" else pa.int64()
    schema = pa.schema([("node", pa.int64()), (name, of_keys), *numbers])
    tables = (
        pa.table([as_arrow(ids), keys.keys_of(ids), *map(as_arrow, values)], schema=schema)
        for ids, *values in batches(ROWS_WITH_KEYS)
    )
    write_tables(path, schema, tables)


def _rows(values: NDArray[np.float64], ids: NDArray[np.int64], nodes: NDArray[np.int64] | None) -> NDArray[np.float64]:
    return values[ids[0] : ids[-1] + 1] if nodes is None else values[ids]


def check_scores(path: Path, column: str, num_nodes: int) -> None:
    """Refuse, by its description alone, a file that ``read_scores`` could not use."""
    with _unreadable(path, column), pq.ParquetFile(path) as file:
        kinds = {field.name: field.type for field in file.schema_arrow}
        num_rows = file.metadata.num_rows
    if missing := sorted({"node", column} - kinds.keys()):
        raise InvalidInputError(
            f"the file has no column {missing[0]}", where=path, expected=f"Parquet with columns node and {column}"
        )
    if num_rows != num_nodes:
        raise InvalidInputError(
            f"the file has scores of {num_rows:,} nodes", where=path, expected=f"all {num_nodes:,} nodes in order"
        )
    if not pa.types.is_floating(kinds[column]):
        raise InvalidInputError(f"column {column} is {kinds[column]}", where=path, expected="floating point")


def read_scores(path: Path, column: str, num_nodes: int) -> NDArray[np.float64]:
    """One column of a file with a score for every node, in node order: an earlier ranking to start from."""
    check_scores(path, column, num_nodes)
    with _unreadable(path, column):
        table = read_parquet(path, ["node", column])
        nodes, scores = (as_numpy(table[name].combine_chunks()) for name in ("node", column))
    if not np.array_equal(nodes, np.arange(num_nodes)):
        raise InvalidInputError("the nodes are not in order", where=path, expected=f"all {num_nodes:,} nodes in order")
    return np.asarray(scores, np.float64)


@contextmanager
def _unreadable(path: Path, column: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise InvalidInputError(
            f"cannot read scores: {error}", where=path, expected=f"Parquet with columns node and {column}"
        ) from error

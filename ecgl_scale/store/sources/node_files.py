"""Features, labels and columns in files of their own: .npy, Zarr, .npz, Parquet, Arrow; all streamed by rows.

A Zarr array runs the codecs its metadata names, one of which unpickles; only known, harmless ones are let in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_scale.engine.work import Json
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.edge_source import file_identity
from ecgl_scale.store.row_source import RowSource
from ecgl_scale.store.source import AnyArray, AnyColumn, DenseSource, NameSource
from ecgl_scale.store.sources.names import is_text, table_names
from ecgl_scale.store.sources.node_columns import LABEL, check_features, check_rows, node_column
from ecgl_scale.store.sources.npy import NpyFile, open_npy, reading
from ecgl_scale.store.sources.npz import npz_columns
from ecgl_scale.store.sources.tables import NODE, Table, is_csv, is_node_table, open_table
from ecgl_scale.store.sources.text_keys import csv_keys
from ecgl_scale.units import GIB, MIB, format_bytes

CHECKSUMS = frozenset({"crc32c", "crc32", "adler32", "fletcher32"})
COMPRESSORS = frozenset({"blosc", "gzip", "zlib", "zstd", "lz4", "bz2", "lzma"})
LAYOUTS = frozenset({"bytes", "transpose", "sharding_indexed", "shuffle", "delta", "bitround", "fixedscaleoffset"})
SAFE_CODECS = CHECKSUMS | COMPRESSORS | LAYOUTS
MAX_CHUNK_BYTES = GIB


def count_rows(path: Path) -> int:
    """Rows of features in a .npy file or a Zarr array directory."""
    shape = _open_zarr(path).shape if path.is_dir() else _open_npy_features(path).shape
    return int(shape[0]) if shape else 0


def open_features(path: Path, num_nodes: int) -> DenseSource:
    """Describe features in a .npy file or a Zarr array directory."""
    if path.is_dir():
        return _zarr_features(path, num_nodes)
    file = _open_npy_features(path)
    check_features(file.shape, file.dtype, num_nodes, path)
    rows = None if file.header.is_columns else NpyRows(path.absolute())
    return DenseSource(file.shape[1], file.dtype, str(path), file.blocks, rows)


def _open_npy_features(path: Path) -> NpyFile:
    with reading(path):
        path.stat()
    if path.suffix.lower() != ".npy":
        raise InvalidInputError("features come in another format", where=path, expected=".npy or a Zarr directory")
    return open_npy(path)


class NpyRows(RowSource):
    """Rows of an .npy file."""

    kind = "npy"

    def __init__(self, path: Path) -> None:
        self._file = open_npy(path)

    def read(self, start: int, stop: int) -> AnyArray:
        """Read a stretch of the file."""
        width = self._file.shape[1]
        with self._file.cursor(start * width) as cursor:
            return cursor.take((stop - start) * width).reshape(stop - start, width)

    def identity(self) -> Json:
        """The file, its size and its time."""
        return file_identity(self._file.path)

    def describe(self, work: Path) -> Json:  # noqa: ARG002
        """Name the file."""
        return str(self._file.path)

    @classmethod
    def open(cls, description: Json) -> NpyRows:
        """Open the file again."""
        return cls(Path(description))


def open_labels(path: Path, num_nodes: int) -> AnyColumn:
    """Describe labels in a .npy file, or in the column ``label`` (or the only one) of a table."""
    if is_node_table(path):
        table = open_table(path)
        names = [name for name in table.names if name != NODE]
        name = names[0] if len(names) == 1 else LABEL
        return _table_column(table, name, num_nodes, is_label=True)
    with reading(path):
        path.stat()
    if path.suffix.lower() != ".npy":
        raise InvalidInputError("labels come in another format", where=path, expected=".npy, .parquet, .arrow or .csv")
    file = open_npy(path)
    return node_column(LABEL, file.shape, file.dtype, num_nodes, origin=str(path), blocks=file.blocks)


def open_columns(path: Path, num_nodes: int, id_column: str | None = None) -> list[AnyColumn]:
    """Describe node columns in an .npz file or a table; ``id_column`` is the one with keys, if it is here."""
    if is_node_table(path):
        table = open_table(path)
        return [
            _table_keys(table, name, num_nodes)
            if name == id_column
            else _table_column(table, name, num_nodes, is_label=name in ("y", LABEL))
            for name in table.names
            if name != NODE or name == id_column
        ]
    with reading(path):
        path.stat()
    if path.suffix.lower() != ".npz":
        raise InvalidInputError("columns come in another format", where=path, expected=".npz, .parquet, .arrow or .csv")
    return npz_columns(path, num_nodes, id_column)


def _table_keys(table: Table, name: str, num_nodes: int) -> NameSource:
    check_rows((table.num_rows,), num_nodes, "the table", table.path)
    read = csv_keys if is_csv(table.path) else table_names
    return read(name, table, is_by_node=name != NODE)


def _table_column(table: Table, name: str, num_nodes: int, *, is_label: bool) -> AnyColumn:
    check_rows((table.num_rows,), num_nodes, "the table", table.path)
    if is_label and is_text(table.type_of(name)):
        return replace(table_names(name, table, is_by_node=True), name=LABEL)
    dtype = table.dtype(name)
    if is_label and dtype.kind in "iub":
        dtype = np.dtype(np.int64)  # room for the -1 of a null
    return node_column(
        LABEL if is_label else name,
        (table.num_rows,),
        dtype,
        num_nodes,
        origin=f"{table.path}, column {name}",
        blocks=partial(_table_blocks, table, name, dtype if is_label else None),
    )


def _table_blocks(table: Table, name: str, label_dtype: np.dtype[Any] | None, max_rows: int) -> Iterator[AnyArray]:
    first_row = 0
    for batch in table.batches(table.with_node(name), max_rows):
        table.check_order(batch, first_row)
        if label_dtype is None:
            yield table.values(batch, name, first_row)
        else:
            yield _labels(batch.column(name), label_dtype)
        first_row += batch.num_rows


def _labels(column: Any, dtype: np.dtype[Any]) -> AnyArray:
    import pyarrow as pa

    if dtype.kind == "i":
        column = column.cast(pa.int64()).fill_null(-1)
    values: AnyArray = column.to_numpy(zero_copy_only=False)
    return values


def _open_zarr(path: Path) -> Any:
    import zarr

    with reading(path):
        _check_codecs(path)
        return zarr.open_array(path, mode="r")


def _zarr_features(path: Path, num_nodes: int) -> DenseSource:
    array = _open_zarr(path)
    shape, dtype, chunks = tuple(array.shape), np.dtype(array.dtype), tuple(array.chunks)
    check_features(shape, dtype, num_nodes, path)
    chunk_bytes = int(np.prod(chunks, dtype=object)) * dtype.itemsize
    if chunk_bytes > MAX_CHUNK_BYTES:
        raise InvalidInputError(
            f"the array has chunks of {format_bytes(chunk_bytes)}, which must be read whole",
            where=path,
            expected=f"at most {format_bytes(MAX_CHUNK_BYTES)}",
            fix="write it again with smaller chunks",
        )
    return DenseSource(shape[1], dtype.newbyteorder("="), str(path), partial(_zarr_blocks, path, array, chunks[0]))


def _zarr_blocks(path: Path, array: Any, chunk_rows: int, max_rows: int) -> Iterator[AnyArray]:
    # whole chunks where they fit, so that none is read twice
    step = max(1, max_rows // chunk_rows * chunk_rows or max_rows)
    native = np.dtype(array.dtype).newbyteorder("=")
    for first in range(0, array.shape[0], step):
        with reading(path):
            block = np.asarray(array[first : first + step]).astype(native, copy=False)
        yield block


def _check_codecs(path: Path) -> None:
    found = [path / name for name in (".zarray", "zarr.json") if (path / name).is_file()]
    if not found:
        raise InvalidInputError("this directory is not a Zarr array", where=path, expected=".zarray or zarr.json in it")
    for metadata in found:
        if metadata.stat().st_size > MIB:
            raise InvalidInputError("the metadata are too large", where=metadata, expected="a page of JSON")
        for codec in _codec_names(json.loads(metadata.read_text(encoding="utf-8"))):
            if str(codec).removeprefix("numcodecs.") not in SAFE_CODECS:
                raise InvalidInputError(
                    f"the array is stored with codec {codec!r}, which we do not run",
                    where=metadata,
                    fix="write it again with zstd, blosc or no codec",
                )


def _codec_names(metadata: Any) -> Iterator[object]:
    for key in ("codecs", "index_codecs", "filters", "compressor"):
        codecs = metadata.get(key) or []
        for codec in [codecs] if isinstance(codecs, dict) else codecs:
            if isinstance(codec, str):
                yield codec
                continue
            yield codec.get("name", codec.get("id"))
            yield from _codec_names(codec.get("configuration") or {})

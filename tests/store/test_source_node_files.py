"""Features, labels and columns beside files of edges: .npy, Zarr, .npz, Parquet and Arrow."""

from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.sources.edges import open_edge_files

NUM_NODES = 50


def write_ipc(path, table):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table, max_chunksize=30)


def write(path, content):
    path.write_bytes(content)
    return path


def source_with(tmp_path, **files):
    path = write(tmp_path / "e.csv", b"1,2\n")
    return open_edge_files([path], num_nodes=NUM_NODES, **files)


X = np.random.default_rng(0).random((NUM_NODES, 3), np.float32)


@pytest.mark.parametrize("max_rows", [1, 16, 100])
@pytest.mark.parametrize("kind", ["npy", "v2", "v3", "sharded", "big-endian"])
def test_features_come_from_npy_and_zarr(tmp_path, kind, max_rows):
    path = tmp_path / ("x.npy" if kind == "npy" else "x.zarr")
    if kind == "npy":
        np.save(path, X)
    else:
        dtype = ">f4" if kind == "big-endian" else "<f4"
        shards = {"shards": (32, 3)} if kind == "sharded" else {}
        version = 2 if kind in ("v2", "big-endian") else 3
        array = zarr.create_array(path, shape=X.shape, dtype=dtype, chunks=(8, 3), zarr_format=version, **shards)
        array[:] = X
    features = source_with(tmp_path, features=path).features
    blocks = list(features.blocks(max_rows))
    assert all(len(block) <= max_rows and block.dtype == features.dtype == np.float32 for block in blocks)
    np.testing.assert_array_equal(np.concatenate(blocks), X)


def test_a_zarr_codec_that_unpickles_is_never_run(tmp_path):
    class Canary:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    array = zarr.create_array(tmp_path / "x.zarr", shape=X.shape, dtype="<f4", chunks=X.shape, zarr_format=2)
    array[:] = X
    metadata = json.loads((tmp_path / "x.zarr" / ".zarray").read_text())
    metadata |= {"compressor": None, "filters": [{"id": "pickle", "protocol": 5}]}
    (tmp_path / "x.zarr" / ".zarray").write_text(json.dumps(metadata))
    (tmp_path / "x.zarr" / "0.0").write_bytes(pickle.dumps(Canary()))
    with pytest.raises(InvalidInputError, match="codec 'pickle', which we do not run"):
        source_with(tmp_path, features=tmp_path / "x.zarr")
    assert not (tmp_path / "ran").exists()


def test_wrong_features_are_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    zarr.create_array(tmp_path / "x.zarr", shape=(4, 2), dtype="f4")
    zarr.create_group(tmp_path / "group.zarr")
    zarr.create_array(tmp_path / "large.zarr", shape=(NUM_NODES, 1 << 40), dtype="f4", chunks=(50, 1 << 30))
    np.save(tmp_path / "short.npy", X[:10])
    np.save(tmp_path / "flat.npy", X[:, 0])
    np.save(tmp_path / "complex.npy", X.astype(complex))
    for name, message in (
        ("folder", r"not a Zarr array"),
        ("x.zarr", r"shape \(4, 2\), but the graph has 50 nodes"),
        ("group.zarr", r"damaged|not a Zarr array"),
        ("large.zarr", r"chunks of 200 GiB"),
        ("short.npy", r"shape \(10, 3\), but the graph has 50 nodes[\s\S]*short.npy[\s\S]*\(50, K\)"),
        ("flat.npy", r"features have shape \(50,\)"),
        ("complex.npy", r"features have dtype complex"),
        ("none.npy", r"no such file"),
        ("e.csv", r"another format"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            source_with(tmp_path, features=tmp_path / name)


LABELS = np.arange(NUM_NODES) % 5


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"label": LABELS}, LABELS),
        ({"other": LABELS.astype(np.uint8)}, LABELS),
        ({"node": np.arange(NUM_NODES), "label": LABELS, "more": LABELS}, LABELS),
        ({"label": [None, *LABELS[1:].tolist()]}, [-1, *LABELS[1:]]),
        ({"label": [None, *map(float, LABELS[1:])]}, [-1, *LABELS[1:]]),
    ],
)
def test_labels_come_from_tables(tmp_path, table, expected):
    pq.write_table(pa.table(table), tmp_path / "y.parquet")
    (column,) = source_with(tmp_path, labels=tmp_path / "y.parquet").columns
    assert column.name == "label"
    np.testing.assert_array_equal(np.concatenate(list(column.blocks(7))), expected)


def test_labels_come_from_npy(tmp_path):
    np.save(tmp_path / "y.npy", LABELS[:, None].astype(np.int16))
    (column,) = source_with(tmp_path, labels=tmp_path / "y.npy").columns
    np.testing.assert_array_equal(np.concatenate(list(column.blocks(7))), LABELS)


def test_wrong_labels_are_refused(tmp_path):
    write(tmp_path / "e.u32", b"12345678")
    np.save(tmp_path / "short.npy", LABELS[:10])
    pq.write_table(pa.table({"label": LABELS[:10]}), tmp_path / "short.parquet")
    pq.write_table(pa.table({"a": LABELS, "b": LABELS}), tmp_path / "two.parquet")
    for name, message in (
        ("short.npy", r"shape \(10,\), but the graph has 50 nodes"),
        ("short.parquet", r"shape \(10,\), but the graph has 50 nodes"),
        ("two.parquet", r"no column 'label'[\s\S]*a, b"),
        ("none.parquet", r"no such file"),
        ("e.u32", r"another format"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            source_with(tmp_path, labels=tmp_path / name)


def test_labels_in_another_order_of_nodes_are_refused(tmp_path):
    pq.write_table(pa.table({"node": np.arange(NUM_NODES)[::-1], "label": LABELS}), tmp_path / "y.parquet")
    (column,) = source_with(tmp_path, labels=tmp_path / "y.parquet").columns
    with pytest.raises(InvalidInputError, match=r"row 0 is of node 49[\s\S]*sort the table"):
        list(column.blocks(7))


@pytest.mark.parametrize("name", ["c.npz", "c.parquet", "c.arrow"])
def test_further_columns_come_from_npz_and_tables(tmp_path, name):
    values = {"year": LABELS + 2000, "flag": LABELS > 2, "weight": LABELS / 2}
    if name == "c.npz":
        np.savez(tmp_path / name, **values)
    elif name == "c.parquet":
        pq.write_table(pa.table(values), tmp_path / name)
    else:
        write_ipc(tmp_path / name, pa.table(values))
    columns = source_with(tmp_path, columns=tmp_path / name).columns
    assert [column.name for column in columns] == list(values)
    for column in columns:
        blocks = list(column.blocks(7))
        assert all(block.dtype == column.dtype for block in blocks)
        np.testing.assert_array_equal(np.concatenate(blocks), values[column.name])


def test_wrong_columns_are_refused(tmp_path):
    np.savez(tmp_path / "short.npz", year=LABELS[:10])
    pq.write_table(pa.table({"year": LABELS[:10]}), tmp_path / "short.parquet")
    np.savez(tmp_path / "label.npz", label=LABELS)
    np.save(tmp_path / "y.npy", LABELS)
    for name in ("short.npz", "short.parquet"):
        with pytest.raises(InvalidInputError, match=r"shape \(10,\), but the graph has 50 nodes"):
            source_with(tmp_path, columns=tmp_path / name)
    with pytest.raises(InvalidInputError, match="two columns named 'label'"):
        source_with(tmp_path, columns=tmp_path / "label.npz", labels=tmp_path / "y.npy")
    with pytest.raises(InvalidInputError, match="another format"):
        source_with(tmp_path, columns=tmp_path / "y.npy")

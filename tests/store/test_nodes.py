"""Node columns: what goes in comes out, batch by batch, and what makes no sense is refused with its row."""

from __future__ import annotations

import numpy as np
import pytest

from ecgl_scale.errors import CorruptStoreError, InvalidInputError, UsageError
from ecgl_scale.store.files import LocalFiles
from ecgl_scale.store.nodes import MAX_CLASSES, NodeColumns, write_columns
from ecgl_scale.store.source import ColumnSource

DTYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?", ">i4", ">f8"]


def column(name, values, block_rows=None, dtype=None):
    """A source of one array, in blocks of its own size, whatever it is asked for."""
    array = np.asarray(values)

    def blocks(max_rows):
        step = block_rows or max_rows
        for start in range(0, len(array), step):
            yield array[start : start + step]

    return ColumnSource(name, np.dtype(dtype or array.dtype), f"{name}.npy", blocks)


def write(path, *columns, num_nodes=10, num_classes=None, batch_rows=4):
    return write_columns(
        path, columns, num_nodes, num_classes=num_classes, batch_rows=batch_rows, on_rows=lambda _: None
    )


@pytest.mark.parametrize("batch_rows", [1, 3, 10, 1 << 20])
@pytest.mark.parametrize("block_rows", [None, 1, 7])
def test_columns_of_every_dtype_come_back(tmp_path, batch_rows, block_rows):
    values = {dtype: (np.arange(10) % 5 * (0.5 if "f" in dtype else 1)).astype(dtype) for dtype in DTYPES}
    columns = [column(dtype, array, block_rows) for dtype, array in values.items()]
    rows = []
    written = write_columns(
        tmp_path / "nodes", tuple(columns), 10, num_classes=None, batch_rows=batch_rows, on_rows=rows.append
    )
    assert sum(rows) == 10
    assert written.num_classes is None
    nodes = NodeColumns(LocalFiles(tmp_path), {"nodes": written.file}, written.types)
    assert nodes.names == DTYPES
    for dtype, array in values.items():
        found = nodes.column(dtype)
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype.newbyteorder("=")
        starts = [start for start, _ in nodes.blocks(dtype)]
        assert starts == list(range(0, 10, batch_rows))


@pytest.mark.parametrize("dtype", ["i1", "i8", "u1", "u8", "f4", "f8"])
def test_labels_and_splits_have_one_dtype_whatever_they_came_as(tmp_path, dtype):
    signed = np.dtype(dtype).kind != "u"
    labels = np.array([0, 1, 2, 1, 0, 2, 2, 2, 0, -1 if signed else 1], dtype)
    splits = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, -1 if signed else 1], dtype)
    written = write(tmp_path / "nodes", column("label", labels), column("split", splits))
    assert written.num_classes == 3
    assert written.types == {"label": "int32", "split": "int8"}
    nodes = NodeColumns(LocalFiles(tmp_path), {"nodes": written.file}, written.types)
    np.testing.assert_array_equal(nodes.column("label"), labels.astype(int))
    np.testing.assert_array_equal(nodes.column("split"), splits.astype(int))


def test_labels_may_all_be_missing(tmp_path):
    assert write(tmp_path / "nodes", column("label", np.full(10, -1))).num_classes == 0


def test_the_right_number_of_classes_is_accepted(tmp_path):
    assert write(tmp_path / "nodes", column("label", np.arange(10) % 5), num_classes=5).num_classes == 5


def values_with(value, dtype=None):
    """Ten zeros with one odd value, in the second batch of four."""
    values = np.zeros(10, dtype or np.asarray(value).dtype)
    values[6] = value
    return values


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("label", values_with(-2), r"label -2 is not a class[\s\S]*row 6"),
        ("label", values_with(MAX_CLASSES), r"label 1048576 is not a class[\s\S]*row 6"),
        ("label", values_with(2**31), r"label 2147483648 cannot be stored[\s\S]*row 6[\s\S]*below 2\^31"),
        ("label", values_with(2**32 + 1), r"label 4294967297 cannot be stored[\s\S]*row 6"),
        ("label", values_with(-(2**63)), r"label -9223372036854775808 cannot be stored"),
        ("label", values_with(2**64 - 1, np.uint64), r"label 18446744073709551615 cannot be stored"),
        ("label", values_with(0.5), r"label 0.5 cannot be stored[\s\S]*row 6[\s\S]*whole numbers"),
        ("label", values_with(np.nan), r"label nan cannot be stored[\s\S]*row 6"),
        ("label", values_with(np.inf), r"label inf cannot be stored"),
        ("split", values_with(3), r"split 3 cannot be stored[\s\S]*row 6[\s\S]*0 \(train\)"),
        ("split", values_with(-2), r"split -2 cannot be stored[\s\S]*row 6"),
        ("split", values_with(256), r"split 256 cannot be stored"),
        ("split", values_with(0.5), r"split 0.5 cannot be stored"),
        ("label", np.array(["a"] * 10), r"'label' has dtype <U1"),
        ("name", np.array(["a"] * 10), r"'name' has dtype <U1[\s\S]*integers, floats or booleans"),
        ("name", np.zeros(10, complex), r"'name' has dtype complex128"),
        ("name", np.zeros(10, "M8[s]"), r"'name' has dtype datetime64"),
        ("name", np.zeros(10, np.longdouble), r"'name' has dtype float128"),
        ("name", np.zeros(10, object), r"'name' has dtype object"),
        ("name", np.zeros((10, 2)), r"'name' has shape \(4, 2\)[\s\S]*one value a node"),
    ],
)
def test_values_that_make_no_sense_are_refused_with_their_row(tmp_path, name, values, message):
    with pytest.raises(InvalidInputError, match=message) as refusal:
        write(tmp_path / "nodes", column(name, values))
    assert f"{name}.npy" in str(refusal.value)


def test_the_blocks_are_checked_and_not_only_what_was_promised(tmp_path):
    with pytest.raises(InvalidInputError, match=r"'name' has dtype <U1"):
        write(tmp_path / "nodes", column("name", np.array(["a"] * 10), dtype="i8"))


@pytest.mark.parametrize(
    ("labels", "num_classes", "message"),
    [
        ([0, 2] * 5, None, r"class 1 has no node[\s\S]*0 to 2[\s\S]*without gaps"),
        ([1, 2] * 5, None, r"class 0 has no node"),
        ([0, 1] * 5, 3, r"class 2 has no node[\s\S]*0 to 2"),
        ([0, 2] * 5, 3, r"class 1 has no node"),
        ([0, 1] * 5, 1, r"label 1 is not one of the 1 classes"),
        ([-1] * 10, 2, r"class 0 has no node"),
        ([0] * 4 + [-1] * 4 + [2] * 2, None, r"class 1 has no node"),
    ],
)
def test_every_class_must_have_a_node(tmp_path, labels, num_classes, message):
    with pytest.raises(InvalidInputError, match=message):
        write(tmp_path / "nodes", column("label", labels), num_classes=num_classes)


@pytest.mark.parametrize("block_rows", [None, 1, 5, 100])
@pytest.mark.parametrize("batch_rows", [1, 4, 5, 10, 100])
@pytest.mark.parametrize(
    ("length", "message"),
    [(0, "has 0 values"), (9, "has 9 values"), (11, "has more than 10"), (30, "has more than 10")],
)
def test_a_column_of_another_length_is_refused(tmp_path, block_rows, batch_rows, length, message):
    odd = column("year", np.zeros(length), block_rows)
    with pytest.raises(InvalidInputError, match=rf"'year' {message}[\s\S]*year.npy[\s\S]*10, one a node"):
        write(tmp_path / "nodes", column("label", np.zeros(10, int)), odd, batch_rows=batch_rows)


def test_two_columns_of_one_name_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"same name: \['a', 'a', 'b'\]"):
        write(tmp_path / "nodes", column("a", np.zeros(10)), column("b", np.zeros(10)), column("a", np.zeros(10)))
    assert not (tmp_path / "nodes").exists()


def test_a_missing_column_and_a_changed_file_are_refused(tmp_path):
    path = tmp_path / "nodes"
    written = write(path, column("year", np.arange(10)))
    nodes = NodeColumns(LocalFiles(tmp_path), {"nodes": written.file}, written.types)
    with pytest.raises(UsageError, match=r"no node column 'age'[\s\S]*\['year'\]"):
        nodes.column("age")
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)
    with pytest.raises(CorruptStoreError, match="does not have the bytes"):
        nodes.column("year")

"""Graphs in .npz files: every documented layout is read, every broken one is refused with its reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.source import DenseSource, SparseSource
from ecgl_scale.store.sources.npz import open_npz_source

SHARED = Path(__file__).parents[3] / "shared" / "data"
EDGES = np.array([[0, 1, 2, 3, 3], [1, 2, 0, 0, 1]], np.int32)
X = np.array([[1, 0, 0], [0, 0, 0], [2, 3, 0], [0, 0, 4]], np.float32)
GRAPH = {"edge_index": EDGES, "num_nodes": np.int64(4), "y": np.array([0, 1, -1, 1], np.int16)}


def csr_parts(x=X):
    matrix = scipy.sparse.csr_matrix(x)
    return {"x_data": matrix.data, "x_indices": matrix.indices, "x_indptr": matrix.indptr, "x_shape": matrix.shape}


def save(path, compressed=True, **arrays):
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


def edges_of(source, max_edges):
    blocks = list(source.edges.stream(max_edges))
    assert all(len(block.src) == len(block.dst) <= max_edges for block in blocks)
    return np.stack([np.concatenate([b.src for b in blocks]), np.concatenate([b.dst for b in blocks])])


def column_of(source, name):
    column = next(column for column in source.columns if column.name == name)
    values = np.concatenate(list(column.blocks(max(3, source.num_nodes // 3))))
    assert values.dtype == column.dtype
    return values


def sparse_of(features, max_rows):
    blocks = [(b.values, b.indices, b.indptr) for b in features.blocks(max_rows)]
    shape = features.num_features
    return scipy.sparse.vstack([scipy.sparse.csr_matrix(b, shape=(len(b[2]) - 1, shape)) for b in blocks])


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("edges", [EDGES, np.asfortranarray(EDGES), EDGES.astype(">i8")])
@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_dense_graph_comes_back(tmp_path, compressed, edges, size):
    path = save(tmp_path / "g.npz", compressed, **GRAPH | {"edge_index": edges, "x": X, "year": np.arange(4)})
    source = open_npz_source(path)
    assert (source.name, source.num_nodes, source.num_edges_hint) == ("g", 4, 5)
    np.testing.assert_array_equal(edges_of(source, size), EDGES)
    np.testing.assert_array_equal(edges_of(source, size), EDGES)
    assert isinstance(source.features, DenseSource)
    np.testing.assert_array_equal(np.concatenate(list(source.features.blocks(size))), X)
    np.testing.assert_array_equal(column_of(source, "label"), GRAPH["y"])
    np.testing.assert_array_equal(column_of(source, "year"), np.arange(4))


@pytest.mark.parametrize("size", [1, 3, 100])
def test_sparse_features_come_back(tmp_path, size):
    source = open_npz_source(save(tmp_path / "g.npz", **GRAPH, **csr_parts()))
    assert isinstance(source.features, SparseSource)
    assert (source.features.num_features, source.features.num_values) == (3, 4)
    np.testing.assert_array_equal(sparse_of(source.features, size).toarray(), X)


def test_arrays_that_are_no_columns_are_listed(tmp_path):
    extra = {"edge_type": np.zeros(5), "names": np.array(list("abcd")), "class_names": np.array(["a"])}
    source = open_npz_source(save(tmp_path / "g.npz", **GRAPH, **extra))
    assert source.provenance["ignored"] == ["edge_type", "names", "class_names"]
    assert [column.name for column in source.columns] == ["label"]


@pytest.mark.parametrize("key", ["x", "y", "label", "x_shape"])
def test_the_number_of_nodes_is_taken_from_what_there_is(tmp_path, key):
    parts = csr_parts() if key == "x_shape" else {key: X if key == "x" else np.zeros(4)}
    assert open_npz_source(save(tmp_path / "g.npz", edge_index=EDGES, **parts)).num_nodes == 4


def test_a_second_file_gives_further_columns(tmp_path):
    path = save(tmp_path / "g.npz", **GRAPH)
    more = save(tmp_path / "more.npz", split=np.array([0, 1, 2, -1], np.int8), flag=np.ones(4, bool))
    source = open_npz_source(path, more)
    assert [column.name for column in source.columns] == ["label", "split", "flag"]
    np.testing.assert_array_equal(column_of(source, "split"), [0, 1, 2, -1])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"split": np.zeros(3)}, r"column 'split' has shape \(3,\), but the graph has 4 nodes[\s\S]*more.npz"),
        ({"split": np.zeros((4, 2))}, r"column 'split' has shape \(4, 2\)"),
        ({"split": np.array(list("abcd"))}, r"column 'split' are strings"),
        ({"split": np.zeros(4, complex)}, r"have dtype complex"),
        ({"label": np.zeros(4)}, r"two columns named 'label'[\s\S]*g.npz.*more.npz"),
        ({"y": np.zeros(4)}, r"two columns named 'label'"),
    ],
)
def test_wrong_columns_of_a_second_file_are_refused(tmp_path, columns, message):
    path = save(tmp_path / "g.npz", **GRAPH)
    with pytest.raises(InvalidInputError, match=message):
        open_npz_source(path, save(tmp_path / "more.npz", **columns))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_index": None}, r"no array 'edge_index'[\s\S]*num_nodes, y"),
        ({"edge_index": EDGES.T}, r"edge_index has shape \(5, 2\)"),
        ({"edge_index": EDGES[0]}, r"edge_index has shape \(5,\)"),
        ({"edge_index": EDGES.astype(float)}, r"edge ids have dtype float64"),
        ({"num_nodes": None, "y": None}, r"number of nodes is not known"),
        ({"num_nodes": np.array([4, 5])}, r"num_nodes has shape \(2,\)"),
        ({"num_nodes": 4.5}, r"num_nodes have dtype float64"),
        ({"num_nodes": -1}, r"num_nodes is -1"),
        ({"y": np.zeros(3)}, r"label array has shape \(3,\), but the graph has 4"),
        ({"label": np.zeros(4)}, r"both y and label"),
        ({"x": X[:3]}, r"feature matrix has shape \(3, 3\), but the graph has 4"),
        ({"x": X[:, 0]}, r"features have shape \(4,\)"),
        ({"x": X, "x_data": X}, r"features twice"),
        ({"x_data": X[0]}, r"no array 'x_shape'"),
        (csr_parts() | {"x_shape": (5, 3)}, r"shape \(5, 3\), but the graph has 4"),
        (csr_parts() | {"x_shape": (4, 3, 1)}, r"x_shape has shape \(3,\)"),
        (csr_parts() | {"x_shape": (4, -3)}, r"x_shape is \(4, -3\)"),
        (csr_parts() | {"x_indptr": [0, 1]}, r"x_indptr has shape \(2,\)"),
        (csr_parts() | {"x_indices": [0]}, r"x_data and x_indices have shapes \(4,\) and \(1,\)"),
        (csr_parts() | {"x_indices": np.zeros(4)}, r"feature numbers have dtype float64"),
    ],
)
def test_wrong_graphs_are_refused(tmp_path, changes, message):
    arrays = {key: value for key, value in (GRAPH | changes).items() if value is not None}
    with pytest.raises(InvalidInputError, match=message):
        open_npz_source(save(tmp_path / "g.npz", **arrays))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_indptr": [1, 1, 1, 3, 4]}, r"x_indptr starts at 1"),
        ({"x_indptr": [0, 1, 1, 3, 3]}, r"x_indptr ends at 3"),
        ({"x_indptr": [0, 2, 1, 3, 4]}, r"sparse row has -1 values[\s\S]*row 1"),
        ({"x_indptr": [0, 4, 4, 4, 4]}, r"sparse row has 4 values[\s\S]*row 0"),
        ({"x_indptr": [0, 1, 3, 5, 5]}, r"x_indptr runs to 5"),
        ({"x_indices": [0, 1, 2, 3]}, r"feature numbers run from"),
        ({"x_indices": [0, -1, 2, 1]}, r"feature numbers run from -1"),
    ],
)
@pytest.mark.parametrize("max_rows", [1, 9])
def test_wrong_sparse_parts_are_refused(tmp_path, changes, message, max_rows):
    source = open_npz_source(save(tmp_path / "g.npz", **GRAPH, **csr_parts() | changes))
    with pytest.raises(InvalidInputError, match=message):
        list(source.features.blocks(max_rows))


def test_float_labels_are_taken_if_whole(tmp_path):
    source = open_npz_source(save(tmp_path / "g.npz", **GRAPH | {"y": np.array([0, np.nan, 2, 1])}))
    np.testing.assert_array_equal(column_of(source, "label"), [0, -1, 2, 1])
    source = open_npz_source(save(tmp_path / "g.npz", **GRAPH | {"y": np.array([0, 1, 2, np.inf])}))
    with pytest.raises(InvalidInputError, match=r"label inf is not a whole number[\s\S]*row 3"):
        column_of(source, "label")


@pytest.mark.realdata
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
@pytest.mark.parametrize("path", sorted(SHARED.glob("*.npz")), ids=lambda path: path.stem)
def test_every_shared_graph_is_read_as_numpy_reads_it(path):
    source = open_npz_source(path)
    with np.load(path, allow_pickle=False) as arrays:
        assert source.num_nodes == arrays["num_nodes"]
        np.testing.assert_array_equal(edges_of(source, 100_000), arrays["edge_index"])
        for column in source.columns:
            np.testing.assert_array_equal(
                column_of(source, column.name), arrays[{"label": "y"}.get(column.name, column.name)]
            )
        if isinstance(source.features, SparseSource):
            blocks = list(source.features.blocks(5_000))
            np.testing.assert_array_equal(np.concatenate([b.values for b in blocks]), arrays["x_data"])
            np.testing.assert_array_equal(np.concatenate([b.indices for b in blocks]), arrays["x_indices"])
            counts = np.concatenate([np.diff(b.indptr) for b in blocks])
            np.testing.assert_array_equal(counts, np.diff(arrays["x_indptr"]))

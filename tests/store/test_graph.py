"""GraphStore, as people use it: in from arrays, DGL and PyG, and out again."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from ecgl_scale.errors import IncompleteStoreError, InvalidInputError, UsageError
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.features.files import dense_matrix
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.graph import GraphStore

torch = pytest.importorskip("torch")

NUM_NODES = 50
RANDOM = np.random.default_rng(0)
EDGES = np.concatenate([RANDOM.integers(0, NUM_NODES - 5, (2, 400)), [[3, 3, 7], [3, 3, 7]]], axis=1)
X = RANDOM.normal(size=(NUM_NODES, 6)).astype(np.float32)
BAG = (RANDOM.random((NUM_NODES, 200)) < 0.02).astype(np.float32)
Y = np.arange(NUM_NODES) % 4
SPLIT = np.arange(NUM_NODES) % 4 - 1


def ordered(edge_index):
    """Edges by destination and then source."""
    edges = np.asarray(edge_index)
    return edges[:, np.lexsort(edges)]


class FakeData:
    """What we ask of a PyG ``Data``: attributes, keys, item access, ``num_nodes``."""

    def __init__(self, **arrays):
        self._arrays = arrays

    def __getattr__(self, name):
        try:
            return self._arrays[name]
        except KeyError as error:
            raise AttributeError(name) from error

    def __getitem__(self, name):
        return self._arrays[name]

    def keys(self):
        return list(self._arrays)


class OldFakeData(FakeData):
    """Before 2.4 ``keys`` was a property."""

    keys = property(FakeData.keys)


def pyg_arrays(**more):
    tensors = {"x": torch.tensor(X), "edge_index": torch.tensor(EDGES), "y": torch.tensor(Y)}
    return {**tensors, "num_nodes": NUM_NODES, **more}


def masks(dtype=torch.bool):
    names = ("train_mask", "val_mask", "test_mask")
    return {name: torch.tensor(part == SPLIT).to(dtype) for part, name in enumerate(names)}


# --- arrays


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", ["dense", "sparse", "scipy", "none"])
def test_arrays_come_back(tmp_path, dtype, kind):
    x = {"dense": torch.tensor(X), "sparse": BAG, "scipy": scipy.sparse.csr_matrix(BAG), "none": None}[kind]
    store = GraphStore.from_edge_index(
        torch.tensor(EDGES, dtype=dtype),
        x,
        torch.tensor(Y),
        tmp_path / "store",
        columns={"year": np.arange(NUM_NODES, dtype=np.int16), "split": SPLIT},
    )
    found = store.to_edge_index()
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, ordered(EDGES))
    if kind == "none":
        assert (store.features, store.num_features) == (None, 0)
    else:
        wanted = X if kind == "dense" else BAG
        assert isinstance(store.features, DenseFeatures if kind == "dense" else SparseFeatures)
        assert store.num_features == wanted.shape[1]
        np.testing.assert_array_equal(dense_matrix(store.features), wanted)
    np.testing.assert_array_equal(store.column("label"), Y)
    np.testing.assert_array_equal(store.column("split"), SPLIT)
    np.testing.assert_array_equal(store.column("year"), np.arange(NUM_NODES))
    assert store.column("year").dtype == np.int16
    assert (store.num_nodes, store.num_edges, store.num_classes) == (NUM_NODES, 403, 4)


def test_the_graph_counts_and_names_itself(tmp_path):
    store = GraphStore.from_edge_index(EDGES, X, path=tmp_path / "store")
    assert repr(store) == f"GraphStore('{tmp_path}/store', num_nodes=50, num_edges=403, num_features=6)"
    assert store.num_classes is None
    with pytest.raises(UsageError, match="no node column 'label'"):
        store.column("label")


def test_options_reach_the_build(tmp_path):
    store = GraphStore.from_edge_index(EDGES, X, path=tmp_path / "store", options=BuildOptions(symmetrise=True))
    pairs = {(s, d) for s, d in EDGES.T.tolist() if s != d}
    pairs |= {(d, s) for s, d in pairs}
    assert store.to_edge_index().T.tolist() == sorted(([s, d] for s, d in pairs), key=lambda edge: edge[::-1])


def test_degrees_and_neighbours_equal_numpy(tmp_path):
    num_nodes = 140_000
    edges = np.random.default_rng(1).integers(0, num_nodes, (2, 30_000))
    store = GraphStore.from_edge_index(edges, path=tmp_path / "store", num_nodes=num_nodes)
    assert len(store.edges.blocks()) == 3
    np.testing.assert_array_equal(store.edges.in_degrees(), np.bincount(edges[1], minlength=num_nodes))
    np.testing.assert_array_equal(store.edges.out_degrees(), np.bincount(edges[0], minlength=num_nodes))
    np.testing.assert_array_equal(store.to_edge_index(), ordered(edges))
    for node in [0, 65_535, 65_536, 131_071, 131_072, num_nodes - 1, int(edges[1, 0])]:
        np.testing.assert_array_equal(store.edges.in_neighbours(node), np.sort(edges[0, edges[1] == node]))
    for node in (-1, num_nodes):
        with pytest.raises(UsageError, match=f"node {node} does not exist"):
            store.edges.in_neighbours(node)
    sizes = [store.edges.num_edges_of(block) for block in store.edges.blocks()]
    assert sizes == np.bincount(edges[1] // 65_536).tolist()
    assert store.edges.id_dtype == np.uint32


def test_a_missing_store_is_named(tmp_path):
    with pytest.raises(IncompleteStoreError, match=r"there is no store here[\s\S]*nowhere"):
        GraphStore.open(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(IncompleteStoreError, match="no manifest"):
        GraphStore.open(str(tmp_path / "empty"))


def test_a_label_of_another_length_leaves_nothing(tmp_path):
    with pytest.raises(InvalidInputError, match="label"):
        GraphStore.from_edge_index(EDGES, X, Y[:-1], tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


# --- PyG


@pytest.mark.parametrize("kind", [FakeData, OldFakeData])
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.uint8])
def test_pyg_data_comes_in_with_its_masks_as_a_split(tmp_path, kind, mask_dtype):
    data = kind(**pyg_arrays(**masks(mask_dtype), year=torch.arange(NUM_NODES), note="text", edge_attr=torch.ones(403)))
    store = GraphStore.from_pyg(data, tmp_path / "store")
    np.testing.assert_array_equal(store.to_edge_index(), ordered(EDGES))
    np.testing.assert_array_equal(dense_matrix(store.features), X)
    np.testing.assert_array_equal(store.column("label"), Y)
    np.testing.assert_array_equal(store.column("split"), SPLIT)
    assert sorted(store.nodes.names) == ["label", "split", "year"]


def test_edge_values_are_no_column_even_with_as_many_edges_as_nodes(tmp_path):
    ring = torch.stack([torch.arange(NUM_NODES), (torch.arange(NUM_NODES) + 1) % NUM_NODES])
    data = FakeData(edge_index=ring, edge_weight=torch.ones(NUM_NODES), num_nodes=NUM_NODES, age=torch.ones(NUM_NODES))
    assert GraphStore.from_pyg(data, tmp_path / "store").nodes.names == ["age"]


def test_single_masks_stay_columns(tmp_path):
    some = {name: mask for name, mask in masks().items() if name != "val_mask"}
    store = GraphStore.from_pyg(FakeData(**pyg_arrays(**some)), tmp_path / "store")
    np.testing.assert_array_equal(store.column("train_mask"), SPLIT == 0)
    np.testing.assert_array_equal(store.column("test_mask"), SPLIT == 2)
    assert "split" not in store.nodes.names


def test_data_without_edges_is_refused(tmp_path):
    with pytest.raises(UsageError, match="FakeData has no edge_index"):
        GraphStore.from_pyg(FakeData(x=torch.tensor(X), num_nodes=NUM_NODES), tmp_path / "store")


# --- DGL


@pytest.fixture(scope="module")
def dgl():
    return pytest.importorskip("dgl")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_dgl_graph_comes_in_and_goes_out(tmp_path, dgl, dtype):
    source, target = torch.tensor(EDGES, dtype=dtype)
    graph = dgl.graph((source, target), num_nodes=NUM_NODES)
    graph.ndata.update({"feat": torch.tensor(X), "label": torch.tensor(Y), "year": torch.arange(NUM_NODES), **masks()})
    graph.ndata["two"] = torch.ones(NUM_NODES, 2)
    store = GraphStore.from_dgl(graph, tmp_path / "store")
    assert sorted(store.nodes.names) == ["label", "split", "year"]
    np.testing.assert_array_equal(store.to_edge_index(), ordered(EDGES))

    out = store.to_dgl()
    assert out.num_nodes() == NUM_NODES
    np.testing.assert_array_equal(torch.stack(out.edges()).numpy(), ordered(EDGES))
    np.testing.assert_array_equal(out.ndata["feat"].numpy(), X)
    np.testing.assert_array_equal(out.ndata["label"].numpy(), Y)
    np.testing.assert_array_equal(out.ndata["split"].numpy(), SPLIT)
    np.testing.assert_array_equal(out.in_degrees().numpy(), store.edges.in_degrees())
    np.testing.assert_array_equal(out.out_degrees().numpy(), store.edges.out_degrees())

    again = GraphStore.from_dgl(out, tmp_path / "again")
    for block, rows in store.edges.stream():
        np.testing.assert_array_equal(again.edges.read(block).values, rows.values)
    assert again.manifest.columns == store.manifest.columns


def test_sparse_features_go_out_as_a_matrix(tmp_path, dgl):
    store = GraphStore.from_edge_index(EDGES, scipy.sparse.csr_matrix(BAG), Y, tmp_path / "store")
    graph = store.to_dgl()
    np.testing.assert_array_equal(graph.ndata["feat"].numpy(), BAG)
    again = GraphStore.from_dgl(graph, tmp_path / "again")
    assert isinstance(again.features, SparseFeatures)
    np.testing.assert_array_equal(dense_matrix(again.features), BAG)


def test_a_graph_without_features_and_columns_goes_out_too(tmp_path, dgl):
    graph = GraphStore.from_edge_index(EDGES, path=tmp_path / "store", num_nodes=NUM_NODES).to_dgl()
    assert (graph.num_nodes(), graph.num_edges(), len(graph.ndata)) == (NUM_NODES, 403, 0)


def test_a_heterograph_is_refused(tmp_path, dgl):
    ends = (torch.tensor([0]), torch.tensor([1]))
    graph = dgl.heterograph({("paper", "cites", "paper"): ends, ("author", "writes", "paper"): ends})
    with pytest.raises(UsageError, match=r"several node or edge types[\s\S]*to_homogeneous"):
        GraphStore.from_dgl(graph, tmp_path / "store")
    assert list(tmp_path.iterdir()) == []

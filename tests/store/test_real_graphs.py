"""Every real graph of ../shared/data goes in with the counts its README states, and comes back as it was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from ecgl_scale.base.events import ignore_events
from ecgl_scale.store.build import build_store
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.npz import open_npz_source
from ecgl_scale.store.verify import verify_store
from tests.resources import at

SHARED = Path(__file__).parents[3] / "shared" / "data"
pytestmark = pytest.mark.realdata


@dataclass(frozen=True)
class Stated:
    """A row of the README."""

    nodes: int
    edges: int
    undirected: int
    features: int
    classes: int | None
    self_loops: int | None = None
    columns: tuple[str, ...] = ()


README = {
    "amazon_computers": Stated(13_752, 287_209, 245_861, 767, 10),
    "amazon_photo": Stated(7_650, 143_663, 119_081, 745, 8),
    "coauthor_cs": Stated(18_333, 163_788, 81_894, 6_805, 15),
    "cora_ml": Stated(2_995, 8_416, 8_158, 2_879, 7),
    "pubmed_planetoid": Stated(19_717, 88_648, 44_324, 500, 3, columns=("split",)),
    "cora25k_nofeat": Stated(25_120, 91_140, 85_694, 0, 70),
    "cnr2000_web": Stated(325_557, 3_216_152, 2_738_969, 0, None, self_loops=87_442),
    "debian_packages": Stated(
        93_649,
        536_499,
        521_850,
        7_135,
        58,
        columns=("node_release_mask", "first_release", "source_id", "installed_size_kb"),
    ),
}


def path_of(name):
    path = SHARED / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"the real data is not here: {path}")
    return path


def matrix_of(features):
    """The stored features as a scipy matrix."""
    parts = []
    for block in features.blocks():
        rows = features.read(block)
        if isinstance(features, SparseFeatures):
            shape = (block.num_rows, features.num_features)
            parts.append(scipy.sparse.csr_matrix((rows.values, rows.indices, rows.indptr), shape=shape))
        else:
            parts.append(scipy.sparse.csr_matrix(rows))
    return scipy.sparse.vstack(parts, format="csr")


def test_the_table_names_every_file():
    if not SHARED.is_dir():
        pytest.skip(f"the real data is not here: {SHARED}")
    assert {path.stem for path in SHARED.glob("*.npz")} == set(README)


@pytest.mark.parametrize("name", README)
def test_a_real_graph_comes_back_as_it_was(tmp_path, name):
    path, stated = path_of(name), README[name]
    build_store(
        open_npz_source(path), tmp_path / "store", at(), options=BuildOptions(keep_duplicates=True, self_loops="keep")
    )
    store = GraphStore.open(tmp_path / "store")
    assert (store.num_nodes, store.num_edges) == (stated.nodes, stated.edges)
    assert (store.num_features, store.num_classes) == (stated.features, stated.classes)
    with np.load(path, allow_pickle=False) as original:
        source, target = original["edge_index"].astype(np.int64)
        found = store.to_edge_index()
        # Rows are sorted, so the codes must be too; a code is an edge, so equal codes are equal edges.
        codes = found[1] * stated.nodes + found[0]
        np.testing.assert_array_equal(codes, np.sort(target * stated.nodes + source))
        if stated.self_loops is not None:
            assert int((found[0] == found[1]).sum()) == stated.self_loops
        if stated.features:
            parts = (original["x_data"], original["x_indices"], original["x_indptr"])
            wanted = scipy.sparse.csr_matrix(parts, shape=original["x_shape"]).astype(np.float32)
            matrix = matrix_of(store.features)
            assert matrix.shape == wanted.shape
            assert (matrix != wanted).nnz == 0
        else:
            assert store.features is None
        expected_columns = [*stated.columns]
        if stated.classes is not None:
            np.testing.assert_array_equal(store.column("label"), original["y"])
            expected_columns.append("label")
        for column in stated.columns:
            np.testing.assert_array_equal(store.column(column), original[column])
            assert store.column(column).dtype == original[column].dtype
        assert sorted(store.manifest.columns) == sorted(expected_columns)
    verify_store(tmp_path / "store", at(on_event=ignore_events))


@pytest.mark.parametrize("name", README)
def test_a_symmetrised_real_graph_has_each_pair_twice(tmp_path, name):
    stated = README[name]
    manifest = build_store(
        open_npz_source(path_of(name)), tmp_path / "store", at(threads=2), options=BuildOptions(symmetrise=True)
    )
    assert manifest.edges.num_edges == 2 * stated.undirected
    assert manifest.edges.input_edges == stated.edges
    edges = GraphStore.open(tmp_path / "store").edges
    np.testing.assert_array_equal(edges.in_degrees(), edges.out_degrees())


def test_unlabelled_nodes_stay_unlabelled(tmp_path):
    build_store(open_npz_source(path_of("cora25k_nofeat")), tmp_path / "store", at())
    labels = GraphStore.open(tmp_path / "store").column("label")
    assert (int((labels >= 0).sum()), int((labels == -1).sum())) == (17_093, 8_027)

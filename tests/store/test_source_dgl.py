from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.source import DenseSource, GraphSource, SparseSource
from ecgl_scale.store.sources import dgl_files
from ecgl_scale.store.sources.dgl_files import open_dgl
from tests.store.layouts import Tiny, write_cora, write_reddit, zip_folder


def edges_of(source: GraphSource, max_edges: int = 50) -> np.ndarray:
    blocks = list(source.edges.stream(max_edges))
    assert all(block.src.size == block.dst.size <= max_edges for block in blocks)
    return np.stack([np.concatenate([block.src for block in blocks]), np.concatenate([block.dst for block in blocks])])


def column_of(source: GraphSource, name: str) -> np.ndarray:
    (column,) = [column for column in source.columns if column.name == name]
    values = np.concatenate(list(column.blocks(8)))
    assert values.dtype == column.dtype
    return values


def sparse_of(source: GraphSource, max_rows: int = 7) -> np.ndarray:
    assert isinstance(source.features, SparseSource)
    rows = [
        sparse.csr_matrix(
            (block.values, block.indices, block.indptr), (block.indptr.size - 1, source.features.num_features)
        )
        for block in source.features.blocks(max_rows)
    ]
    return np.asarray(sparse.vstack(rows).todense())


def assert_reddit(source: GraphSource, tiny: Tiny) -> None:
    np.testing.assert_array_equal(edges_of(source), tiny.edge_index)
    np.testing.assert_array_equal(column_of(source, "label"), tiny.label)
    np.testing.assert_array_equal(column_of(source, "split"), tiny.split)
    assert isinstance(source.features, DenseSource)
    blocks = list(source.features.blocks(9))
    assert all(block.dtype == source.features.dtype == np.float32 for block in blocks)
    np.testing.assert_array_equal(np.concatenate(blocks), tiny.features)
    assert (source.name, source.num_nodes, source.num_classes, source.num_edges_hint) == ("reddit", 55, 41, 400)


def test_corafull_is_what_dgls_own_parser_makes_of_the_file(tmp_path):
    from dgl.data.gnn_benchmark import CoraFullDataset

    path = write_cora(tmp_path)
    graph = CoraFullDataset._load_npz(None, str(path))
    source = open_dgl(str(path), cache=tmp_path)
    src, dst = (ids.numpy() for ids in graph.edges())
    order = np.lexsort((dst, src))
    np.testing.assert_array_equal(edges_of(source), np.stack([src[order], dst[order]]))
    np.testing.assert_array_equal(sparse_of(source), graph.ndata["feat"].numpy())
    np.testing.assert_array_equal(column_of(source, "label"), graph.ndata["label"].numpy())
    assert (source.name, source.num_nodes, source.num_classes) == ("corafull", 90, 70)
    assert source.num_edges_hint == graph.num_edges()


def test_reddit_is_what_dgls_own_parser_makes_of_the_files(tmp_path, monkeypatch):
    from dgl.data import reddit

    tiny = write_reddit(tmp_path / "reddit")
    monkeypatch.setattr(reddit, "reorder_graph", lambda graph, **options: graph)
    dataset = object.__new__(reddit.RedditDataset)
    dataset._name, dataset._raw_dir, dataset._self_loop_str, dataset._verbose = "reddit", str(tmp_path), "", False
    dataset._url = None
    dataset.process()
    graph = dataset._graph
    source = open_dgl(str(tiny.folder), cache=tmp_path)
    np.testing.assert_array_equal(edges_of(source), np.stack([ids.numpy() for ids in graph.edges()]))
    masks = [graph.ndata[f"{part}_mask"].numpy() for part in ("train", "val", "test")]
    np.testing.assert_array_equal(column_of(source, "split"), np.argmax(masks, axis=0))
    assert_reddit(source, tiny)


@pytest.mark.parametrize("given", ["file", "folder", "zip", "stored zip", "name"])
def test_corafull_opens_from_every_form(tmp_path, given):
    path = write_cora(tmp_path / "cora_full")
    forms = {
        "file": path,
        "folder": path.parent,
        "zip": zip_folder(path.parent, tmp_path / "a.zip"),
        "stored zip": zip_folder(path.parent, tmp_path / "b.zip", method=zipfile.ZIP_STORED),
        "name": "corafull",
    }
    source = open_dgl(str(forms[given]), cache=tmp_path)
    assert source.num_nodes == 90
    assert sparse_of(source).shape == (90, 30)


@pytest.mark.parametrize("given", ["nodes", "edges", "folder", "zip", "stored zip", "name"])
def test_reddit_opens_from_every_form(tmp_path, given):
    tiny = write_reddit(tmp_path / "reddit")
    forms = {
        "nodes": tiny.folder / "reddit_data.npz",
        "edges": tiny.folder / "reddit_graph.npz",
        "folder": tiny.folder,
        "zip": zip_folder(tiny.folder, tmp_path / "a.zip"),
        "stored zip": zip_folder(tiny.folder, tmp_path / "b.zip", method=zipfile.ZIP_STORED),
        "name": "reddit",
    }
    assert_reddit(open_dgl(str(forms[given]), cache=tmp_path), tiny)


def test_a_name_is_downloaded_where_the_cache_lacks_it(tmp_path, monkeypatch):
    tiny = write_reddit(tmp_path / "made")
    with zipfile.ZipFile(tmp_path / "reddit.zip", "w") as archive:
        for path in tiny.folder.iterdir():
            archive.write(path, path.name)

    def fake_download(url: str, target: Path, **options: object) -> Path:
        assert url == "https://data.dgl.ai/dataset/reddit.zip"
        return tmp_path / "reddit.zip"

    monkeypatch.setattr(dgl_files, "download", fake_download)
    assert_reddit(open_dgl("reddit", cache=tmp_path / "cache"), tiny)


def test_pickled_names_in_the_file_are_never_unpickled(tmp_path):
    canary = tmp_path / "canary"

    class Exploit:
        def __reduce__(self):
            return Path.touch, (canary,)

    # Saving pickles the object, which does not run it.
    path = write_cora(tmp_path, attr_names=np.array([Exploit()], dtype=object))
    source = open_dgl(str(path), cache=tmp_path)
    edges_of(source), sparse_of(source), column_of(source, "label")
    assert not canary.exists()
    path = write_cora(tmp_path, labels=np.array([Exploit()] * 90, dtype=object))
    with pytest.raises(InvalidInputError, match="labels"):
        open_dgl(str(path), cache=tmp_path)
    assert not canary.exists()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("adj_shape", [90, 91]),
        ("adj_indptr", np.zeros(91, np.int64)),
        ("adj_indptr", np.arange(5)),
        ("adj_indices", np.array([0.5])),
        ("attr_shape", [89, 30]),
        ("attr_indptr", np.arange(91)[::-1]),
        ("attr_indices", np.array([1, 2])),
        ("labels", np.arange(89)),
    ],
)
def test_a_corafull_file_with_a_wrong_part_is_refused_by_its_name(tmp_path, part, value):
    path = write_cora(tmp_path, **{part: value})
    with pytest.raises(InvalidInputError, match=r"adj_|attr_|labels"):
        open_dgl(str(path), cache=tmp_path)


def test_an_edge_to_a_node_that_is_not_there_is_refused_with_its_row(tmp_path):
    path = write_cora(tmp_path)
    indices = np.load(path)["adj_indices"].copy()
    indices[4] = 90
    write_cora(tmp_path, adj_indices=indices)
    with pytest.raises(InvalidInputError, match=r"node 90\n.*row 5"):
        open_dgl(str(path), cache=tmp_path)


def test_half_of_reddit_and_an_empty_folder_are_refused(tmp_path):
    tiny = write_reddit(tmp_path / "reddit")
    (tiny.folder / "reddit_graph.npz").unlink()
    with pytest.raises(InvalidInputError, match=r"reddit_graph\.npz"):
        open_dgl(str(tiny.folder), cache=tmp_path)
    with pytest.raises(InvalidInputError, match=r"cora_full\.npz"):
        open_dgl(str(tmp_path), cache=tmp_path)
    with pytest.raises(InvalidInputError, match="corafull, reddit"):
        open_dgl("citeseer", cache=tmp_path)

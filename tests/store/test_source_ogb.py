from __future__ import annotations

import gzip
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.base.events import Note
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.source import DenseSource, GraphSource
from ecgl_scale.store.sources import ogb as ogb_source
from ecgl_scale.store.sources.ogb import open_ogb
from ecgl_scale.store.sources.ogb_evaluator import ogb_evaluator
from ecgl_scale.store.sources.ogb_table import read_ogb_table
from tests.store.layouts import Tiny, write_arxiv, write_csv_gz, write_papers, write_products, zip_folder


def edges_of(source: GraphSource, max_edges: int = 64) -> np.ndarray:
    blocks = list(source.edges.stream(max_edges))
    assert all(block.src.size == block.dst.size <= max_edges for block in blocks)
    return np.stack([np.concatenate([block.src for block in blocks]), np.concatenate([block.dst for block in blocks])])


def column_of(source: GraphSource, name: str, max_rows: int = 7) -> np.ndarray:
    (column,) = [column for column in source.columns if column.name == name]
    values = np.concatenate(list(column.blocks(max_rows)))
    assert values.dtype == column.dtype
    return values


def features_of(source: GraphSource, max_rows: int = 9) -> np.ndarray:
    assert isinstance(source.features, DenseSource)
    blocks = list(source.features.blocks(max_rows))
    assert all(len(block) <= max_rows and block.dtype == source.features.dtype for block in blocks)
    return np.concatenate(blocks)


def assert_same(source: GraphSource, tiny: Tiny) -> None:
    assert source.num_nodes == tiny.label.size
    np.testing.assert_array_equal(column_of(source, "label"), tiny.label)
    np.testing.assert_array_equal(column_of(source, "split"), tiny.split)
    np.testing.assert_allclose(features_of(source), tiny.features, rtol=1e-6)
    if tiny.year is not None:
        np.testing.assert_array_equal(column_of(source, "year"), tiny.year)


@pytest.fixture
def quiet_ogb(monkeypatch):
    """Let ogb be imported without the thread that asks the network for a newer version."""
    monkeypatch.setitem(sys.modules, "outdated", None)
    before = threading.active_count()
    from ogb.io import read_graph_raw

    assert threading.active_count() == before
    return read_graph_raw


@pytest.mark.parametrize("zipped", [False, True])
def test_arxiv_is_read_from_its_folder_and_from_its_zip(tmp_path, zipped):
    tiny = write_arxiv(tmp_path)
    path = zip_folder(tiny.folder, tmp_path / "renamed.zip") if zipped else tiny.folder
    source = open_ogb(str(path), cache=tmp_path / "cache")
    assert_same(source, tiny)
    np.testing.assert_array_equal(edges_of(source), tiny.edge_index)
    assert (source.name, source.num_classes, source.num_edges_hint) == ("ogbn-arxiv", 40, 300)
    assert source.provenance == {
        "source": "ogb", "name": "ogbn-arxiv", "metric": "acc", "split": "time", "num_tasks": 1,
    }  # fmt: skip
    assert not (tmp_path / "cache").exists()


def test_streams_may_be_read_twice(tmp_path):
    source = open_ogb(str(write_arxiv(tmp_path).folder), cache=tmp_path)
    np.testing.assert_array_equal(edges_of(source, 1000), edges_of(source, 1))


@pytest.mark.parametrize("folder", ["products", "ogbn_products", "my_copy"])
def test_products_has_every_edge_in_both_directions(tmp_path, folder):
    tiny = write_products(tmp_path, folder=folder)
    source = open_ogb(str(tiny.folder), cache=tmp_path)
    assert (source.name, source.num_classes, source.num_edges_hint) == ("ogbn-products", 47, 400)
    edges = edges_of(source, 33)
    np.testing.assert_array_equal(edges[:, 0::2], tiny.edge_index)
    np.testing.assert_array_equal(edges[:, 1::2], tiny.edge_index[::-1])
    assert_same(source, tiny)
    for block in source.edges.stream(33):
        assert {block.src[0], block.dst[0]} == set(tiny.edge_index[:, block.first_row])


@pytest.mark.parametrize("dataset", ["arxiv", "products"])
def test_edges_and_features_are_those_of_ogbs_own_reader(tmp_path, quiet_ogb, dataset, capsys):
    tiny = write_arxiv(tmp_path) if dataset == "arxiv" else write_products(tmp_path)
    inverse = read_ogb_table()[f"ogbn-{dataset}"].add_inverse_edge
    (graph,) = quiet_ogb.read_csv_graph_raw(str(tiny.folder / "raw"), add_inverse_edge=inverse)
    source = open_ogb(str(tiny.folder), cache=tmp_path)
    np.testing.assert_array_equal(edges_of(source), graph["edge_index"])
    np.testing.assert_allclose(features_of(source), graph["node_feat"], rtol=1e-6)
    assert source.num_nodes == graph["num_nodes"]


@pytest.mark.parametrize("fortran", [False, True])
def test_papers_edges_are_those_of_ogbs_own_reader(tmp_path, quiet_ogb, fortran, capsys):
    tiny = write_papers(tmp_path, fortran=fortran, compressed=True)
    (graph,) = quiet_ogb.read_binary_graph_raw(str(tiny.folder / "raw"))
    source = open_ogb(str(tiny.folder), cache=tmp_path)
    np.testing.assert_array_equal(edges_of(source), graph["edge_index"])
    np.testing.assert_array_equal(features_of(source), graph["node_feat"])
    np.testing.assert_array_equal(column_of(source, "year"), graph["node_year"].ravel())


@pytest.mark.parametrize("packing", ["folder", "stored zip", "deflated zip"])
@pytest.mark.parametrize("compressed", [False, True])
def test_papers_is_read_from_its_folder_and_from_its_zip(tmp_path, packing, compressed):
    tiny = write_papers(tmp_path, compressed=compressed)
    path = tiny.folder
    if packing != "folder":
        method = zipfile.ZIP_STORED if packing == "stored zip" else zipfile.ZIP_DEFLATED
        path = zip_folder(tiny.folder, tmp_path / "papers100M-bin.zip", method=method)
    source = open_ogb(str(path), cache=tmp_path / "cache")
    assert_same(source, tiny)
    np.testing.assert_array_equal(edges_of(source), tiny.edge_index)
    assert (source.name, source.num_classes, source.num_edges_hint) == ("ogbn-papers100M", 172, 900)
    assert (tmp_path / "cache").exists() == (packing == "deflated zip")


def test_a_name_is_looked_for_in_the_cache_before_the_network(tmp_path, monkeypatch):
    tiny = write_arxiv(tmp_path)
    monkeypatch.setattr(ogb_source, "download", lambda *args, **options: pytest.fail("went to the network"))
    assert_same(open_ogb("ogbn-arxiv", cache=tmp_path), tiny)


def test_a_name_is_downloaded_from_ogbs_address_by_https(tmp_path, monkeypatch):
    tiny = write_arxiv(tmp_path / "made")
    zipped = zip_folder(tiny.folder, tmp_path / "arxiv.zip")

    def fake_download(url: str, target: Path, **options: object) -> Path:
        assert url == "https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"
        assert target == tmp_path / "cache" / "arxiv.zip"
        return zipped

    monkeypatch.setattr(ogb_source, "download", fake_download)
    assert_same(open_ogb("ogbn-arxiv", cache=tmp_path / "cache"), tiny)


def test_an_unknown_folder_in_ogbs_layout_is_taken_as_it_is_and_said_so(tmp_path):
    tiny = write_arxiv(tmp_path, folder="mine")
    events: list[object] = []
    source = open_ogb(str(tiny.folder), cache=tmp_path, on_event=events.append)
    assert (source.name, source.num_classes) == ("mine", None)
    assert [type(event) for event in events] == [Note]
    np.testing.assert_array_equal(edges_of(source), tiny.edge_index)


@pytest.mark.parametrize("name", ["ogbn-mag", "ogbn-proteins", "ogbn-nothing"])
def test_other_names_are_refused_with_the_known_ones(tmp_path, name):
    with pytest.raises(InvalidInputError, match="ogbn-arxiv"):
        open_ogb(name, cache=tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [("5", r"row 151"), ("5,6,7", r"row 151"), ("5,x", r"row 151"), ("5,1.5", r"row 151"), ("5,", r"row 151")],
)
def test_a_ragged_or_odd_row_is_named_with_file_and_row(tmp_path, row, message):
    tiny = write_arxiv(tmp_path)
    path = tiny.folder / "raw" / "edge.csv.gz"
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    lines[150] = row
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    source = open_ogb(str(tiny.folder), cache=tmp_path)
    with pytest.raises(InvalidInputError, match=rf"edge\.csv\.gz, {message}"):
        edges_of(source)


def test_rows_missing_or_left_over_are_refused(tmp_path):
    tiny = write_arxiv(tmp_path)
    source = open_ogb(str(tiny.folder), cache=tmp_path)
    write_csv_gz(tiny.folder / "raw" / "edge.csv.gz", tiny.edge_index.T[:-1])
    with pytest.raises(InvalidInputError, match="only 299 rows"):
        edges_of(source)
    write_csv_gz(tiny.folder / "raw" / "node-label.csv.gz", [*tiny.label, 0])
    with pytest.raises(InvalidInputError, match="too many rows"):
        column_of(source, "label")


@pytest.mark.parametrize("damage", ["cut", "flip", "not gzip", "empty"])
def test_a_damaged_csv_gz_is_refused_with_its_name(tmp_path, damage):
    tiny = write_arxiv(tmp_path)
    path = tiny.folder / "raw" / "node-label.csv.gz"
    raw = bytearray(path.read_bytes())
    if damage == "flip":
        raw[-6] ^= 1
    path.write_bytes({"cut": raw[:-20], "flip": raw, "not gzip": b"1\n2\n", "empty": b""}[damage])
    source = open_ogb(str(tiny.folder), cache=tmp_path)
    with pytest.raises(InvalidInputError, match=r"node-label\.csv\.gz"):
        column_of(source, "label")


@pytest.mark.parametrize(
    ("ids", "message"), [([60], "row 1"), ([-1], "row 1"), ([5, 5], "twice"), (range(61), "row 61"), ([0.5], "row 1")]
)
def test_a_split_with_wrong_ids_is_refused(tmp_path, ids, message):
    tiny = write_arxiv(tmp_path)
    write_csv_gz(tiny.folder / "split" / "time" / "valid.csv.gz", ids)
    with pytest.raises(InvalidInputError, match=rf"(?s){message}.*valid|valid.*{message}"):
        column_of(open_ogb(str(tiny.folder), cache=tmp_path), "split")


def test_a_node_in_two_parts_of_the_split_is_refused(tmp_path):
    tiny = write_arxiv(tmp_path)
    write_csv_gz(tiny.folder / "split" / "time" / "test.csv.gz", [int(np.flatnonzero(tiny.split == 0)[0])])
    with pytest.raises(InvalidInputError, match="two parts"):
        column_of(open_ogb(str(tiny.folder), cache=tmp_path), "split")


def test_labels_without_value_become_minus_one_and_fractions_are_refused(tmp_path):
    tiny = write_arxiv(tmp_path)
    path = tiny.folder / "raw" / "node-label.csv.gz"
    write_csv_gz(path, ["nan", '""', *tiny.label[2:]])
    source = open_ogb(str(tiny.folder), cache=tmp_path)
    assert column_of(source, "label")[:3].tolist() == [-1, -1, 2]
    write_csv_gz(path, [*tiny.label[:-1], "1.5"])
    with pytest.raises(InvalidInputError, match="row 60"):
        column_of(source, "label")


def test_papers_with_arrays_of_another_shape_is_refused(tmp_path):
    folder = write_papers(tmp_path).folder
    path = folder / "raw" / "data.npz"
    parts = dict(np.load(path))
    for wrong in (
        {"edge_index": parts["edge_index"].T},
        {"node_feat": parts["node_feat"][1:]},
        {"num_nodes_list": [1, 2]},
    ):
        np.savez(path, **(parts | wrong))
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            open_ogb(str(folder), cache=tmp_path)


def test_a_folder_or_zip_in_another_layout_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match="not OGB's layout"):
        open_ogb(str(tmp_path / "empty"), cache=tmp_path)
    write_arxiv(tmp_path / "two")
    write_products(tmp_path / "two")
    with pytest.raises(InvalidInputError, match="several graphs"):
        open_ogb(str(tmp_path / "two"), cache=tmp_path)
    (tmp_path / "text.zip").write_text("not a zip")
    with pytest.raises(InvalidInputError, match=r"text\.zip"):
        open_ogb(str(tmp_path / "text.zip"), cache=tmp_path)


def test_a_split_kept_only_as_a_pickle_is_refused(tmp_path):
    folder = write_arxiv(tmp_path).folder
    for part in (folder / "split" / "time").iterdir():
        part.unlink()
    (folder / "split" / "time" / "split_dict.pt").write_bytes(b"cos\nsystem\n")
    with pytest.raises(InvalidInputError, match="pickle"):
        open_ogb(str(folder), cache=tmp_path)


def test_the_evaluator_is_ogbs_and_starts_no_thread_and_no_import_of_ogb():
    # A child process: other tests of this session may have imported ogb.
    import subprocess

    program = (
        "import sys, threading, numpy as np\n"
        "from ecgl_scale.store.sources.ogb_evaluator import ogb_evaluator\n"
        "e = ogb_evaluator('ogbn-arxiv')\n"
        "y = np.arange(8).reshape(-1, 1)\n"
        "assert e.eval(dict(y_true=y, y_pred=np.where(y < 2, 99, y))) == {'acc': 0.75}\n"
        "assert 'ogb' not in sys.modules and 'dgl' not in sys.modules\n"
        "assert 'outdated' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_evaluator_of_an_unknown_dataset_is_refused():
    with pytest.raises(InvalidInputError, match="ogbn-nothing"):
        ogb_evaluator("ogbn-nothing")

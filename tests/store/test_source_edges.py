"""Graphs in files of edges: each format is read in blocks of any size, each broken file is refused with its row."""

from __future__ import annotations

import gzip
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.sources.edges import open_edge_files

NUM_NODES = 50
EDGES = np.random.default_rng(0).integers(0, NUM_NODES, (2, 1000))
TABLE = pa.table({"w": np.ones(1000), "dst": EDGES[1], "src": EDGES[0]})


def text_of(edges, mark=",", header=""):
    return (header + "".join(f"{src}{mark}{dst}\n" for src, dst in edges.T)).encode()


def write_ipc(path, table, writer=pa.ipc.new_file, compression=None):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, writer(sink, table.schema, options=options) as out:
        out.write_table(table, max_chunksize=300)


WRITERS = {
    "e.parquet": lambda path: pq.write_table(TABLE, path, row_group_size=300),
    "e.arrow": lambda path: write_ipc(path, TABLE),
    "e.feather": lambda path: write_ipc(path, TABLE, compression="zstd"),
    "e.ipc": lambda path: write_ipc(path, TABLE, pa.ipc.new_stream),
    "e.csv": lambda path: path.write_bytes(text_of(EDGES, ",", "src,dst\n")),
    "bare.csv": lambda path: path.write_bytes(text_of(EDGES)),
    "spaced.csv": lambda path: path.write_bytes(text_of(EDGES, ", ", '"src", dst\n')),
    "wide.csv": lambda path: path.write_bytes(text_of(EDGES, ",hello,", "src,name,dst\n")),
    "e.csv.gz": lambda path: path.write_bytes(gzip.compress(text_of(EDGES))),
    "e.tsv": lambda path: path.write_bytes(text_of(EDGES, "\t", "dst\tsrc\n")),
    "e.txt": lambda path: path.write_bytes(text_of(EDGES, " ", "# nodes: 50\n# FromNodeId ToNodeId\n")),
    "e.txt.gz": lambda path: path.write_bytes(gzip.compress(text_of(EDGES, "\t"))),
    "e.u32": lambda path: EDGES.T.astype("<u4").tofile(path),
    "e.u64": lambda path: EDGES.T.astype("<u8").tofile(path),
    "e.bin": lambda path: EDGES.T.astype("<u4").tofile(path),
}

# In text, rows are the file's lines, from 1; comments and the header are lines too.
FIRST_LINES = {
    "e.csv": 2,
    "bare.csv": 1,
    "spaced.csv": 2,
    "wide.csv": 2,
    "e.csv.gz": 1,
    "e.tsv": 2,
    "e.txt": 3,
    "e.txt.gz": 1,
}


def write(path, content):
    path.write_bytes(content)
    return path


def assert_same_edges(found, wanted):
    """Pieces may hold more or fewer edges than blocks of a stream."""
    for side in ("src", "dst"):
        both = [np.concatenate([getattr(block, side) for block in blocks]) for blocks in (found, wanted)]
        np.testing.assert_array_equal(*both)


def edges_of(source, max_edges):
    with ThreadPoolExecutor(4) as pool:
        pieces = source.edges.cut(max_edges)
        blocks = list(source.edges.stream(max_edges))
        if pieces is not None:
            apart = pool.map(lambda piece: source.edges.read(piece.start, piece.stop), reversed(pieces))
            assert_same_edges(list(apart)[::-1], blocks)
    assert all(0 < len(block.src) == len(block.dst) <= max_edges for block in blocks)
    return np.stack([np.concatenate([b.src for b in blocks]), np.concatenate([b.dst for b in blocks])]), blocks


@pytest.mark.parametrize("max_edges", [7, 300, 100_000])
@pytest.mark.parametrize("name", WRITERS)
def test_each_format_gives_the_edges_back(tmp_path, name, max_edges):
    WRITERS[name](tmp_path / name)
    source = open_edge_files([tmp_path / name], num_nodes=NUM_NODES)
    edges, blocks = edges_of(source, max_edges)
    np.testing.assert_array_equal(edges[::-1] if name == "e.tsv" else edges, EDGES)
    sizes = [len(block.src) for block in blocks]
    first = FIRST_LINES.get(name, 0)
    assert [block.first_row for block in blocks] == list(np.cumsum([first, *sizes])[:-1])
    assert all(block.origin == str(tmp_path / name) for block in blocks)
    assert source.num_edges_hint == 1000
    np.testing.assert_array_equal(edges_of(source, max_edges)[0], edges)


@pytest.mark.parametrize("writer", [pa.ipc.new_file, pa.ipc.new_stream])
def test_uncompressed_arrow_files_are_mapped_not_copied(tmp_path, writer):
    write_ipc(tmp_path / "e.arrow", TABLE, writer)
    before = pa.total_allocated_bytes()
    blocks = edges_of(open_edge_files([tmp_path / "e.arrow"], num_nodes=NUM_NODES), 100)[1]
    assert pa.total_allocated_bytes() - before < 4_000
    assert not any(block.src.flags.owndata for block in blocks)


@pytest.mark.parametrize("packed", [False, True])
def test_the_edges_of_long_text_are_estimated(tmp_path, packed):
    edges = np.random.default_rng(0).integers(0, 10**6, (2, 50_000))
    name = "e.csv.gz" if packed else "e.csv"
    path = write(tmp_path / name, gzip.compress(text_of(edges)) if packed else text_of(edges))
    source = open_edge_files([path], num_nodes=10**6)
    assert 25_000 < source.num_edges_hint < 100_000
    np.testing.assert_array_equal(edges_of(source, 1_000)[0], edges)


def test_files_and_patterns_come_in_sorted_order(tmp_path):
    for part in (2, 0, 1):
        (EDGES.T[part * 400 : part * 400 + 400]).astype("<u4").tofile(tmp_path / f"part{part}.u32")
    source = open_edge_files([tmp_path / "part*.u32"], num_nodes=NUM_NODES)
    np.testing.assert_array_equal(edges_of(source, 150)[0], EDGES)
    assert source.num_edges_hint == 1000
    assert len(source.provenance["paths"]) == 3


def test_raw_pairs_may_be_of_64_bits(tmp_path):
    EDGES.T.astype("<u8").tofile(tmp_path / "e.bin")
    source = open_edge_files([tmp_path / "e.bin"], num_nodes=NUM_NODES, raw_dtype="uint64")
    np.testing.assert_array_equal(edges_of(source, 99)[0], EDGES)


def test_columns_may_have_other_names(tmp_path):
    pq.write_table(pa.table({"a": EDGES[0].astype(np.uint32), "b": EDGES[1].astype(np.uint32)}), tmp_path / "e.parquet")
    source = open_edge_files([tmp_path / "e.parquet"], num_nodes=NUM_NODES, src_column="a", dst_column="b")
    edges = edges_of(source, 99)[0]
    np.testing.assert_array_equal(edges, EDGES)
    assert edges.dtype == np.uint32


@pytest.mark.parametrize("max_edges", [1, 10, 10_000])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"1,2,3", r"row has 3 fields[\s\S]*e.csv, row 702\n[\s\S]*2 fields"),
        (b"1", r"row has 1 fields[\s\S]*row 702"),
        (b"1,abc", r"'abc' is not a node id[\s\S]*row 702"),
        (b"1,2.5", r"'2.5' is not a node id[\s\S]*row 702"),
        (b"1,99999999999999999999", r"is not a node id[\s\S]*row 702"),
        (b"1,", r"column 'dst' is empty[\s\S]*row 702"),
    ],
)
def test_a_bad_row_of_text_is_named(tmp_path, row, message, max_edges):
    lines = text_of(EDGES, ",", "src,dst\n").splitlines()
    lines[701] = row
    source = open_edge_files([write(tmp_path / "e.csv", b"\n".join(lines) + b"\n")], num_nodes=NUM_NODES)
    with pytest.raises(InvalidInputError, match=message):
        edges_of(source, max_edges)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("e.csv", b"", "has no rows"),
        ("e.csv", b"# only a comment\n", "has no rows"),
        ("e.csv", b"a,b\n1,2\n", r"no column 'src'[\s\S]*a, b"),
        ("e.csv", b"src,src,dst\n1,2,3\n", "two columns 'src'"),
        ("e.csv", b"1,2,3\n", "3 columns and no header"),
        ("e.csv", b"1\n", "1 columns and no header"),
        ("e.csv.gz", b"not gzip", "damaged"),
        ("e.u32", b"123456789", r"9 bytes, not a whole number of pairs[\s\S]*uint32 pairs of 8"),
        ("e.parquet", b"junk that is no table", "damaged"),
        ("e.parquet", b"", "is empty"),
        ("e.arrow", b"junk that is no table", "damaged"),
        ("e.arrow", b"ARROW1 cut off", "damaged"),
        ("e.xlsx", b"1", r"cannot tell the format[\s\S]*\.parquet"),
    ],
)
def test_files_that_are_no_edges_are_refused(tmp_path, name, content, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        open_edge_files([write(tmp_path / name, content)], num_nodes=3)
    assert name in str(caught.value)


def test_truncated_gzip_is_refused(tmp_path):
    packed = gzip.compress(text_of(np.random.default_rng(0).integers(0, 10**9, (2, 50_000))))
    source = open_edge_files([write(tmp_path / "e.csv.gz", packed[:-1000])], num_nodes=3)
    with pytest.raises(InvalidInputError, match=r"damaged[\s\S]*e.csv.gz"):
        edges_of(source, 1000)


def test_a_truncated_arrow_stream_is_refused(tmp_path):
    write_ipc(tmp_path / "e.arrow", TABLE, pa.ipc.new_stream)
    write(tmp_path / "e.arrow", (tmp_path / "e.arrow").read_bytes()[:10_000])
    with pytest.raises(InvalidInputError, match="damaged"):
        open_edge_files([tmp_path / "e.arrow"], num_nodes=3)


@pytest.mark.parametrize("name", ["e.parquet", "e.arrow"])
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1], "dst": [2]}, r"no column 'src'[\s\S]*a, dst"),
        ({"src": [1.0], "dst": [2]}, r"column 'src' have dtype float64[\s\S]*integers"),
        ({"src": ["1"], "dst": [2]}, r"column 'src' has type string"),
    ],
)
def test_tables_without_integer_columns_are_refused(tmp_path, name, columns, message):
    table = pa.table(columns)
    pq.write_table(table, tmp_path / name) if name == "e.parquet" else write_ipc(tmp_path / name, table)
    with pytest.raises(InvalidInputError, match=message):
        open_edge_files([tmp_path / name], num_nodes=3)


@pytest.mark.parametrize("name", ["e.parquet", "e.arrow"])
def test_nulls_are_refused_with_their_row(tmp_path, name):
    table = pa.table({"src": list(range(400)), "dst": [None if row == 333 else row for row in range(400)]})
    pq.write_table(table, tmp_path / name) if name == "e.parquet" else write_ipc(tmp_path / name, table)
    source = open_edge_files([tmp_path / name], num_nodes=400)
    with pytest.raises(InvalidInputError, match=r"'dst' has a null[\s\S]*row 333"):
        edges_of(source, 50)


def test_missing_repeated_and_unmatched_paths_are_refused(tmp_path):
    path = write(tmp_path / "e.csv", b"1,2\n")
    for paths, message in (
        ([tmp_path / "no.csv"], r"no such file[\s\S]*no.csv"),
        ([tmp_path / "no*.csv"], "no file matches"),
        ([path, tmp_path / "*.csv"], "given twice"),
        ([tmp_path], "is a directory"),
        ([], "no file of edges"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            open_edge_files(paths, num_nodes=3)

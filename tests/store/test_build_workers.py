"""Workers that share no memory build the same bytes as threads do, also where tries fail and files are damaged."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from ecgl_scale.engine.scripted import ScriptedExecutor
from ecgl_scale.errors import CorruptStoreError, InvalidInputError
from ecgl_scale.store import build
from ecgl_scale.store.build import MemoryShares, build_store
from ecgl_scale.store.edge_source import JoinedEdges
from ecgl_scale.store.edges import segments
from ecgl_scale.store.edges import sort as edge_sort
from ecgl_scale.store.edges import write as edge_write
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.sources.edges import open_edge_files
from ecgl_scale.store.sources.kron import kron_source
from ecgl_scale.store.sources.npy_edges import NpyEdges, join_crc32, zlib
from ecgl_scale.store.sources.npz import open_npz_source
from ecgl_scale.store.sources.sbm import SbmSettings, sbm_source
from ecgl_scale.store.verify import verify_store
from ecgl_scale.tasks.graphs import extract_graph
from tests.resources import at
from tests.store.graphs import KEEP_ALL, bytes_of, random_edges

SYMMETRIC = BuildOptions(symmetrise=True)
WITH_LOOPS = BuildOptions(self_loops="add")
SMALL = MemoryShares(threads=2, block_edges=1_000, kept_bytes=0, share_bytes=1 << 20)
NUM_NODES = 200_000
"""Three blocks of rows."""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Small graphs in several pieces."""
    monkeypatch.setattr(build.MemoryShares, "of", lambda *_, **__: SMALL)


def npz(path, order):
    edges = np.asarray(random_edges(NUM_NODES, 5_000), np.int64, order=order)
    np.savez(path, edge_index=edges, y=np.arange(NUM_NODES) % 7)
    return open_npz_source(path)


def deflated(path):
    np.savez_compressed(path, edge_index=random_edges(NUM_NODES, 5_000), num_nodes=NUM_NODES)
    return open_npz_source(path)


def files(folder):
    src, dst = random_edges(NUM_NODES, 3_000)
    pq.write_table(pa.table({"src": src, "dst": dst}), folder / "a.parquet", row_group_size=400)
    with pa.ipc.new_file(folder / "b.arrow", pa.schema({"src": pa.int64(), "dst": pa.int64()})) as writer:
        writer.write_table(pa.table({"src": dst, "dst": src}), max_chunksize=300)
    np.stack([src, src[::-1]], axis=1).astype("<u4").tofile(folder / "c.u32")
    return open_edge_files([folder / "*.*"], num_nodes=NUM_NODES)


def keyed(folder):
    keys = np.char.add("n", np.arange(NUM_NODES)[::-1].astype("U6"))
    src, dst = keys[random_edges(NUM_NODES, 3_000)]
    pq.write_table(pa.table({"src": src, "dst": dst}), folder / "a.parquet", row_group_size=100)
    with pa.ipc.new_file(folder / "b.arrow", pa.schema({"src": pa.large_string(), "dst": pa.string()})) as writer:
        table = pa.table({"src": pa.array(dst).cast(pa.large_string()), "dst": src})
        writer.write_table(table, max_chunksize=90)
    np.savez(folder / "keys.npz", id=keys)
    files = [folder / "a.parquet", folder / "b.arrow"]
    return open_edge_files(files, num_nodes=NUM_NODES, columns=folder / "keys.npz", id_column="id", by_key=True)


def text(folder):
    np.savetxt(folder / "edges.csv", random_edges(NUM_NODES, 3_000).T, "%d", ",")
    return open_edge_files([folder / "edges.csv"], num_nodes=NUM_NODES)


SOURCES = {
    "npz": lambda folder: (npz(folder / "g.npz", "C"), SYMMETRIC),
    "npz of pairs": lambda folder: (npz(folder / "g.npz", "F"), KEEP_ALL),
    "deflated npz": lambda folder: (deflated(folder / "g.npz"), WITH_LOOPS),
    "files": lambda folder: (files(folder), KEEP_ALL),
    "keyed": lambda folder: (keyed(folder), SYMMETRIC),
    "text": lambda folder: (text(folder), SYMMETRIC),
    "arrays": lambda _: (array_source(random_edges(NUM_NODES, 5_000), num_nodes=NUM_NODES), KEEP_ALL),
    "kron": lambda _: (kron_source(scale=10, num_features=3), SYMMETRIC),
    "block model": lambda _: (
        sbm_source(SbmSettings(num_nodes=3_000, num_classes=5, num_features=20, average_degree=6.0)),
        WITH_LOOPS,
    ),
}
READ_BY_DRIVER = {"deflated npz", "text", "arrays"}


@pytest.fixture
def make(tmp_path):
    def build_both(name, executor):
        (tmp_path / "source").mkdir(exist_ok=True)
        source, options = SOURCES[name](tmp_path / "source")
        build_store(source, tmp_path / "threads", at(), options=options, overwrite=True)
        build_store(source, tmp_path / "workers", at(executor=executor), options=options, overwrite=True)
        return bytes_of(tmp_path / "threads"), bytes_of(tmp_path / "workers")

    return build_both


@pytest.mark.parametrize("name", SOURCES)
def test_workers_build_the_same_bytes_as_threads(tmp_path, make, name):
    executor = ScriptedExecutor(tmp_path / "counts")
    threads, workers = make(name, executor)
    assert workers == threads
    num_pieces = len(list((tmp_path / "counts").glob("ingest.partition/*")))
    assert (num_pieces == 0) if name in READ_BY_DRIVER else num_pieces > 2
    assert list((tmp_path / "counts").glob("ingest.block/*"))
    assert {path.name for path in tmp_path.iterdir()} == {"source", "threads", "workers", "counts"}
    verify_store(tmp_path / "workers", at())


@pytest.mark.parametrize("name", ["npz", "kron"])
def test_tries_that_fail_before_and_after_their_files_change_no_byte(tmp_path, make, name):
    broken = OSError(errno.EIO, "the disk of that machine")
    executor = ScriptedExecutor(
        tmp_path / "counts",
        failures={("ingest.partition", 1): [broken, broken], ("ingest.block", 0): [broken]},
        after={("ingest.partition", 2): broken, ("ingest.block", 0): broken},
    )
    threads, workers = make(name, executor)
    assert workers == threads
    assert executor.times_run("ingest.partition", 1) == 3
    assert executor.times_run("ingest.partition", 2) == 2
    assert executor.times_run("ingest.block", 0) == 2


def test_a_bucket_that_does_not_fit_is_cut_from_segments_too(tmp_path, make, monkeypatch):
    monkeypatch.setattr(edge_sort, "MIN_WORKSPACE_BYTES", 64 * 1024)
    tight = MemoryShares(threads=1, block_edges=1_000, kept_bytes=0, share_bytes=0)
    monkeypatch.setattr(build.MemoryShares, "of", lambda *_, **__: tight)
    monkeypatch.setattr(edge_write, "MAX_SHARE_BYTES", 0)
    cuts = []
    original = edge_sort._cut_bucket
    monkeypatch.setattr(edge_sort, "_cut_bucket", lambda *args: cuts.append(args[0].is_shared) or original(*args))
    threads, workers = make("kron", ScriptedExecutor(tmp_path / "counts"))
    assert workers == threads
    assert True in cuts


def test_a_worker_that_is_lost_leaves_nothing_in_the_store(tmp_path, make, monkeypatch):
    original = build.write_blocks

    def lose(keys, plan, options, store, *rest, **named):
        written = original(keys, plan, options, store, *rest, **named)
        (store / "edges" / ".00000.arrow.elsewhere-7.partial").write_bytes(b"half")
        return written

    monkeypatch.setattr(build, "write_blocks", lose)
    executor = ScriptedExecutor(tmp_path / "counts")
    source, options = SOURCES["kron"](tmp_path)
    build_store(source, tmp_path / "store", at(executor=executor), options=options)
    verify_store(tmp_path / "store", at())


@pytest.mark.parametrize("where", ["keys", "tables", "short"])
def test_a_segment_that_is_not_as_it_was_written_ends_the_build(tmp_path, monkeypatch, where):
    original = segments.KeySegments.append

    def damage(self, index, keys, offsets):
        original(self, index, keys, offsets)
        path = self.directory / f"{index}.keys"
        content = bytearray(path.read_bytes())
        content[100 if where == "keys" else -10] ^= 1
        path.write_bytes(content[:-1] if where == "short" else content)

    monkeypatch.setattr(segments.KeySegments, "append", damage)
    executor = ScriptedExecutor(tmp_path / "counts")
    with pytest.raises(CorruptStoreError, match=r"not as (it was|they were) written[\s\S]*0\.keys"):
        build_store(kron_source(scale=10), tmp_path / "store", at(executor=executor))
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("place", [0, 0.3, 0.99])
def test_a_flipped_bit_in_an_npz_is_found_though_its_pieces_are_read_apart(tmp_path, order, shared, place):
    source = npz(tmp_path / "g.npz", order)
    assert isinstance(source.edges, NpyEdges)
    content = bytearray((tmp_path / "g.npz").read_bytes())
    first = min(source.edges.starts)
    content[first + int(place * 2 * 8 * 5_000)] ^= 1  # still the id of a node
    (tmp_path / "g.npz").write_bytes(content)
    executor = None if shared else ScriptedExecutor(tmp_path / "counts")
    with pytest.raises(InvalidInputError, match=r"damaged[\s\S]*checksum"):
        build_store(source, tmp_path / "store", at(executor=executor))


@pytest.mark.parametrize("sizes", [(0, 0), (1, 0), (0, 5), (300, 1), (7, 100_000)])
def test_checksums_of_two_stretches_join_to_that_of_both(sizes):
    first, second = (np.random.default_rng(size).bytes(size) for size in sizes)
    assert join_crc32(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


def test_small_parts_of_tables_are_joined_and_those_larger_than_a_piece_read_in_order(tmp_path):
    source = files(tmp_path)
    assert isinstance(source.edges, JoinedEdges)
    assert source.edges.cut(300) is None
    assert [piece.num_rows for piece in source.edges.cut(900)] == [*[400] * 7, 200, *[300] * 10, *[900] * 3, 300]
    assert [piece.num_rows for piece in source.edges.cut(7200)] == [*[800] * 3, 600, *[900] * 3, 300, 3000]


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_workers_extract_the_same_task_graph_as_threads(tmp_path, kind):
    x = np.random.default_rng(0).integers(0, 2, (NUM_NODES, 3)).astype(np.float32)
    features = x if kind == "dense" else sparse.csr_matrix(x)
    edges = random_edges(NUM_NODES, 20_000)
    graph = GraphStore.from_edge_index(edges, features, np.arange(NUM_NODES) % 5, tmp_path / "graph")
    ids = np.flatnonzero(np.arange(NUM_NODES) % 3 != 1)
    broken = OSError(errno.ESTALE, "gone")
    executor = ScriptedExecutor(tmp_path / "counts", after={("ingest.partition", 1): broken})
    extract_graph(graph, ids, tmp_path / "threads", at(), self_loops=True)
    extract_graph(graph, ids, tmp_path / "workers", at(executor=executor), self_loops=True)
    assert executor.times_run("ingest.partition", 1) == 2
    assert bytes_of(tmp_path / "workers") == bytes_of(tmp_path / "threads")
    assert not list(Path(tmp_path).glob(".*"))


def test_workers_verify_a_store_and_name_what_is_wrong_with_it(tmp_path):
    build_store(kron_source(scale=10, num_features=4), tmp_path / "store", at(), options=SYMMETRIC)
    broken = OSError(errno.EIO, "once")
    executor = ScriptedExecutor(tmp_path / "counts", failures={("store.verify_bytes", 1): [broken]})
    heard = []
    report = verify_store(tmp_path / "store", at(executor=executor, on_event=heard.append))
    assert report == verify_store(tmp_path / "store", at())
    assert heard[-1].done == report.num_edges
    assert executor.times_run("store.verify_bytes", 1) == 2
    assert executor.times_run("store.verify_rows", 0) == 1
    path = tmp_path / "store" / "tiles" / "00000.arrow"
    content = bytearray(path.read_bytes())
    content[5_000] ^= 1  # between the pages that opening looks at
    path.write_bytes(content)
    with pytest.raises(CorruptStoreError, match=r"00000\.arrow"):
        verify_store(tmp_path / "store", at(executor=executor))

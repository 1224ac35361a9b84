"""Rows are the features' rows wherever they are kept; files of them are used again only when they are these rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import sparse

from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.errors import StorageError, UsageError
from ecgl_scale.learn import row_sources, rows
from ecgl_scale.learn.rows import RowCache, gathering_bytes, plan_rows
from ecgl_scale.store.build import build_store
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.units import MIB
from tests.resources import at

NUM_ROWS, NUM_FEATURES = 500, 24
HUGE = 1 << 40


def features_of(path, x, dtype="float32"):
    kind = "sparse" if sparse.issparse(x) else "dense"
    source = array_source(np.zeros((2, 0), np.int64), x=x, num_nodes=x.shape[0])
    build_store(source, path, at(), features_as=kind, feature_dtype=dtype)
    return GraphStore.open(path).features


@pytest.fixture(scope="module")
def x():
    random = np.random.default_rng(0)
    dense = random.random((NUM_ROWS, NUM_FEATURES), np.float32)
    return dense * (random.random(dense.shape) < 0.15)


@pytest.fixture(scope="module")
def features(tmp_path_factory, x):
    """All the kinds of features there are; float16 in steps that it holds exactly."""
    home = tmp_path_factory.mktemp("features")
    kinds = {
        "dense": features_of(home / "dense", x + 1),
        "half": features_of(home / "half", (x + 1).astype(np.float16), "float16"),
        "sparse": features_of(home / "sparse", sparse.csr_matrix(x)),
        "array": x + 1,
    }
    assert [type(kind).__name__ for kind in kinds.values()] == 2 * ["DenseFeatures"] + ["SparseFeatures", "ndarray"]
    return kinds


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(1).choice(NUM_ROWS, 333, replace=False)


def scipy_of(rows, num_features):
    """Offsets of a view may start past 0."""
    here = slice(rows.indptr[0], rows.indptr[-1])
    content = (rows.values[here], rows.indices[here], rows.indptr - rows.indptr[0])
    return sparse.csr_matrix(content, shape=(rows.indptr.size - 1, num_features))


def wanted_rows(kind, x, ids):
    if kind == "sparse":
        return x[ids]
    wanted = (x + 1)[ids]
    return wanted.astype(np.float16).astype(np.float32) if kind == "half" else wanted


CASES = [
    ("dense", HUGE, "memory"),
    ("half", HUGE, "memory"),
    ("array", HUGE, "memory"),
    ("sparse", HUGE, "sparse"),
    ("dense", 0, "disk"),
    ("half", 0, "disk"),
    ("array", 0, "disk"),
    ("sparse", 0, "stored"),
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]} {case[2]}")
def cached(request, features, ids, x, tmp_path):
    kind, memory_bytes, expected = request.param
    cache = RowCache.gather(features[kind], ids, memory_bytes=memory_bytes, directory=tmp_path, name="task-0")
    assert cache.kind == expected
    return cache, wanted_rows(kind, x, ids)


def test_gathered_rows_are_the_features_rows(cached):
    cache, wanted = cached
    assert (cache.num_rows, cache.num_features) == wanted.shape
    found = cache.read(0, cache.num_rows)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(cache.read(40, 77), wanted[40:77])
    assert cache.read(5, 5).shape == (0, NUM_FEATURES)


@pytest.mark.parametrize("block_rows", [1, 16, 100, 333, 1000])
@pytest.mark.parametrize("read_ahead", [0, 1, 3])
def test_streamed_blocks_are_the_same_for_any_read_ahead(cached, block_rows, read_ahead):
    cache, wanted = cached
    stop = 0
    for block, part in cache.stream(block_rows, read_ahead=read_ahead, threads=2):
        assert block.start == stop
        np.testing.assert_array_equal(part, wanted[block.start : block.stop])
        stop = block.stop
    assert stop == cache.num_rows
    if cache.is_sparse:
        parts = [scipy_of(rows, NUM_FEATURES) for _, rows in cache.stream_sparse(block_rows, read_ahead=read_ahead)]
        np.testing.assert_array_equal(sparse.vstack(parts).toarray(), wanted)


def test_buffers_that_are_given_are_used(features, ids, tmp_path):
    cache = RowCache.gather(features["dense"], ids, memory_bytes=0, directory=tmp_path, name="rows")
    into = cache.buffers(100, 2)
    for _, part in cache.stream(100, into=into):
        assert any(np.shares_memory(part, buffer) for buffer in into)


def test_held_float32_rows_are_given_out_as_views(features, ids, tmp_path):
    cache = RowCache.gather(features["dense"], ids, memory_bytes=HUGE, directory=tmp_path, name="rows")
    whole = cache.read(0, cache.num_rows)
    assert all(np.shares_memory(part, whole) for _, part in cache.stream(50))
    assert not cache.needs_buffers
    assert not any(tmp_path.iterdir())


def test_any_rows_can_be_taken_and_selected(cached):
    cache, wanted = cached
    some = np.array([300, 2, 2, 17])
    np.testing.assert_array_equal(cache.take(some), wanted[some])
    np.testing.assert_array_equal(cache.select(some).read(0, 4), wanted[some])
    np.testing.assert_array_equal(cache.select(np.arange(20, 60)).read(3, 40), wanted[23:60])
    assert cache.select(np.zeros(0, np.int64)).num_rows == 0
    if cache.is_sparse:
        taken = cache.take_sparse(some)
        np.testing.assert_array_equal(scipy_of(taken, NUM_FEATURES).toarray(), wanted[some])
        assert cache.select(np.arange(20, 60)).is_sparse
    else:
        with pytest.raises(UsageError, match="dense"):
            cache.take_sparse(some)
        with pytest.raises(UsageError, match="dense"):
            cache.read_sparse(0, 1)


FITS = 50 * 8 * 4 + gathering_bytes(50, 8)


@pytest.mark.parametrize(("memory_bytes", "kind"), [(FITS, "memory"), (FITS - 1, "disk")])
def test_sparse_rows_that_are_mostly_full_are_kept_dense_with_any_memory(tmp_path, memory_bytes, kind):
    """Blocks of sparse rows are larger: processes with other memory would cut other lanes."""
    x = np.random.default_rng(0).random((50, 8), np.float32) + 1
    full = features_of(tmp_path / "full", sparse.csr_matrix(x))
    cache = RowCache.gather(full, np.arange(50), memory_bytes=memory_bytes, directory=tmp_path, name="rows")
    assert cache.kind == kind
    assert not cache.is_sparse
    np.testing.assert_array_equal(cache.read(0, 50), x)
    plan = plan_rows(50, 8, memory_bytes=memory_bytes, num_values=400)
    assert plan.written_bytes == (x.nbytes if kind == "disk" else 0)


def test_rows_can_be_made_of_what_is_in_memory(x):
    assert RowCache.from_array(x.astype(np.float64)).read(0, 3).dtype == np.float32
    np.testing.assert_array_equal(RowCache.from_array(np.asfortranarray(x)).read(4, 9), x[4:9])
    assert RowCache.from_array(x).read(0, 5).base is not None
    half = RowCache.from_array(x.astype(np.float16))
    assert half.held_bytes == x.nbytes // 2
    assert half.read(0, 5).dtype == np.float32
    with pytest.raises(UsageError, match="shape"):
        RowCache.from_array(np.zeros(3))
    with pytest.raises(UsageError, match="stop"):
        RowCache.from_array(x).read(0, NUM_ROWS + 1)


@pytest.mark.parametrize("bad", [[-1], [NUM_ROWS], [0.5]])
def test_ids_outside_the_features_are_refused(features, tmp_path, bad):
    for kind in features.values():
        with pytest.raises(UsageError):
            RowCache.gather(kind, np.array(bad), memory_bytes=HUGE, directory=tmp_path, name="rows")


def test_pieces_are_told_to_whoever_listens(features, ids, tmp_path, monkeypatch):
    monkeypatch.setattr(row_sources, "PIECE_BYTES", 100 * 4 * NUM_FEATURES)
    for memory_bytes in (HUGE, 0):
        events = []
        RowCache.gather(
            features["dense"], ids, memory_bytes=memory_bytes, directory=tmp_path, name="r", on_event=events.append
        )
        assert events[0] == StageStarted(rows.STAGE, ids.size, "rows")
        assert [event.done for event in events[1:] if isinstance(event, BlockFinished)] == [100, 200, 300, 333]


# --- files


def gather_file(features, ids, tmp_path, identity="store 1", kind="dense"):
    return RowCache.gather(features[kind], ids, memory_bytes=0, directory=tmp_path, name="r", identity=identity)


def written_at(tmp_path):
    return (tmp_path / "r.rows").stat().st_mtime_ns


def test_a_file_is_used_again_by_the_same_rows_only(features, ids, tmp_path):
    gather_file(features, ids, tmp_path)
    first = written_at(tmp_path)
    gather_file(features, ids, tmp_path)
    assert written_at(tmp_path) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "r.rows"]
    for other in ({"identity": "store 2"}, {"ids": ids[::-1]}, {"ids": ids[:-1]}, {"identity": ""}):
        before = written_at(tmp_path)
        cache = gather_file(features, **{"ids": ids, "tmp_path": tmp_path, **other})
        assert written_at(tmp_path) > before, other
        assert cache.num_rows == len(other.get("ids", ids))


@pytest.mark.parametrize("damage", ["cut", "changed", "no record", "broken record", "old version"])
def test_a_damaged_file_is_written_anew(features, ids, tmp_path, x, damage):
    gather_file(features, ids, tmp_path)
    path, record = tmp_path / "r.rows", tmp_path / "r.json"
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[:-4])
    elif damage == "changed":
        path.write_bytes(content[:100] + b"\xff" + content[101:])
    elif damage == "no record":
        record.unlink()
    elif damage == "broken record":
        record.write_text("{")
    else:
        record.write_text(json.dumps({**json.loads(record.read_text()), "version": 0}))
    np.testing.assert_array_equal(gather_file(features, ids, tmp_path).read(0, ids.size), (x + 1)[ids])
    assert path.read_bytes() == content


def test_a_leftover_of_a_killed_writer_is_replaced(features, ids, tmp_path, x):
    (tmp_path / ".r.rows.partial").write_bytes(b"half")
    np.testing.assert_array_equal(gather_file(features, ids, tmp_path).read(0, ids.size), (x + 1)[ids])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "r.rows"]


def test_a_failing_source_leaves_no_file(features, ids, tmp_path, monkeypatch):
    def fail(*_, **__):
        yield np.zeros((1, NUM_FEATURES), np.float32)
        raise StorageError("no more")

    monkeypatch.setattr(rows, "gather_pieces", fail)
    with pytest.raises(StorageError, match="no more"):
        gather_file(features, ids, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_file_that_becomes_shorter_is_noticed(features, ids, tmp_path):
    cache = gather_file(features, ids, tmp_path)
    with (tmp_path / "r.rows").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(StorageError, match="shorter"):
        cache.read(0, ids.size)


# --- memory


@pytest.mark.parametrize("memory_bytes", [HUGE, 0], ids=["memory", "disk"])
def test_gathering_stays_within_its_plan(tmp_path, memory_bytes):
    num_rows, num_features = 120_000, 200
    source = np.memmap(tmp_path / "x", np.float32, mode="w+", shape=(num_rows, num_features))
    source[:] = 1
    dense = features_of(tmp_path / "store", source)
    ids = np.arange(0, num_rows, 2)
    RowCache.gather(dense, ids[:10], memory_bytes=memory_bytes, directory=tmp_path, name="warm")
    plan = plan_rows(ids.size, num_features, memory_bytes=memory_bytes)
    before = own_memory_bytes()
    with PeakSampler() as sampler:
        cache = RowCache.gather(dense, ids, memory_bytes=memory_bytes, directory=tmp_path, name="rows")
        for _ in cache.stream(1000):
            pass
    assert sampler.peak_bytes - before <= 1.1 * plan.host_bytes + 4 * MIB
    held = ids.size * num_features * 4 if memory_bytes else 0
    assert cache.held_bytes == held
    assert plan.host_bytes < held + 64 * MIB
    assert plan.written_bytes == (0 if memory_bytes else ids.size * num_features * 4)


def test_the_plan_of_sparse_rows_takes_the_smaller_of_both_forms():
    assert plan_rows(1000, 5000, memory_bytes=HUGE, num_values=10_000).read_bytes == 8 * 1001 + 80_000
    assert plan_rows(1000, 10, memory_bytes=HUGE, num_values=10_000).read_bytes == 40_000
    assert plan_rows(1000, 5000, memory_bytes=0, num_values=10_000).host_bytes == 32_000

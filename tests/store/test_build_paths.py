"""The external build takes other paths where memory is short, and every path ends in the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from ecgl_scale.base.buffers import ReusableBytes
from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.store.build import MemoryShares, build_store
from ecgl_scale.store.edges import sort as edge_sort
from ecgl_scale.store.edges import tiles as tile_write
from ecgl_scale.store.edges import write as edge_write
from ecgl_scale.store.edges.plan import MAX_KEY_BITS, BuildOptions, EdgePlan
from ecgl_scale.store.edges.sort import SortWorkspace, sorted_chunks
from ecgl_scale.store.edges.spill import KeySpill, key_array
from ecgl_scale.store.edges.tiles import write_tiles
from ecgl_scale.store.ragged import Ragged, read_ragged
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.units import MIB
from tests import naive
from tests.kernels.lazy import PAST_INT32, lazy_array
from tests.resources import at
from tests.store.graphs import KEEP_ALL, ROOMY, build_with, bytes_of, random_edges

TINY_WORKSPACE_BYTES = 128 * 1024


@pytest.fixture
def tiny_buffers(monkeypatch):
    """Let a small graph meet the paths of a huge one: cut buckets, scratch rows, tiles in several passes."""
    monkeypatch.setattr(edge_sort, "MIN_WORKSPACE_BYTES", TINY_WORKSPACE_BYTES)
    monkeypatch.setattr(edge_write, "MIN_TILE_BUFFER_BYTES", 32 * 1024)


def graph_shapes():
    star = np.stack([np.zeros(20_000, int), np.arange(20_000)])
    return {
        "random": (100_000, random_edges(100_000, 24_000)),
        "star out": (20_000, star),
        "star in": (20_000, star[::-1]),
        "one pair": (70_000, np.tile([[5], [66_000]], 20_000)),
        "one loop": (3, np.full((2, 20_000), 2)),
        "one node": (1, np.zeros((2, 20_000), int)),
        "last node": (66_000, np.stack([np.arange(66_000), np.full(66_000, 65_999)])),
        "dense": (64, np.random.default_rng(3).integers(0, 64, (2, 30_000))),
        "short": (600, random_edges(600, 8000)),
    }


@pytest.mark.parametrize("options", [BuildOptions(), BuildOptions(True, True, "keep")], ids=str)
@pytest.mark.parametrize("shape", graph_shapes())
def test_scratch_files_and_cut_buckets_change_no_byte(tmp_path, monkeypatch, tiny_buffers, shape, options):
    num_nodes, edge_index = graph_shapes()[shape]
    build_with(monkeypatch, tmp_path / "roomy", edge_index, num_nodes, options, ROOMY)
    wanted = bytes_of(tmp_path / "roomy")
    for number, shares in enumerate(
        [
            MemoryShares(threads=1, block_edges=40_000, kept_bytes=0, share_bytes=0),
            MemoryShares(threads=2, block_edges=20_001, kept_bytes=100_000, share_bytes=2 * TINY_WORKSPACE_BYTES),
            MemoryShares(threads=3, block_edges=1 << 20, kept_bytes=1 << 30, share_bytes=600_000),
        ]
    ):
        path = tmp_path / str(number)
        build_with(monkeypatch, path, edge_index, num_nodes, options, shares)
        assert bytes_of(path) == wanted, shares


@pytest.mark.parametrize(
    ("shape", "paths"),
    [
        ("random", {"_read_slice", "read_ragged", "_pack_through_scratch"}),
        ("one pair", {"_read_slice", "_cut_bucket", "full", "read_ragged", "_pack_heavy_range"}),
        ("star in", {"_read_slice", "_cut_bucket", "read_ragged", "_pack_heavy_range"}),
        ("dense", {"_read_slice", "_cut_bucket", "read_ragged", "_pack_heavy_range"}),
    ],
)
def test_tight_shares_really_take_the_other_paths(tmp_path, monkeypatch, tiny_buffers, shape, paths):
    taken = set()
    for owner, name in [
        (KeySpill, "_read_slice"),
        (edge_sort, "_cut_bucket"),
        (np, "full"),
        (edge_write, "read_ragged"),
        (tile_write, "_pack_through_scratch"),
        (tile_write, "_pack_heavy_range"),
    ]:
        original = getattr(owner, name)

        def watched(*args, original=original, name=name, **settings):
            taken.add(name)
            return original(*args, **settings)

        monkeypatch.setattr(owner, name, watched)
    num_nodes, edge_index = graph_shapes()[shape]
    shares = MemoryShares(threads=1, block_edges=20_001, kept_bytes=0, share_bytes=0)
    build_with(monkeypatch, tmp_path / "store", edge_index, num_nodes, KEEP_ALL, shares)
    assert paths <= taken


def test_many_small_segments_on_disk_change_no_byte_and_take_no_longer(tmp_path, monkeypatch, tiny_buffers):
    # Their slices, each read in whole sectors, exceed the workspace together: cutting must lessen them.
    num_nodes, edge_index = graph_shapes()["short"]
    cuts = []
    original = edge_sort._cut_bucket
    monkeypatch.setattr(edge_sort, "_cut_bucket", lambda *args: cuts.append(args[2]) or original(*args))
    build_with(monkeypatch, tmp_path / "roomy", edge_index, num_nodes, KEEP_ALL, ROOMY)
    assert cuts == []
    shares = MemoryShares(threads=1, block_edges=200, kept_bytes=0, share_bytes=0)
    build_with(monkeypatch, tmp_path / "tight", edge_index, num_nodes, KEEP_ALL, shares)
    assert bytes_of(tmp_path / "tight") == bytes_of(tmp_path / "roomy")
    assert len(cuts) == EdgePlan.of(num_nodes).num_buckets


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_and_budgets_change_no_byte(tmp_path, threads):
    edge_index = random_edges(300_000, 50_000)
    features = np.arange(600_000, dtype=np.float32).reshape(-1, 2)
    source = array_source(edge_index, x=features, y=np.arange(300_000) % 7)
    build_store(source, tmp_path / "default", at(), options=BuildOptions(symmetrise=True))
    wanted = bytes_of(tmp_path / "default")
    held = own_memory_bytes()
    for spare in (100 * MIB, 200 * MIB, 2048 * MIB):
        path = tmp_path / str(spare)
        build_store(source, path, at(memory=held + spare, threads=threads), options=BuildOptions(symmetrise=True))
        assert bytes_of(path) == wanted
    assert sorted(wanted)[:2] == ["edges/00000.arrow", "edges/00001.arrow"]


def test_the_order_of_the_edges_changes_no_byte(tmp_path):
    edge_index = random_edges(1000, 5000)
    shuffled = np.random.default_rng(1).permutation(edge_index, axis=1)
    build_store(array_source(edge_index, num_nodes=1000), tmp_path / "a", at(), options=KEEP_ALL)
    build_store(array_source(shuffled, num_nodes=1000), tmp_path / "b", at(), options=KEEP_ALL)
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


@pytest.mark.parametrize("max_bytes", [4, 4096, 8000, 1 << 20])
def test_tiles_are_the_same_from_any_buffer(tmp_path, max_bytes):
    num_nodes = 65_536 + 10
    edges, _, _ = naive.stored_edges(
        [*zip(*random_edges(num_nodes, 3000).tolist(), strict=True)],
        num_nodes,
        symmetrise=False,
        keep_duplicates=True,
        self_loops="keep",
    )
    indptr, indices = naive.csr_of(edges, num_nodes)
    rows = Ragged(np.array(indptr), np.array(indices, np.uint32))
    path = tmp_path / "tiles.arrow"
    written = write_tiles(path, rows, 2, memory=ReusableBytes(), max_bytes=max_bytes, metadata={})
    found = read_ragged(path, written, check_crc=True)
    tiles = naive.tiles_of(edges, num_nodes, 0, num_nodes)
    np.testing.assert_array_equal(found.offsets, np.cumsum([0] + [len(tile) for tile in tiles]))
    np.testing.assert_array_equal(found.values, [edge for tile in tiles for edge in tile])
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiles.arrow"]


@pytest.mark.parametrize("max_bytes", [4, 8, 1 << 20])
def test_tiles_are_packed_from_rows_past_two_to_the_31_and_ids_past_32_bits(tmp_path, max_bytes):
    num_nodes = 2**33
    values = lazy_array(PAST_INT32 + 4, np.uint64)
    values[PAST_INT32:] = [3, 2**32 + 1, num_nodes - 1, 2**32 + 1]
    rows = Ragged(PAST_INT32 + np.array([0, 3, 3, 4]), values)
    path = tmp_path / "tiles.arrow"
    written = write_tiles(path, rows, 2**17, memory=ReusableBytes(), max_bytes=max_bytes, metadata={})
    found = read_ragged(path, written, check_crc=True)
    assert found.values.tolist() == [3, 1, 2 << 16 | 1, 65_535]
    assert np.flatnonzero(np.diff(found.offsets)).tolist() == [0, 2**16, 2**17 - 1]


# --- sorting


def spill_of(path, segments, num_buckets, allowance_bytes):
    """A spill with the given segments: each a list of keys for every bucket."""
    spill = KeySpill(path, num_buckets, allowance_bytes=allowance_bytes)
    for buckets in segments:
        keys = key_array(ReusableBytes(), sum(len(bucket) for bucket in buckets))
        flat = [key for bucket in buckets for key in bucket]
        keys[: len(flat)] = flat
        spill.append(0, keys, np.cumsum([0] + [len(bucket) for bucket in buckets]))
    return spill


@pytest.mark.parametrize("allowance_bytes", [0, 3 * 4096, 1 << 30])
@pytest.mark.parametrize("key_bits", [1, 9, 20, 45, MAX_KEY_BITS])
@pytest.mark.parametrize("workspace_bytes", [TINY_WORKSPACE_BYTES, 200_000, 1 << 22])
def test_a_bucket_is_sorted_in_any_workspace(tmp_path, monkeypatch, allowance_bytes, key_bits, workspace_bytes):
    monkeypatch.setattr(edge_sort, "MIN_WORKSPACE_BYTES", TINY_WORKSPACE_BYTES)
    random = np.random.default_rng(key_bits)
    top = 2**key_bits - 1
    segments = [
        [random.integers(0, top, size, np.uint64, endpoint=True).tolist(), [], [top] * hub]
        for size, hub in [(5, 0), (3000, 5000), (0, 1), (2500, 700)]
    ]
    spill = spill_of(tmp_path / "keys", segments, 3, allowance_bytes)
    workspace = SortWorkspace(workspace_bytes)
    for bucket in range(3):
        chunks = [chunk.copy() for chunk in sorted_chunks(spill, bucket, key_bits, workspace, tmp_path / "cut")]
        assert all(chunk.nbytes <= max(workspace_bytes, TINY_WORKSPACE_BYTES) for chunk in chunks)
        found = np.concatenate(chunks) if chunks else np.zeros(0, np.uint64)
        wanted = sorted(key for buckets in segments for key in buckets[bucket])
        np.testing.assert_array_equal(found, np.array(wanted, np.uint64))
    assert (tmp_path / "keys").exists() == (spill.written_bytes > 0)
    spill.close()
    assert list(tmp_path.iterdir()) == []


def test_a_spill_keeps_no_more_than_its_allowance(tmp_path):
    spill = spill_of(tmp_path / "keys", [[[1]], [[2] * 600], [[3]]], 1, 2 * 4096)
    assert spill.written_bytes == 3 * 4096
    assert spill.counts.tolist() == [602]
    spill.close()


def test_a_spill_never_holds_on_to_an_array_that_a_thread_uses_again(tmp_path):
    spill = KeySpill(tmp_path / "keys", 1, allowance_bytes=10 * 4096)
    memory = ReusableBytes()
    for num_keys in [11 * 512, 0, 3]:
        assert not spill.append(0, key_array(memory, num_keys), np.array([0, num_keys]))
    spill.close()


def test_the_sort_workspace_stays_within_its_bytes():
    workspace = SortWorkspace(8 * MIB)
    random = np.random.default_rng(0)
    for num_keys in [*random.integers(1, 8 * MIB // 16, 50).tolist(), 8 * MIB // 16, 1]:
        read_bytes = int(random.integers(0, 8 * MIB - 8 * num_keys + 1))
        assert workspace.fits(num_keys, read_bytes)
        raw, out = workspace.take(num_keys, read_bytes)
        assert raw.size >= max(read_bytes, 8 * num_keys)
        assert out.size >= num_keys
        assert workspace._raw.size + workspace._sorted.size <= 8 * MIB + 2 * 4096
    assert not workspace.fits(8 * MIB // 16 + 1, 0)
    assert not workspace.fits(1, 8 * MIB)

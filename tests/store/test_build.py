"""The external build: the same store from any budget, any number of threads, any path through scratch files."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ecgl_scale.errors import DoesNotFitError, InvalidInputError, StoreExistsError, UsageError
from ecgl_scale.run.durable import ReusableBytes
from ecgl_scale.run.events import StageFinished, StageStarted, ignore_events
from ecgl_scale.run.memory import MemoryBudget, own_memory_bytes
from ecgl_scale.store import build, edge_plan, edge_sort, edge_write, tile_write
from ecgl_scale.store.build import MemoryShares, build_store
from ecgl_scale.store.edge_partition import BYTES_PER_EDGE
from ecgl_scale.store.edge_plan import MAX_KEY_BITS, MAX_NODES, BuildOptions, EdgePlan
from ecgl_scale.store.edge_sort import SortWorkspace, sorted_chunks
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.ragged import Ragged, read_ragged
from ecgl_scale.store.source import EdgeBlock
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.store.spill import KeySpill, key_array
from ecgl_scale.store.tile_write import write_tiles
from ecgl_scale.store.verify import verify_store
from ecgl_scale.units import MIB
from tests import naive
from tests.kernels.lazy import PAST_INT32, lazy_array

ALL_OPTIONS = [
    BuildOptions(symmetrise, keep_duplicates, self_loops)
    for symmetrise, keep_duplicates, self_loops in product([False, True], [False, True], ["drop", "keep", "add"])
]
KEEP_ALL = BuildOptions(keep_duplicates=True, self_loops="keep")
TINY_WORKSPACE_BYTES = 128 * 1024
ROOMY = MemoryShares(threads=2, block_edges=1 << 20, kept_bytes=256 * MIB, share_bytes=128 * MIB)


def random_edges(num_nodes, num_edges, seed=0):
    """Half of the edges among a few nodes, so that there are duplicates, loops and hubs; some nodes stay alone."""
    random = np.random.default_rng(seed)
    few = max(1, min(num_nodes, 40))
    near = random.integers(0, few, (2, num_edges // 2)) * (num_nodes // few)
    return np.concatenate([near, random.integers(0, num_nodes, (2, num_edges - num_edges // 2))], axis=1)


def build_with(monkeypatch, path, edge_index, num_nodes, options, shares):
    """Build with given memory shares instead of ones made from a budget."""
    monkeypatch.setattr(build.MemoryShares, "of", lambda *_, **__: shares)
    source = array_source(edge_index, num_nodes=num_nodes)
    manifest = build_store(source, path, options=options)
    assert sorted(entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")) == []
    return manifest


def bytes_of(store):
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def assert_holds(path, edge_index, num_nodes, options):
    """Compare rows, tiles and counts of a store with the twins."""
    store = GraphStore.open(path)
    edges, dropped_loops, dropped_duplicates = naive.stored_edges(
        [*zip(*edge_index.tolist(), strict=True)],
        num_nodes,
        symmetrise=options.symmetrise,
        keep_duplicates=options.keep_duplicates,
        self_loops=options.self_loops,
    )
    section = store.manifest.edges
    assert (section.num_edges, sum(section.block_edges)) == (len(edges), len(edges))
    assert section.input_edges == edge_index.shape[1]
    assert (section.dropped_self_loops, section.dropped_duplicates) == (dropped_loops, dropped_duplicates)
    indptr, indices = naive.csr_of(edges, num_nodes)
    for block, rows in store.edges.stream():
        wanted = np.array(indptr[block.start : block.stop + 1])
        np.testing.assert_array_equal(rows.offsets, wanted - wanted[0])
        np.testing.assert_array_equal(rows.values, indices[wanted[0] : wanted[-1]])
        tiles = naive.tiles_of(edges, num_nodes, block.start, block.stop)
        stripe = store.tiles.read(block)
        np.testing.assert_array_equal(stripe.offsets, np.cumsum([0] + [len(tile) for tile in tiles]))
        np.testing.assert_array_equal(stripe.values, [edge for tile in tiles for edge in tile])
    verify_store(path, on_event=ignore_events)
    return store


# --- what is stored


@pytest.mark.parametrize("options", ALL_OPTIONS, ids=str)
def test_a_store_holds_what_the_options_ask_for(tmp_path, options):
    for name, num_nodes, num_edges in [("small", 300, 1500), ("one-node", 1, 7), ("no-edges", 5, 0)]:
        edge_index = random_edges(num_nodes, num_edges)
        build_store(array_source(edge_index, num_nodes=num_nodes), tmp_path / name, options=options)
        assert_holds(tmp_path / name, edge_index, num_nodes, options)


@settings(max_examples=25, deadline=None)
@given(
    graph=st.integers(1, 700).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60))
    ),
    options=st.sampled_from(ALL_OPTIONS),
    dtype=st.sampled_from(["<i4", "<i8", "<u4", "<u8", "<u2", ">i8"]),
)
@example(graph=(1, []), options=BuildOptions(self_loops="add"), dtype="<i4")
def test_any_small_graph_is_stored_whatever_the_dtype_of_its_ids(tmp_path_factory, graph, options, dtype):
    num_nodes, edges = graph
    edge_index = np.array(edges, dtype).reshape(-1, 2).T
    path = tmp_path_factory.mktemp("any") / "store"
    build_store(array_source(edge_index, num_nodes=num_nodes), path, options=options)
    assert_holds(path, edge_index, num_nodes, options)


@pytest.mark.parametrize("min_blocks", [1, 32])
def test_several_ranges_and_a_short_last_one_are_stored(tmp_path, monkeypatch, min_blocks):
    # MIN_BLOCKS of 1 gives stripes several ranges wide, as a graph of millions of nodes has.
    monkeypatch.setattr(edge_plan, "MIN_BLOCKS", min_blocks)
    num_nodes = 3 * 65_536 + 1234
    edge_index = random_edges(num_nodes, 60_000)
    options = BuildOptions(symmetrise=True)
    build_with(monkeypatch, tmp_path / "store", edge_index, num_nodes, options, ROOMY)
    store = assert_holds(tmp_path / "store", edge_index, num_nodes, options)
    widths = [store.tiles.width(block) for block in store.tiles.blocks()]
    assert widths == ([1, 1, 1, 1] if min_blocks == 32 else [4])


def test_a_block_is_closed_early_by_its_edges(tmp_path, monkeypatch):
    monkeypatch.setattr(edge_plan, "MIN_BLOCKS", 1)
    monkeypatch.setattr(edge_plan, "MAX_BLOCK_EDGES", 1000)
    num_nodes = 4 * 65_536
    ends = [np.arange(size) + (start << 16) for start, size in enumerate([600, 300, 1500, 100])]
    edge_index = np.stack([np.zeros(2500, int), np.concatenate(ends)])
    build_with(monkeypatch, tmp_path / "store", edge_index, num_nodes, KEEP_ALL, ROOMY)
    store = assert_holds(tmp_path / "store", edge_index, num_nodes, KEEP_ALL)
    assert store.manifest.edges.block_edges == [900, 1500, 100]
    assert store.manifest.edges.block_starts == [0, 2 * 65_536, 3 * 65_536, num_nodes]


# --- the same bytes on every path


@pytest.fixture
def tiny_buffers(monkeypatch):
    """Let a small graph meet the paths of a huge one: cut buckets, scratch rows, tiles in several passes."""
    monkeypatch.setattr(edge_sort, "MIN_WORKSPACE_BYTES", TINY_WORKSPACE_BYTES)
    monkeypatch.setattr(edge_write, "MIN_TILE_BUFFER_BYTES", 32 * 1024)


def graph_shapes():
    star = np.stack([np.zeros(20_000, int), np.arange(20_000)])
    return {
        "random": (140_000, random_edges(140_000, 30_000)),
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

        def watched(*args, original=getattr(owner, name), name=name, **settings):
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
    build_store(source, tmp_path / "default", options=BuildOptions(symmetrise=True))
    wanted = bytes_of(tmp_path / "default")
    held = own_memory_bytes()
    for spare in (100 * MIB, 200 * MIB, 2048 * MIB):
        path = tmp_path / str(spare)
        build_store(source, path, options=BuildOptions(symmetrise=True), memory=held + spare, threads=threads)
        assert bytes_of(path) == wanted
    assert sorted(wanted)[:2] == ["edges/00000.arrow", "edges/00001.arrow"]


def test_the_order_of_the_edges_changes_no_byte(tmp_path):
    edge_index = random_edges(1000, 5000)
    shuffled = np.random.default_rng(1).permutation(edge_index, axis=1)
    build_store(array_source(edge_index, num_nodes=1000), tmp_path / "a", options=KEEP_ALL)
    build_store(array_source(shuffled, num_nodes=1000), tmp_path / "b", options=KEEP_ALL)
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
        spill.append(keys, np.cumsum([0] + [len(bucket) for bucket in buckets]))
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
        assert not spill.append(key_array(memory, num_keys), np.array([0, num_keys]))
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


# --- plans


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.integers(1, MAX_NODES), st.integers(0, 40).map(lambda bits: 1 << bits)), st.randoms())
def test_buckets_and_blocks_cover_all_rows_in_whole_ranges(num_nodes, random):
    plan = EdgePlan.of(num_nodes)
    assert num_nodes <= 2**plan.source_bits
    assert plan.source_bits + plan.bucket_bits <= MAX_KEY_BITS
    assert plan.rows_of((0, plan.num_buckets)) == (0, num_nodes)
    assert plan.rows_of((plan.num_buckets - 1, plan.num_buckets))[0] < num_nodes
    assert np.iinfo(plan.id_dtype).max >= num_nodes - 1
    if plan.num_buckets > 5000:
        return
    counts = np.array([random.choice([0, 5, 2**25, 2**33]) for _ in range(plan.num_buckets)])
    blocks = plan.cut_blocks(counts)
    assert [first for first, _ in blocks] == [0, *(last for _, last in blocks[:-1])]
    assert blocks[-1][1] == plan.num_buckets
    for first, last in blocks:
        start, stop = plan.rows_of((first, last))
        assert start % 65_536 == 0
        assert stop == num_nodes or stop % 65_536 == 0
        one_unit = stop - start <= max(65_536, 1 << plan.bucket_bits)
        assert one_unit or counts[first:last].sum() <= edge_plan.MAX_BLOCK_EDGES
        assert one_unit or stop - start <= edge_plan.MAX_BLOCK_RANGES * 65_536


@pytest.mark.parametrize("num_nodes", [0, -1, MAX_NODES + 1])
def test_a_graph_that_cannot_be_stored_has_no_plan(num_nodes):
    with pytest.raises(InvalidInputError, match="cannot be stored"):
        EdgePlan.of(num_nodes)


@settings(max_examples=200, deadline=None)
@given(spare_bytes=st.integers(88 * MIB, 1 << 42), threads=st.integers(1, 300), num_keys_hint=st.integers(0, 1 << 36))
def test_shares_never_exceed_the_budget(spare_bytes, threads, num_keys_hint):
    held = 123 * MIB
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "own_memory_bytes", lambda: held)
        budget = MemoryBudget(held + spare_bytes, "a test")
        shares = MemoryShares.of(budget, threads=threads, num_keys_hint=num_keys_hint)
    assert 1 <= shares.threads <= threads
    assert shares.block_edges >= 1
    assert shares.kept_bytes >= 0
    per_thread = max(shares.share_bytes, shares.block_edges * BYTES_PER_EDGE)
    assert held + build.RESERVE_BYTES + shares.kept_bytes + shares.threads * per_thread <= budget.total_bytes


def test_too_small_a_budget_is_refused_with_one_that_works(tmp_path, monkeypatch):
    held = own_memory_bytes()
    monkeypatch.setattr(build, "own_memory_bytes", lambda: held)
    source = array_source(random_edges(100, 300), num_nodes=100)
    with pytest.raises(DoesNotFitError, match="the build needs") as refusal:
        build_store(source, tmp_path / "store", memory="20MiB")
    assert list(tmp_path.iterdir()) == []
    named = re.search(r"--memory (\d+MiB)", str(refusal.value))
    build_store(source, tmp_path / "store", memory=named[1])
    verify_store(tmp_path / "store", on_event=ignore_events)


def test_a_short_disk_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    def no_edges(_):
        raise AssertionError("the edges were read")

    columns = {"year": np.zeros(100_000)}
    source = array_source(random_edges(100_000, 300), x=np.zeros((100_000, 50), np.float32), columns=columns)
    needed = 8 * 300 + 8 * 100_000 + 100_000 * 50 * 4 + 8 * 100_000 + build.DISK_MARGIN_BYTES
    monkeypatch.setattr(build, "free_bytes", lambda _: needed - 1)
    with pytest.raises(DoesNotFitError, match=r"the disk is short[\s\S]*larger disk"):
        build_store(replace(source, edge_loaders=no_edges), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(build, "free_bytes", lambda _: needed)
    build_store(source, tmp_path / "store")


def test_scratch_space_counts_where_the_keys_do_not_fit_in_memory(tmp_path, monkeypatch):
    held = own_memory_bytes()
    monkeypatch.setattr(build, "own_memory_bytes", lambda: held)
    monkeypatch.setattr(build, "free_bytes", lambda _: 200 * MIB)
    source = replace(array_source(random_edges(10, 30), num_nodes=10), num_edges_hint=10 * MIB)
    build_store(source, tmp_path / "roomy", memory=held + 3000 * MIB)
    with pytest.raises(DoesNotFitError, match=r"scratch 80 MiB[\s\S]*more --memory"):
        build_store(source, tmp_path / "tight", memory=held + 88 * MIB)


@pytest.mark.parametrize("hint", [0, 1, 10**7])
def test_a_wrong_hint_of_the_edges_changes_nothing(tmp_path, hint):
    edge_index = random_edges(500, 4000)
    source = array_source(edge_index, num_nodes=500)
    build_store(source, tmp_path / "right")
    build_store(replace(source, num_edges_hint=hint), tmp_path / "wrong")
    assert bytes_of(tmp_path / "wrong") == bytes_of(tmp_path / "right")
    assert_holds(tmp_path / "wrong", edge_index, 500, BuildOptions())


# --- bad input


@pytest.mark.parametrize(
    ("src", "dst", "message"),
    [
        ([0, 1, 5], [0, 1, 2], r"edge 5 -> 2 names a node that does not exist[\s\S]*row 12[\s\S]*0 to 4"),
        ([0, -1, 1], [0, 1, 2], r"edge -1 -> 1 [\s\S]*row 11"),
        ([0, 1], [0, 1, 2], r"2 sources but 3 destinations[\s\S]*row 10"),
        ([0.5, 1.0], [0.0, 1.0], r"edge ids have dtype float64"),
        ([True], [False], r"edge ids have dtype bool"),
        ([[0, 1]], [[0, 1]], r"2 dimensions"),
    ],
)
def test_bad_edges_are_refused_with_their_row_and_leave_nothing(tmp_path, src, dst, message):
    block = EdgeBlock(np.array(src), np.array(dst), "edges.csv", 10)
    source = replace(array_source([[], []], num_nodes=5), edge_loaders=lambda _: iter([lambda: block]))
    with pytest.raises(InvalidInputError, match=message) as refusal:
        build_store(source, tmp_path / "store")
    assert "edges.csv" in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_without_nodes_and_an_unknown_option_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="the graph is empty"):
        build_store(array_source([[], []], num_nodes=0), tmp_path / "store")
    with pytest.raises(UsageError, match="self_loops is 'maybe'"):
        build_store(array_source([[], []], num_nodes=3), tmp_path / "store", options=BuildOptions(self_loops="maybe"))
    assert list(tmp_path.iterdir()) == []


def test_an_old_store_is_replaced_only_when_asked_and_only_by_a_whole_one(tmp_path):
    path = tmp_path / "store"
    build_store(array_source([[0], [1]], num_nodes=2), path)
    old = bytes_of(path)
    with pytest.raises(StoreExistsError):
        build_store(array_source([[1], [0]], num_nodes=2), path)
    with pytest.raises(InvalidInputError):
        build_store(array_source([[1], [9]], num_nodes=2), path, overwrite=True)
    assert bytes_of(path) == old
    build_store(array_source([[1], [0]], num_nodes=2), path, overwrite=True)
    assert GraphStore.open(path).to_edge_index().tolist() == [[1], [0]]
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


def test_events_tell_each_stage_and_its_end(tmp_path):
    events = []
    source = array_source(random_edges(50, 100), x=np.ones((50, 2), np.float32), y=np.zeros(50, int))
    build_store(source, tmp_path / "store", on_event=events.append)
    stages = ["partition edges", "write rows and tiles", "write features", "write node columns"]
    assert [event.stage for event in events if isinstance(event, StageStarted)] == stages
    assert [event.stage for event in events if isinstance(event, StageFinished)] == stages

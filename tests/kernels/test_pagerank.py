"""A sweep adds each edge once, wherever the edges are cut into pieces; the vector work between sweeps is exact."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ecgl_kernels.pagerank import DANGLING, L1, L2, TOTAL, finish_range, spread_ranks, sweep_tiles
from tests import naive
from tests.kernels.lazy import PAST_INT32

SIZE = 65_536


def sweep(tiles, width, contributions, cuts=()):
    """The sums of a stripe, its edges given in pieces that end at ``cuts``."""
    offsets = np.cumsum([0] + [len(tile) for tile in tiles])
    packed = np.array([edge for tile in tiles for edge in tile], np.uint32)
    sums = np.zeros(width * SIZE)
    bounds = [0, *sorted(cut % (packed.size + 1) for cut in cuts), packed.size]
    for first, last in pairwise(bounds):
        sweep_tiles(packed[first:last], first, offsets, width, contributions, sums)
    return sums


@st.composite
def stripes(draw):
    """Edges into a stripe of up to three ranges from up to three ranges; many of them into a few rows."""
    num_nodes = draw(st.sampled_from([1, 7, SIZE, SIZE + 1, 2 * SIZE + 9]))
    near = st.integers(0, min(3, num_nodes - 1))
    ids = st.one_of(near, st.integers(0, num_nodes - 1), st.just(num_nodes - 1))
    return num_nodes, draw(st.lists(st.tuples(ids, ids), max_size=60))


@settings(max_examples=50)
@given(stripe=stripes(), dtype=st.sampled_from([np.float32, np.float64]), cuts=st.lists(st.integers(0, 60), max_size=6))
@example(stripe=(1, []), dtype=np.float64, cuts=[])
@example(stripe=(SIZE + 1, [(SIZE, 0)] * 9), dtype=np.float64, cuts=[0, 4, 4, 9])
def test_a_sweep_adds_every_edge_once_however_the_edges_are_cut(stripe, dtype, cuts):
    num_nodes, edges = stripe
    width = -(-num_nodes // SIZE)
    tiles = naive.tiles_of(edges, num_nodes, 0, num_nodes)
    contributions = np.random.default_rng(0).random(width * SIZE).astype(dtype)
    given_ = {source: float(contributions[source]) for source, _ in edges}
    wanted = naive.sweep_sums(tiles, width, given_)
    for pieces in ([], cuts):
        sums = sweep(tiles, width, contributions, pieces)
        assert np.flatnonzero(sums).tolist() == sorted(wanted)
        for row, value in wanted.items():
            assert math.isclose(sums[row], value, rel_tol=1e-14)


def test_a_long_tile_is_swept_to_its_last_edge_whatever_its_length():
    contributions = np.ones(SIZE)
    for length in [*range(1, 18), 1000, 4099]:
        tile = (np.arange(length) // 3 << 16).tolist()
        sums = sweep([tile], 1, contributions, [length // 2, length // 2 + 1])
        assert sums.sum() == length
        np.testing.assert_array_equal(sums[: -(-length // 3)], np.bincount(np.arange(length) // 3))


def test_a_stripe_of_some_of_the_ranges_takes_edges_from_all_of_them():
    num_nodes = 4 * SIZE
    random = np.random.default_rng(3)
    sources, rows = random.integers(0, num_nodes, 500), random.integers(SIZE, 3 * SIZE, 500)
    edges = [*zip(sources.tolist(), rows.tolist(), strict=True)]
    contributions = random.random(num_nodes)
    tiles = naive.tiles_of(edges, num_nodes, SIZE, 3 * SIZE)
    wanted = np.zeros(2 * SIZE)
    np.add.at(wanted, rows - SIZE, contributions[sources])
    np.testing.assert_allclose(sweep(tiles, 2, contributions, [77, 78, 300]), wanted, rtol=1e-14)


def test_a_sweep_adds_to_what_is_there():
    sums = np.full(SIZE, 2.0)
    sweep_tiles(np.array([5 << 16 | 1], np.uint32), 0, np.array([0, 1]), 1, np.full(SIZE, 0.5), sums)
    assert (sums[5], sums[4]) == (2.5, 2.0)


def test_the_same_sweep_gives_the_same_bits():
    random = np.random.default_rng(8)
    tile = np.sort(random.integers(0, 5, 5000) << 16 | random.integers(0, SIZE, 5000)).tolist()
    contributions = random.random(SIZE)
    first = sweep([tile], 1, contributions)
    for _ in range(3):
        assert sweep([tile], 1, contributions).tobytes() == first.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_offsets_and_first_edge_pass_two_to_the_31(dtype):
    # Tile (0, 0) has more edges than an int32 counts; the pieces lie at its end and in the tiles after it.
    offsets = np.array([0, PAST_INT32, PAST_INT32, PAST_INT32 + 2, 2 * PAST_INT32])
    contributions = np.zeros(2 * SIZE, dtype)
    contributions[[7, SIZE + 8]] = [0.25, 0.5]
    sums = np.zeros(2 * SIZE)
    piece = np.array([1 << 16 | 7, 3 << 16 | 7, 3 << 16 | 8, 3 << 16 | 8, 4 << 16 | 8], np.uint32)
    sweep_tiles(piece, PAST_INT32 - 2, offsets, 2, contributions, sums)
    assert {int(row): sums[row] for row in np.flatnonzero(sums)} == {1: 0.25, 3: 1.25, SIZE + 4: 0.5}


@settings(max_examples=50)
@given(
    nodes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4)), min_size=1, max_size=30),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_a_node_spreads_its_rank_over_its_edges_and_a_dangling_one_keeps_it(nodes, dtype):
    ranks, degrees = np.array([rank for rank, _ in nodes]), np.array([degree for _, degree in nodes], np.uint32)
    contributions = np.full(len(nodes), 9, dtype)
    dangling = spread_ranks(ranks, degrees, contributions)
    assert math.isclose(dangling, math.fsum(rank for rank, degree in nodes if degree == 0), rel_tol=1e-12)
    wanted = [rank / degree if degree else 0.0 for rank, degree in nodes]
    assert contributions.tolist() == np.array(wanted).astype(dtype).tolist()


def test_degrees_past_an_int32_are_not_negative():
    contributions = np.zeros(1)
    spread_ranks(np.ones(1), np.array([2**32 - 1], np.uint32), contributions)
    assert contributions[0] == 1 / (2**32 - 1)


@settings(max_examples=60)
@given(
    rows=st.lists(
        st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2)), min_size=1, max_size=30
    ),
    with_reset=st.booleans(),
    numbers=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_new_ranks_and_each_partial_sum_are_as_by_hand(rows, with_reset, numbers, dtype):
    damping, constant, reset_share = numbers
    ranks, sums, reset = (np.array([row[i] for row in rows]) for i in range(3))
    degrees = np.array([row[3] for row in rows], np.uint32)
    before = ranks.copy()
    sums = sums.astype(dtype)
    wanted = damping * sums.astype(np.float64) + constant + (reset_share * reset if with_reset else 0.0)
    partial = np.full(4, 99.0)
    contributions = np.zeros(len(rows), dtype)
    finish_range(ranks, sums, reset if with_reset else np.empty(0), degrees, contributions, numbers, partial)
    np.testing.assert_allclose(ranks, wanted, rtol=1e-14, atol=1e-300)
    assert not sums.any()
    spread = np.zeros(len(rows), dtype)
    assert spread_ranks(ranks, degrees, spread) == partial[DANGLING]
    assert spread.tobytes() == contributions.tobytes()
    change = ranks - before
    assert math.isclose(partial[L1], math.fsum(abs(change)), rel_tol=1e-12)
    assert math.isclose(partial[L2], math.fsum(change * change), rel_tol=1e-12)
    assert math.isclose(partial[DANGLING], math.fsum(ranks[degrees == 0]), rel_tol=1e-12)
    assert math.isclose(partial[TOTAL], math.fsum(ranks), rel_tol=1e-12)


def test_the_twin_gives_the_ranks_of_a_star_known_by_hand():
    # Two leaves point at a hub that points nowhere: h = d (2 l + h / 3) + (1 - d) / 3, l = d h / 3 + (1 - d) / 3.
    hub, leaf, other = naive.pagerank([(1, 0), (2, 0)], 3)
    assert leaf == other
    assert math.isclose(leaf, 0.85 * hub / 3 + 0.05, rel_tol=1e-12)
    assert math.isclose(hub, 0.85 * (2 * leaf + hub / 3) + 0.05, rel_tol=1e-12)
    assert math.isclose(hub + 2 * leaf, 1.0, rel_tol=1e-12)

"""Rows become packed tiles, range by range; the checker of tiles sees every kind of fault."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_kernels.tiles import count_tiles, find_bad_tile, scatter_tiles
from tests import naive
from tests.kernels.lazy import PAST_INT32, lazy_array

SIZE = 65_536


def pack(indptr, indices, num_ranges, windows):
    """Pack one destination range's rows, some source ranges at a time; the tiles as lists."""
    counts = np.zeros(num_ranges, np.int64)
    count_tiles(indices[indptr[0] : indptr[-1]], counts)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    packed = np.zeros(offsets[-1], np.uint32)
    for first, last in windows:
        scatter_tiles(indptr, indices, first, last, offsets[:-1].copy(), packed)
    return [packed[offsets[k] : offsets[k + 1]].tolist() for k in range(num_ranges)]


@st.composite
def range_rows(draw):
    """Rows of one destination range: few rows are not empty, sources lie in up to four ranges."""
    num_rows = draw(st.sampled_from([1, 3, 70, SIZE]))
    num_nodes = draw(st.sampled_from([num_rows, SIZE, SIZE + 1, 3 * SIZE + 5]))
    num_nodes = max(num_nodes, num_rows)
    rows = st.one_of(st.integers(0, num_rows - 1), st.just(num_rows - 1))
    sources = st.one_of(st.integers(0, num_nodes - 1), st.just(num_nodes - 1), st.integers(0, min(2, num_nodes - 1)))
    return num_rows, num_nodes, draw(st.lists(st.tuples(sources, rows), max_size=40))


@settings(max_examples=60, deadline=None)
@given(graph=range_rows(), dtype=st.sampled_from([np.uint32, np.uint64]), cut=st.integers(0, 4))
def test_tiles_hold_the_rows_sorted_however_the_source_ranges_are_cut(graph, dtype, cut):
    num_rows, num_nodes, edges = graph
    edges = sorted(edges, key=lambda edge: (edge[1], edge[0]))
    num_ranges = -(-num_nodes // SIZE)
    indptr, indices = (np.array(part) for part in naive.csr_of(edges, num_rows))
    cut = min(cut, num_ranges)
    found = pack(indptr, indices.astype(dtype), num_ranges, [(0, cut), (cut, num_ranges)])
    assert found == naive.tiles_of(edges, num_nodes, 0, num_rows)
    bounds = np.cumsum([0] + [len(tile) for tile in found])
    pairs = np.column_stack([bounds[:-1], bounds[1:]]).ravel()
    flat = np.array([edge for tile in found for edge in tile], np.uint32)
    assert find_bad_tile(flat, pairs, num_rows, num_nodes, True) == -1


def test_sources_past_32_bits_are_packed():
    num_nodes = 2**33
    edges = [(5, 0), (2**32 + 9, 0), (num_nodes - 1, 0), (2**32 + 9, 3)]
    indptr, indices = (np.array(part) for part in naive.csr_of(edges, 4))
    tiles = pack(indptr, indices.astype(np.uint64), num_nodes // SIZE, [(0, 2**16), (2**16, 2**17)])
    assert {k: tile for k, tile in enumerate(tiles) if tile} == {
        0: [5],
        2**16: [9, 3 << 16 | 9],
        2**17 - 1: [SIZE - 1],
    }


def test_offsets_and_cursors_pass_two_to_the_31():
    indices = lazy_array(PAST_INT32 + 10, np.uint32)
    indices[PAST_INT32 : PAST_INT32 + 3] = [4, SIZE + 1, SIZE + 2]
    indptr = np.array([PAST_INT32, PAST_INT32 + 2, PAST_INT32 + 3])
    packed = lazy_array(2 * PAST_INT32, np.uint32)
    cursors = np.array([PAST_INT32, PAST_INT32 + 1])
    scatter_tiles(indptr, indices, 0, 2, cursors, packed)
    assert packed[PAST_INT32 - 1 : PAST_INT32 + 4].tolist() == [0, 4, 1, 1 << 16 | 2, 0]
    assert cursors.tolist() == [PAST_INT32 + 1, PAST_INT32 + 3]
    bounds = np.array([PAST_INT32, PAST_INT32 + 1, PAST_INT32 + 1, PAST_INT32 + 3])
    assert find_bad_tile(packed, bounds, 2, SIZE + 3, False) == -1
    assert find_bad_tile(packed, bounds, 2, SIZE + 2, False) == 1
    assert find_bad_tile(packed, bounds, 1, SIZE + 3, False) == 1


ROW = 1 << 16


@pytest.mark.parametrize(
    ("packed", "bounds", "bad_tile"),
    [
        ([0, ROW | 2, 0, ROW], [0, 2, 2, 4], -1),
        ([ROW | 2, 0, 0, ROW], [0, 2, 2, 4], 0),
        ([0, ROW | 2, ROW, 0], [0, 2, 2, 4], 1),
        ([0, 0, 0, ROW], [0, 2, 2, 4], 0),
        ([0, ROW | 2, 0, 3 * ROW], [0, 2, 2, 4], 1),
        ([0, ROW | 2, 0, 7], [0, 2, 2, 4], 1),
        ([0, ROW | 2, 0, ROW], [0, 2, 2, 5], 1),
        ([0, ROW | 2, 0, ROW], [-1, 2, 2, 4], 0),
        ([0, ROW | 2, 0, ROW], [0, 2, 4, 2], 1),
        ([0, ROW | 2, 0, ROW], [0, 2**62, 2**62, 4], 0),
    ],
)
def test_each_kind_of_bad_tile_is_found(packed, bounds, bad_tile):
    assert find_bad_tile(np.array(packed, np.uint32), np.array(bounds), 3, SIZE + 5, False) == bad_tile


@settings(max_examples=100, deadline=None)
@given(
    tiles=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4).map(
            lambda tile: [row << 16 | source for row, source in tile]
        ),
        min_size=1,
        max_size=3,
    ),
    sort=st.booleans(),
    allow_duplicates=st.booleans(),
    num_rows=st.integers(1, 4),
    spare_sources=st.integers(1, 4),
)
def test_the_checker_agrees_with_its_twin(tiles, sort, allow_duplicates, num_rows, spare_sources):
    tiles = [sorted(tile) for tile in tiles] if sort else tiles
    num_sources = (len(tiles) - 1) * SIZE + spare_sources
    bounds = np.cumsum([0] + [len(tile) for tile in tiles])
    pairs = np.column_stack([bounds[:-1], bounds[1:]]).ravel()
    packed = np.array([edge for tile in tiles for edge in tile], np.uint32)
    found = find_bad_tile(packed, pairs, num_rows, num_sources, allow_duplicates)
    assert found == naive.first_bad_tile(tiles, num_rows, num_sources, allow_duplicates=allow_duplicates)

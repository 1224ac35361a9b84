"""Keys at known rows: repeats and known edges go, the rest is put in tile order and comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_kernels.arrivals import drop_known_pairs, drop_known_rows, drop_repeats, split_tile_keys, to_tile_order

NO_KEY = np.uint64(2**64 - 1)
SOURCE_BITS = 18
NUM_ROWS = 6
edges = st.lists(
    st.tuples(
        st.integers(0, NUM_ROWS - 1),
        st.one_of(st.integers(0, 3), st.integers(65_534, 65_538), st.integers(0, 2**SOURCE_BITS - 1)),
    ),
    max_size=30,
)


def keys_of(pairs):
    return np.array([row << SOURCE_BITS | source for row, source in pairs], np.uint64)


def pairs_of(keys):
    return [(int(key) >> SOURCE_BITS, int(key) & (1 << SOURCE_BITS) - 1) for key in keys]


def tile_order(pairs):
    return sorted(pairs, key=lambda pair: (pair[1] >> 16, *pair))


@settings(max_examples=80, deadline=None)
@given(edges)
def test_of_equal_keys_the_first_stays(pairs):
    keys = keys_of(sorted(pairs))
    assert pairs_of(keys[: drop_repeats(keys, NO_KEY)]) == sorted(set(pairs))


def test_a_repeat_of_the_last_key_before_goes_too():
    keys = keys_of([(1, 5), (1, 6)])
    assert pairs_of(keys[: drop_repeats(keys, keys[0])]) == [(1, 6)]


@settings(max_examples=80, deadline=None)
@given(edges, edges, st.integers(0, 3), st.sampled_from([np.uint32, np.uint64]))
def test_keys_of_known_rows_go(arriving, known, first_row, dtype):
    """The last row of a key may be one that the rows do not have yet."""
    rows = [sorted(source for row, source in set(known) if row == wanted) for wanted in range(NUM_ROWS - 1)]
    offsets = np.cumsum([0] * (first_row + 1) + [len(row) for row in rows])
    values = np.array([source for row in rows for source in row], dtype)
    keys = keys_of(sorted(set(arriving)))
    kept = drop_known_rows(keys, SOURCE_BITS, first_row, offsets, values)
    there = {(row, source) for row, sources in enumerate(rows) for source in sources}
    assert pairs_of(keys[:kept]) == sorted(set(arriving) - there)


@settings(max_examples=80, deadline=None)
@given(edges, edges, st.integers(0, 2**20), st.sampled_from([np.uint32, np.uint64]))
def test_keys_of_known_pairs_go(arriving, known, first_node, dtype):
    ordered = tile_order(set(known))
    dst = np.array([first_node + row for row, _ in ordered], dtype)
    src = np.array([source for _, source in ordered], dtype)
    keys = keys_of(sorted(set(arriving)))
    kept = drop_known_pairs(keys, SOURCE_BITS, first_node, dst, src)
    assert pairs_of(keys[:kept]) == sorted(set(arriving) - set(known))


@pytest.mark.parametrize("offsets", [[0, 99], [-5, 1], [3, 1], [2**62, 2**62]])
def test_offsets_of_a_damaged_file_are_not_followed(offsets):
    keys = keys_of([(0, 7)])
    assert drop_known_rows(keys, SOURCE_BITS, 0, np.array(offsets), np.array([1], np.uint32)) == 1


@settings(max_examples=80, deadline=None)
@given(edges, st.integers(0, 9), st.integers(4, 20), st.sampled_from([np.uint32, np.uint64]))
def test_keys_in_tile_order_sort_as_tiles_do_and_give_their_edges_back(pairs, first_row, row_bits, dtype):
    keys = keys_of(pairs)
    to_tile_order(keys, SOURCE_BITS, first_row, row_bits)
    keys.sort()
    dst, src = np.empty((2, keys.size), dtype)
    split_tile_keys(keys, row_bits, 131_072, dst, src)
    wanted = [(131_072 + first_row + row, source) for row, source in tile_order(pairs)]
    assert [*zip(dst.tolist(), src.tolist(), strict=True)] == wanted


def test_the_largest_ids_keep_their_bits():
    source_bits, row_bits = 40, 20
    keys = np.array([(2**16 - 1) << source_bits | 2**40 - 1], np.uint64)
    first_row = 2**20 - 2**16
    to_tile_order(keys, source_bits, first_row, row_bits)
    dst, src = np.empty((2, 1), np.uint64)
    split_tile_keys(keys, row_bits, 2**39, dst, src)
    assert (dst.tolist(), src.tolist()) == ([2**39 + 2**20 - 1], [2**40 - 1])

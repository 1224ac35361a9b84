"""Edges that came later: pairs are checked, become rows, are merged into rows and swept, as plain loops do it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecgl_kernels.older import (
    UNIT_EDGES,
    count_rows,
    find_bad_pair,
    merge_range,
    merge_some,
    scatter_rows,
    sort_rows,
    sweep_pairs,
)
from tests import naive

FIRST_ROW, NUM_ROWS, NUM_NODES = 7, 12, 200_000


def in_tile_order(pairs):
    return sorted(pairs, key=lambda pair: (pair[1] >> 16, *pair))


pairs_of_a_block = st.lists(
    st.tuples(st.integers(FIRST_ROW, FIRST_ROW + NUM_ROWS - 1), st.integers(0, NUM_NODES - 1)), max_size=40
)
blocks = st.tuples(pairs_of_a_block, st.lists(pairs_of_a_block, min_size=1, max_size=3))


def columns(pairs, dtype):
    ordered = np.array(in_tile_order(pairs), dtype).reshape(-1, 2)
    return np.ascontiguousarray(ordered[:, 0]), np.ascontiguousarray(ordered[:, 1])


def rows_of(pairs):
    own = sorted((src, dst - FIRST_ROW) for dst, src in pairs)
    indptr, indices = naive.csr_of(sorted(own, key=lambda edge: (edge[1], edge[0])), NUM_ROWS)
    return np.array(indptr), indices


def older_rows(pieces, dtype):
    """What the store makes of the pairs of several generations, by the kernels."""
    cursors = np.zeros(NUM_ROWS, np.int64)
    for dst, _ in pieces:
        count_rows(dst, FIRST_ROW, cursors)
    touched = np.flatnonzero(cursors)
    starts = np.concatenate([[0], np.cumsum(cursors[touched])])
    cursors[touched] = starts[:-1]
    sources = np.empty(int(starts[-1]), dtype)
    for dst, src in pieces:
        scatter_rows(dst, src, FIRST_ROW, cursors, sources)
    sort_rows(starts, sources)
    return touched, starts, sources


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@given(block=blocks, first=st.integers(0, NUM_ROWS), length=st.integers(0, NUM_ROWS))
def test_merged_rows_are_all_edges_sorted_whichever_rows_are_asked_for(dtype, block, first, length):
    own, later = block
    indptr, indices = rows_of(own)
    indices = np.array(indices, np.uint32)  # ids of an older, smaller graph may be narrower
    older = older_rows([columns(piece, dtype) for piece in later], dtype)
    wanted_indptr, wanted = rows_of([*own, *(pair for piece in later for pair in piece)])
    stop = min(first + length, NUM_ROWS)
    here = slice(wanted_indptr[first], wanted_indptr[stop])
    offsets, values = np.zeros(stop - first + 1, np.int64), np.empty(here.stop - here.start, dtype)
    merge_range(indptr, indices, older, first, stop, offsets, values)
    np.testing.assert_array_equal(offsets, wanted_indptr[first : stop + 1] - wanted_indptr[first])
    np.testing.assert_array_equal(values, wanted[here])
    some = np.random.default_rng(first).permutation(NUM_ROWS)[: length + 1]
    counts = (wanted_indptr[1:] - wanted_indptr[:-1])[some]
    offsets, values = np.zeros(some.size + 1, np.int64), np.empty(counts.sum(), dtype)
    merge_some(indptr, indices, older, some, offsets, values)
    np.testing.assert_array_equal(offsets, np.concatenate([[0], np.cumsum(counts)]))
    expected = [source for row in some for source in wanted[wanted_indptr[row] : wanted_indptr[row + 1]]]
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("num_edges", [0, 1, 3, UNIT_EDGES, UNIT_EDGES + 5])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_sweep_adds_the_contribution_of_every_source(num_edges, precision):
    random = np.random.default_rng(num_edges)
    pairs = [*zip(random.integers(FIRST_ROW, 19, num_edges), random.integers(0, 99, num_edges), strict=True)]
    contributions = random.random(99).astype(precision)
    sums = np.zeros(NUM_ROWS, precision)
    sweep_pairs(*columns(pairs, np.uint32), FIRST_ROW, contributions, sums)
    wanted = np.zeros(NUM_ROWS)
    for dst, src in pairs:
        wanted[dst - FIRST_ROW] += contributions[src]
    np.testing.assert_allclose(sums, wanted, rtol=1e-12 if precision == "float64" else 1e-3)


def find_bad(pairs, *, allow_duplicates=False, dtype=np.uint32):
    dst, src = (np.array(column, dtype) for column in zip(*pairs, strict=True))
    return find_bad_pair(dst, src, FIRST_ROW, FIRST_ROW + NUM_ROWS, NUM_NODES, allow_duplicates)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@given(pairs=pairs_of_a_block.filter(bool))
def test_pairs_in_tile_order_are_good_and_any_two_swapped_are_not(dtype, pairs):
    good = in_tile_order(set(pairs))
    assert find_bad(good, dtype=dtype) == -1
    for place in range(len(good) - 1):
        swapped = [*good]
        swapped[place], swapped[place + 1] = good[place + 1], good[place]
        assert find_bad(swapped, dtype=dtype) >= 0


@pytest.mark.parametrize("bad", [(FIRST_ROW - 1, 0), (FIRST_ROW + NUM_ROWS, 0), (FIRST_ROW, NUM_NODES)])
def test_an_id_out_of_range_is_found(bad):
    assert find_bad([(FIRST_ROW, 0), bad]) >= 0


def test_an_edge_that_is_there_twice_is_found_unless_that_is_allowed():
    twice = [(FIRST_ROW, 3), (FIRST_ROW, 3)]
    assert find_bad(twice) == 1
    assert find_bad(twice, allow_duplicates=True) == -1

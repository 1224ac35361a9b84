"""Columns of sources equal their naive twins, also of nodes that came after the order was made."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_kernels.checksum import checksum_rows
from ecgl_kernels.older import sweep_pairs
from ecgl_kernels.order import (
    NUM_GROUPS,
    checksum_columns,
    count_column_tiles,
    count_groups,
    count_lines,
    find_bad_column,
    map_sources,
    place_sources,
    scatter_columns,
    sweep_ordered_pairs,
)
from ecgl_kernels.tiles import count_tiles

RANGE = 1 << 16


def columns_of(degrees: list[int]) -> np.ndarray:
    counts = np.zeros(NUM_GROUPS, np.int64)
    given_degrees = np.array(degrees, np.uint32)
    count_groups(given_degrees, counts)
    columns = np.empty(len(degrees), np.uint32)
    place_sources(given_degrees, np.cumsum(counts) - counts, columns)
    return columns


@settings(max_examples=60)
@given(degrees=st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 9), min_size=1, max_size=60))
def test_a_column_is_the_place_among_nodes_sorted_by_digits(degrees: list[int]) -> None:
    in_order = sorted(range(len(degrees)), key=lambda node: (-degrees[node].bit_length(), node))
    assert columns_of(degrees).tolist() == [in_order.index(node) for node in range(len(degrees))]


@settings(max_examples=60)
@given(data=st.data(), num_ordered=st.integers(1, 20), num_later=st.integers(0, 5))
def test_columns_stand_for_nodes_everywhere(data: st.DataObject, num_ordered: int, num_later: int) -> None:
    columns = np.array(data.draw(st.permutations(range(num_ordered))), np.uint32)
    total = num_ordered + num_later
    twin = [*columns.tolist(), *range(num_ordered, total)]
    nodes = st.integers(0, total - 1)
    src = np.array(data.draw(st.lists(nodes, max_size=30)), np.uint32)
    dst = np.sort(np.array(data.draw(st.lists(nodes, min_size=src.size, max_size=src.size)), np.uint32))
    mapped = np.array([twin[node] for node in src.tolist()], np.uint32)
    out = src.copy()
    map_sources(out, columns, out)
    np.testing.assert_array_equal(out, mapped)

    values, scattered = np.arange(1.0, total + 1), np.zeros(total)
    scatter_columns(values[2:], 2, columns, scattered)
    assert [scattered[twin[node]] for node in range(2, total)] == values[2:].tolist()

    contributions, found, expected = np.zeros(total), np.zeros(total), np.zeros(total)
    scatter_columns(values, 0, columns, contributions)
    sweep_ordered_pairs(dst, src, 0, columns, contributions, found)
    sweep_pairs(dst, src, 0, values, expected)
    np.testing.assert_array_equal(found, expected)  # whole numbers: exact in any order

    indptr = np.searchsorted(dst, np.arange(total + 1)).astype(np.int64)
    assert checksum_columns(indptr, src, columns, 7) == checksum_rows(indptr, mapped, 7)


def test_tiles_and_lines_are_counted_by_columns() -> None:
    random = np.random.default_rng(0)
    columns = random.permutation(3 * RANGE).astype(np.uint32)
    src = random.integers(0, 3 * RANGE + 50, 4_000).astype(np.uint32)
    indptr = np.sort(np.r_[0, random.integers(0, 4_000, 300), 4_000])
    mapped = np.array([columns[node] if node < columns.size else node for node in src])
    counts, expected = np.zeros(4, np.int64), np.zeros(4, np.int64)
    count_column_tiles(src, columns, counts)
    count_tiles(mapped, expected)
    np.testing.assert_array_equal(counts, expected)

    lines: set[tuple[str, int, int]] = set()
    for row, (start, stop) in enumerate(pairwise(indptr.tolist())):
        for column in mapped[start:stop].tolist():
            lines |= {("sums", column >> 16, row >> 4), ("contributions", column >> 16, column >> 4)}
    found = count_lines(indptr, src, columns, np.full(4, -1, np.int64), np.zeros(4 * RANGE >> 4, np.uint8))
    assert found == len(lines)


def test_a_column_that_is_none_or_another_nodes_is_found() -> None:
    cases = {(2, 0, 1): -1, (0, 0, 1): 1, (1, 3, 0): 1, (0, 1, 1): 2}
    for columns, bad_node in cases.items():
        assert find_bad_column(np.array(columns, np.uint32), np.zeros(1, np.uint8)) == bad_node

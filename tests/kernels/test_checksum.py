"""The checksum that compares rows with tiles: blind to order, not to edges."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ecgl_kernels.checksum import checksum_rows, checksum_tiles
from ecgl_kernels.tiles import count_tiles, scatter_tiles

NUM_NODES = 3 * 65536
edges = st.lists(st.tuples(st.integers(0, 65535), st.integers(0, NUM_NODES - 1)), max_size=60)


def rows_of(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    ordered = sorted(pairs)
    indptr = np.searchsorted([row for row, _ in ordered], np.arange(65537)).astype(np.int64)
    return indptr, np.array([source for _, source in ordered], np.uint32)


def tiles_of(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    counts = np.zeros(3, np.int64)
    count_tiles(indices, counts)
    stops = np.cumsum(counts)
    packed = np.empty(indices.size, np.uint32)
    scatter_tiles(indptr, indices, 0, 3, stops - counts, packed)
    return packed, np.column_stack([stops - counts, stops]).ravel()


@given(edges, st.integers(0, 2**34))
def test_rows_and_tiles_of_the_same_edges_have_the_same_checksum(pairs: list[tuple[int, int]], first_row: int) -> None:
    indptr, indices = rows_of(pairs)
    packed, bounds = tiles_of(indptr, indices)
    assert checksum_rows(indptr, indices, first_row) == checksum_tiles(packed, bounds, first_row)


@given(edges.filter(bool), st.data())
def test_a_changed_edge_changes_the_checksum(pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    indptr, indices = rows_of(pairs)
    packed, bounds = tiles_of(indptr, indices)
    before = checksum_tiles(packed, bounds, 0)
    packed[data.draw(st.integers(0, packed.size - 1))] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    assert checksum_tiles(packed, bounds, 0) != before
    assert before == checksum_rows(indptr, indices, 0)

"""Sets of bits do what Python's sets do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_kernels.node_set import add_nodes, count_nodes, find_places, list_nodes, mark_receivers
from tests import naive

NODES = st.lists(st.integers(0, 299), max_size=80)


def words_of(nodes, dtype=np.int64):
    words = np.zeros(5, np.uint64)
    add_nodes(np.array(nodes, dtype), words)
    return words


@settings(deadline=None)  # the first call compiles
@given(nodes=NODES, known=NODES, dtype=st.sampled_from([np.uint32, np.uint64, np.int64]))
def test_nodes_are_listed_once_in_order_without_those_that_are_known(nodes, known, dtype):
    words, others = words_of(nodes, dtype), words_of(known)
    wanted = sorted(set(nodes) - set(known))
    assert list_nodes(words, others, np.empty(0, np.int64)) == len(wanted)
    found = np.full(len(wanted) + 1, -1)
    assert list_nodes(words, others, found) == len(wanted)
    assert found.tolist() == [*wanted, -1]


@settings(deadline=None)  # the first call compiles
@given(nodes=NODES, seed=st.integers(0, 100), dtype=st.sampled_from([np.uint32, np.uint64]))
def test_places_count_the_members_before(nodes, seed, dtype):
    words, before, members = words_of(nodes), np.empty(5, np.uint32), sorted(set(nodes))
    assert count_nodes(words, before) == len(members)
    order = np.random.default_rng(seed).permutation(len(members)).astype(np.int32)
    found = np.empty(len(nodes), np.int32)
    find_places(np.array(nodes, dtype), words, before, order, found)
    assert found.tolist() == [order[members.index(node)] for node in nodes]


@settings(deadline=None)  # the first call compiles
@given(
    pairs=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=60),
    sources=st.lists(st.integers(0, 99), max_size=20),
    rows=st.tuples(st.integers(0, 100), st.integers(0, 100)),
)
def test_receivers_are_the_rows_with_an_edge_from_the_set(pairs, sources, rows):
    first, last = sorted(rows)
    block = sorted({(s, d) for s, d in pairs if first <= d < last}, key=lambda edge: (edge[1], edge[0]))
    indptr, indices = naive.csr_of([(s, d - first) for s, d in block], last - first)
    found = words_of([7])
    mark_receivers(np.array(indptr), np.array(indices, np.uint32), first, words_of(sources), found)
    listed = np.full(101, -1)
    count = list_nodes(found, words_of([]), listed)
    assert listed[:count].tolist() == sorted({7, *(d for s, d in block if s in sources)})


@pytest.mark.parametrize("node", [0, 63, 64, 127, 299])
def test_the_ends_of_words_are_nodes_like_others(node):
    words, before, found = words_of([node]), np.empty(5, np.uint32), np.empty(1, np.int32)
    assert count_nodes(words, before) == 1
    find_places(np.array([node], np.uint32), words, before, np.array([5], np.int32), found)
    assert found[0] == 5

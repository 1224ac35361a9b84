"""The k best are one set, whatever the blocks; quotas are given in rounds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_kernels.topk import fill_quotas, find_misplaced, keep_best, keep_best_of_classes
from tests import naive

scores_of = st.lists(st.sampled_from([-np.inf, -1.0, 0.0, -0.0, 0.5, 2.0, np.inf]), max_size=60)


@settings(max_examples=150)
@given(scores=scores_of, k=st.integers(0, 70), cuts=st.lists(st.integers(0, 60), max_size=5), seed=st.integers(0, 9))
def test_the_best_are_the_same_for_any_blocks_in_any_order(scores, k, cuts, seed):
    values = np.array(scores, np.float64)
    order = np.random.default_rng(seed).permutation(values.size)
    best, best_ids, kept = np.empty(k), np.empty(k, np.int64), 0
    for block in np.split(order, sorted(min(cut, order.size) for cut in cuts)):
        kept, bad = keep_best(values[block], block.astype(np.int64), best, best_ids, kept)
        assert bad == -1
    wanted = naive.top_nodes(scores, k, list(range(len(scores))))
    assert sorted(best_ids[:kept].tolist()) == sorted(wanted)
    assert best[:kept].tolist() == values[best_ids[:kept]].tolist()
    assert find_misplaced(values, np.array(wanted, np.int64)) == -1


def test_nan_is_named_by_its_position():
    scores, ids = np.array([1.0, np.nan, 3.0]), np.arange(3)
    assert keep_best(scores, ids, np.empty(1), np.empty(1, np.int64), 0)[1] == 1
    labels, offsets = np.array([0, -1, 0]), np.array([0, 1])
    kept = np.zeros(1, np.int64)
    assert keep_best_of_classes(scores, ids, labels, offsets, kept, np.empty(1), np.empty(1, np.int64)) == 1


@settings(max_examples=150)
@given(counts=st.lists(st.integers(0, 12), max_size=8), k=st.integers(0, 60))
def test_quotas_are_given_one_place_at_a_time(counts, k):
    quotas = np.full(len(counts), 7, np.int64)
    fill_quotas(np.array(counts, np.int64), k, quotas)
    assert quotas.tolist() == naive.class_quotas(counts, k)
    assert quotas.sum() == min(k, sum(counts))


def test_huge_quotas_take_few_rounds():
    quotas = np.zeros(3, np.int64)
    fill_quotas(np.array([10**15, 5, 10**15]), 10**14, quotas)
    assert quotas.tolist() == [(10**14 - 5 + 1) // 2, 5, (10**14 - 5) // 2]


def test_a_ranking_out_of_order_is_seen():
    scores = np.array([1.0, 3.0, 3.0])
    assert find_misplaced(scores, np.array([1, 2, 0])) == -1
    assert find_misplaced(scores, np.array([2, 1, 0])) == 1
    assert find_misplaced(scores, np.array([1, 2, 2])) == 2
    assert find_misplaced(scores, np.array([0, 1])) == 1

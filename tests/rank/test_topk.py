"""The best nodes: by score and id, among candidates, in equal shares of the classes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_scale.errors import UsageError
from ecgl_scale.rank import topk
from ecgl_scale.rank.topk import top_nodes
from tests import naive

scores_of = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=40)


@settings(max_examples=100)
@given(
    scores=scores_of,
    k=st.integers(0, 50),
    candidates=st.none() | st.lists(st.integers(0, 39)),
    as_mask=st.booleans(),
    block=st.integers(1, 50),
    dtype=st.sampled_from([np.float32, np.float64, np.int64]),
)
def test_the_best_come_first_for_any_block_size(scores, k, candidates, as_mask, block, dtype):
    values = np.array(scores, dtype)
    ids = list(range(values.size)) if candidates is None else sorted({c % values.size for c in candidates})
    chosen = None if candidates is None else np.array([c % values.size for c in candidates], np.int64)
    if chosen is not None and as_mask:
        chosen = np.isin(np.arange(values.size), chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topk, "BLOCK_NODES", block)
        found = top_nodes(values, k, candidates=chosen)
    assert found.dtype == np.int64
    assert found.tolist() == naive.top_nodes(scores, k, ids)


@settings(max_examples=100)
@given(scores=scores_of, k=st.integers(0, 50), seed=st.integers(0, 20), block=st.integers(1, 50))
def test_classes_share_the_places(scores, k, seed, block):
    values = np.array(scores)
    labels = np.random.default_rng(seed).choice([-1, 3, 7, 8, 1000], values.size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topk, "BLOCK_NODES", block)
        found = top_nodes(values, k, labels=labels, quota="class")
    classes = sorted(set(labels[labels >= 0].tolist()))
    members = [np.flatnonzero(labels == c).tolist() for c in classes]
    quotas = naive.class_quotas([len(nodes) for nodes in members], k)
    wanted = [node for nodes, q in zip(members, quotas, strict=True) for node in naive.top_nodes(scores, q, nodes)]
    assert found.tolist() == naive.top_nodes(scores, len(wanted), wanted)
    assert found.size == min(k, int((labels >= 0).sum()))


def test_what_a_small_class_leaves_goes_to_the_others_and_the_remainder_by_label():
    labels = np.array([0, 1, 1, 1, 1, 2, 2, 2, 2])
    scores = np.arange(9.0)
    found = top_nodes(scores, 6, labels=labels, quota="class")
    assert found.tolist() == [8, 7, 4, 3, 2, 0]


def test_nan_is_refused_by_name_unless_it_is_no_candidate():
    scores = np.array([1.0, np.nan, 2.0])
    with pytest.raises(UsageError, match="score of node 1 is NaN"):
        top_nodes(scores, 1)
    with pytest.raises(UsageError, match="score of node 1 is NaN"):
        top_nodes(scores, 1, labels=np.zeros(3, int), quota="class")
    assert top_nodes(scores, 5, candidates=[2, 0]).tolist() == [2, 0]


def test_arguments_that_do_not_fit_are_refused():
    scores = np.ones(3)
    with pytest.raises(UsageError, match="scores are"):
        top_nodes(np.ones((2, 2)), 1)
    with pytest.raises(UsageError, match="k is -1"):
        top_nodes(scores, -1)
    with pytest.raises(UsageError, match="quota is"):
        top_nodes(scores, 1, quota="some")
    with pytest.raises(UsageError, match="needs labels"):
        top_nodes(scores, 1, quota="class")
    with pytest.raises(UsageError, match="labels are"):
        top_nodes(scores, 1, labels=np.zeros(2, int), quota="class")
    with pytest.raises(UsageError, match="mask has shape"):
        top_nodes(scores, 1, candidates=np.ones(2, bool))
    with pytest.raises(UsageError, match="row 3 does not exist"):
        top_nodes(scores, 1, candidates=[3])


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("given", ["all", "mask"])
@pytest.mark.parametrize("k", [100, 250_000])
def test_memory_is_for_the_places_and_a_block(given, by_class, k):
    num_nodes = 300_000
    values = np.random.default_rng(0).random(num_nodes)
    candidates = None if given == "all" else np.arange(num_nodes) % 8 != 0
    labels = (np.arange(num_nodes) % 7).astype(np.int32)
    options = {"labels": labels, "quota": "class"} if by_class else {}
    found = top_nodes(values, k, candidates=candidates, **options)  # compiles
    tracemalloc.start()
    try:
        top_nodes(values, k, candidates=candidates, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.size == k
    assert peak <= topk.PLACE_BYTES * k + topk.BLOCK_BYTES

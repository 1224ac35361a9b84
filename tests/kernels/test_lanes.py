"""Lanes added up by the kernels equal their naive twin bit for bit, and cuts change no bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ecgl_kernels.lanes import add_lane, end_sum, start_sum
from tests import naive


def lanes_of(count, size, seed):
    random = np.random.default_rng(seed)
    return (random.normal(size=(count, size)) * 10.0 ** random.integers(-9, 9, (count, size))).astype(np.float32)


def summed(lanes, parts):
    total, lane = np.full(lanes.shape[1], np.nan), lanes[0].copy()
    for index in range(len(lanes)):
        if index:
            assert not lane.any()
            lane[:] = lanes[index]
        work = start_sum if index == 0 else end_sum if index == len(lanes) - 1 else add_lane
        for part in parts:
            work(total[part], lane[part])
    return lane


@given(count=st.integers(2, 16), size=st.integers(0, 70), seed=st.integers(0, 1000))
def test_a_sum_of_lanes_equals_the_naive_one(count, size, seed):
    lanes = lanes_of(count, size, seed)
    wanted = np.array([naive.sum_of_lanes(numbers) for numbers in lanes.T.tolist()], np.float32)
    assert summed(lanes, [slice(None)]).tobytes() == wanted.tobytes()


@given(size=st.integers(1, 70), cut=st.integers(0, 70), seed=st.integers(0, 1000))
def test_a_sum_in_two_parts_gives_the_same_bits(size, cut, seed):
    lanes = lanes_of(5, size, seed)
    assert summed(lanes, [slice(0, cut), slice(cut, size)]).tobytes() == summed(lanes, [slice(None)]).tobytes()

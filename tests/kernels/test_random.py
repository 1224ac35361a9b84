from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ecgl_kernels.random import (
    gaussian_rows,
    permutation_key,
    permute_block,
    random_bits,
    substream,
    unpermute_block,
)
from tests import naive

SIZES = [1, 2, 3, 7, 64, 1000, 1023, 1024, 1025, 100_003]


def permutation(size: int, seed: int) -> NDArray[np.int64]:
    out = np.empty(size, np.int64)
    permute_block(0, permutation_key(size, substream(seed, 0)), out)
    return out


def test_bits_are_those_of_splitmix64() -> None:
    out = np.empty(3, np.uint64)
    random_bits(1, np.uint64(1234567), out)
    assert out.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**62))
@settings(deadline=None, max_examples=50)
def test_bits_equal_the_naive_twin(seed: int, counter: int) -> None:
    out = np.empty(1, np.uint64)
    random_bits(counter, np.uint64(seed), out)
    assert int(out[0]) == naive.mix(seed, counter)


@pytest.mark.parametrize("size", SIZES)
def test_permutation_is_a_bijection(size: int) -> None:
    for seed in range(5):
        assert np.array_equal(np.sort(permutation(size, seed)), np.arange(size))


@pytest.mark.parametrize("size", SIZES)
def test_unpermute_undoes_permute(size: int) -> None:
    inverse = np.empty(size, np.int64)
    unpermute_block(0, permutation_key(size, substream(1, 0)), inverse)
    assert np.array_equal(permutation(size, 1)[inverse], np.arange(size))


@given(st.integers(1, 2**63 - 1), st.integers(0, 2**63 - 1))
@settings(deadline=None, max_examples=50)
def test_permutation_of_huge_ranges_stays_in_range_and_comes_back(size: int, seed: int) -> None:
    key = permutation_key(size, np.uint64(seed))
    start = seed % size
    there, back = np.empty(1, np.int64), np.empty(1, np.int64)
    permute_block(start, key, there)
    assert 0 <= there[0] < size
    unpermute_block(int(there[0]), key, back)
    assert back[0] == start


def test_permutation_hides_the_order_and_depends_on_the_seed() -> None:
    one, two = permutation(100_003, 1), permutation(100_003, 2)
    order = np.arange(one.size)
    noise = 4 / np.sqrt(one.size)
    assert abs(np.corrcoef(order, one)[0, 1]) < noise
    assert abs(np.corrcoef(one, two)[0, 1]) < noise
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < noise


@pytest.mark.parametrize("num_columns", [1, 2, 7, 32])
def test_gaussian_rows_do_not_depend_on_blocks(num_columns: int) -> None:
    whole = np.empty((100, num_columns), np.float32)
    gaussian_rows(0, np.uint64(5), whole)
    parts = np.empty_like(whole)
    for first in range(0, 100, 7):
        gaussian_rows(first, np.uint64(5), parts[first : first + 7])
    assert np.array_equal(whole, parts)


def test_gaussian_rows_are_standard_normal_and_uncorrelated() -> None:
    rows = np.empty((100_000, 4), np.float32)
    gaussian_rows(0, np.uint64(9), rows)
    sample = rows.astype(np.float64)
    assert np.isfinite(rows).all()
    assert np.abs(sample.mean(axis=0)).max() < 0.02
    assert np.abs(np.cov(sample.T) - np.eye(4)).max() < 0.02
    assert abs((sample**4).mean() - 3.0) < 0.1
    assert abs((np.abs(sample) > 1.959964).mean() - 0.05) < 0.002


def test_substreams_of_a_seed_differ() -> None:
    assert len({int(substream(seed, stream)) for seed in range(10) for stream in range(20)}) == 200

"""Parts of a key array are sorted in place, for any number of bits and any sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_kernels.radix import INSERTION_KEYS, sort_parts
from tests.kernels.lazy import PAST_INT32, lazy_array


def sort_and_compare(parts, key_bits, prefixes=None):
    """Sort the parts, each under its own leading bits, and compare with ``sorted``."""
    prefixes = prefixes or [0] * len(parts)
    parts = [[key + (prefix << key_bits) for key in part] for part, prefix in zip(parts, prefixes, strict=True)]
    offsets = np.cumsum([0] + [len(part) for part in parts])
    keys = np.array([key for part in parts for key in part], np.uint64)
    scratch = np.zeros(max([len(part) for part in parts], default=0), np.uint64)
    sort_parts(keys, scratch, offsets, key_bits)
    assert keys.tolist() == [key for part in parts for key in sorted(part)]


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(0, 64), st.integers(0, 5))
def test_parts_are_sorted_for_any_number_of_bits(data, key_bits, num_parts):
    some = st.integers(0, 2**key_bits - 1)
    parts = data.draw(st.lists(st.lists(some, max_size=60), min_size=num_parts, max_size=num_parts))
    top = 2 ** (64 - key_bits) - 1
    prefixes = data.draw(st.lists(st.integers(0, top), min_size=num_parts, max_size=num_parts))
    sort_and_compare(parts, key_bits, prefixes)


@pytest.mark.parametrize("key_bits", [1, 10, 11, 12, 22, 23, 33, 57, 63, 64])
@pytest.mark.parametrize("size", [INSERTION_KEYS, INSERTION_KEYS + 1, 1000])
def test_every_number_of_passes_ends_in_the_right_array(key_bits, size):
    random = np.random.default_rng(key_bits)
    keys = random.integers(0, 2**key_bits - 1, size, np.uint64, endpoint=True).tolist()
    sort_and_compare([keys, [], keys[: size // 2]], key_bits)


def test_equal_sorted_and_reversed_keys_are_no_special_case():
    sort_and_compare([[5] * 100, list(range(100)), list(range(100, 0, -1))], 20)


def test_only_the_low_bits_need_to_differ():
    random = np.random.default_rng(0)
    low = [random.integers(0, 2**12, 200).tolist() for _ in range(3)]
    sort_and_compare(low, 12, [0, 2**51, 2**52 - 1])


def test_nothing_is_touched_between_and_around_the_parts():
    keys = np.arange(40, 0, -1).astype(np.uint64)
    sort_parts(keys, np.zeros(30, np.uint64), np.array([5, 5, 35]), 6)
    assert keys.tolist() == [40, 39, 38, 37, 36, *range(6, 36), 5, 4, 3, 2, 1]


def test_parts_past_two_to_the_31_are_sorted():
    keys = lazy_array(PAST_INT32 + 110, np.uint64)
    given_keys = np.random.default_rng(1).integers(0, 2**40, 110)
    keys[PAST_INT32:] = given_keys
    offsets = np.array([PAST_INT32, PAST_INT32 + 10, PAST_INT32 + 110])
    sort_parts(keys, np.zeros(100, np.uint64), offsets, 40)
    np.testing.assert_array_equal(keys[PAST_INT32:], [*sorted(given_keys[:10]), *sorted(given_keys[10:])])
    assert not keys[PAST_INT32 - 5 : PAST_INT32].any()

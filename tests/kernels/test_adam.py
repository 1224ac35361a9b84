"""A fused step equals its naive twin, and cuts change no bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ecgl_kernels.adam import step_weights
from tests import naive

BETAS = (0.9, 0.999)
SIZES = (5e-4, 0.05, 0.03, 1e-8)


def arrays(size, seed):
    random = np.random.default_rng(seed)
    weights, gradient, means = (random.normal(size=size).astype(np.float32) for _ in range(3))
    return weights, gradient, means, np.square(random.normal(size=size)).astype(np.float32)


@given(size=st.integers(0, 70), seed=st.integers(0, 1000))
def test_a_step_equals_the_naive_one(size, seed):
    moved = arrays(size, seed)
    expected = [naive.adam_step(*numbers, BETAS, SIZES) for numbers in zip(*(a.tolist() for a in moved), strict=True)]
    step_weights(*moved, BETAS, SIZES)
    for position, array in enumerate((moved[0], moved[2], moved[3])):
        np.testing.assert_allclose(array, [numbers[position] for numbers in expected], rtol=1e-4, atol=1e-5)


@given(size=st.integers(1, 70), cut=st.integers(0, 70), seed=st.integers(0, 1000))
def test_a_step_in_two_parts_gives_the_same_bits(size, cut, seed):
    whole, parts = arrays(size, seed), arrays(size, seed)
    step_weights(*whole, BETAS, SIZES)
    for part in (slice(0, cut), slice(cut, size)):
        step_weights(*(array[part] for array in parts), BETAS, SIZES)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(whole, parts, strict=True))

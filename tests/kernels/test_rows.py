from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from ecgl_kernels import rows
from ecgl_scale.base.durable import crc32c_of

EXPONENTS = {np.float32: (np.uint32, 0x7F800000), np.float16: (np.uint16, 0x7C00)}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@settings(deadline=None)  # the first call compiles
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(0, 10_000), bad=st.integers(0, 3))
def test_first_nonfinite_is_the_first_that_numpy_calls_not_finite(dtype: type, seed: int, size: int, bad: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=size).astype(dtype)
    if size:
        values[rng.integers(0, size, bad)] = rng.choice([np.nan, np.inf, -np.inf], bad)
    expected = np.flatnonzero(~np.isfinite(values))
    bits, exponent = EXPONENTS[dtype]
    assert rows.first_nonfinite(values.view(bits), exponent) == (expected[0] if expected.size else -1)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_largest_finite_and_subnormal_values_are_finite(dtype: type) -> None:
    info = np.finfo(dtype)
    values = np.array([info.max, info.min, info.smallest_subnormal, 0, -0.0], dtype)
    bits, exponent = EXPONENTS[dtype]
    assert rows.first_nonfinite(values.view(bits), exponent) == -1


@settings(deadline=None)  # the first call compiles
@given(pieces=st.lists(st.binary(max_size=300), max_size=12))
def test_joined_crc_is_the_crc_of_the_pieces_laid_end_to_end(pieces: list[bytes]) -> None:
    crcs = np.array([crc32c_of(piece) if piece else 0 for piece in pieces], np.uint32)
    shifts = np.array([rows.shift_crc32c(len(piece)) for piece in pieces], np.uint32)
    whole = b"".join(pieces)
    assert rows.join_crc32c(crcs, shifts) == (crc32c_of(whole) if whole else 0)


@settings(deadline=None)  # the first call compiles
@given(content=st.binary(min_size=1, max_size=300))
def test_bytes_followed_by_their_crc_have_a_constant_crc_which_is_why_shards_hold_a_table(content: bytes) -> None:
    assert crc32c_of(content + crc32c_of(content).to_bytes(4, "little")) == 0x48674BC7


@settings(deadline=None)  # the first call compiles
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(0, 40), width=st.integers(1, 9))
def test_scattered_rows_are_numpy_rows(seed: int, count: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 2**32, 500, dtype=np.uint32)
    starts = np.sort(rng.integers(0, packed.size - width, count))
    positions = rng.permutation(count)
    out = np.zeros((count, width), np.uint32)
    rows.scatter_rows(packed, starts, positions, out)
    assert np.array_equal(out[positions], packed[starts[:, None] + np.arange(width)])


@settings(deadline=None)  # the first call compiles
@given(
    dense=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
        elements=st.sampled_from([0.0, 0.0, 1.0, -2.5]),
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_clean_csr_sorts_drops_zeros_and_keeps_the_matrix(dense: np.ndarray, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_rows, num_features = dense.shape
    indptr = np.arange(num_rows + 1) * num_features
    columns = np.concatenate([rng.permutation(num_features) for _ in range(num_rows)]).astype(np.int64)
    values = dense[np.repeat(np.arange(num_rows), num_features), columns]
    out = np.empty_like(indptr), np.empty(columns.size, np.uint32), np.empty(columns.size, np.float32)
    assert rows.clean_csr(indptr, columns, values, num_features, *out) == (rows.CSR_OK, -1)
    expected = sparse.csr_matrix(dense)
    used = out[0][-1]
    assert np.array_equal(out[0], expected.indptr)
    assert np.array_equal(out[1][:used], expected.indices)
    assert np.array_equal(out[2][:used], expected.data)
    spread = np.full_like(dense, 7)
    rows.csr_to_dense(out[0], out[1][:used], out[2][:used], spread)
    assert np.array_equal(spread, dense)


@pytest.mark.parametrize(
    ("columns", "values", "code"),
    [
        ([0, 3], [1, 1], rows.CSR_COLUMN_RANGE),
        ([-1, 2], [1, 1], rows.CSR_COLUMN_RANGE),
        ([2, 2], [1, 1], rows.CSR_DUPLICATE),
        ([2, 0, 2], [0, 1, 0], rows.CSR_DUPLICATE),
        ([0, 1], [1, np.nan], rows.CSR_NOT_FINITE),
        ([1, 0], [-np.inf, 1], rows.CSR_NOT_FINITE),
    ],
)
def test_clean_csr_names_what_is_wrong_and_the_row(columns: list[int], values: list[float], code: int) -> None:
    indptr = np.array([0, 0, len(columns)])
    out = np.empty_like(indptr), np.empty(len(columns), np.uint32), np.empty(len(columns), np.float32)
    assert rows.clean_csr(indptr, np.array(columns), np.array(values, np.float32), 3, *out) == (code, 1)


@pytest.mark.parametrize(("first", "width"), [(0, 9), (3, 4), (8, 1), (2, 0)])
def test_some_columns_of_sparse_rows_are_spread(first: int, width: int) -> None:
    rng = np.random.default_rng(5)
    dense = np.where(rng.random((20, 9)) < 0.3, rng.normal(size=(20, 9)), 0).astype(np.float32)
    held = sparse.csr_matrix(dense)
    out = np.full((11, width), 7, np.float32)
    indptr = held.indptr.astype(np.int64)[4:16]  # as a piece has it: its offsets do not begin at 0
    rows.csr_columns(indptr, held.indices.astype(np.uint32), held.data, first, out)
    np.testing.assert_array_equal(out, dense[4:15, first : first + width])


def test_squares_are_added_with_the_same_bits_for_any_slices_of_the_columns() -> None:
    x = np.random.default_rng(6).normal(size=(30, 37)).astype(np.float32)
    whole, sliced = np.full(30, 2.0), np.full(30, 2.0)
    rows.add_squares(x, whole)
    for start in range(0, 37, 5):
        rows.add_squares(np.ascontiguousarray(x[:, start : start + 5]), sliced)
    np.testing.assert_array_equal(whole, sliced)
    np.testing.assert_allclose(whole, 2 + (x.astype(np.float64) ** 2).sum(axis=1), rtol=1e-14)

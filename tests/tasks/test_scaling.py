"""Scaled rows equal the formula; sparse rows equal dense ones; moments equal numpy's over the whole matrix."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.build import build_store
from ecgl_scale.store.features.csr import to_dense
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.store.sources.arrays import array_source
from ecgl_scale.tasks import scaling as module
from ecgl_scale.tasks.scaling import KINDS, Scaling, fit_standard
from tests.resources import at

ROW_KINDS = ["row_sum", "row_l2"]
ROWS = arrays.arrays(
    np.float32,
    st.tuples(st.integers(0, 7), st.integers(1, 6)),
    elements=st.one_of(st.just(0.0), st.floats(-1e6, 1e6, width=32).filter(lambda value: abs(value) > 1e-6)),
)


def csr_block(rows):
    matrix = scipy.sparse.csr_array(rows)
    return CsrBlock(matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32), matrix.data)


def naive_rows(kind, rows):
    scaled = []
    for row in rows.tolist():
        length = sum(abs(value) for value in row) if kind == "row_sum" else sum(value * value for value in row) ** 0.5
        scaled.append([value / length if length else 0.0 for value in row])
    return np.array(scaled).reshape(rows.shape)


def features_of(path, x):
    return GraphStore.from_edge_index(np.zeros((2, 0), np.int64), x, path=path).features


@pytest.fixture(params=["dense", "sparse", "float16"])
def stored(tmp_path, request):
    """A feature store and the same rows in memory; one column of zeros and one of equal values."""
    random = np.random.default_rng(3)
    x = (random.random((257, 13)) * (random.random((257, 13)) < 0.4) * 100).astype(np.float32)
    x[:, 4], x[:, 9] = 0, np.float32(0.1)
    if request.param == "float16":
        x = x.astype(np.float16).astype(np.float32)
    given = scipy.sparse.csr_array(x) if request.param == "sparse" else x
    build_store(
        array_source(np.zeros((2, 0), np.int64), x=given),
        tmp_path / "store",
        at(),
        features_as="sparse" if request.param == "sparse" else "dense",
        feature_dtype="float16" if request.param == "float16" else "float32",
    )
    return GraphStore.open(tmp_path / "store").features, x


@given(rows=ROWS, kind=st.sampled_from(ROW_KINDS))
def test_rows_are_scaled_as_the_formula_says_dense_and_sparse(rows, kind):
    wanted = naive_rows(kind, rows)
    dense = Scaling(kind).apply(rows)
    assert dense.dtype == np.float32
    np.testing.assert_allclose(dense, wanted, rtol=1e-6, atol=1e-12)
    sparse = Scaling(kind).apply_sparse(csr_block(rows))
    assert sparse.values.dtype == np.float32
    np.testing.assert_allclose(to_dense(sparse, rows.shape[1]), wanted, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("kind", ROW_KINDS)
def test_rows_of_zeros_stay_zero_and_others_have_length_one(kind):
    rows = np.array([[0, 0], [3, -4], [0, 5]], np.float32)
    scaled = Scaling(kind).apply(rows)
    lengths = abs(scaled).sum(axis=1) if kind == "row_sum" else np.sqrt((scaled**2).sum(axis=1))
    np.testing.assert_allclose(lengths, [0, 1, 1], rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_how_rows_are_cut(kind, monkeypatch):
    rows = np.random.default_rng(0).standard_normal((500, 77)).astype(np.float32)
    moments = (np.linspace(-1, 1, 77), np.linspace(1, 2, 77)) if kind == "standard" else (None, None)
    scaling = Scaling(kind, *moments)
    whole = scaling.apply(rows)
    parts = np.concatenate([scaling.apply(rows[start : start + 37]) for start in range(0, 500, 37)])
    monkeypatch.setattr(module, "CHUNK_BYTES", 4096)
    assert whole.tobytes() == parts.tobytes() == scaling.apply(rows).tobytes()


def test_without_scaling_nothing_is_copied():
    rows = np.ones((3, 2), np.float32)
    sparse = csr_block(rows)
    assert Scaling().apply(rows) is rows
    assert Scaling().apply_sparse(sparse) is sparse


def test_moments_are_those_of_the_whole_matrix_however_it_is_cut(stored, monkeypatch):
    features, x = stored
    ids = np.arange(3, 250, 2)
    wanted = x[ids].astype(np.float64)
    for fit_bytes in (1, 8 * 13 * 10, 1 << 20):
        monkeypatch.setattr(module, "FIT_BYTES", fit_bytes)
        scaling = fit_standard(features, ids)
        np.testing.assert_allclose(scaling.mean, wanted.mean(axis=0), rtol=1e-12, atol=1e-12)
        deviation = np.where(wanted.std(axis=0) < 1e-9, 1, wanted.std(axis=0))
        np.testing.assert_allclose(scaling.deviation, deviation, rtol=1e-12)
    scaled = scaling.apply(x[ids])
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-6)
    changing = np.setdiff1d(np.arange(13), [4, 9])
    np.testing.assert_allclose(scaled[:, changing].std(axis=0), 1, rtol=1e-5)


def test_columns_of_equal_values_become_zero_not_noise(stored):
    features, x = stored
    scaling = fit_standard(features)
    assert scaling.deviation[[4, 9]].tolist() == [1, 1]
    assert not scaling.apply(x)[:, [4, 9]].any()


def test_moments_of_large_numbers_that_differ_little_are_exact(tmp_path):
    x = (1e7 + np.arange(64) % 2)[:, None].astype(np.float32)
    scaling = fit_standard(features_of(tmp_path / "store", x))
    assert (scaling.mean[0], scaling.deviation[0]) == (1e7 + 0.5, 0.5)


def test_repeated_ids_count_once_and_order_does_not_matter(stored):
    features, _ = stored
    assert fit_standard(features, [5, 1, 5, 9]).to_json() == fit_standard(features, [1, 5, 9]).to_json()


def test_json_gives_the_same_scaling_bit_by_bit(stored):
    features, x = stored
    for scaling in (fit_standard(features), Scaling(), Scaling("row_l2")):
        again = Scaling.from_json(scaling.to_json())
        assert again.to_json() == scaling.to_json()
        assert again.apply(x).tobytes() == scaling.apply(x).tobytes()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps({"kind": "none"}),
        json.dumps({"kind": "loud", "mean": None, "deviation": None}),
        json.dumps({"kind": "standard", "mean": None, "deviation": None}),
        json.dumps({"kind": "none", "mean": [1.0], "deviation": [1.0]}),
        json.dumps({"kind": "standard", "mean": [1.0], "deviation": [0.0]}),
        json.dumps({"kind": "standard", "mean": [1.0, 2.0], "deviation": [1.0]}),
        json.dumps({"kind": "standard", "mean": "x", "deviation": [1.0]}),
        '{"kind": "standard", "mean": [NaN], "deviation": [1.0]}',
    ],
)
def test_text_that_is_no_scaling_is_refused(text):
    with pytest.raises(InvalidInputError, match="no scaling"):
        Scaling.from_json(text)


def test_what_makes_no_sense_is_refused(stored):
    features, _ = stored
    with pytest.raises(UsageError, match="no scaling 'max'"):
        Scaling("max")
    with pytest.raises(UsageError, match="without moments"):
        Scaling("standard")
    with pytest.raises(UsageError, match="no rows"):
        fit_standard(features, [])
    with pytest.raises(UsageError, match="row 257 does not exist"):
        fit_standard(features, [257])
    fitted = fit_standard(features)
    with pytest.raises(UsageError, match="2 columns"):
        fitted.apply(np.ones((1, 2), np.float32))
    with pytest.raises(UsageError, match="not sparse"):
        fitted.apply_sparse(csr_block(np.ones((1, 13), np.float32)))

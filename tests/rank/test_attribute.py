"""The attribute vector equals its naive twin however the features are stored, and never depends on how they are cut."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bench import attribute as bench_attribute
from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.errors import CorruptStoreError, DoesNotFitError, UsageError
from ecgl_scale.rank import attribute_sparse, attribute_units
from ecgl_scale.rank.attribute import attribute_vector, exact_error_bound
from ecgl_scale.rank.attribute_sparse import SparsePasses
from ecgl_scale.rank.attribute_strips import cut_triangle
from ecgl_scale.rank.feature_files import FeatureSource
from ecgl_scale.rank.pagerank import rank_importance
from ecgl_scale.rank.topk import top_nodes
from ecgl_scale.store.build import build_store
from ecgl_scale.store.features import dense_write
from ecgl_scale.store.features.dense import DenseFeatures, DenseLayout, write_dense
from ecgl_scale.store.features.sparse import SparseFeatures, SparseLayout, write_sparse
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.source import CsrBlock, DenseSource, SparseSource
from ecgl_scale.store.sources.npz import open_npz_source
from ecgl_scale.units import MIB, parse_bytes
from tests import naive
from tests.resources import at

SHARED = Path(__file__).parents[3] / "shared" / "data"


def dense_store(x, directory, layout=None):
    layout = layout or DenseLayout.plan(*x.shape, x.dtype.name)
    source = DenseSource(x.shape[1], x.dtype, "x.npy", lambda step: (x[i : i + step] for i in range(0, len(x), step)))
    return DenseFeatures.open(directory, layout, write_dense(source, layout, directory, on_rows=lambda _: None))


def sparse_store(x, directory, rows_per_block=None):
    matrix = sparse.csr_matrix(x)

    def blocks(step):
        for start in range(0, matrix.shape[0], step):
            part = matrix[start : start + step]
            yield CsrBlock(part.indptr.astype(np.int64), part.indices, part.data)

    layout = SparseLayout(*matrix.shape, rows_per_block or matrix.shape[0], matrix.nnz)
    source = SparseSource(matrix.shape[1], matrix.nnz, "x.npz", blocks)
    return SparseFeatures.open(directory, layout, write_sparse(source, layout, directory, on_rows=lambda _: None))


def noise(num_rows, num_features, seed=0):
    return np.random.default_rng(seed).normal(size=(num_rows, num_features)).astype(np.float32)


def words(num_rows, num_features, seed=0, density=0.2):
    return sparse.random(num_rows, num_features, density, format="csr", dtype=np.float32, rng=seed)


def wide_expansion(x, gamma):
    """The formula in float64, for more rows than the twin can do."""
    x = np.asarray(x, np.float64)
    weights = np.exp(-gamma * (x**2).sum(axis=1))
    quadratic = 2 * gamma**2 * (x.T * weights) @ x
    values = weights * (weights.sum() + 2 * gamma * x @ (weights @ x) + ((x @ quadratic) * x).sum(axis=1))
    return values / values.sum()


def normalised(values):
    return np.array(values) / np.sum(values)


@settings(max_examples=30)
@given(
    num_rows=st.integers(1, 40),
    num_features=st.integers(1, 12),
    gamma=st.sampled_from([None, 0.01, 0.5, 2.0]),
    dtype=st.sampled_from(["float32", "float16"]),
    rows_per_chunk=st.integers(1, 9),
    chunks_per_block=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_kind_of_storage_gives_the_expansion_pair_by_pair(
    tmp_path_factory, num_rows, num_features, gamma, dtype, rows_per_chunk, chunks_per_block, seed
):
    directory = tmp_path_factory.mktemp("attribute")
    x = (noise(num_rows, num_features, seed) * (noise(num_rows, num_features, seed + 1) > 0)).astype(dtype)
    wanted = normalised(naive.expanded_similarities(x.tolist(), gamma or 1 / num_features))
    layout = DenseLayout(num_rows, num_features, dtype, rows_per_chunk, rows_per_chunk * chunks_per_block)
    dense = dense_store(x, directory / "dense", layout)
    thin = sparse_store(x.astype(np.float32), directory / "sparse", min(rows_per_chunk, num_rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attribute_units, "CHUNK_ROWS", 7)  # so that small matrices have several chunks
        for features, rtol in ((dense, 2e-6), (thin, 1e-11), (x, 2e-6)):
            found = attribute_vector(features, at(), gamma=gamma, num_nodes=num_rows)
            assert found.sum() == pytest.approx(1, abs=1e-12)
            np.testing.assert_allclose(found, wanted, rtol=rtol)
        assert np.array_equal(attribute_vector(dense, at(), gamma=gamma), attribute_vector(x, at(), gamma=gamma))
    shutil.rmtree(directory)


@settings(max_examples=30)
@given(
    num_rows=st.integers(1, 25),
    num_features=st.integers(1, 8),
    size=st.sampled_from([0.1, 0.5, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_expansion_is_within_its_bound_of_the_exact_sum(num_rows, num_features, size, seed):
    x, gamma = noise(num_rows, num_features, seed) * np.float32(size), 1 / num_features
    exact = np.array(naive.exact_similarities(x.tolist(), gamma))
    bounds = exact_error_bound(x)
    expanded = np.array(naive.expanded_similarities(x.tolist(), gamma))
    assert (np.abs(expanded - exact) <= bounds * (1 + 1e-9) + 1e-12).all()
    # Dividing by a sum that may itself be off by the sum of the bounds.
    found = attribute_vector(x, at())
    allowed = (bounds + found * bounds.sum()) / exact.sum()
    assert (np.abs(found - exact / exact.sum()) <= allowed * (1 + 1e-9) + 2e-6 * found).all()


def test_small_features_are_close_to_the_exact_sum():
    x = noise(60, 10) * np.float32(0.3)
    exact = normalised(naive.exact_similarities(x.tolist(), 0.1))
    np.testing.assert_allclose(attribute_vector(x, at()), exact, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_threads_blocks_and_chunks_of_the_store_do_not_change_a_bit(tmp_path, monkeypatch, dtype):
    x = noise(20_000, 17).astype(dtype)
    wanted = attribute_vector(x, at(threads=1))
    np.testing.assert_allclose(wanted, wide_expansion(x, 1 / 17), rtol=1e-6)
    for number, (block_bytes, chunk_bytes) in enumerate([(40_000, 9_000), (300_000, 70_000), (32 * MIB, MIB)]):
        monkeypatch.setattr(dense_write, "BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(dense_write, "CHUNK_BYTES", chunk_bytes)
        features = dense_store(x, tmp_path / f"{number}")
        for threads in (1, 2, 3):
            assert np.array_equal(attribute_vector(features, at(threads=threads)), wanted)


@pytest.mark.parametrize("row", [0, 4095, 4096, 9999])
def test_a_flipped_bit_of_any_chunk_is_found_on_the_way(tmp_path, row):
    layout = DenseLayout(10_000, 8, "float32", rows_per_chunk=700, rows_per_block=2100)
    features = dense_store(noise(10_000, 8), tmp_path / "x", layout)
    shard = tmp_path / "x" / layout.shard_name(features.blocks()[row // 2100])
    stored = bytearray(shard.read_bytes())
    stored[row % 2100 * 32 + row % 2100 // 700 * 4] ^= 1
    shard.write_bytes(stored)
    with pytest.raises(CorruptStoreError, match=shard.name):
        attribute_vector(features, at())


def test_an_array_of_any_order_and_kind_of_number_is_worked_on_as_float32():
    x = noise(9_000, 11)
    wanted = attribute_vector(x, at())
    for same in (np.asfortranarray(x), x.astype(np.float64), x.astype(">f4"), np.repeat(x, 2, axis=0)[::2]):
        assert np.array_equal(attribute_vector(same, at(threads=2)), wanted)
    counts = np.random.default_rng(0).integers(0, 3, (100, 5))
    assert np.array_equal(attribute_vector(counts, at()), attribute_vector(counts.astype(np.float32), at()))
    np.testing.assert_allclose(attribute_vector(counts > 1, at()), wide_expansion(counts > 1, 0.2), rtol=1e-6)


def test_sparse_rows_give_the_same_bits_for_any_threads_blocks_and_strips(tmp_path):
    x = words(3_000, 60)
    whole = sparse_store(x, tmp_path / "whole")
    wanted = attribute_vector(whole, at(threads=1))
    np.testing.assert_allclose(wanted, wide_expansion(x.toarray(), 1 / 60), rtol=1e-11)
    for number, rows_per_block in enumerate((3_000, 700, 64)):
        features = sparse_store(x, tmp_path / f"{number}", rows_per_block)
        for threads in (1, 2, 3):
            assert np.array_equal(attribute_vector(features, at(threads=threads)), wanted)
        for strip_bytes in (8, 2_000, 5_000, 10**6):
            passes = SparsePasses(FeatureSource(features), 1 / 60, at(threads=2), strip_bytes=strip_bytes)
            assert (len(passes.strips) == 1) == (strip_bytes == 10**6)
            values = passes.run(on_rows=lambda _: None)
            assert np.array_equal(values / values.sum(), wanted)


def test_dense_and_sparse_storage_of_one_matrix_agree(tmp_path):
    x = words(9_000, 80)
    dense = attribute_vector(dense_store(x.toarray(), tmp_path / "dense"), at())
    np.testing.assert_allclose(attribute_vector(sparse_store(x, tmp_path / "sparse"), at()), dense, rtol=1e-6)


@given(last=st.integers(1, 300), first=st.integers(0, 299), max_places=st.integers(1, 20_000))
def test_a_triangle_is_cut_into_runs_that_cover_it_and_fit(last, first, max_places):
    first = min(first, last - 1)
    runs = cut_triangle(first, last, max_places=max_places)
    assert [row for run in runs for row in range(*run)] == list(range(first, last))
    for start, stop in runs:
        assert sum(row + 1 for row in range(start, stop)) <= max_places or stop == start + 1


def smallest_budget(features):
    with pytest.raises(DoesNotFitError, match="the attribute vector needs") as refused:
        attribute_vector(features, at(memory="1MiB"))
    return parse_bytes(refused.value.fix.split("--memory ")[1])


@pytest.mark.parametrize("kind", ["dense", "half", "array", "sparse"])
def test_a_budget_too_small_is_refused_with_one_that_works_and_is_kept(tmp_path, monkeypatch, kind):
    features = {
        "dense": lambda: dense_store(noise(150_000, 80), tmp_path / "f"),
        "half": lambda: dense_store(noise(150_000, 80).astype(np.float16), tmp_path / "f"),
        "array": lambda: noise(50_000, 80),
        "sparse": lambda: sparse_store(words(5_000, 2_000, density=0.01), tmp_path / "f", 900),
    }[kind]()
    wanted = attribute_vector(features, at())
    held = own_memory_bytes()  # of both calls, as it moves a little
    monkeypatch.setattr("ecgl_scale.engine.resources.own_memory_bytes", lambda: held)
    budget = smallest_budget(features)
    with pytest.raises(DoesNotFitError):
        attribute_vector(features, at(memory=budget - MIB))
    with PeakSampler() as sampler:
        found = attribute_vector(features, at(memory=budget))
    assert np.array_equal(found, wanted)
    assert sampler.peak_bytes <= budget


def test_a_small_budget_makes_strips_and_never_more_than_the_most(tmp_path, monkeypatch):
    monkeypatch.setattr("ecgl_scale.engine.resources.own_memory_bytes", lambda: 0)
    features = sparse_store(words(500, 3_000, density=0.01), tmp_path / "f")
    least = smallest_budget(features)
    events = []
    found = attribute_vector(features, at(memory=least, on_event=events.append))
    passes = events[0].total // 500
    assert 4 < passes <= 2 * attribute_sparse.MAX_STRIPS
    assert np.array_equal(found, attribute_vector(features, at()))


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (50, 1), (4096, 3), (4097, 3)])
def test_one_row_one_column_and_exactly_one_chunk(tmp_path, shape):
    x = noise(*shape)
    wanted = wide_expansion(x, 1 / shape[1])
    for features in (x, dense_store(x, tmp_path / "dense"), sparse_store(x, tmp_path / "sparse", 7)):
        np.testing.assert_allclose(attribute_vector(features, at()), wanted, rtol=1e-6)


def test_features_that_are_all_zero_give_every_node_the_same(tmp_path):
    x = np.zeros((5_000, 4), np.float32)
    for features in (x, dense_store(x, tmp_path / "dense"), sparse_store(x, tmp_path / "sparse", 999)):
        np.testing.assert_allclose(attribute_vector(features, at()), 1 / 5_000, rtol=1e-12)


def test_weights_beyond_the_range_of_float32_are_still_right(tmp_path):
    x = (noise(300, 4) * 0.01 + 20.0).astype(np.float32)  # weights near exp(-400)
    wanted = attribute_vector(sparse_store(x, tmp_path / "sparse"), at())
    assert wanted.max() / wanted.min() > 2
    np.testing.assert_allclose(attribute_vector(x, at()), wanted, rtol=1e-5)


def test_weights_that_all_underflow_are_refused_with_what_to_do(tmp_path):
    x = np.full((10, 4), 40.0, np.float32)
    for features in (x, dense_store(x, tmp_path / "dense"), sparse_store(x, tmp_path / "sparse")):
        with pytest.raises(UsageError, match="underflow") as refused:
            attribute_vector(features, at())
        assert "smaller gamma" in refused.value.fix
        np.testing.assert_allclose(attribute_vector(features, at(), gamma=1e-4), 0.1, rtol=1e-12)


def test_sums_beyond_float32_are_refused():
    with pytest.raises(UsageError, match="large"):
        attribute_vector(np.full((10, 4), 1e30, np.float32), at(), gamma=1e-62)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_an_array_with_a_value_that_is_not_finite_is_refused_with_its_rows(bad):
    x = noise(10_000, 3).astype(np.float64)
    x[5_000, 1] = bad
    with pytest.raises(UsageError, match="rows 4096 to 8191"):
        attribute_vector(x, at())


@pytest.mark.parametrize(
    ("x", "how", "words"),
    [
        (np.zeros((0, 3)), {}, "no features"),
        (np.zeros((3, 0)), {}, "no features"),
        (np.zeros(3), {}, "of shape"),
        (np.zeros((3, 2), complex), {}, "complex"),
        (np.zeros((3, 2)), {"gamma": 0.0}, "gamma is"),
        (np.zeros((3, 2)), {"gamma": -1.0}, "gamma is"),
        (np.zeros((3, 2)), {"gamma": float("nan")}, "gamma is"),
        (np.zeros((3, 2)), {"num_nodes": 4}, "3 rows"),
    ],
)
def test_what_makes_no_sense_is_refused(x, how, words):
    with pytest.raises(UsageError, match=words):
        attribute_vector(x, at(), **how)


def test_progress_ends_at_its_total_and_blas_gets_its_threads_back(tmp_path):
    before = {pool["filepath"]: pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
    for features in (noise(9_000, 3), sparse_store(words(90, 5), tmp_path / "f", 20)):
        events = []
        attribute_vector(features, at(on_event=events.append))
        assert isinstance(events[0], StageStarted)
        done = [event.done for event in events if isinstance(event, BlockFinished)]
        assert done == sorted(done)
        assert done[-1] == events[0].total == 2 * len(attribute_vector(features, at()))
    after = {pool["filepath"]: pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
    assert after | before == after  # libraries may have been loaded meanwhile


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["amazon_photo", "cora_ml"])
def test_real_features_agree_however_they_are_stored(tmp_path, name):
    path = SHARED / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"the real data is not here: {path}")
    found, chosen = {}, {}
    for kind in ("dense", "sparse"):
        build_store(open_npz_source(path), tmp_path / kind, at(), features_as=kind)
        graph = GraphStore.open(tmp_path / kind)
        features = graph.features
        assert features is not None
        assert features.kind == kind
        found[kind] = attribute_vector(features, at())
        chosen[kind] = top_nodes(rank_importance(graph, at(), reset=found[kind]).ranks, 1000)
    np.testing.assert_array_equal(chosen["dense"], chosen["sparse"])
    x = features.rows_dense(np.arange(features.num_rows))
    np.testing.assert_allclose(found["sparse"], wide_expansion(x, 1 / features.num_features), rtol=1e-10)
    np.testing.assert_allclose(found["dense"], found["sparse"], rtol=1e-6)
    some = x[:: len(x) // 200]
    bounds, gamma = exact_error_bound(some), 1 / x.shape[1]
    exact = np.array([np.exp(-gamma * ((some.astype(np.float64) - row) ** 2).sum(axis=1)).sum() for row in some])
    allowed = (bounds + exact / exact.sum() * bounds.sum()) / (exact.sum() - bounds.sum())
    assert (np.abs(attribute_vector(some, at()) - exact / exact.sum()) <= allowed + 1e-8).all()


def test_the_benchmark_runs_and_compares_with_sgemm(tmp_path):
    result = bench_attribute.run(tmp_path, 9_000, 12, repeats=1)
    assert set(result["ratio_to_sgemm"]) == {
        f"{a}_{b}" for a in ("memory", "store") for b in ("accumulate", "evaluate")
    }
    assert result["largest_relative_error"] < 1e-6
    assert not list(tmp_path.iterdir())

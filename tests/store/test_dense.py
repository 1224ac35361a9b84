from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import feature_read
from ecgl_scale.base.durable import WrittenFile, crc32c_of
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.engine.block import stream_blocks
from ecgl_scale.errors import CorruptStoreError, InvalidInputError, UsageError
from ecgl_scale.store.features.dense import DenseFeatures, DenseLayout, write_dense
from ecgl_scale.store.features.dense_write import describe_array
from ecgl_scale.store.features.face import FeatureStore
from ecgl_scale.store.source import DenseSource


def source_of(x: np.ndarray, *, piece_rows: int | None = None) -> DenseSource:
    def blocks(max_rows: int) -> Iterator[np.ndarray]:
        step = min(max_rows, piece_rows or max_rows)
        return (x[start : start + step] for start in range(0, len(x), step))

    return DenseSource(x.shape[1], x.dtype, "x.npy", blocks)


def write(x: np.ndarray, layout: DenseLayout, directory: Path, **how: Any) -> dict[str, WrittenFile]:
    return write_dense(source_of(x, **how), layout, directory, on_rows=lambda _: None)


def noise(num_rows: int, num_features: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(7).normal(size=(num_rows, num_features)).astype(dtype)


@pytest.fixture
def small(tmp_path: Path) -> tuple[np.ndarray, DenseLayout, dict[str, WrittenFile], Path]:
    x = noise(107, 5)
    layout = DenseLayout(107, 5, "float32", rows_per_chunk=4, rows_per_block=20)
    return x, layout, write(x, layout, tmp_path / "f.zarr"), tmp_path / "f.zarr"


@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.integers(1, 90),
    num_features=st.integers(1, 7),
    chunk=st.integers(1, 12),
    chunks=st.integers(1, 6),
    dtype=st.sampled_from(["float32", "float16"]),
    piece_rows=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape_comes_back_the_same_from_us_and_from_zarr(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    num_rows: int,
    num_features: int,
    chunk: int,
    chunks: int,
    dtype: Any,
    piece_rows: int,
    seed: int,
) -> None:
    directory = tmp_path_factory.mktemp("dense") / "f.zarr"
    x = noise(num_rows, num_features, dtype)
    layout = DenseLayout(num_rows, num_features, dtype, chunk, chunk * chunks)
    files = write(x, layout, directory, piece_rows=piece_rows)
    features = DenseFeatures.open(directory, layout, files)
    array, middle = zarr.open_array(directory, mode="r"), slice(num_rows // 3, num_rows // 2 + 1)
    assert np.array_equal(array[:], x)
    assert np.array_equal(array[middle, :1], x[middle, :1])
    assert np.array_equal(np.concatenate([rows.copy() for _, rows in features.stream()]), x)
    assert np.array_equal(np.concatenate([features.read(block) for block in features.blocks()]), x)
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, num_rows, rng.integers(0, 2 * num_rows))
    for threads in (1, 3):
        assert np.array_equal(features.rows(ids, threads=threads), x[ids])
    shutil.rmtree(directory.parent)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint8", "bool", ">f4"])
def test_other_numbers_are_converted(tmp_path: Path, dtype: str) -> None:
    x = (noise(33, 3) * 3).astype(dtype)
    layout = DenseLayout.plan(33, 3)
    features = DenseFeatures.open(tmp_path / "f.zarr", layout, write(x, layout, tmp_path / "f.zarr"))
    assert np.array_equal(features.read(features.blocks()[0]), x.astype(np.float32))


def test_plan_makes_chunks_of_1_mib_and_blocks_of_32_and_never_less_than_a_row() -> None:
    plan = DenseLayout.plan(10_000_000, 128, "float32")
    assert (plan.rows_per_chunk, plan.rows_per_block) == (2048, 65_536)
    wide = DenseLayout.plan(10, 20_000_000, "float32")
    assert (wide.rows_per_chunk, wide.rows_per_block) == (1, 1)
    assert DenseLayout.plan(1, 1, "float16") == DenseLayout(1, 1, "float16", 1, 1)
    for bad in ((0, 1, "float32"), (1, 0, "float32"), (1, 1, "float64")):
        with pytest.raises(UsageError):
            DenseLayout.plan(*bad)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_description_is_what_zarr_writes_itself(tmp_path: Path, dtype: Any) -> None:
    layout = DenseLayout(107, 5, dtype, rows_per_chunk=4, rows_per_block=20)
    checked = (zarr.codecs.BytesCodec(endian="little"), zarr.codecs.Crc32cCodec())
    zarr.create_array(
        store=str(tmp_path / "f.zarr"),
        shape=(107, 5),
        dtype=dtype,
        chunks=(20, 5),
        serializer=zarr.codecs.ShardingCodec(chunk_shape=(4, 5), codecs=checked, index_codecs=checked),
        filters=None,
        compressors=None,
        fill_value=0,
        chunk_key_encoding={"name": "default", "separator": "."},
        dimension_names=("row", "feature"),
    )
    assert describe_array(layout) == (tmp_path / "f.zarr" / "zarr.json").read_text(encoding="utf-8")


def test_zarr_itself_writes_the_same_chunks_and_index_but_no_table(small: Any, tmp_path: Path) -> None:
    x, layout, files, directory = small
    shutil.copytree(directory, tmp_path / "z.zarr")
    for name in files:
        if name != "zarr.json":
            (tmp_path / "z.zarr" / name).unlink()
    array = zarr.open_array(tmp_path / "z.zarr", mode="r+")
    array.with_config({"write_empty_chunks": True})[:] = x
    for block in layout.blocks():
        ours, theirs = ((d / layout.shard_name(block)).read_bytes() for d in (directory, tmp_path / "z.zarr"))
        data_bytes, table_bytes = layout.num_chunks(block) * 84, layout.num_chunks(block) * 4
        assert ours[:data_bytes] + ours[data_bytes + table_bytes :] == theirs


def test_records_are_those_of_the_files_and_do_not_depend_on_the_pieces(small: Any, tmp_path: Path) -> None:
    x, layout, files, directory = small
    assert {path.name for path in directory.iterdir()} == set(files)
    for name, file in files.items():
        content = (directory / name).read_bytes()
        assert file == WrittenFile(len(content), crc32c_of(content))
    assert write(x, layout, tmp_path / "again.zarr", piece_rows=3) == files


@pytest.mark.parametrize(
    ("x", "dtype", "words"),
    [
        (np.array([[1, 2], [3, np.nan]], np.float32), "float32", ["nan", "row 1, column 1"]),
        (np.array([[1, -np.inf]], np.float64), "float32", ["inf", "row 0, column 1"]),
        (np.array([[1.0], [1e39]]), "float32", ["too large for float32", "row 1, column 0"]),
        (np.array([[70_000]]), "float16", ["too large for float16", "float32"]),
        (np.array([["a"]]), "float32", ["<U1"]),
        (np.array([[1j]]), "float32", ["complex"]),
        (np.array([[None]], object), "float32", ["object"]),
    ],
)
def test_values_that_are_no_finite_numbers_are_refused(tmp_path: Path, x: np.ndarray, dtype: Any, words: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        write(x, DenseLayout.plan(*x.shape, dtype), tmp_path / "f.zarr")
    assert all(word in str(caught.value) for word in ["x.npy", *words])


@pytest.mark.parametrize(("num_rows", "num_features"), [(9, 3), (11, 3), (30, 3), (10, 2), (10, 4)])
def test_a_wrong_number_of_rows_or_columns_is_refused(tmp_path: Path, num_rows: int, num_features: int) -> None:
    layout = DenseLayout(10, 3, "float32", 2, 4)
    with pytest.raises(InvalidInputError, match=r"x\.npy"):
        write(noise(num_rows, num_features), layout, tmp_path / "f.zarr")


def damaged(small: Any) -> DenseFeatures:
    _, layout, files, directory = small
    return DenseFeatures.open(directory, layout, files)


def test_every_flipped_bit_is_found_by_read_and_by_rows_of_its_chunk(small: Any) -> None:
    x, layout, _, directory = small
    rng = np.random.default_rng(3)
    blocks = layout.blocks()
    for _ in range(400):
        block = blocks[rng.integers(len(blocks))]
        path = directory / layout.shard_name(block)
        content = path.read_bytes()
        position = int(rng.integers(len(content)))
        broken = bytearray(content)
        broken[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        with pytest.raises(CorruptStoreError, match=path.name):
            damaged(small).read(block)
        with pytest.raises(CorruptStoreError, match=path.name):
            damaged(small).rows([min(block.start + position // 84 * 4, block.stop - 1)])
        with pytest.raises(CorruptStoreError, match=path.name):
            list(damaged(small).stream())
        path.write_bytes(content)
    assert np.array_equal(damaged(small).rows(np.arange(107)), x)


@pytest.mark.parametrize("how", ["truncate", "grow", "empty", "delete", "link", "swap", "stale"])
def test_a_damaged_shard_is_refused_by_name(small: Any, how: str, tmp_path: Path) -> None:
    x, layout, _, directory = small
    path, other = directory / "c.1.0", directory / "c.2.0"
    content = path.read_bytes()
    if how in ("truncate", "grow", "empty"):
        path.write_bytes({"truncate": content[:-1], "grow": content + b"0", "empty": b""}[how])
    elif how == "delete":
        path.unlink()
    elif how == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif how == "swap":
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    else:
        write(x + 1, layout, tmp_path / "old.zarr")
        path.write_bytes((tmp_path / "old.zarr" / "c.1.0").read_bytes())
    with pytest.raises(CorruptStoreError, match=r"c\.1\.0"):
        damaged(small).read(layout.blocks()[1])
    with pytest.raises(CorruptStoreError, match=r"c\.1\.0"):
        damaged(small).rows([0, 25])
    assert np.array_equal(damaged(small).rows([3, 90]), x[[3, 90]])


def test_open_refuses_metadata_or_a_manifest_that_do_not_belong(small: Any) -> None:
    _, layout, files, directory = small
    with pytest.raises(CorruptStoreError, match=r"c\.2\.0"):
        DenseFeatures.open(directory, layout, {name: file for name, file in files.items() if name != "c.2.0"})
    with pytest.raises(CorruptStoreError, match=r"c\.0\.0"):
        DenseFeatures.open(directory, replace(layout, rows_per_chunk=5), files)
    with pytest.raises(CorruptStoreError, match=r"zarr\.json"):
        DenseFeatures.open(directory, replace(layout, num_features=6), files)
    text = (directory / "zarr.json").read_text()
    (directory / "zarr.json").write_text(text.replace("107", "108"))
    with pytest.raises(CorruptStoreError, match=r"zarr\.json"):
        DenseFeatures.open(directory, layout, files)


@pytest.mark.parametrize("ids", [[107], [-1], [0.5], [[1]], np.array([2**64 - 1], np.uint64)])
def test_rows_that_do_not_exist_are_a_usage_error(small: Any, ids: Any) -> None:
    with pytest.raises(UsageError):
        damaged(small).rows(ids)


def test_read_fills_the_array_it_is_given_and_refuses_one_that_does_not_fit(small: Any) -> None:
    x, layout, _, _ = small
    features: FeatureStore = damaged(small)
    out = np.empty((20, 5), np.float32)
    assert damaged(small).read(layout.blocks()[2], out) is out
    assert np.array_equal(out, x[40:60])
    assert np.array_equal(features.rows_dense([1]), x[[1]])
    for bad in (np.empty((19, 5), np.float32), np.empty((20, 5)), np.empty((5, 20), np.float32).T):
        with pytest.raises(UsageError):
            damaged(small).read(layout.blocks()[2], bad)


def test_an_abandoned_or_failing_stream_ends_its_threads(small: Any) -> None:
    _, layout, _, _ = small
    features = damaged(small)
    into = features.buffers(2)
    for _block, rows in features.stream(into=into):
        assert np.shares_memory(rows, into[0])
        break
    with pytest.raises(UsageError):
        next(damaged(small).stream(threads=0))
    with pytest.raises(ZeroDivisionError):
        list(stream_blocks(layout.blocks(), lambda block, _: 1 // (2 - block.index), ahead=3, threads=2))


def test_writing_and_streaming_stay_within_their_memory(tmp_path: Path) -> None:
    layout = DenseLayout.plan(3 * 65_536 + 17, 128)
    source = feature_read._noise(layout.num_rows)
    warm = DenseLayout.plan(9, 4)
    DenseFeatures.open(tmp_path / "w", warm, write(noise(9, 4), warm, tmp_path / "w")).rows([1])
    before = own_memory_bytes()
    with PeakSampler() as sampler:
        files = write_dense(source, layout, tmp_path / "f.zarr", on_rows=lambda _: None)
    assert sampler.peak_bytes - before <= 32 * 2**20
    features = DenseFeatures.open(tmp_path / "f.zarr", layout, files)
    before = own_memory_bytes()
    with PeakSampler() as sampler:
        for _ in features.stream(read_ahead=1):
            pass
    assert sampler.peak_bytes - before <= 2.1 * layout.block_bytes
    before = own_memory_bytes()
    with PeakSampler() as sampler:
        features.rows(np.arange(0, layout.num_rows, 2000))
    assert sampler.peak_bytes - before <= 20 * 2**20


def test_the_benchmark_runs_at_a_small_size(tmp_path: Path) -> None:
    result = feature_read.run(tmp_path / "bench", 1 << 20, repeats=1, cold=False)
    assert result["warm"]["ratio"] > 0
    assert result["cold"].startswith("skipped")

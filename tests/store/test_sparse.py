from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from ecgl_scale.base.durable import WrittenFile, crc32c_of
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.errors import CorruptStoreError, InvalidInputError, StoreVersionError, UsageError
from ecgl_scale.store.features import sparse as store_sparse
from ecgl_scale.store.features.choose import as_dense, as_sparse, choose_kind
from ecgl_scale.store.features.dense import DenseFeatures, DenseLayout, write_dense
from ecgl_scale.store.features.face import FeatureStore
from ecgl_scale.store.features.sparse import SparseFeatures, SparseLayout, write_sparse
from ecgl_scale.store.source import CsrBlock, DenseSource, SparseSource


def source_of(matrix: Any, *, piece_rows: int | None = None) -> SparseSource:
    matrix = sparse.csr_matrix(matrix)

    def blocks(max_rows: int) -> Iterator[CsrBlock]:
        step = min(max_rows, piece_rows or max_rows)
        for start in range(0, matrix.shape[0], step):
            part = matrix[start : start + step]
            yield CsrBlock(part.indptr.astype(np.int64), part.indices, part.data)

    return SparseSource(matrix.shape[1], matrix.nnz, "x.npz", blocks)


def one_block(indptr: Any, indices: Any, values: Any, num_features: int = 3) -> SparseSource:
    block = CsrBlock(np.array(indptr), np.array(indices), np.array(values))
    return SparseSource(num_features, len(values), "x.npz", lambda _: iter([block]))


def dense_source(x: np.ndarray) -> DenseSource:
    def blocks(max_rows: int) -> Iterator[np.ndarray]:
        return (x[start : start + max_rows] for start in range(0, len(x), max_rows))

    return DenseSource(x.shape[1], x.dtype, "x.npy", blocks)


def write(source: SparseSource, layout: SparseLayout, directory: Path) -> dict[str, WrittenFile]:
    return write_sparse(source, layout, directory, on_rows=lambda _: None)


def as_scipy(rows: CsrBlock, num_features: int) -> Any:
    return sparse.csr_matrix((rows.values, rows.indices, rows.indptr), shape=(rows.indptr.size - 1, num_features))


def random_matrix(num_rows: int, num_features: int, seed: int = 0, density: float = 0.2) -> Any:
    return sparse.random(num_rows, num_features, density, format="csr", dtype=np.float32, rng=seed)


@pytest.fixture
def small(tmp_path: Path) -> tuple[Any, SparseLayout, dict[str, WrittenFile], Path]:
    matrix = random_matrix(50, 11, seed=5)
    layout = SparseLayout(50, 11, 8, matrix.nnz)
    return matrix, layout, write(source_of(matrix), layout, tmp_path / "features"), tmp_path / "features"


def opened(small: Any) -> SparseFeatures:
    _, layout, files, directory = small
    return SparseFeatures.open(directory, layout, files)


@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.integers(1, 60),
    num_features=st.integers(1, 20),
    rows_per_block=st.integers(1, 25),
    piece_rows=st.integers(1, 30),
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_matrix_comes_back_as_scipy_has_it(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    num_rows: int,
    num_features: int,
    rows_per_block: int,
    piece_rows: int,
    density: float,
    seed: int,
) -> None:
    directory = tmp_path_factory.mktemp("sparse") / "features"
    matrix = random_matrix(num_rows, num_features, seed, density)
    layout = SparseLayout(num_rows, num_features, min(rows_per_block, num_rows), matrix.nnz)
    files = write(source_of(matrix, piece_rows=piece_rows), layout, directory)
    features = SparseFeatures.open(directory, layout, files)
    read = sparse.vstack([as_scipy(rows, num_features) for _, rows in features.stream()])
    assert (read != matrix).nnz == 0
    dense = np.concatenate([features.read_dense(block) for block in features.blocks()])
    assert np.array_equal(dense, matrix.toarray())
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, num_rows, rng.integers(0, 2 * num_rows))
    gathered, expected = features.rows(ids), matrix[ids]
    assert np.array_equal(gathered.indptr, expected.indptr)
    assert np.array_equal(as_scipy(gathered, num_features).toarray(), expected.toarray())
    assert np.array_equal(features.rows_dense(ids), expected.toarray())
    shutil.rmtree(directory.parent)


def test_blocks_are_views_of_the_mapped_file_and_cost_no_memory_of_ours(tmp_path: Path) -> None:
    matrix = random_matrix(40_000, 1000, density=0.1)
    layout = SparseLayout(40_000, 1000, 40_000, matrix.nnz)
    features = SparseFeatures.open(tmp_path / "f", layout, write(source_of(matrix), layout, tmp_path / "f"))
    block = features.blocks()[0]
    features.read(block)
    before = own_memory_bytes()
    rows = features.read(block)
    assert not rows.indices.flags.writeable
    assert not rows.values.flags.owndata
    assert rows.values.sum() != 0
    assert own_memory_bytes() - before < 2**20


def test_writing_takes_little_more_than_twice_a_block(tmp_path: Path) -> None:
    matrix = random_matrix(120_000, 1000, density=0.1)
    layout = SparseLayout.plan(120_000, 1000, matrix.nnz)
    assert len(layout.blocks()) > 3
    write(source_of(random_matrix(9, 9)), SparseLayout(9, 9, 9, 16), tmp_path / "warm")
    before = own_memory_bytes()
    with PeakSampler() as sampler:
        files = write(source_of(matrix), layout, tmp_path / "f")
    assert sampler.peak_bytes - before <= 3 * store_sparse.BLOCK_BYTES
    assert all(file.size_bytes < 32 * 2**20 for file in files.values())


def test_records_are_those_of_the_files_and_do_not_depend_on_the_pieces(small: Any, tmp_path: Path) -> None:
    matrix, layout, files, directory = small
    assert {path.name for path in directory.iterdir()} == set(files)
    for name, file in files.items():
        content = (directory / name).read_bytes()
        assert file == WrittenFile(len(content), crc32c_of(content))
    assert write(source_of(matrix, piece_rows=3), layout, tmp_path / "again") == files


def test_unsorted_columns_are_sorted_and_zeros_dropped(tmp_path: Path) -> None:
    source = one_block([0, 3, 4], [2, 0, 1, 1], [5.0, 0.0, 7.0, -0.0])
    layout = SparseLayout(2, 3, 2, 4)
    features = SparseFeatures.open(tmp_path / "f", layout, write(source, layout, tmp_path / "f"))
    rows = features.read(features.blocks()[0])
    assert rows.indptr.tolist() == [0, 2, 2]
    assert rows.indices.tolist() == [1, 2]
    assert rows.values.tolist() == [7, 5]


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (([0, 0, 1], [3], [1.0]), ["outside", "row 1"]),
        (([0, 0, 1], [-1], [1.0]), ["outside", "row 1"]),
        (([0, 1, 1], np.array([2**64 - 1], np.uint64), [1.0]), ["outside", "row 0"]),
        (([0, 0, 2], [1, 1], [1.0, 2.0]), ["twice", "row 1"]),
        (([0, 1, 1], [1], [np.nan]), ["not finite", "row 0"]),
        (([0, 1, 1], [1], [1e39]), ["not finite", "row 0"]),
        (([1, 1, 1], [1], [1.0]), ["offsets"]),
        (([0, 2, 1], [1], [1.0]), ["offsets"]),
        (([0, 1, 1], [1, 2], [1.0, 1.0]), ["offsets"]),
        (([0.0, 1.0, 1.0], [1], [1.0]), ["offsets"]),
        (([0, 1, 1], [1.0], [1.0]), ["float64 columns"]),
        (([0, 1, 1], [1], ["a"]), ["<U1 values"]),
        (([0, 1], [1], [1.0]), ["1 rows"]),
        (([0, 1, 1, 1], [1], [1.0]), ["more than 2 rows"]),
    ],
)
def test_bad_rows_are_refused_with_their_place(tmp_path: Path, block: Any, words: list[str]) -> None:
    source = one_block(*block)
    with pytest.raises(InvalidInputError) as caught:
        write(source, SparseLayout(2, 3, 2, 4), tmp_path / "f")
    assert all(word in str(caught.value) for word in ["x.npz", *words])


def test_bad_columns_are_refused_on_the_way_to_dense_too(tmp_path: Path) -> None:
    source = as_dense(one_block([0, 0, 1], [3], [1.0]))
    with pytest.raises(InvalidInputError, match="row 1"):
        write_dense(source, DenseLayout.plan(2, 3), tmp_path / "f.zarr", on_rows=lambda _: None)


def test_every_flipped_bit_is_found(small: Any) -> None:
    matrix, layout, _, directory = small
    rng = np.random.default_rng(3)
    blocks = layout.blocks()
    for _ in range(250):
        block = blocks[rng.integers(len(blocks))]
        path = directory / layout.file_name(block)
        content = path.read_bytes()
        broken = bytearray(content)
        broken[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        for use in (lambda f, b: f.read(b), lambda f, b: f.rows([b.start]), lambda f, _: list(f.stream())):
            with pytest.raises(CorruptStoreError, match=path.name):
                use(opened(small), block)
        path.write_bytes(content)
    assert np.array_equal(opened(small).rows_dense(np.arange(50)), matrix.toarray())


@pytest.mark.parametrize("how", ["truncate", "empty", "delete", "link", "swap", "stale"])
def test_a_damaged_file_is_refused_by_name(small: Any, how: str, tmp_path: Path) -> None:
    matrix, layout, _, directory = small
    path, other = directory / "000001.arrow", directory / "000002.arrow"
    content = path.read_bytes()
    if how in ("truncate", "empty"):
        path.write_bytes(content[:-1] if how == "truncate" else b"")
    elif how == "delete":
        path.unlink()
    elif how == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif how == "swap":
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    else:
        write(source_of(matrix * 2), layout, tmp_path / "old")
        path.write_bytes((tmp_path / "old" / path.name).read_bytes())
    with pytest.raises(CorruptStoreError, match=path.name):
        opened(small).read(layout.blocks()[1])
    with pytest.raises(CorruptStoreError, match=path.name):
        opened(small).rows([0, 9])


def test_another_format_version_is_refused(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, layout, _, _ = small
    monkeypatch.setattr(store_sparse, "FORMAT_VERSION", 99)
    files = write(source_of(matrix), layout, tmp_path / "new")
    monkeypatch.undo()
    with pytest.raises(StoreVersionError):
        SparseFeatures.open(tmp_path / "new", layout, files).read(layout.blocks()[0])


def test_usage_errors_name_what_is_wrong(small: Any) -> None:
    with pytest.raises(UsageError, match="50"):
        opened(small).rows([50])
    with pytest.raises(UsageError):
        opened(small).read_dense(opened(small).blocks()[0], np.empty((1, 1), np.float32))
    for bad in ((0, 1, 1), (1, 0, 1), (1, 2**32 + 1, 1)):
        with pytest.raises(UsageError):
            SparseLayout.plan(*bad)


def test_kind_is_chosen_by_density_unless_asked_for() -> None:
    thin, thick = random_matrix(100, 50, density=0.05), random_matrix(100, 50, density=0.3)
    for matrix, kind in ((thin, "sparse"), (thick, "dense")):
        for source in (source_of(matrix), dense_source(matrix.toarray())):
            assert choose_kind(source, "auto", num_rows=100) == kind
            assert choose_kind(source, "dense", num_rows=100) == "dense"
            assert choose_kind(source, "sparse", num_rows=100) == "sparse"
    with pytest.raises(UsageError):
        choose_kind(source_of(thin), "other", num_rows=100)  # type: ignore[arg-type]


@pytest.mark.parametrize("given_kind", ["dense", "sparse"])
@pytest.mark.parametrize("stored_kind", ["dense", "sparse"])
def test_all_four_ways_from_source_to_store_give_the_same_rows(
    tmp_path: Path, given_kind: str, stored_kind: str
) -> None:
    matrix = random_matrix(70, 13)
    given_dense, given_sparse = dense_source(matrix.toarray()), source_of(matrix)
    features: FeatureStore
    if stored_kind == "dense":
        dense_layout = DenseLayout(70, 13, "float32", 4, 12)
        source = given_dense if given_kind == "dense" else as_dense(given_sparse)
        files = write_dense(source, dense_layout, tmp_path / "f", on_rows=lambda _: None)
        features = DenseFeatures.open(tmp_path / "f", dense_layout, files)
    else:
        chosen = given_sparse if given_kind == "sparse" else as_sparse(given_dense)
        assert chosen.num_values == matrix.nnz
        layout = SparseLayout(70, 13, 12, chosen.num_values)
        features = SparseFeatures.open(tmp_path / "f", layout, write(chosen, layout, tmp_path / "f"))
    assert features.kind == stored_kind
    assert np.array_equal(features.rows_dense(np.arange(70)), matrix.toarray())
    ids = [69, 0, 0, 31]
    assert (as_scipy(features.rows_csr(ids), 13) != matrix[ids]).nnz == 0
    assert features.count_values(ids) == (matrix[ids].nnz if stored_kind == "sparse" else 4 * 13)
    assert features.num_values == (matrix.nnz if stored_kind == "sparse" else 70 * 13)
    for block in features.blocks():
        rows = matrix[block.start : block.stop]
        columns = np.empty((block.num_rows, 4), np.float32)
        features.read_columns(block, 3, 7, columns)
        assert np.array_equal(columns, rows.toarray()[:, 3:7])
        assert np.array_equal(features.read_dense(block), rows.toarray())
        assert (as_scipy(features.read_csr(block), 13) != rows).nnz == 0
    on_disk = [path.stat().st_size for path in (tmp_path / "f").iterdir() if path.name != "zarr.json"]
    assert features.stored_bytes == sum(on_disk)


def large_matrix(tmp_path: Path) -> tuple[Any, SparseFeatures]:
    """A single block of 30,000 rows."""
    matrix = sparse.random(30_000, 500, density=0.02, format="csr", dtype=np.float32, random_state=0)
    layout = SparseLayout.plan(30_000, 500, matrix.nnz)
    written = write(source_of(matrix), layout, tmp_path / "x")
    return matrix, SparseFeatures.open(tmp_path / "x", layout, written)


@pytest.mark.parametrize("count", [0, 7, 20_000])
def test_rows_read_sparingly_are_those_of_the_matrix(tmp_path: Path, count: int) -> None:
    matrix, features = large_matrix(tmp_path)
    ids = np.random.default_rng(0).integers(0, 30_000, count)
    found, wanted = features.rows_sparingly(ids), features.rows(ids)
    for name in ("indptr", "indices", "values"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert found.indices.size == matrix[ids].nnz


def test_rows_read_sparingly_are_checked_and_others_are_not(tmp_path: Path) -> None:
    _, features = large_matrix(tmp_path)
    path = tmp_path / "x" / "000000.arrow"
    content = bytearray(path.read_bytes())
    wild = len(content) // 4 // 64 * 64  # offsets come first, then columns: those of about row 12,000
    content[wild : wild + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(CorruptStoreError, match="a column outside the matrix"):
        features.rows_sparingly(np.arange(10_500, 13_500))
    assert features.rows_sparingly(np.arange(100)).num_rows == 100
    with pytest.raises(CorruptStoreError, match="differs from the manifest"):
        features.rows_sparingly(np.arange(0, 30_000, 8))
    content[4096:8192] = b"\x7f" * 4096
    path.write_bytes(content)
    with pytest.raises(CorruptStoreError, match="makes no sense in the rows 0 to 29,999"):
        features.rows_sparingly(np.arange(400, 1200))

"""The memory bank: what is added stays, comes back from its file bit for bit, and damage never goes unnoticed."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.errors import InvalidInputError, StorageError, UsageError
from ecgl_scale.learn import bank as bank_module
from ecgl_scale.learn.bank import MemoryBank, plan_bank
from ecgl_scale.store.source import CsrBlock

KINDS = ["float32", "float16", "sparse"]
K = 6


def sparse_of(x):
    present = x != 0
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return CsrBlock(indptr, np.nonzero(present)[1].astype(np.uint32), x[present].astype(np.float32))


def matrix(num_rows, seed=0):
    random = np.random.default_rng(seed)
    x = random.integers(-8, 9, (num_rows, K)).astype(np.float32)
    x[random.random(x.shape) < 0.5] = 0
    return x


def rows_of(x, kind):
    return sparse_of(x) if kind == "sparse" else x.astype(kind)


def bank_of(kind, sizes=(4, 0, 3)):
    """A bank of a few tasks, and what it holds: (task, id, label, importance, diversity, row), in order."""
    bank, wanted = MemoryBank.empty(K), []
    for task, size in enumerate(sizes):
        random = np.random.default_rng(task)
        ids = np.sort(random.choice(1000, size, replace=False))
        labels, x, scores = random.integers(0, 9, size), matrix(size, task), random.random(size)
        bank = bank.add(task, ids, labels, rows_of(x, kind), scores)
        wanted += [*zip([task] * size, ids, labels, scores, [np.nan] * size, x.tolist(), strict=True)]
    return bank, wanted


def content(bank):
    columns = (bank.task, bank.node_ids, bank.label, bank.importance, bank.diversity)
    return [*zip(*columns, bank.dense_rows().tolist(), strict=True)]


def assert_same(one, other):
    assert (one.num_features, len(one), one.is_sparse) == (other.num_features, len(other), other.is_sparse)
    for name in ("node_ids", "task", "label", "importance", "diversity"):
        assert getattr(one, name).dtype == getattr(other, name).dtype
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    for mine, others in zip(bank_module._arrays_of(one.rows), bank_module._arrays_of(other.rows), strict=True):
        assert (mine.dtype, mine.shape, mine.tobytes()) == (others.dtype, others.shape, others.tobytes())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_added_is_kept_task_by_task(kind):
    bank, wanted = bank_of(kind)
    np.testing.assert_equal(content(bank), wanted)
    assert (len(bank), bank.tasks, bank.is_sparse) == (7, [0, 2], kind == "sparse")
    assert bank.dense_rows().dtype == np.float32
    assert np.isnan(bank.diversity).all()
    rows = {"float32": 7 * K * 4, "float16": 7 * K * 2, "sparse": 8 * 8 + 8 * np.count_nonzero(bank.dense_rows())}
    assert bank.num_bytes == 7 * 40 + rows[kind]


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 5), max_size=5),
    kind=st.sampled_from(KINDS),
    tasks=st.sets(st.integers(0, 6)),
)
def test_a_part_holds_the_nodes_of_its_tasks(sizes, kind, tasks):
    bank, wanted = bank_of(kind, sizes)
    part = bank.for_tasks(tasks)
    np.testing.assert_equal(content(part), [entry for entry in wanted if entry[0] in tasks])
    assert_same(bank.for_tasks(range(len(sizes))), bank)


def test_a_bank_does_not_change_and_keeps_its_own_copy():
    ids, labels, x = np.array([1, 5]), np.array([0, 1]), matrix(2)
    first = MemoryBank.empty(K).add(0, ids, labels, x, np.ones(2), np.ones(2))
    before = content(first)
    second = first.add(3, ids, labels, x)
    for array in (ids, labels, x):
        array[:] = 0
    assert content(first) == before
    np.testing.assert_equal(content(second)[:2], before)
    assert (len(first), len(second)) == (2, 4)


def test_an_empty_addition_decides_nothing():
    bank = MemoryBank.empty(K).add(0, [], [], np.empty((0, K), np.float16))
    bank = bank.add(1, [4], [0], sparse_of(matrix(1)))
    assert bank.is_sparse
    assert bank.tasks == [1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [(), (0,), (1,), (4, 0, 3)])
def test_a_bank_comes_back_bit_for_bit(tmp_path, kind, sizes):
    bank, _ = bank_of(kind, sizes)
    path = tmp_path / "bank.arrow"
    bank.save(path)
    found = MemoryBank.load(path)
    assert_same(found, bank)
    # Not views of a mapped file: it may go, and the bank may grow.
    path.unlink()
    grown = found.add(9, [2], [1], rows_of(matrix(1), kind))
    assert len(grown) == len(bank) + 1
    assert found.node_ids.flags.writeable
    assert [*tmp_path.iterdir()] == []


def test_equal_banks_make_equal_files_which_any_arrow_library_reads(tmp_path):
    for name in ("one", "two"):
        bank, wanted = bank_of("float32")
        bank.save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    with pa.OSFile(str(tmp_path / "one")) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.schema.names == ["node", "task", "label", "importance", "diversity", "row"]
    assert table["node"].to_pylist() == [entry[1] for entry in wanted]
    assert table["row"].to_pylist() == [entry[5] for entry in wanted]


def test_saving_replaces_the_old_bank_or_leaves_it(tmp_path, monkeypatch):
    path = tmp_path / "bank.arrow"
    MemoryBank.empty(K).save(path)
    (tmp_path / ".bank.arrow.partial").write_bytes(b"left by a killed run")
    bank, _ = bank_of("sparse")
    bank.save(path)
    old = path.read_bytes()

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match="No space left"):
        MemoryBank.empty(K).save(path)
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["bank.arrow"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_byte_is_noticed_or_does_not_matter(tmp_path, kind):
    bank, _ = bank_of(kind)
    path = tmp_path / "bank.arrow"
    bank.save(path)
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        spoiled = bytearray(whole)
        spoiled[place] ^= 1 << place % 8
        path.write_bytes(spoiled)
        try:
            found = MemoryBank.load(path)
        except InvalidInputError:
            refused += 1
        else:  # padding, or what Arrow writes twice
            assert_same(found, bank)
    assert refused >= bank.num_bytes // 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_short_is_refused(tmp_path, kind):
    bank, _ = bank_of(kind)
    path = tmp_path / "bank.arrow"
    bank.save(path)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(InvalidInputError, match="the memory bank cannot be read"):
            MemoryBank.load(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="No such file"):
        MemoryBank.load(tmp_path / "none")
    with pytest.raises(InvalidInputError):
        MemoryBank.load(tmp_path)
    other = tmp_path / "other.arrow"
    with pa.OSFile(str(other), "wb") as file, pa.ipc.new_file(file, pa.schema([("x", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch([pa.array([1])], names=["x"]))
    with pytest.raises(InvalidInputError, match="the memory bank cannot be read"):
        MemoryBank.load(other)
    with pytest.raises(InvalidInputError, match="cannot use this path"):
        MemoryBank.empty(K).save(tmp_path / "missing" / "bank.arrow")


def test_another_version_is_refused_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(bank_module, "FORMAT_VERSION", 2)
    bank_of("float32")[0].save(tmp_path / "bank.arrow")
    monkeypatch.undo()
    with pytest.raises(InvalidInputError, match=r"format version 2\n.*\n  expected: version 1"):
        MemoryBank.load(tmp_path / "bank.arrow")


def test_what_does_not_fit_is_refused():
    x = matrix(2)
    bank = MemoryBank.empty(K).add(2, [1, 5], [0, 1], x)
    with pytest.raises(UsageError, match="0 features"):
        MemoryBank.empty(0)
    for task in (2, 1, -1):
        with pytest.raises(UsageError, match=f"task {task} is to be added after task 2"):
            bank.add(task, [1, 5], [0, 1], x)
    for ids in ([5, 1], [1, 1], [-1, 1]):
        with pytest.raises(UsageError, match="node ids of task 3 are not in order"):
            bank.add(3, ids, [0, 1], x)
    with pytest.raises(UsageError, match="node_ids are float64"):
        bank.add(3, [1.0, 2.0], [0, 1], x)
    with pytest.raises(UsageError, match="labels are int64"):
        bank.add(3, [1, 2], [0], x)
    with pytest.raises(UsageError, match="node 2 has no label"):
        bank.add(3, [1, 2], [0, -1], x)
    with pytest.raises(UsageError, match="importance is"):
        bank.add(3, [1, 2], [0, 1], x, np.zeros(3))
    with pytest.raises(UsageError, match="diversity is"):
        bank.add(3, [1, 2], [0, 1], x, None, ["a", "b"])
    for rows in (x[:1], x[:, 1:], x.astype(np.float64)):
        with pytest.raises(UsageError, match="rows are float"):
            bank.add(3, [1, 2], [0, 1], rows)
    with pytest.raises(UsageError, match="these rows are dense float16\n  expected: dense float32"):
        bank.add(3, [1, 2], [0, 1], x.astype(np.float16))
    with pytest.raises(UsageError, match="these rows are sparse float32\n  expected: dense float32"):
        bank.add(3, [1, 2], [0, 1], sparse_of(x))


def test_sparse_rows_that_do_not_fit_are_refused():
    bank, good = MemoryBank.empty(K), sparse_of(np.ones((2, K), np.float32))
    wrong = [
        CsrBlock(good.indptr[:-1], good.indices, good.values),
        CsrBlock(good.indptr + 1, good.indices, good.values),
        CsrBlock(good.indptr, good.indices[:-1], good.values),
        CsrBlock(good.indptr, good.indices + np.uint32(1), good.values),
        CsrBlock(good.indptr, good.indices.astype(np.int64), good.values),
        CsrBlock(good.indptr[[0, 2, 1]], good.indices[:K], good.values[:K]),
    ]
    for rows in wrong:
        with pytest.raises(UsageError, match="sparse rows that do not fit"):
            bank.add(0, [1, 2], [0, 1], rows)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_peak_stays_under_the_plan(tmp_path, kind):
    num_nodes, num_features = 40_000, 200
    x = np.random.default_rng(0).random((num_nodes // 2, num_features), np.float32)
    rows = sparse_of(x) if kind == "sparse" else x
    bank = MemoryBank.empty(num_features).add(0, np.arange(len(x)), np.zeros(len(x), np.int64), rows)
    # The first half is there already when the second is added.
    held = own_memory_bytes() - bank.num_bytes
    with PeakSampler(0.001) as sampler:
        bank = bank.add(1, np.arange(len(x)), np.zeros(len(x), np.int64), rows)
        bank.save(tmp_path / "bank.arrow")
        del bank
        bank = MemoryBank.load(tmp_path / "bank.arrow")
    num_values = num_nodes * num_features if kind == "sparse" else None
    plan = plan_bank(num_nodes, num_features, num_values=num_values)
    assert bank.num_bytes <= plan.written_bytes <= bank.num_bytes * 1.01
    assert sampler.peak_bytes - held <= plan.host_bytes * 1.1

"""Files and directories that are whole or not there, whatever fails on the way."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path

import google_crc32c  # an independent implementation, which zarr brings
import numpy as np
import pytest

from ecgl_scale.base import durable
from ecgl_scale.base.buffers import ReusableBytes, aligned_bytes
from ecgl_scale.base.direct import SECTOR_BYTES, round_up
from ecgl_scale.base.durable import (
    WRITE_BUFFER_BYTES,
    DurableWriter,
    WrittenFile,
    atomic_file,
    crc32c_of,
    free_bytes,
    storage_errors,
    write_atomically,
)
from ecgl_scale.errors import EcglError, InvalidInputError, LockedError, StorageError
from ecgl_scale.units import MIB

BUFFER = WRITE_BUFFER_BYTES
SIZES = [0, 1, 4095, 4096, 4097, BUFFER - 1, BUFFER, BUFFER + 1, 2 * BUFFER - 1, 2 * BUFFER, 3 * BUFFER + 1]


def noise(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_a_file_of_any_size_is_written_whole_with_its_crc(tmp_path: Path, size: int) -> None:
    content = noise(size)
    with DurableWriter(tmp_path / "file") as sink:
        assert sink.write(content) == size
        assert sink.tell() == size
        written = sink.finish()
    assert (tmp_path / "file").read_bytes() == content
    assert written == WrittenFile(size, google_crc32c.value(content))
    assert sink.closed


def test_pieces_of_any_size_and_kind_add_up(tmp_path: Path) -> None:
    content = noise(2 * BUFFER + 12_345)
    cuts = [0, 0, 1, 5, 4_100, 4_100, BUFFER - 3, BUFFER + 9, 2 * BUFFER + 1, len(content)]
    with DurableWriter(tmp_path / "file") as sink:
        for first, last in pairwise(cuts):
            sink.write(memoryview(content)[first:last])
            sink.flush()
        sink.write(np.arange(3, dtype="<u4"))
        written = sink.finish()
    expected = content + np.arange(3, dtype="<u4").tobytes()
    assert (tmp_path / "file").read_bytes() == expected
    assert written == WrittenFile(len(expected), google_crc32c.value(expected))


def test_an_existing_file_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(InvalidInputError, match="File exists"):
        DurableWriter(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "old"


def test_a_failure_while_writing_leaves_the_file_closed(tmp_path: Path) -> None:
    with pytest.raises(TypeError), DurableWriter(tmp_path / "file") as sink:
        sink.write("text is not bytes")
    assert sink.closed
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(sink._descriptor)


def test_a_full_disk_behind_the_writer_is_reported_and_the_file_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, data: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable, "write_all", refuse)
    sink = DurableWriter(tmp_path / "file")
    sink.write(b"some")
    with pytest.raises(StorageError, match="No space left"):
        sink.finish()
    assert sink.closed


def test_a_failing_fsync_is_never_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    sink = DurableWriter(tmp_path / "file")
    sink.write(b"some")
    with pytest.raises(StorageError, match="Input/output error"):
        sink.finish()
    with pytest.raises(StorageError, match="Input/output error"):
        write_atomically(tmp_path / "small", "text")
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize("text", ["", "{}\n", "ä" * 5000])
def test_a_small_file_is_written_in_one_step(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text("old")
    written = write_atomically(tmp_path / "file", text)
    assert (tmp_path / "file").read_text(encoding="utf-8") == text
    assert written == WrittenFile(len(text.encode()), google_crc32c.value(text.encode()))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_old_content_stays_if_the_write_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("old")

    def refuse(self: Path, target: object) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StorageError):
        write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize("size", [0, 1, 4096, 5 * MIB + 1])
def test_memory_for_direct_writes_begins_on_a_page(size: int) -> None:
    memory = aligned_bytes(size)
    assert memory.size == size
    assert memory.ctypes.data % SECTOR_BYTES == 0
    memory[:] = 7
    assert int(memory.sum()) == 7 * size


def test_memory_for_direct_writes_is_private_as_shared_memory_has_no_huge_pages() -> None:
    def shared_kb() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssShmem:"))

    before = shared_kb()
    memory = aligned_bytes(8 * MIB)
    memory[:] = 1
    assert shared_kb() - before < 1024


def test_reusable_memory_is_kept_grown_and_given_back() -> None:
    memory = ReusableBytes()
    assert memory.size == 0
    first = memory.take(10_000)
    assert (first.size, memory.size) == (10_000, 10_000)
    assert memory.take(5_000).ctypes.data == first.ctypes.data
    assert memory.take(20_000).size == memory.size == 20_000
    memory.drop()
    assert memory.size == 0


def test_round_up_gives_the_next_multiple() -> None:
    assert [round_up(number, 8) for number in (0, 1, 8, 9)] == [0, 8, 8, 16]


def test_crc_can_be_taken_in_parts() -> None:
    content = noise(1000)
    assert crc32c_of(content[300:], crc32c_of(content[:300])) == google_crc32c.value(content)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG])
def test_a_disk_that_refuses_is_exit_5_with_the_free_space(tmp_path: Path, code: int) -> None:
    path = tmp_path / "not" / "there"
    with pytest.raises(StorageError) as raised, storage_errors(path, needed_bytes=3 * MIB):
        raise OSError(code, os.strerror(code))
    error = raised.value
    assert error.exit_code == 5
    assert str(path) in str(error.where)
    assert "iB free, 3 MiB needed" in str(error.where)
    assert os.strerror(code) in error.what


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EROFS])
def test_a_path_one_may_not_use_is_exit_3_and_named(tmp_path: Path, code: int) -> None:
    with pytest.raises(InvalidInputError, match="cannot use this path") as raised, storage_errors(tmp_path):
        raise OSError(code, os.strerror(code))
    assert raised.value.exit_code == 3
    assert raised.value.where == str(tmp_path)


def test_our_own_errors_pass_through(tmp_path: Path) -> None:
    mine = LockedError("busy")
    with pytest.raises(EcglError) as raised, storage_errors(tmp_path):
        raise mine
    assert raised.value is mine


def test_free_space_is_told_for_a_path_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b") > 0


def test_an_atomic_file_is_durable_before_and_after_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "file", []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    with atomic_file(path) as partial:
        partial.write_bytes(b"content")
        assert not path.exists()
    assert path.read_bytes() == b"content"
    assert synced == [(".file.partial", False), (tmp_path.name, True)]


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_error_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path, is_shared: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write() -> None:
        with atomic_file(path, is_shared=is_shared) as partial:
            partial.write_bytes(b"half")
            assert (str(os.getpid()) in partial.name) == is_shared
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"

"""Files and directories that are whole or not there, whatever fails on the way."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from ecgl_scale.errors import EcglError, InvalidInputError, LockedError, StorageError, StoreExistsError
from ecgl_scale.run import durable
from ecgl_scale.run.durable import (
    SECTOR_BYTES,
    WRITE_BUFFER_BYTES,
    DurableWriter,
    ReusableBytes,
    Staging,
    WrittenFile,
    aligned_bytes,
    crc32c_of,
    free_bytes,
    round_up,
    storage_errors,
    write_atomically,
)
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


MARKER = "manifest"


def build(target: Path, text: str, *, overwrite: bool = False) -> None:
    with Staging(target, marker=MARKER, overwrite=overwrite) as staging:
        (staging.path / MARKER).touch()
        (staging.path / "inner").mkdir()
        (staging.path / "inner" / "file").write_text(text)
        staging.commit()


def test_the_target_appears_only_on_commit(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "store"
    with Staging(target, marker=MARKER) as staging:
        (staging.path / "file").write_text("new")
        assert not target.exists()
        staging.commit()
        assert (target / "file").read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["store"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failure_leaves_the_target_as_it_was_and_nothing_beside_it(tmp_path: Path, overwrite: bool) -> None:
    target = tmp_path / "store"
    if overwrite:
        build(target, "old")
    with pytest.raises(FileNotFoundError), Staging(target, marker=MARKER, overwrite=overwrite) as staging:
        shutil.copy(staging.path / "nothing", staging.path / "half")
    assert [path.name for path in tmp_path.iterdir()] == (["store"] if overwrite else [])
    assert not overwrite or (target / "inner" / "file").read_text() == "old"


def test_an_existing_target_is_refused_unless_it_may_be_replaced(tmp_path: Path) -> None:
    build(tmp_path / "store", "old")
    with pytest.raises(StoreExistsError, match="--overwrite"):
        build(tmp_path / "store", "new")
    assert (tmp_path / "store" / "inner" / "file").read_text() == "old"
    build(tmp_path / "store", "new", overwrite=True)
    assert (tmp_path / "store" / "inner" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_we_did_not_write_is_never_replaced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "thesis"
    kept = target if kind == "file" else tmp_path / ("elsewhere" if kind == "link" else "thesis") / "chapter.tex"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("years of work")
    if kind == "link":
        target.symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StoreExistsError, match="nothing we wrote"):
        build(target, "new", overwrite=True)
    assert kept.read_text() == "years of work"
    assert sorted(tmp_path.iterdir()) == before


def test_an_empty_directory_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    build(tmp_path / "store", "new", overwrite=True)
    assert (tmp_path / "store" / "inner" / "file").read_text() == "new"


def test_at_every_moment_of_a_replacement_one_whole_directory_has_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "store"
    build(target, "old")
    seen = []
    exchange = durable.exchange

    def watched(new: Path, old: Path) -> None:
        seen.append((target / "inner" / "file").read_text())
        exchange(new, old)
        seen.append((target / "inner" / "file").read_text())

    monkeypatch.setattr(durable, "exchange", watched)
    build(target, "new", overwrite=True)
    assert seen == ["old", "new"]


def test_a_failed_exchange_keeps_the_old_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "store", "old")

    def fail(new: Path, old: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable, "exchange", fail)
    with pytest.raises(StorageError):
        build(tmp_path / "store", "new", overwrite=True)
    assert (tmp_path / "store" / "inner" / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "store"
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom ecgl_scale.run.durable import Staging\n"
        "staging = Staging(Path(sys.argv[1]), marker='manifest').__enter__()\n"
        "(staging.path / 'half').write_text('half')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(target)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / ".store.building" / "half").exists()
    assert not target.exists()
    build(target, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert sorted(path.name for path in target.iterdir()) == ["inner", MARKER]


def test_a_second_writer_of_one_target_is_told_who_holds_it(tmp_path: Path) -> None:
    target = tmp_path / "store"
    with Staging(target, marker=MARKER) as first:
        (first.path / "file").write_text("mine")
        with pytest.raises(LockedError, match=f'"pid": {os.getpid()}'), Staging(target, marker=MARKER):
            pytest.fail("two writers at once")
        holder = json.loads((tmp_path / ".store.building.lock").read_text())
        assert holder["pid"] == os.getpid()
        first.commit()
    assert (target / "file").read_text() == "mine"


def test_staging_that_cannot_begin_lets_go_of_its_lock(tmp_path: Path) -> None:
    (tmp_path / ".store.building").write_text("in the way")
    with pytest.raises(InvalidInputError, match="File exists"), Staging(tmp_path / "store", marker=MARKER):
        pytest.fail("staged onto a file")
    (tmp_path / ".store.building").unlink()
    build(tmp_path / "store", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_folder_one_may_not_write_is_exit_3(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError), Staging(tmp_path / "file" / "store", marker=MARKER):
        pytest.fail("staged inside a file")

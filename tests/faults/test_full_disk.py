"""Disks that are full, failing or not ours to write: a clear end, nothing left behind, the old store untouched."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale.base.events import ignore_events
from ecgl_scale.errors import StorageError
from ecgl_scale.store import build
from ecgl_scale.store.build import MemoryShares, build_store
from ecgl_scale.store.sources.npz import open_npz_source
from ecgl_scale.store.verify import verify_store
from ecgl_scale.units import MIB
from tests.faults.running import file_checksums, inject, leftovers, needs_strace, run_cli, run_process, write_graph
from tests.resources import at

pytestmark = pytest.mark.faults

DISK_BYTES = 8 * MIB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of our own; being tmpfs, on many kernels it also has no O_DIRECT."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(mounted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mount failed: {done.stderr.strip()}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    return write_graph(tmp_path / "graph.npz", nodes=20_000, edges=60_000)


@pytest.fixture
def wrong_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the prediction believe in an endless disk, as it would with a source that knows too little of itself."""
    monkeypatch.setattr(build, "free_bytes", lambda path: 1 << 50)


def _leave_free(disk: Path, num_bytes: int) -> None:
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free - num_bytes, 1))


def test_a_predicted_shortage_is_refused_before_anything_is_written(disk: Path, graph_file: Path) -> None:
    ran = run_cli("ingest", "npz", graph_file, disk / "graph.ecgl")
    assert (ran.code, ran.stdout) == (4, "")
    assert re.search(r"the disk is short: about [\d.]+ MiB needed, [\d.]+ MiB free", ran.stderr)
    assert str(disk) in ran.stderr
    assert list(disk.iterdir()) == []


def test_a_predicted_shortage_leaves_the_old_store(
    disk: Path, graph_file: Path, tmp_path: Path, wrong_estimate: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = disk / "graph.ecgl"
    assert run_cli("--quiet", "ingest", "npz", write_graph(tmp_path / "old.npz"), store).code == 0
    old = file_checksums(store)
    monkeypatch.undo()
    assert run_cli("ingest", "npz", graph_file, store, "--overwrite").code == 4
    assert file_checksums(store) == old
    assert leftovers(disk) == []


def test_a_disk_that_fills_up_at_any_moment_ends_with_5_and_leaves_nothing(
    disk: Path, graph_file: Path, wrong_estimate: None
) -> None:
    store = disk / "graph.ecgl"
    arguments = ["--quiet", "ingest", "npz", graph_file, store]
    assert run_cli(*arguments).code == 0
    clean, used_bytes = file_checksums(store), DISK_BYTES - os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize
    failed_at = set()
    for share in np.linspace(0.01, 0.999, 30):
        subprocess.run(["rm", "-r", str(store)], check=False, capture_output=True)
        _leave_free(disk, int(used_bytes * share))
        ran = run_cli(*arguments)
        if ran.code == 0:  # the last page of the manifest may be shared with padding that was cut off
            assert share > 0.98
            continue
        assert (ran.code, ran.stdout) == (5, ""), ran.stderr
        assert re.search(rf"where: {disk}/\S+ \(\S+ \w*B free, \S+ \w*B needed\)", ran.stderr), ran.stderr
        failed_at.add(Path(re.findall(r"where: (\S+)", ran.stderr)[0]).name)
        assert [path.name for path in disk.iterdir()] == ["filler"]
    assert {"00000.arrow", "nodes.arrow", "c.0.0"} <= failed_at
    (disk / "filler").unlink()
    assert run_cli(*arguments).code == 0
    assert file_checksums(store) == clean
    verify_store(store, at(on_event=ignore_events))
    assert leftovers(disk) == []


def test_a_disk_that_fills_up_leaves_the_old_store(
    disk: Path, graph_file: Path, tmp_path: Path, wrong_estimate: None
) -> None:
    store = disk / "graph.ecgl"
    assert run_cli("--quiet", "ingest", "npz", write_graph(tmp_path / "old.npz"), store).code == 0
    old = file_checksums(store)
    _leave_free(disk, MIB)
    assert run_cli("--quiet", "ingest", "npz", graph_file, store, "--overwrite").code == 5
    assert file_checksums(store) == old
    verify_store(store, at(on_event=ignore_events))
    (disk / "filler").unlink()
    assert run_cli("--quiet", "ingest", "npz", graph_file, store, "--overwrite").code == 0
    assert file_checksums(store) != old
    assert leftovers(disk) == []


def test_scratch_space_that_runs_out_is_a_storage_error(
    disk: Path, tmp_path: Path, wrong_estimate: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = MemoryShares(threads=1, block_edges=50_000, kept_bytes=0, share_bytes=32 * MIB)
    monkeypatch.setattr(MemoryShares, "of", lambda *arguments, **options: shares)
    source = open_npz_source(write_graph(tmp_path / "graph.npz", edges=1_500_000))
    with pytest.raises(StorageError, match=r"keys\.scratch \(.* free, .* needed\)"):
        build_store(source, disk / "graph.ecgl", at())
    assert list(disk.iterdir()) == []


def test_a_failing_fsync_is_never_ignored(graph_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, real_fsync = tmp_path / "graph.ecgl", os.fsync
    calls = [0, 0]

    def failing_fsync(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] == calls[1]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing_fsync)
    for number in range(1, 50):
        calls[:] = [0, number]
        ran = run_cli("--quiet", "ingest", "npz", graph_file, store)
        assert leftovers(tmp_path) == []
        if store.exists() and calls[0] < number:
            break
        assert (ran.code, ran.stdout) == (5, "")
        assert "Input/output error" in ran.stderr
        if store.exists():  # only the name of the finished store was not made durable
            verify_store(store, at(on_event=ignore_events))
            subprocess.run(["rm", "-r", str(store)], check=True)
    assert number > 10


@needs_strace
def test_an_eio_from_the_kernel_at_fsync_ends_with_5(tmp_path: Path) -> None:
    store = tmp_path / "graph.ecgl"
    under = inject("fsync:error=EIO:when=2")
    ran = run_process("--quiet", "ingest", "npz", write_graph(tmp_path / "graph.npz"), store, under=under)
    assert (ran.code, ran.stdout) == (5, "")
    assert "Input/output error" in ran.stderr
    assert str(tmp_path) in ran.stderr
    assert not store.exists()
    assert leftovers(tmp_path) == []


@needs_strace
def test_an_eio_from_the_kernel_at_a_read_names_the_file(graph_file: Path, tmp_path: Path) -> None:
    store = tmp_path / "graph.ecgl"
    assert run_cli("--quiet", "ingest", "npz", graph_file, store).code == 0
    ran = run_process("verify", store, under=inject("preadv,preadv2:error=EIO:when=1"))
    assert (ran.code, ran.stdout) == (5, "")
    assert re.search(rf"Input/output error\n  where: {store}/\S+", ran.stderr)
    verify_store(store, at(on_event=ignore_events))


def test_a_read_that_fails_is_a_storage_error_and_not_a_damaged_file(
    graph_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "graph.ecgl"
    assert run_cli("--quiet", "ingest", "npz", graph_file, store).code == 0

    def failing_read(*arguments: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for name in ("pread", "preadv"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing_read)
            ran = run_cli("verify", store)
        assert (ran.code, ran.stdout) == (5, "")
        assert str(store) in ran.stderr


def _read_only(disk: Path) -> Path:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    return disk / "graph.ecgl"


def _below_a_file(disk: Path) -> Path:
    (disk / "file").write_text("mine")
    return disk / "file" / "graph.ecgl"


def _plain_file(disk: Path) -> Path:
    (disk / "graph.ecgl").write_text("mine")
    return disk / "graph.ecgl"


def _folder_of_somebody(disk: Path) -> Path:
    (disk / "graph.ecgl").mkdir()
    (disk / "graph.ecgl" / "thesis.txt").write_text("mine")
    return disk / "graph.ecgl"


def _link(disk: Path) -> Path:
    (disk / "elsewhere").mkdir()
    (disk / "graph.ecgl").symlink_to(disk / "elsewhere")
    return disk / "graph.ecgl"


def _dangling_link(disk: Path) -> Path:
    (disk / "graph.ecgl").symlink_to(disk / "nowhere")
    return disk / "graph.ecgl"


def _root(disk: Path) -> Path:
    return Path("/")


TARGETS = (_read_only, _below_a_file, _plain_file, _folder_of_somebody, _link, _dangling_link, _root)


def _seen(folder: Path) -> list[tuple[str, str]]:
    paths = sorted(folder.rglob("*"))
    return [(str(path), path.read_text() if path.is_file() else str(path.is_symlink())) for path in paths]


@pytest.mark.parametrize("options", [[], ["--overwrite"]], ids=["new", "overwrite"])
@pytest.mark.parametrize("make", TARGETS, ids=lambda make: make.__name__.strip("_"))
def test_a_target_that_is_not_ours_to_write_ends_with_3_and_stays_as_it_was(
    disk: Path, graph_file: Path, wrong_estimate: None, make: Callable[[Path], Path], options: list[str]
) -> None:
    target = make(disk)
    before = _seen(disk)
    ran = run_cli("ingest", "npz", graph_file, target, *options)
    assert (ran.code, ran.stdout) == (3, ""), ran.stderr
    assert str(target) in ran.stderr
    assert _seen(disk) == before


def test_an_existing_store_is_kept_without_overwrite_and_replaced_with_it(graph_file: Path, tmp_path: Path) -> None:
    store = tmp_path / "graph.ecgl"
    assert run_cli("--quiet", "ingest", "npz", write_graph(tmp_path / "old.npz"), store).code == 0
    old = file_checksums(store)
    ran = run_cli("ingest", "npz", graph_file, store)
    assert (ran.code, ran.stdout) == (3, "")
    assert str(store) in ran.stderr
    assert "--overwrite" in ran.stderr
    assert file_checksums(store) == old
    assert run_cli("--quiet", "ingest", "npz", graph_file, store, "--overwrite").code == 0
    assert file_checksums(store) != old
    assert leftovers(tmp_path) == []


def test_an_empty_directory_may_be_overwritten(graph_file: Path, tmp_path: Path) -> None:
    store = tmp_path / "graph.ecgl"
    store.mkdir()
    assert run_cli("ingest", "npz", graph_file, store).code == 3
    assert run_cli("--quiet", "ingest", "npz", graph_file, store, "--overwrite").code == 0
    verify_store(store, at(on_event=ignore_events))

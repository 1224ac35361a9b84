"""A build that is killed leaves nothing that opens, or the old store; the next run finishes and cleans up."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.base import staging
from ecgl_scale.base.events import ignore_events
from ecgl_scale.errors import IncompleteStoreError
from ecgl_scale.store.verify import verify_store
from tests.faults.running import (
    cli_command,
    file_checksums,
    inject,
    leftovers,
    needs_strace,
    run_cli,
    run_process,
    start_child,
    write_graph,
)
from tests.resources import at

pytestmark = pytest.mark.faults

NUM_KILLS = 16
LOCK = ".graph.ecgl.building.lock"


@pytest.fixture(scope="module")
def graph_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("graph") / "graph.npz", nodes=30_000, edges=150_000)


@pytest.fixture(scope="module")
def clean(graph_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Checksums of the files of a build that nobody disturbed."""
    store = tmp_path_factory.mktemp("clean") / "graph.ecgl"
    assert run_cli("--quiet", "ingest", "npz", graph_file, store).code == 0
    return file_checksums(store)


def _old_store(folder: Path) -> Path:
    store = folder / "graph.ecgl"
    assert run_cli("--quiet", "ingest", "npz", write_graph(folder / "old.npz", seed=9), store).code == 0
    return store


def _everything_in(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def _wait_for(path: Path, child: ForkServerProcess | subprocess.Popen[str]) -> None:
    """Until the path is there or the child has ended."""
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        ended = child.poll() if isinstance(child, subprocess.Popen) else child.exitcode
        if ended is not None:
            return
        time.sleep(0.0005)


def _check_after_kill(store: Path, clean: dict[str, Any], old: dict[str, bytes] | None) -> str:
    """What is there is the old store, the new store or nothing that opens; says which."""
    if old is None and not store.exists():
        with pytest.raises(IncompleteStoreError):
            GraphStore.open(store)
        return "nothing"
    verify_store(store, at(on_event=ignore_events))
    if old is not None and _everything_in(store) == old:
        return "old"
    assert file_checksums(store) == clean
    return "new"


def _finish(graph_file: Path, store: Path, clean: dict[str, Any]) -> None:
    ran = run_cli("--quiet", "ingest", "npz", graph_file, store, "--overwrite")
    assert ran.code == 0, ran.stderr
    assert file_checksums(store) == clean
    verify_store(store, at(on_event=ignore_events))
    assert leftovers(store.parent) == []


@pytest.mark.parametrize("overwrite", [False, True], ids=["new target", "existing store"])
def test_killed_at_random_moments_the_target_is_old_or_absent_and_a_second_run_finishes(
    graph_file: Path, clean: dict[str, Any], tmp_path: Path, overwrite: bool
) -> None:
    rng = np.random.default_rng(5 + overwrite)
    store = tmp_path / "graph.ecgl"
    kept = tmp_path / "kept"
    options = ["--overwrite"] if overwrite else []
    if overwrite:
        shutil.copytree(_old_store(tmp_path), kept)
    seconds, ended = 0.4, []
    for number in range(NUM_KILLS // 2):
        shutil.rmtree(store, ignore_errors=True)
        if overwrite:
            shutil.copytree(kept, store)
        child = start_child(None, (), "--quiet", "ingest", "npz", graph_file, store, *options)
        _wait_for(tmp_path / LOCK, child)
        began = time.monotonic()
        # The first runs to its end and so tells over how long the moments are to be spread.
        if number:
            time.sleep(float(rng.uniform(0, seconds)))
            child.kill()
        child.join(60)
        if not number:
            assert child.exitcode == 0
            seconds = time.monotonic() - began
        was_killed = child.exitcode == -signal.SIGKILL
        ended.append(_check_after_kill(store, clean, _everything_in(kept) if overwrite else None))
        assert was_killed or ended[-1] == "new"
        if number:
            _finish(graph_file, store, clean)
    assert set(ended) - {"new"}, "no kill came before the end"


class _Snapshots:
    """Copies a folder before every fsync and rename of this process: what a kill at that moment would leave."""

    def __init__(self, folder: Path, copies: Path) -> None:
        self.taken: list[Path] = []
        self._folder, self._copies = folder, copies

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        for module, name in ((os, "fsync"), (os, "rename"), (os, "replace"), (staging, "exchange")):
            patch.setattr(module, name, self._taking(getattr(module, name)))

    def take(self) -> None:
        self.taken.append(self._copies / f"{len(self.taken):03}")
        shutil.copytree(self._folder, self.taken[-1])

    def _taking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.take()
            return function(*arguments)

        return call


@pytest.mark.parametrize("overwrite", [False, True], ids=["new target", "existing store"])
def test_at_every_fsync_and_rename_the_target_is_never_half_written(tmp_path: Path, overwrite: bool) -> None:
    graph_file = write_graph(tmp_path / "graph.npz")
    folder = tmp_path / "work"
    folder.mkdir()
    old = _everything_in(_old_store(folder)) if overwrite else None
    snapshots = _Snapshots(folder, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        snapshots.watch(patch)
        arguments = ["--quiet", "ingest", "npz", graph_file, folder / "graph.ecgl", "--threads", 1]
        assert run_cli(*arguments, *(["--overwrite"] if overwrite else [])).code == 0
    snapshots.take()
    clean = file_checksums(folder / "graph.ecgl")
    ended = [_check_after_kill(taken / "graph.ecgl", clean, old) for taken in snapshots.taken]
    # Two files of edges, three of features and columns, the manifest, the directories and the commit.
    assert len(ended) > 15
    assert ended == sorted(ended, key=["nothing", "old", "new"].index)
    assert ended.count("new") < 5
    for taken in snapshots.taken:
        _finish(graph_file, taken / "graph.ecgl", clean)


@needs_strace
def test_killed_by_the_kernel_at_the_last_rename_the_store_is_absent_or_whole(tmp_path: Path) -> None:
    graph_file, store = write_graph(tmp_path / "graph.npz"), tmp_path / "graph.ecgl"
    # The main thread renames zarr.json, the manifest and the staging directory.
    ran = run_process("--quiet", "ingest", "npz", graph_file, store, under=inject("rename:signal=SIGKILL:when=3"))
    assert ran.code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    assert leftovers(tmp_path) != []
    if store.exists():  # a killed call may or may not have been done
        verify_store(store, at(on_event=ignore_events))
    assert run_cli("--quiet", "ingest", "npz", graph_file, store, "--overwrite").code == 0
    assert leftovers(tmp_path) == []


@needs_strace
def test_killed_by_the_kernel_at_the_exchange_of_two_stores_one_of_them_is_whole(tmp_path: Path) -> None:
    store = _old_store(tmp_path)
    graph_file = write_graph(tmp_path / "graph.npz")
    under = inject("renameat2:signal=SIGKILL:when=1")
    ran = run_process("--quiet", "ingest", "npz", graph_file, store, "--overwrite", under=under)
    assert ran.code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    verify_store(store, at(on_event=ignore_events))
    assert run_cli("--quiet", "ingest", "npz", graph_file, store, "--overwrite").code == 0
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGUSR2, 75), (signal.SIGINT, 130)])
def test_a_stopped_build_exits_with_its_code_and_leaves_nothing(
    graph_file: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    store = tmp_path / "graph.ecgl"
    with subprocess.Popen(
        cli_command("ingest", "npz", graph_file, store), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        _wait_for(tmp_path / LOCK, child)
        child.send_signal(number)
        stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == code, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_build_leaves_the_old_store(graph_file: Path, tmp_path: Path) -> None:
    store = _old_store(tmp_path)
    old = _everything_in(store)
    child = start_child(None, (), "--quiet", "ingest", "npz", graph_file, store, "--overwrite")
    _wait_for(tmp_path / LOCK, child)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGTERM)
    child.join(60)
    assert child.exitcode == 75
    assert _everything_in(store) == old
    assert leftovers(tmp_path) == []


def _stop_at_first_fsync(ready: str) -> None:
    """In a child: say that the build is under way, then wait to be killed."""

    def wait(fd: object) -> None:
        Path(ready).touch()
        time.sleep(60)

    os.fsync = wait


def test_a_second_writer_is_refused_with_the_holders_pid_and_takes_over_when_the_holder_is_dead(
    graph_file: Path, clean: dict[str, Any], tmp_path: Path
) -> None:
    store, ready = tmp_path / "graph.ecgl", tmp_path / "ready"
    holder = start_child(_stop_at_first_fsync, (str(ready),), "--quiet", "ingest", "npz", graph_file, store)
    try:
        _wait_for(ready, holder)
        ran = run_cli("ingest", "npz", graph_file, store)
        assert (ran.code, ran.stdout) == (3, "")
        assert f'"pid": {holder.pid}' in ran.stderr
        assert str(store) in ran.stderr
        assert sorted(leftovers(tmp_path)) == [".graph.ecgl.building", LOCK], "the refused one touched the holder's"
    finally:
        holder.kill()
        holder.join(60)
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == holder.pid
    _finish(graph_file, store, clean)


def test_a_lock_file_nobody_holds_is_taken_over(graph_file: Path, clean: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text('{"host": "elsewhere", "pid": 1}')
    (tmp_path / ".graph.ecgl.building").mkdir()
    (tmp_path / ".graph.ecgl.building" / "keys.scratch").write_bytes(b"left over")
    _finish(graph_file, tmp_path / "graph.ecgl", clean)

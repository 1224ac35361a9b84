"""A directory that takes its name when it is finished, whatever fails on the way."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ecgl_scale.base import staging as staging_module
from ecgl_scale.base.staging import Staging
from ecgl_scale.errors import InvalidInputError, LockedError, StorageError, StoreExistsError

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
    exchange = staging_module.exchange

    def watched(new: Path, old: Path) -> None:
        seen.append((target / "inner" / "file").read_text())
        exchange(new, old)
        seen.append((target / "inner" / "file").read_text())

    monkeypatch.setattr(staging_module, "exchange", watched)
    build(target, "new", overwrite=True)
    assert seen == ["old", "new"]


def test_a_failed_exchange_keeps_the_old_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "store", "old")

    def fail(new: Path, old: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(staging_module, "exchange", fail)
    with pytest.raises(StorageError):
        build(tmp_path / "store", "new", overwrite=True)
    assert (tmp_path / "store" / "inner" / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "store"
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom ecgl_scale.base.staging import Staging\n"
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

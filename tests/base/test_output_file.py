"""The place of an output is looked at before the work; whatever must not be replaced is refused and stays."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale import GraphStore
from ecgl_scale.base.output_file import STORE_MANIFEST, STORE_MARK, check_output_file
from ecgl_scale.errors import ExitCode, InvalidInputError
from ecgl_scale.store.format import FORMAT, MANIFEST_NAME


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "graph.ecgl"
    GraphStore.from_edge_index(np.array([[0, 1], [1, 0]]), path=path, num_nodes=2)
    return path


def refused(path: Path, match: str) -> InvalidInputError:
    before = sorted(path.parent.iterdir()) if path.parent.is_dir() else None
    with pytest.raises(InvalidInputError, match=match) as caught:
        check_output_file(path)
    assert before == (sorted(path.parent.iterdir()) if path.parent.is_dir() else None)
    assert caught.value.exit_code == ExitCode.INPUT
    assert caught.value.expected
    assert caught.value.fix
    assert str(path) in str(caught.value)
    return caught.value


def test_a_new_file_and_one_that_may_be_replaced_are_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").write_text("old")
    for name in ("new", "old"):
        assert check_output_file(tmp_path / name) == tmp_path / name
    monkeypatch.chdir(tmp_path)
    assert check_output_file(Path("new")) == Path("new")
    assert (tmp_path / "old").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_link_stands_for_the_file_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("old")
    (tmp_path / "link").symlink_to("there/file")
    (tmp_path / "second").symlink_to("link")
    (tmp_path / "to_nothing").symlink_to("there/new")
    assert check_output_file(tmp_path / "link") == tmp_path / "there" / "file"
    assert check_output_file(tmp_path / "second") == tmp_path / "there" / "file"
    assert check_output_file(tmp_path / "to_nothing") == tmp_path / "there" / "new"
    assert (tmp_path / "link").is_symlink()


def test_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    for path in (tmp_path / "folder", tmp_path / "link", Path()):
        refused(path, "this is a directory")


def test_what_is_no_plain_file_stays_what_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        refused(tmp_path / name, "no plain file")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_circle_of_links_and_a_name_that_is_too_long_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    refused(tmp_path / "a", "cannot be a file")
    refused(tmp_path / ("x" * 300), "cannot be a file")


def test_nothing_is_written_into_a_store(tmp_path: Path, store: Path) -> None:
    manifest = (store / MANIFEST_NAME).read_bytes()
    (tmp_path / "link").symlink_to(store / MANIFEST_NAME)
    (tmp_path / "way_in").symlink_to(store / "edges")
    for path in (
        store / MANIFEST_NAME,
        store / "scores.parquet",
        store / "edges" / "scores.parquet",
        tmp_path / "link",
        tmp_path / "way_in" / "scores.parquet",
    ):
        assert str(store) in str(refused(path, "into a store").where)
    assert (store / MANIFEST_NAME).read_bytes() == manifest


def test_the_manifest_of_another_program_is_no_store(tmp_path: Path) -> None:
    (tmp_path / STORE_MANIFEST).write_text('{"name": "an extension of a browser"}')
    assert check_output_file(tmp_path / "scores.parquet") == tmp_path / "scores.parquet"


def test_stores_are_known_by_the_name_and_mark_they_are_written_with(store: Path) -> None:
    assert STORE_MANIFEST == MANIFEST_NAME
    assert f'"{FORMAT}"'.encode() == STORE_MARK
    assert STORE_MARK in (store / MANIFEST_NAME).read_bytes()


def test_a_folder_that_is_not_there_or_closed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("missing", "file"):
        refused(tmp_path / folder / "scores.parquet", "no folder")
    # Root may write everywhere, so the answer of the system is played.
    monkeypatch.setattr(os, "access", lambda *_: False)
    refused(tmp_path / "scores.parquet", "may not be written to")

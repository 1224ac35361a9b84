from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import pytest

from ecgl_scale.errors import DoesNotFitError, InvalidInputError
from ecgl_scale.store.sources import archive as archive_module
from ecgl_scale.store.sources.archive import PublishedFiles, extract_member, open_archive, open_member
from ecgl_scale.store.sources.npz_in_zip import FileView, stored_range


def make_zip(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as made:
        for name, content in members.items():
            made.writestr(name, content)
    return path


def test_members_are_read_and_extracted_whole(tmp_path):
    content = os.urandom(100_000)
    found = open_archive(make_zip(tmp_path / "a.zip", {"arxiv/raw/x": content, "arxiv/y": b"1"}))
    with open_member(found, "arxiv/raw/x") as member:
        assert member.read() == content
    target = extract_member(found, "arxiv/raw/x", tmp_path / "deep" / "x")
    assert target.read_bytes() == content
    assert [path.name for path in target.parent.iterdir()] == ["x"]
    with pytest.raises(InvalidInputError, match="lacks a file"):
        open_member(found, "arxiv/z")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "a\\..\\x", "C:/x", ".."])
def test_a_path_that_climbs_out_is_refused(tmp_path, name):
    with pytest.raises(InvalidInputError, match="leaves the archive"):
        open_archive(make_zip(tmp_path / "a.zip", {"fine": b"", name: b"x"}))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(tmp_path, kind):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as made:
        info = zipfile.ZipInfo("link")
        info.external_attr = (kind | 0o777) << 16
        made.writestr(info, "/etc/passwd")
    with pytest.raises(InvalidInputError, match="link or a device"):
        open_archive(tmp_path / "a.zip")


def test_encrypted_members_and_odd_compression_are_refused(tmp_path):
    raw = bytearray(make_zip(tmp_path / "a.zip", {"x": b"x"}).read_bytes())
    raw[raw.rindex(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "b.zip").write_bytes(raw)
    with pytest.raises(InvalidInputError, match="encrypted"):
        open_archive(tmp_path / "b.zip")
    with pytest.raises(InvalidInputError, match="compression"):
        open_archive(make_zip(tmp_path / "c.zip", {"x": b"x" * 100}, zipfile.ZIP_LZMA))


def test_a_bomb_is_refused_before_anything_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(archive_module, "SMALL_BYTES", 1 << 16)
    with pytest.raises(InvalidInputError, match="bomb"):
        open_archive(make_zip(tmp_path / "a.zip", {"x": bytes(1 << 20)}))


def test_too_much_in_all_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="at most 10 B"):
        open_archive(make_zip(tmp_path / "a.zip", {"x": b"123456", "y": b"123456"}), max_total_bytes=10)


def test_members_that_share_bytes_are_refused(tmp_path):
    path = make_zip(tmp_path / "a.zip", {"x": os.urandom(4000)}, zipfile.ZIP_STORED)
    with zipfile.ZipFile(path, "a") as made:
        for number in range(3):
            twin = zipfile.ZipInfo(f"twin{number}")
            original = made.infolist()[0]
            twin.header_offset, twin.CRC = original.header_offset, original.CRC
            twin.file_size = twin.compress_size = original.file_size
            made.filelist.append(twin)
            made.NameToInfo[twin.filename] = twin
        made._didModify = True
    with pytest.raises(InvalidInputError, match="overlap"):
        open_archive(path)


def test_one_name_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as made:
        made.writestr("x", "1")
        with pytest.warns(UserWarning, match="Duplicate"):
            made.writestr("x", "2")
    with pytest.raises(InvalidInputError, match="twice"):
        open_archive(tmp_path / "a.zip")


def test_a_member_whose_bytes_changed_is_not_left_on_disk(tmp_path):
    path = make_zip(tmp_path / "a.zip", {"x": os.urandom(5000)}, zipfile.ZIP_STORED)
    raw = bytearray(path.read_bytes())
    raw[2000] ^= 1
    path.write_bytes(raw)
    with pytest.raises(InvalidInputError, match="CRC"):
        extract_member(open_archive(path), "x", tmp_path / "out" / "x")
    assert list((tmp_path / "out").iterdir()) == []


def test_extraction_keeps_to_its_cap_and_to_the_disk(tmp_path, monkeypatch):
    found = open_archive(make_zip(tmp_path / "a.zip", {"x": b"12345"}))
    with pytest.raises(InvalidInputError, match="at most 4 B"):
        extract_member(found, "x", tmp_path / "x", max_bytes=4)
    monkeypatch.setattr(archive_module, "free_bytes", lambda path: 4)
    with pytest.raises(DoesNotFitError):
        extract_member(found, "x", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_stored_member_is_seen_through_a_view(tmp_path):
    content = os.urandom(1000)
    found = open_archive(make_zip(tmp_path / "a.zip", {"first": b"1", "x": content}, zipfile.ZIP_STORED))
    stretch = stored_range(found, "x")
    assert stretch is not None
    with FileView(found.path, *stretch) as view:
        assert view.read() == content
        assert view.seek(-10, os.SEEK_END) == 990
        assert view.read(100) == content[-10:]
        with pytest.raises(OSError, match="Invalid"):
            view.seek(-1)
    assert stored_range(open_archive(make_zip(tmp_path / "b.zip", {"x": content})), "x") is None


def test_a_folder_on_disk_and_in_a_zip_look_the_same(tmp_path):
    (tmp_path / "g" / "split" / "time").mkdir(parents=True)
    (tmp_path / "g" / "split" / "time" / "a").write_text("1")
    made = make_zip(tmp_path / "g.zip", {"g/split/time/a": b"1"})
    for files in (PublishedFiles(tmp_path / "g"), PublishedFiles(made, "g/", open_archive(made))):
        assert files.folder_name == "g"
        assert files.subfolders("split") == ["time"]
        assert files.subfolders("raw") == []
        assert files.has("split/time/a")
        assert not files.has("split/time")
        with files.open("split/time/a") as file:
            assert file.read() == b"1"
        with pytest.raises(InvalidInputError, match=r"missing|lacks"):
            files.open("none")

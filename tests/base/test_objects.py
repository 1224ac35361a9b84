"""Requests to an object store, ranges, files fetched from it, and the bounded mirror, against a server on loopback."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.base.durable import WrittenFile, crc32c_of
from ecgl_scale.base.objects.client import NoObjectError, ObjectClient
from ecgl_scale.base.objects.fetch import RANGE_BYTES, check_object, fetch_file, read_ranges
from ecgl_scale.base.objects.mirror import Mirror
from ecgl_scale.base.objects.url import ObjectUrl, absolute_text, location_of, require_directory
from ecgl_scale.cli import doctor
from ecgl_scale.errors import (
    CorruptStoreError,
    DoesNotFitError,
    InvalidInputError,
    StorageError,
    StoreExistsError,
    UsageError,
)
from ecgl_scale.units import MIB
from tests.cli_runner import run_cli
from tests.object_server import Bucket


def noise(num_bytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(num_bytes)


def written(data: bytes) -> WrittenFile:
    return WrittenFile(len(data), crc32c_of(data))


# --- names


@pytest.mark.parametrize(
    "given", ["s3://bucket/a/b.ecgl", "s3:/bucket/a/b.ecgl", Path("s3://bucket/a/b.ecgl"), "s3://bucket//a/b.ecgl/"]
)
def test_a_url_is_known_however_many_slashes_it_has_lost(given: str | Path) -> None:
    location = location_of(given)
    assert location == ObjectUrl("s3", "bucket", "a/b.ecgl")
    assert (str(location), location.name, str(location.parent)) == ("s3://bucket/a/b.ecgl", "b.ecgl", "s3://bucket/a")
    assert location_of(absolute_text(location)) == location


@pytest.mark.parametrize("given", ["a/b", "/s3/x", "s3", "./s3x:/b", "C:/b", Path("a")])
def test_a_path_stays_a_path(given: str | Path) -> None:
    assert location_of(given) == Path(given)


@pytest.mark.parametrize(
    "given", ["http://host/x", "s3://", "s3://bucket", "s3://bucket/../x", "gs://b/a?x=1", "file:///x"]
)
def test_a_url_of_no_object_store_is_refused(given: str) -> None:
    with pytest.raises(UsageError):
        location_of(given)


def test_a_url_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(UsageError) as refused:
        location_of("s3://name:open-sesame@bucket/x")
    assert "open-sesame" not in str(refused.value)


def test_what_needs_a_file_system_says_so() -> None:
    assert require_directory("here", what="a sweep", fix="") == Path("here")
    with pytest.raises(UsageError, match=r"a sweep needs a file system\s+where: s3://bucket/x"):
        require_directory("s3://bucket/x", what="a sweep", fix="give a path")


# --- requests


def test_objects_are_put_listed_read_and_removed(bucket: Bucket, tmp_path: Path) -> None:
    client = ObjectClient(bucket.url("there"))
    data = noise(12 * MIB)
    (tmp_path / "file").write_bytes(data)
    tag = client.put_file("folder/large", tmp_path / "file")
    client.put_bytes("small", b"few")
    found = client.list()
    assert {name: info.size_bytes for name, info in found.items()} == {"folder/large": len(data), "small": 3}
    assert found["folder/large"].tag == tag
    assert bucket.get("there/folder/large") == data
    assert client.read("folder/large", 5, 7).tobytes() == data[5:12]
    assert client.read("folder/large", len(data) - 2, 7).tobytes() == data[-2:]
    assert client.read("folder/large", len(data) + 2, 7).tobytes() == b""
    assert [part.tobytes() for part in client.read_windows("folder/large", [(0, 3), (9 * MIB, 4)])] == [
        data[:3],
        data[9 * MIB : 9 * MIB + 4],
    ]
    assert client.has("small")
    client.delete(["small", "never-there"])
    assert not client.has("small")


def test_an_object_is_put_as_new_only_once(bucket: Bucket) -> None:
    client = ObjectClient(bucket.url("x"))
    client.put_bytes("name", b"first", is_new=True)
    with pytest.raises(StoreExistsError, match=f"s3://{bucket.name}/x/name"):
        client.put_bytes("name", b"second", is_new=True)
    assert bucket.get("x/name") == b"first"


def test_what_is_not_there_is_named(bucket: Bucket) -> None:
    with pytest.raises(NoObjectError, match=f"s3://{bucket.name}/x/gone"):
        ObjectClient(bucket.url("x")).read("gone", 0, 1)
    with pytest.raises(InvalidInputError, match="no such bucket"):
        ObjectClient(ObjectUrl("s3", "no-such-bucket", "x")).list()


def test_an_object_larger_than_any_of_its_kind_is_refused(bucket: Bucket) -> None:
    bucket.put("x/manifest.json", b"12345")
    with pytest.raises(InvalidInputError, match="too large"):
        ObjectClient(bucket.url("x")).read_whole("manifest.json", 4)


def test_a_server_that_is_busy_twice_is_asked_again(bucket: Bucket) -> None:
    bucket.put("x/name", b"content")
    answers = iter([503, 503])
    bucket.server.answer = lambda method, path: next(answers, None)
    bucket.server.requests.clear()
    assert ObjectClient(bucket.url("x")).read("name", 0, 7).tobytes() == b"content"
    assert bucket.asked_for() == ["x/name"] * 3


def test_a_server_that_stays_broken_is_a_storage_error(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ecgl_scale.base.objects.client.MAX_RETRIES", 1)
    bucket.server.answer = lambda method, path: 500
    with pytest.raises(StorageError, match="500") as failed:
        ObjectClient(bucket.url("x")).read("name", 0, 7)
    assert (failed.value.exit_code, failed.value.where) == (5, f"s3://{bucket.name}/x/name")


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_the_variables_and_no_secret(bucket: Bucket, status: int) -> None:
    bucket.server.answer = lambda method, path: status
    with pytest.raises(InvalidInputError, match="AWS_ACCESS_KEY_ID") as refused:
        ObjectClient(bucket.url("x")).read("name", 0, 7)
    assert refused.value.exit_code == 3
    assert "a-very-secret-key" not in str(refused.value)


def test_without_credentials_a_request_says_so(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ecgl_scale.base.objects.client.MAX_RETRIES", 0)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    # Where a machine of a cloud asks who it is; nobody answers at this address, as on a laptop.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9/169.254.169.254")
    with pytest.raises(InvalidInputError, match="no credentials"):
        ObjectClient(bucket.url("x")).read("name", 0, 7)


def test_without_the_library_a_url_says_what_to_install(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    ran = run_cli("info", f"s3://{bucket.name}/x")
    assert (ran.code, "ecgl-scale[objects]" in ran.stderr) == (2, True)


def test_half_of_the_credentials_are_none(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(InvalidInputError, match="no credentials"):
        ObjectClient(bucket.url("x")).read("name", 0, 7)


def test_an_endpoint_without_tls_is_used_only_if_allowed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StorageError, match="AWS_ALLOW_HTTP"):
        ObjectClient(bucket.url("x")).read("name", 0, 7)


def test_doctor_tries_an_object_store_and_leaves_nothing_there(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "DISK_TEST_BYTES", MIB)
    monkeypatch.setattr(doctor, "OBJECT_TEST_BYTES", MIB)
    monkeypatch.setattr(doctor, "check_dgl", lambda: "works")
    url = f"s3://{bucket.name}/any/where"
    shown = run_cli("doctor", "--objects", url)
    assert (
        shown.code,
        bool(re.search(r"objects +writes .*, reads .*, \d+ ms a request$", shown.stdout, re.MULTILINE)),
    ) == (0, True)
    found = json.loads(run_cli("doctor", "--objects", url, "--json").stdout)["objects"]
    assert (found["url"], found["creates_once"], found["read"] > 0) == (url, True, True)
    assert bucket.objects() == {}
    assert run_cli("doctor", "--objects", "s3://no-such-bucket-here/x").code == 3
    assert run_cli("doctor", "--objects", "here").code == 2


# --- ranges and files


def test_ranges_come_in_order_and_none_twice(bucket: Bucket) -> None:
    data = noise(5 * RANGE_BYTES + 123)
    bucket.put("x/name", data)
    bucket.server.requests.clear()
    parts = list(read_ranges(ObjectClient(bucket.url("x")), "name", len(data)))
    assert [len(part) for part in parts] == [RANGE_BYTES] * 5 + [123]
    assert b"".join(parts) == data
    assert bucket.asked_for() == ["x/name"] * 6


def test_a_file_is_fetched_whole_and_once(bucket: Bucket, tmp_path: Path) -> None:
    data = noise(RANGE_BYTES + 5)
    bucket.put("x/a/name", data)
    client, target = ObjectClient(bucket.url("x")), tmp_path / "copy" / "a" / "name"
    threads = [threading.Thread(target=fetch_file, args=(client, "a/name", written(data), target)) for _ in range(4)]
    bucket.server.requests.clear()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() == data
    assert [path.name for path in target.parent.iterdir()] == ["name"]
    assert len(bucket.asked_for()) == 2


@pytest.mark.parametrize("size_bytes", [0, 1, RANGE_BYTES])
def test_files_of_any_size_are_fetched(bucket: Bucket, tmp_path: Path, size_bytes: int) -> None:
    data = noise(size_bytes)
    bucket.put("x/name", data)
    fetch_file(ObjectClient(bucket.url("x")), "name", written(data), tmp_path / "name")
    assert (tmp_path / "name").read_bytes() == data


def flipped(data: bytes) -> bytes:
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flipped, "does not have the bytes that were written"),
        (lambda data: data[: RANGE_BYTES + 1], "bytes, the manifest says"),
        (lambda data: data[:1], "has 1 bytes"),
        (lambda data: b"", "has 0 bytes"),
        (None, "is gone"),
    ],
)
def test_a_damaged_object_is_named_and_leaves_no_file(bucket: Bucket, tmp_path: Path, damage, said: str) -> None:
    data = noise(3 * RANGE_BYTES)
    if damage is not None:
        bucket.put("x/name", damage(data))
    client = ObjectClient(bucket.url("x"))
    with pytest.raises(CorruptStoreError, match=re.escape(said)) as found:
        fetch_file(client, "name", written(data), tmp_path / "name")
    assert found.value.where == f"s3://{bucket.name}/x/name"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(CorruptStoreError, match=re.escape(said)):
        check_object(client, "name", written(data))


def test_a_fetch_that_was_killed_is_begun_anew(bucket: Bucket, tmp_path: Path) -> None:
    data = noise(1000)
    bucket.put("x/name", data)
    (tmp_path / ".name.partial").write_bytes(b"what a kill has left, longer than nothing")
    (tmp_path / "name").write_bytes(data[:10])  # cut off by a crash of the machine
    fetch_file(ObjectClient(bucket.url("x")), "name", written(data), tmp_path / "name")
    assert (tmp_path / "name").read_bytes() == data
    assert not (tmp_path / ".name.partial").exists()


# --- the mirror


URL = ObjectUrl("s3", "bucket", "x")


def fill(mirror: Mirror, key: str, size_bytes: int) -> Path:
    mirrored = mirror.admit(key, URL, size_bytes)
    (mirrored.path / "data").write_bytes(bytes(size_bytes))
    mirrored.close()
    os.utime(
        mirrored.path / ".lock", (len(list((mirror.root / "stores").iterdir())),) * 2
    )  # in the order of their coming
    return mirrored.path


def test_the_mirror_stays_within_its_bound_and_lets_go_of_the_least_recent(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, 11_000)
    first, second, third = (fill(mirror, name, 3000) for name in ("first", "second", "third"))
    assert all(path.exists() for path in (first, second, third))
    mirror.admit("first", URL, 3000).close()  # used again
    fill(mirror, "fourth", 3000)
    assert [path.exists() for path in (first, second, third)] == [True, False, True]


def test_a_store_in_use_is_never_removed(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, 5000)
    held = mirror.admit("held", URL, 3000)
    with pytest.raises(DoesNotFitError, match=r"stores in use have 2\.93 KiB"):
        mirror.admit("other", URL, 3000)
    assert held.path.exists()
    held.close()
    fill(mirror, "other", 3000)
    mirror.admit("third", URL, 4500)
    assert not (tmp_path / "stores" / "other").exists()


def test_a_store_that_is_forgotten_is_let_go_of(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, 5000)
    mirror.admit("held", URL, 3000)
    fill(mirror, "other", 3000)
    assert (tmp_path / "stores" / "other").exists()


def test_a_store_larger_than_the_mirror_is_refused_with_its_size_before_anything_goes(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, 5 * MIB)
    kept = fill(mirror, "kept", 1000)
    with pytest.raises(DoesNotFitError, match=r"takes 6 MiB, and there may be 5 MiB") as refused:
        mirror.admit("large", URL, 6 * MIB)
    assert refused.value.exit_code == 4
    assert "ECGL_CACHE_SIZE" in str(refused.value)
    assert kept.exists()


def test_a_store_larger_than_the_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFitError):
        Mirror(tmp_path).admit("large", URL, 1 << 60)
    with pytest.raises(DoesNotFitError):
        Mirror(tmp_path, 1 << 62).admit("large", URL, 1 << 60)


def test_a_finished_directory_is_taken_over_if_there_is_room(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "mirror", 5000)
    for name, size_bytes in (("small", 1000), ("large", 6000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").write_bytes(bytes(size_bytes))
        mirror.adopt(name, URL, tmp_path / name, size_bytes)
    assert (mirror.root / "stores" / "small" / "data").exists()
    assert not (mirror.root / "stores" / "large").exists()
    assert (mirror.admit("small", URL, 1000).path / "data").stat().st_size == 1000


def test_the_environment_says_where_the_mirror_is_and_how_large() -> None:
    assert Mirror.from_environment({"ECGL_CACHE_DIR": "/d", "ECGL_CACHE_SIZE": "2GiB"}) == Mirror(Path("/d"), 2 << 30)
    assert Mirror.from_environment({"XDG_CACHE_HOME": "/c"}) == Mirror(Path("/c/ecgl_scale"))
    assert Mirror.from_environment({}).root == Path.home() / ".cache" / "ecgl_scale"
    with pytest.raises(UsageError, match="ECGL_CACHE_SIZE"):
        Mirror.from_environment({"ECGL_CACHE_SIZE": "much"})

from __future__ import annotations

import errno
import hashlib
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ecgl_scale.base.events import BlockFinished, Event, StageFinished, StageStarted
from ecgl_scale.errors import DoesNotFitError, InvalidInputError, LockedError, StorageError
from ecgl_scale.store.sources import download as download_module
from ecgl_scale.store.sources.download import check_address, download

BODY = bytes(range(256)) * 4000
CAP = 10 * len(BODY)


@dataclass
class Site:
    """What the server does, and what it was asked."""

    body: bytes = BODY
    etag: str | None = '"one"'
    ranges: bool = True
    drop_after: list[int] = field(default_factory=list)
    """For each coming answer, after how many bytes the connection is cut."""
    claimed_extra: int = 0
    statuses: list[int] = field(default_factory=list)
    location: str | None = None
    send_length: bool = True
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def site(monkeypatch):
    state = Site()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            state.asked.append(dict(self.headers))
            if state.location is not None:
                self.send_response(302)
                self.send_header("Location", state.location)
                self.end_headers()
                return
            if state.statuses:
                self.send_error(state.statuses.pop(0))
                return
            start = self._start()
            if start is not None and start >= len(state.body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(state.body)}")
                self.end_headers()
                return
            self.send_response(200 if start is None else 206)
            if start is not None:
                self.send_header("Content-Range", f"bytes {start}-{len(state.body) - 1}/{len(state.body)}")
            if state.etag:
                self.send_header("ETag", state.etag)
            rest = state.body[start or 0 :]
            if state.send_length:
                self.send_header("Content-Length", str(len(rest) + state.claimed_extra))
            self.end_headers()
            self.wfile.write(rest[: state.drop_after.pop(0)] if state.drop_after else rest)
            self.close_connection = True

        def _start(self) -> int | None:
            match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            wanted = self.headers.get("If-Range") in (None, state.etag)
            return int(match[1]) if match and state.ranges and wanted else None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setattr(download_module, "BACKOFF_SECONDS", (0.0, 0.0, 0.0))
    state.url = f"http://127.0.0.1:{server.server_address[1]}/arxiv.zip"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_arrives_whole_with_progress_and_nothing_else_remains(tmp_path, site):
    events: list[Event] = []
    target = tmp_path / "cache" / "arxiv.zip"
    digest = hashlib.sha256(BODY).hexdigest()
    assert download(site.url, target, max_bytes=CAP, sha256=digest, on_event=events.append) == target
    assert target.read_bytes() == BODY
    assert leftovers(target.parent) == {"arxiv.zip"}
    assert events[0] == StageStarted("download arxiv.zip", len(BODY), "bytes")
    done = [event.done for event in events if isinstance(event, BlockFinished)]
    assert done == sorted(done)
    assert done[-1] == len(BODY)
    assert isinstance(events[-1], StageFinished)


def test_a_file_that_is_there_is_not_fetched_again(tmp_path, site):
    target = tmp_path / "arxiv.zip"
    target.write_bytes(b"mine")
    download(site.url, target, max_bytes=CAP)
    assert target.read_bytes() == b"mine"
    assert not site.asked


def test_a_dropped_connection_goes_on_where_it_stopped(tmp_path, site):
    site.drop_after = [300_000, 200_000]
    target = download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP)
    assert target.read_bytes() == BODY
    assert [asked.get("Range") for asked in site.asked] == [None, "bytes=300000-", "bytes=500000-"]
    assert site.asked[1]["If-Range"] == '"one"'


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(tmp_path, site):
    site.drop_after = [300_000, 0, 0, 0, 0]
    with pytest.raises(InvalidInputError, match="gave up") as refused:
        download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP)
    assert "293 KiB are kept" in str(refused.value)
    assert leftovers(tmp_path) == {"arxiv.zip.part", "arxiv.zip.part.json"}
    site.asked.clear()
    events: list[Event] = []
    target = download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP, on_event=events.append)
    assert target.read_bytes() == BODY
    assert [asked.get("Range") for asked in site.asked] == ["bytes=300000-"]
    done = [event.done for event in events if isinstance(event, BlockFinished)]
    assert done[0] > 300_000
    assert done[-1] == len(BODY)


def test_a_server_that_ignores_range_is_read_from_the_start(tmp_path, site):
    site.drop_after, site.ranges = [300_000], False
    assert download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP).read_bytes() == BODY


@pytest.mark.parametrize("honours_if_range", [True, False])
def test_a_file_that_changed_on_the_server_is_read_from_the_start(tmp_path, site, honours_if_range):
    site.drop_after = [300_000, 0, 0, 0, 0]
    with pytest.raises(InvalidInputError):
        download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP)
    site.body, site.etag = BODY[::-1], '"two"'
    if not honours_if_range:
        # The saved tag is made to match what the server compares, so that it sends a part with another tag.
        opener = urllib.request.build_opener()

        def without_if_range(request: urllib.request.Request, timeout: float) -> object:
            request.headers.pop("If-range", None)
            return opener.open(request, timeout=timeout)

        target = download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP, opener=without_if_range)
    else:
        target = download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP)
    assert target.read_bytes() == BODY[::-1]


def test_without_a_validator_nothing_is_resumed(tmp_path, site):
    site.etag, site.drop_after = None, [300_000]
    assert download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP).read_bytes() == BODY
    assert all("Range" not in asked for asked in site.asked)


def test_a_part_that_is_whole_already_is_only_renamed(tmp_path, site):
    (tmp_path / "arxiv.zip.part").write_bytes(BODY)
    saved = {"url": site.url, "etag": '"one"', "last_modified": None, "size_bytes": None}
    (tmp_path / "arxiv.zip.part.json").write_text(json.dumps(saved))
    events: list[Event] = []
    assert download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP, on_event=events.append).read_bytes() == BODY
    assert len(site.asked) == 1
    assert [type(event) for event in events] == [StageStarted, StageFinished]


def test_a_part_longer_than_the_file_is_thrown_away(tmp_path, site):
    (tmp_path / "arxiv.zip.part").write_bytes(BODY + b"more")
    saved = {"url": site.url, "etag": '"one"', "last_modified": None, "size_bytes": None}
    (tmp_path / "arxiv.zip.part.json").write_text(json.dumps(saved))
    assert download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP).read_bytes() == BODY


def test_a_part_with_a_broken_sidecar_is_thrown_away(tmp_path, site):
    (tmp_path / "arxiv.zip.part").write_bytes(b"junk")
    (tmp_path / "arxiv.zip.part.json").write_text("{")
    assert download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP).read_bytes() == BODY


def test_a_server_that_always_sends_another_part_is_given_up(tmp_path, site):
    opener = urllib.request.build_opener()

    def shifted(request: urllib.request.Request, timeout: float) -> object:
        if "Range" in request.headers:
            request.headers["Range"] = "bytes=7-"
        return opener.open(request, timeout=timeout)

    site.drop_after = [300_000, 0] * 20
    with pytest.raises(InvalidInputError, match="gave up"):
        download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP, opener=shifted)


def test_a_server_that_promises_more_than_it_sends_is_refused(tmp_path, site):
    site.claimed_extra = 5
    with pytest.raises(InvalidInputError, match="gave up"):
        download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP)
    assert not (tmp_path / "arxiv.zip").exists()


@pytest.mark.parametrize("send_length", [True, False])
def test_the_cap_holds_whether_or_not_the_server_tells_the_size(tmp_path, site, send_length):
    site.send_length = send_length
    with pytest.raises(InvalidInputError, match="at most 977 KiB"):
        download(site.url, tmp_path / "arxiv.zip", max_bytes=1_000_000)
    assert (tmp_path / "arxiv.zip.part").stat().st_size == 0


def test_a_wrong_digest_leaves_nothing(tmp_path, site):
    with pytest.raises(InvalidInputError, match="sha256"):
        download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP, sha256="0" * 64)
    assert leftovers(tmp_path) == set()


def test_a_busy_server_is_asked_again_and_a_missing_file_is_not(tmp_path, site):
    site.statuses = [503, 500]
    assert download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP).read_bytes() == BODY
    site.statuses = [404]
    site.asked.clear()
    with pytest.raises(InvalidInputError, match="404"):
        download(site.url, tmp_path / "other.zip", max_bytes=CAP)
    assert len(site.asked) == 1


def test_without_a_network_the_message_says_what_to_fetch_and_where_to_put_it(tmp_path):
    def no_network(request: urllib.request.Request, timeout: float) -> object:
        raise urllib.error.URLError(socket.gaierror(-2, "Name or service not known"))

    target = tmp_path / "arxiv.zip"
    with pytest.raises(InvalidInputError) as refused:
        download("https://example.org/arxiv.zip", target, max_bytes=CAP, opener=no_network)
    assert "https://example.org/arxiv.zip" in str(refused.value)
    assert str(target) in str(refused.value)


def test_a_closed_port_is_tried_three_times_again(tmp_path, monkeypatch):
    monkeypatch.setattr(download_module, "BACKOFF_SECONDS", (0.0, 0.0, 0.0))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(InvalidInputError, match="after 4 tries"):
        download(f"http://127.0.0.1:{port}/x", tmp_path / "x", max_bytes=CAP)


@pytest.mark.parametrize(
    "url", ["http://example.org/x", "file:///etc/passwd", "ftp://example.org/x", "https:///x", "x"]
)
def test_only_https_is_fetched(tmp_path, url):
    with pytest.raises(InvalidInputError, match="https"):
        download(url, tmp_path / "x", max_bytes=CAP)
    assert leftovers(tmp_path) == set()


def test_loopback_may_be_plain_http():
    for url in ("http://localhost/x", "http://127.0.0.1:80/x", "http://[::1]/x", "https://example.org/x"):
        check_address(url)


@pytest.mark.parametrize("location", ["http://example.org/x", "ftp://127.0.0.1/x"])
def test_a_redirect_away_from_https_is_refused(tmp_path, site, location):
    site.location = location
    with pytest.raises(InvalidInputError):
        download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP)


def test_a_download_that_does_not_fit_is_refused_before_it_starts(tmp_path, site, monkeypatch):
    monkeypatch.setattr(download_module, "free_bytes", lambda path: len(BODY) - 1)
    with pytest.raises(DoesNotFitError) as refused:
        download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP)
    assert refused.value.exit_code == 4
    assert (tmp_path / "arxiv.zip.part").stat().st_size == 0


@pytest.mark.faults
def test_a_full_disk_is_a_storage_error_and_not_a_dropped_connection(tmp_path, site, monkeypatch):
    real = download_module.os.fdopen

    def short_of_space(*args: object, **options: object) -> object:
        file = real(*args, **options)

        class Full:
            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

            def __enter__(self) -> Full:
                return self

            def __exit__(self, *details: object) -> None:
                file.close()

            def write(self, block: object) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

        return Full()

    monkeypatch.setattr(download_module.os, "fdopen", short_of_space)
    with pytest.raises(StorageError) as refused:
        download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP)
    assert refused.value.exit_code == 5
    assert len(site.asked) == 1


def test_two_downloads_of_one_file_do_not_mix(tmp_path, site):
    with download_module._locked(tmp_path / "arxiv.zip.part"), pytest.raises(LockedError):
        download(site.url, tmp_path / "arxiv.zip", max_bytes=CAP)

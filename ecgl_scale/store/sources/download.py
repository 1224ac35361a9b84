"""Fetch one file: https only, capped, resumable, whole or not there.

Bytes go to ``<target>.part``; beside it ``<target>.part.json`` keeps what the server said of the file (ETag,
Last-Modified), so that a later call asks for the rest with Range and If-Range and starts over when the file has
changed or the server ignores Range. Memory: one read buffer.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import ipaddress
import json
import os
import re
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any, Protocol

from ecgl_scale.base.durable import free_bytes, fsync_directory, storage_errors, write_atomically
from ecgl_scale.base.events import BlockFinished, EventSink, StageFinished, StageStarted, ignore_events
from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.errors import DoesNotFitError, EcglError, InvalidInputError, LockedError
from ecgl_scale.units import MIB, format_bytes

TIMEOUT_SECONDS = 60
READ_BYTES = MIB
BACKOFF_SECONDS = (1.0, 2.0, 4.0)
"""Pauses before the retries; the count starts anew whenever bytes have arrived in between."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_RETRIED_STATUS = {408, 425, 429, 500, 502, 503, 504}


class Response(Protocol):
    """What we use of a urllib response."""

    status: int
    headers: Message

    def read(self, amount: int, /) -> bytes:
        """Up to that many bytes; none at the end."""

    def close(self) -> None:
        """Let go of the connection."""


Opener = Callable[[urllib.request.Request, float], Any]
"""Takes a request and a timeout, returns a ``Response``, raises what urllib raises."""


class _DroppedError(Exception):
    """The connection broke; worth another try."""


@dataclass(frozen=True)
class _Validators:
    """What identifies one version of the file on the server."""

    url: str
    etag: str | None
    last_modified: str | None
    size_bytes: int | None

    @property
    def if_range(self) -> str | None:
        # A weak ETag does not promise equal bytes, so RFC 9110 forbids it in If-Range.
        strong = self.etag if self.etag and not self.etag.startswith("W/") else None
        return strong or self.last_modified


def download(
    url: str,
    target: Path,
    *,
    max_bytes: int,
    sha256: str | None = None,
    on_event: EventSink = ignore_events,
    opener: Opener | None = None,
) -> Path:
    """Fetch ``url`` into ``target`` unless it is there, going on where an earlier try stopped."""
    check_address(url)
    if target.is_file():
        return target
    partial = target.with_name(f"{target.name}.part")
    stage, started = f"download {target.name}", time.monotonic()
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(partial) as file:
        transfer = _Transfer(
            url, target, file, max_bytes=max_bytes, stage=stage, on_event=on_event, opener=opener or _open_checked
        )
        transfer.run()
        with storage_errors(partial):
            os.fsync(file.fileno())
        if sha256 is not None:
            _check_digest(partial, sha256, url)
        with storage_errors(target):
            partial.replace(target)
            _sidecar(partial).unlink(missing_ok=True)
            fsync_directory(target.parent)
    on_event(StageFinished(stage, time.monotonic() - started, own_memory_bytes()))
    return target


def check_address(url: str) -> None:
    """Refuse anything but https; plain http only to this machine."""
    parts = urllib.parse.urlsplit(url)
    if parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname))):
        return
    raise InvalidInputError("this address is not fetched", where=url, expected="an https:// address")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open_checked(request: urllib.request.Request, timeout: float) -> Any:
    return urllib.request.build_opener(_CheckedRedirects).open(request, timeout=timeout)


def _sidecar(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.json")


@contextmanager
def _locked(partial: Path) -> Iterator[IO[bytes]]:
    with storage_errors(partial):
        file = os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644), "r+b", buffering=0)
    with file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockedError(
                "another process is fetching this file", where=partial, fix="wait for it to end"
            ) from error
        yield file


class _Transfer:
    """One file on its way; ``run`` returns when the .part file is whole."""

    def __init__(
        self,
        url: str,
        target: Path,
        file: IO[bytes],
        *,
        max_bytes: int,
        stage: str,
        on_event: EventSink,
        opener: Opener,
    ) -> None:
        self._url, self._target, self._file, self._max_bytes = url, target, file, max_bytes
        self._stage, self._on_event, self._opener = stage, on_event, opener
        self._partial = target.with_name(f"{target.name}.part")
        self._announced = False

    def run(self) -> None:
        """Ask until everything is here or retries without progress run out."""
        failures, most = 0, self._received()
        while True:
            try:
                return self._attempt()
            except EcglError:
                raise
            except urllib.error.HTTPError as error:
                with closing(error):
                    if error.code not in _RETRIED_STATUS:
                        raise self._unreachable(f"the server answered {error.code} {error.reason}") from error
                    reason: Exception = error
            except (_DroppedError, OSError, http.client.HTTPException) as error:
                if isinstance(getattr(error, "reason", None), socket.gaierror):
                    raise self._unreachable("the host's name cannot be resolved; is there a network?") from error
                reason = error
            # Only more than ever before is progress: a file that is started over and over must come to an end.
            failures = 0 if self._received() > most else failures + 1
            most = max(most, self._received())
            if failures > len(BACKOFF_SECONDS):
                raise self._unreachable(f"gave up after {failures} tries: {reason}") from reason
            time.sleep(BACKOFF_SECONDS[max(failures - 1, 0)])

    def _received(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _unreachable(self, what: str) -> InvalidInputError:
        kept = f" ({format_bytes(self._received())} are kept for the next try)" if self._received() else ""
        return InvalidInputError(
            f"cannot download: {what}{kept}",
            where=self._url,
            fix="run the same command again, or fetch this address on a machine with a network"
            f" and put the file at {self._target}",
        )

    def _attempt(self) -> None:
        saved, have = self._saved_validators(), self._received()
        # urllib must see identity, or a proxy may hand out gzip whose ranges mean something else.
        headers = {"User-Agent": "ecgl-scale", "Accept-Encoding": "identity"}
        if have and saved is not None and saved.if_range:
            headers |= {"Range": f"bytes={have}-", "If-Range": saved.if_range}
        request = urllib.request.Request(self._url, headers=headers)  # noqa: S310 (check_address allows https alone)
        try:
            response = self._opener(request, TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
                error.close()
                return self._settle_beyond_end(error, saved, have)
            raise
        with closing(response):
            total = self._prepare(response, saved, have)
            self._announce(total)
            self._receive(response, total)
        return None

    def _settle_beyond_end(self, error: urllib.error.HTTPError, saved: _Validators | None, have: int) -> None:
        # The .part may be whole already, when an earlier call was stopped between the last byte and the rename.
        promised = have if saved is None or saved.size_bytes is None else saved.size_bytes
        if error.headers.get("Content-Range", "") == f"bytes */{have}" and promised == have:
            self._announce(have)
            return
        self._start_over()
        raise _DroppedError("the server's file has another size than it said before")

    def _prepare(self, response: Response, saved: _Validators | None, have: int) -> int | None:
        """Place the file position, return the full size where the server tells it, and refuse what does not fit."""
        total: int | None
        headers = response.headers
        if response.status == http.client.PARTIAL_CONTENT:
            match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
            if match is None or int(match[1]) != have or saved is None or _has_changed(saved, headers, int(match[3])):
                self._start_over()
                raise _DroppedError("the server sent another part than the one asked for")
            total = int(match[3])
        else:
            length = headers.get("Content-Length", "")
            total = int(length) if length.isdigit() else None
            self._start_over()
            found = _Validators(self._url, headers.get("ETag"), headers.get("Last-Modified"), total)
            write_atomically(_sidecar(self._partial), json.dumps(asdict(found)))
        if total is not None and total > self._max_bytes:
            raise self._too_large(total)
        missing, free = (total or 0) - self._received(), free_bytes(self._partial)
        if missing > free:
            raise DoesNotFitError(
                f"the download needs {format_bytes(missing)} more, the disk has {format_bytes(free)} free",
                where=self._partial,
                fix="free some space, or choose a cache directory on another disk",
            )
        return total

    def _receive(self, response: Response, total: int | None) -> None:
        done = self._received()
        self._file.seek(done)
        while True:
            try:
                block = response.read(READ_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise _DroppedError(f"the connection broke: {error or type(error).__name__}") from error
            if not block:
                break
            done += len(block)
            if done > self._max_bytes:
                self._start_over()
                raise self._too_large(done)
            with storage_errors(self._partial, needed_bytes=(total or done) - done):
                view = memoryview(block)
                while view:
                    view = view[self._file.write(view) :]
            self._on_event(BlockFinished(self._stage, done))
        # http.client ends a short body without an error when it is read in blocks.
        if total is not None and done < total:
            raise _DroppedError(f"the connection ended after {done} of {total} bytes")

    def _announce(self, total: int | None) -> None:
        if not self._announced:
            self._on_event(StageStarted(self._stage, total, "bytes"))
        self._announced = True

    def _too_large(self, size_bytes: int) -> InvalidInputError:
        return InvalidInputError(
            f"the download has {format_bytes(size_bytes)} or more",
            where=self._url,
            expected=f"at most {format_bytes(self._max_bytes)}",
        )

    def _start_over(self) -> None:
        with storage_errors(self._partial):
            self._file.truncate(0)
            self._file.seek(0)

    def _saved_validators(self) -> _Validators | None:
        try:
            saved = json.loads(_sidecar(self._partial).read_text(encoding="utf-8"))
            found = _Validators(saved["url"], saved["etag"], saved["last_modified"], saved["size_bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found if found.url == self._url else None


def _has_changed(saved: _Validators, headers: Message, total: int) -> bool:
    other_tag = headers.get("ETag") is not None and headers.get("ETag") != saved.etag
    return other_tag or (saved.size_bytes is not None and saved.size_bytes != total)


def _check_digest(partial: Path, expected: str, url: str) -> None:
    with storage_errors(partial), partial.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected.lower():
        with storage_errors(partial):
            partial.unlink()
            _sidecar(partial).unlink(missing_ok=True)
        raise InvalidInputError(
            f"the downloaded file has sha256 {found}",
            where=url,
            expected=expected,
            fix="check the address, then try again",
        )

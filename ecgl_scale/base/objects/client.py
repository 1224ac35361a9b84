"""Requests to an object store: the only file that knows the library which speaks to them.

Credentials, region and endpoint come from the environment, by the names that other programs use too (``AWS_...``,
``GOOGLE_...``, ``AZURE_...``); they are in no config, no log and no message of ours. Requests that fail by accident
(5xx, a lost connection) are tried again for a minute, a little later each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from ecgl_scale.base.objects.url import ObjectUrl
from ecgl_scale.errors import EcglError, InvalidInputError, StorageError, StoreExistsError, UsageError
from ecgl_scale.units import MIB

MAX_RETRIES = 6
RETRY_SECONDS = 60
PART_BYTES = 5 * MIB
"""The least that S3 takes for a part of an object; what is larger than one part is put in parts."""
MAX_PARTS = 9000
PARTS_AT_ONCE = 2
DELETES_AT_ONCE = 1000
CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what your store takes: see docs/object-stores.md"


class NoObjectError(InvalidInputError, FileNotFoundError):
    """There is no object of this name."""


@dataclass(frozen=True)
class ObjectInfo:
    """An object as a listing shows it."""

    size_bytes: int
    tag: str | None
    """The store's own name for this content; None where it gives none."""


class ObjectClient:
    """Objects below one URL, by their names relative to it."""

    def __init__(self, url: ObjectUrl) -> None:
        self.url = url

    @cached_property
    def _library(self) -> Any:
        try:
            import obstore.store
        except ImportError as error:
            raise UsageError(
                f"{self.url.scheme}:// needs the package obstore, which is not installed",
                where=self.url,
                fix='pip install "ecgl-scale[objects]"',
            ) from error
        return obstore

    @cached_property
    def _store(self) -> Any:
        limits = {"max_retries": MAX_RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
        with object_errors(self.url):
            return self._library.store.from_url(str(self.url), retry_config=limits)

    def read(self, name: str, start: int, length: int) -> memoryview:
        """A range of an object; shorter where the object ends before."""
        try:
            with object_errors(self.url / name):
                return memoryview(self._library.get_range(self._store, name, start=start, length=length))
        except StorageError as error:
            if "416 Range Not Satisfiable" in str(error.__cause__):
                return memoryview(b"")
            raise

    def read_windows(self, name: str, windows: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Several ranges (offset, length) of an object at once; near ones come with one request."""
        starts, lengths = [start for start, _ in windows], [length for _, length in windows]
        with object_errors(self.url / name):
            parts = self._library.get_ranges(self._store, name, starts=starts, lengths=lengths)
        return [memoryview(part) for part in parts]

    def read_whole(self, name: str, max_bytes: int) -> bytes:
        """A small object; refuses one that is larger than any of its kind."""
        with object_errors(self.url / name):
            found = self._library.get(self._store, name)
            if found.meta["size"] > max_bytes:
                raise InvalidInputError("this object is too large to be what it should be", where=self.url / name)
            return bytes(found.bytes())

    def has(self, name: str) -> bool:
        """Whether there is such an object."""
        try:
            with object_errors(self.url / name):
                self._library.head(self._store, name)
        except NoObjectError:
            return False
        return True

    def tag(self, name: str) -> str | None:
        """The store's name for an object's content."""
        with object_errors(self.url / name):
            found: str | None = self._library.head(self._store, name)["e_tag"]
        return found

    def list(self, folder: str | None = None) -> dict[str, ObjectInfo]:
        """All objects below the URL, or below a folder there: one request for each thousand."""
        with object_errors(self.url):
            return {
                str(found["path"]): ObjectInfo(found["size"], found["e_tag"])
                for part in self._library.list(self._store, folder, chunk_size=1000)
                for found in part
            }

    def put_bytes(self, name: str, data: bytes, *, is_new: bool = False) -> None:
        """Put a small object; with ``is_new``, only where there is none of this name."""
        with object_errors(self.url / name):
            self._library.put(self._store, name, data, mode="create" if is_new else "overwrite")

    def replace_bytes(self, name: str, data: bytes, tag: str | None) -> None:
        """Put a small object in place of the one with this tag; refuses where that is another one by now."""
        with object_errors(self.url / name):
            self._library.put(self._store, name, data, mode={"e_tag": tag})

    def put_file(self, name: str, path: Path) -> str | None:
        """Put a file as an object, which appears whole or not at all, and give its tag."""
        part_bytes = max(PART_BYTES, -(-path.stat().st_size // MAX_PARTS))
        with object_errors(self.url / name):
            done = self._library.put(self._store, name, path, chunk_size=part_bytes, max_concurrency=PARTS_AT_ONCE)
        tag: str | None = done["e_tag"]
        return tag

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; those that are not there are none the less gone."""
        wanted = list(names)
        for first in range(0, len(wanted), DELETES_AT_ONCE):
            try:
                with object_errors(self.url):
                    self._library.delete(self._store, wanted[first : first + DELETES_AT_ONCE])
            except NoObjectError:
                continue


@contextmanager
def object_errors(url: ObjectUrl) -> Iterator[None]:
    """Turn what the library raises into one of ours, which names the object."""
    try:
        yield
    except EcglError:
        raise
    except Exception as error:
        known = _known_error(error, url)
        if known is None:
            raise
        raise known from error


def _known_error(error: Exception, url: ObjectUrl) -> EcglError | None:
    """Our error for one of the library's, or None for a bug."""
    from obstore import exceptions

    text = str(error)
    if "NoSuchBucket" in text:
        return InvalidInputError("there is no such bucket", where=url, fix="check its name, and AWS_ENDPOINT_URL")
    if isinstance(error, FileNotFoundError):
        return NoObjectError("there is no such object", where=url)
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return StoreExistsError("there is such an object already", where=url)
    # The address is where machines of a cloud learn who they are.
    if "169.254.169.254" in text or re.search(r"Missing (AccessKey|SecretAccess)", text):
        return InvalidInputError("there are no credentials for this object store", where=url, fix=CREDENTIALS)
    if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
        what = "the object store refused, for want of credentials or of a right"
        return InvalidInputError(what, where=url, fix=CREDENTIALS)
    return _failure(text, url) if isinstance(error, exceptions.BaseError | OSError) else None


def _failure(text: str, url: ObjectUrl) -> StorageError:
    is_plain = "builder error" in text and " http://" in text
    return StorageError(
        f"the object store failed: {_first_line(text)}",
        where=url,
        fix="set AWS_ALLOW_HTTP=true for an endpoint without TLS" if is_plain else "run the same command again",
    )


def _first_line(text: str) -> str:
    """What happened, without the queries of URLs, where some stores keep their keys."""
    return re.sub(r"\?[^\s)]*", "?...", text.partition("\n")[0])[:300]

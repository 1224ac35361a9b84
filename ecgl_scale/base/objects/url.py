"""Names of what is on an object store, and how a user's text is told from a path."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ecgl_scale.errors import UsageError

SCHEMES = ("s3", "gs", "az")

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]+")
_KEY = re.compile(r"[A-Za-z0-9_.=,+ -]+(/[A-Za-z0-9_.=,+ -]+)*(#generation=\d{1,4})?")


@dataclass(frozen=True, order=True)
class ObjectUrl:
    """``scheme://bucket/key``: an object, or all objects whose keys begin with ``key/``."""

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    def __truediv__(self, name: str) -> ObjectUrl:
        return ObjectUrl(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectUrl:
        """What the last part of the key is in; the bucket has the key ''."""
        return ObjectUrl(self.scheme, self.bucket, self.key.rpartition("/")[0])


AnyPath = Path | ObjectUrl
"""Where a store, a cache or a run may be."""


def location_of(given: str | AnyPath) -> AnyPath:
    """Tell a URL from a path.

    A ``Path`` made of a URL has lost one of its two slashes, and is taken for the URL all the same.

    Raises
    ------
    UsageError
        A URL of another kind, one without bucket or key, or with parts that do not belong into it.
    """
    if isinstance(given, ObjectUrl):
        return given
    found = _URL.fullmatch(str(given))
    if found is None or (found[1] not in SCHEMES and not found[2]):
        return Path(given)
    scheme, rest = found[1], re.sub("/+", "/", found[3]).strip("/")
    if scheme not in SCHEMES:
        kinds = ", ".join(f"{known}://" for known in SCHEMES)
        raise UsageError(f"{scheme}:// is no object store we know", expected=f"a path, or one of {kinds}")
    bucket, _, key = rest.partition("/")
    parts = key.split("/")
    if not _BUCKET.fullmatch(bucket) or not _KEY.fullmatch(key) or "." in parts or ".." in parts:
        # The text is not repeated: somebody may have put a password into it.
        raise UsageError(
            f"this {scheme}:// URL names no place on an object store",
            expected=f"{scheme}://BUCKET/NAME, of letters, digits and _ . - = , + and spaces",
            fix="credentials and endpoints belong into the environment: see docs/object-stores.md",
        )
    return ObjectUrl(scheme, bucket, key)


def absolute_text(location: AnyPath) -> str:
    """What another process, in another working directory, finds the same by."""
    return str(location.absolute() if isinstance(location, Path) else location)


def require_directory(given: str | AnyPath, *, what: str, fix: str) -> Path:
    """Give a path back; refuse a URL where only a file system will do."""
    location = location_of(given)
    if isinstance(location, ObjectUrl):
        raise UsageError(f"{what} needs a file system", where=location, expected="a path of this machine", fix=fix)
    return location

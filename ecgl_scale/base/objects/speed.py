"""Whether an object store can be used from here, and how fast it is."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from ecgl_scale.base.objects.client import ObjectClient
from ecgl_scale.base.objects.fetch import read_ranges
from ecgl_scale.base.objects.url import ObjectUrl
from ecgl_scale.errors import StoreExistsError

ASKED = 5


@dataclass(frozen=True)
class ObjectSpeed:
    """What an object store does from here."""

    write: float
    """Bytes a second, as one object."""
    read: float
    """Bytes a second, in ranges."""
    request_seconds: float
    """From a request for a few bytes to their coming, the quickest of five."""
    creates_once: bool
    """Whether it refuses to put an object as new that is there: what keeps two writers of a store apart."""


def measure_objects(url: ObjectUrl, num_bytes: int) -> ObjectSpeed:
    """Put an object of so many bytes below the URL and read it; it is removed. Memory: five ranges."""
    client, name = ObjectClient(url), f".ecgl-speed-{uuid4().hex}"
    try:
        with tempfile.TemporaryDirectory(prefix="ecgl-speed-") as folder:
            path = Path(folder) / "speed"
            path.write_bytes(bytes(num_bytes))
            started = time.perf_counter()
            client.put_file(name, path)
            written = time.perf_counter()
        for _ in read_ranges(client, name, num_bytes):
            pass
        read = time.perf_counter()
        quickest = min(_seconds_of_request(client, name) for _ in range(ASKED))
        creates_once = _creates_once(client, name)
    finally:
        client.delete([name])
    return ObjectSpeed(num_bytes / (written - started), num_bytes / (read - written), quickest, creates_once)


def _seconds_of_request(client: ObjectClient, name: str) -> float:
    started = time.perf_counter()
    client.read(name, 0, 16)
    return time.perf_counter() - started


def _creates_once(client: ObjectClient, name: str) -> bool:
    try:
        client.put_bytes(name, b"", is_new=True)
    except StoreExistsError:
        return True
    return False

"""An S3 server on loopback (moto's), which remembers what it was asked for and can be told to fail."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ecgl_scale.base.objects.url import ObjectUrl


@dataclass
class ObjectServer:
    """The server, seen from a test; ``app`` is moto's."""

    app: Any
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of every request, those to buckets themselves included."""
    answer: Callable[[str, str], int | None] = lambda *_: None
    """Asked before each request; a number is the status to fail with."""

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        status = self.answer(method, path)
        self.requests.append((method, path))
        if status is not None:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(f"{status} as told", [("Content-Length", "0")])
            return [b""]
        return self.app(environ, start_response)


@dataclass(frozen=True)
class Bucket:
    """An empty bucket of the server, of one test."""

    server: ObjectServer
    name: str
    boto: Any
    cache: Path

    def url(self, key: str) -> ObjectUrl:
        return ObjectUrl("s3", self.name, key)

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """All objects below a prefix, by the rest of their keys."""
        found = self.boto.list_objects_v2(Bucket=self.name, Prefix=prefix).get("Contents", [])
        keys = [entry["Key"] for entry in found]
        return {key.removeprefix(prefix): self.get(key) for key in keys}

    def get(self, key: str) -> bytes:
        return self.boto.get_object(Bucket=self.name, Key=key)["Body"].read()

    def read(self, key: str) -> bytes:
        """An object that may not be there: then nothing."""
        return self.get(key) if self.boto.list_objects_v2(Bucket=self.name, Prefix=key)["KeyCount"] else b""

    def put(self, key: str, data: bytes) -> None:
        self.boto.put_object(Bucket=self.name, Key=key, Body=data)

    def delete(self, key: str) -> None:
        self.boto.delete_object(Bucket=self.name, Key=key)

    def asked_for(self, method: str = "GET") -> list[str]:
        """Keys of this bucket that were asked for, with repetitions."""
        prefix = f"/{self.name}/"
        return [path.removeprefix(prefix) for how, path in self.server.requests if how == method and prefix in path]


@pytest.fixture(scope="session")
def object_server() -> Iterator[tuple[ObjectServer, str]]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    listening: Any = moto._server
    listening.app = ObjectServer(listening.app)
    yield listening.app, f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def bucket(
    object_server: tuple[ObjectServer, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bucket]:
    import boto3

    server, endpoint = object_server
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a-name",
        "AWS_SECRET_ACCESS_KEY": "a-very-secret-key",
        "AWS_REGION": "us-east-1",
        "ECGL_CACHE_DIR": str(tmp_path / "object-cache"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    boto = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    name = f"bucket-{uuid4().hex[:12]}"
    boto.create_bucket(Bucket=name)
    server.requests.clear()
    yield Bucket(server, name, boto, tmp_path / "object-cache")
    server.answer = lambda *_: None
    # Moto keeps objects in memory, which is this process's: other tests look at how much that is.
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST")).close()

"""Which workers a command uses: none but itself, some that it starts on this machine, or those of a running cluster."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from ecgl_scale.base.durable import storage_errors, write_atomically
from ecgl_scale.errors import InvalidInputError, UsageError


@dataclass(frozen=True)
class ClusterSettings:
    """What a user says of workers; nothing given means that this process does all work itself."""

    workers: int | None = None
    """So many processes are started on this machine, on loopback, and end with the command."""
    scheduler: str | None = None
    """The address of a running scheduler, ``tcp://HOST:PORT`` or ``tls://HOST:PORT``, or the file it has written."""
    worker_memory: str | None = None
    """The most memory for each worker that is started here."""
    worker_threads: int | None = None
    tls: Path | None = None
    """A directory with the certificate of a cluster; see ``tls``."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.scheduler is not None:
            raise UsageError("workers and scheduler exclude each other", fix="give one of them")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"{self.workers} workers", expected="at least one")
        if self.worker_threads is not None and self.worker_threads < 1:
            raise UsageError(f"{self.worker_threads} threads for each worker", expected="at least one")
        if self.workers is None and (self.worker_memory is not None or self.worker_threads is not None):
            raise UsageError(
                "memory and threads of workers are for workers that this command starts",
                fix="give workers too; workers of a cluster get theirs from `ecgl worker --memory --threads`",
            )

    @property
    def is_alone(self) -> bool:
        """Whether this process does all work itself."""
        return self.workers is None and self.scheduler is None


ALONE = ClusterSettings()


def scheduler_address(given: str) -> str:
    """The address that a user gave, or that of the scheduler which wrote the file."""
    if "://" in given:
        if not _is_address(given):
            raise UsageError(
                f"{given!r} is no address of a scheduler",
                expected="tcp://HOST:PORT, tls://HOST:PORT, or the file that a scheduler has written",
            )
        return given
    path = Path(given)
    try:
        address = str(json.loads(path.read_text(encoding="utf-8"))["address"])
        if not _is_address(address):
            raise ValueError(f"{address!r} is no address")
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InvalidInputError(
            f"this is not the file of a scheduler: {error}",
            where=path,
            expected="JSON with an address, as `ecgl scheduler FILE` and `dask scheduler --scheduler-file` write it",
            fix="start the scheduler first, or give its address as tcp://HOST:PORT",
        ) from error
    return address


def write_scheduler_file(path: Path, address: str) -> None:
    """Say where a scheduler listens, as Dask's own ``--scheduler-file`` does; only its owner may read it."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"address": address}) + "\n")
    path.chmod(0o600)


def wait_for_scheduler(given: str, seconds: float) -> str:
    """The address of a scheduler whose file may not be there yet: workers of a job start beside it."""
    deadline = time.monotonic() + seconds
    while "://" not in given and not Path(given).exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    return scheduler_address(given)


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("tcp", "tls") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False


def is_open_to_others(address: str) -> bool:
    """Whether others can reach an address and nothing asks who they are: plain TCP beyond this machine."""
    parts = urlsplit(address)
    if parts.scheme == "tls" or parts.hostname in (None, "localhost"):
        return False
    try:
        return not ip_address(str(parts.hostname)).is_loopback
    except ValueError:
        return True  # a name of another machine

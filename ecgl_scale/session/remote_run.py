"""A run at a URL is written on the local disk, in a directory of its own, and put to its URL as it goes on.

A run needs locks, files that grow and files that are replaced; an object store has none of these. So the machine that
runs it works as ever, and saves what another would need to go on: when the state has changed, every half a minute, and
at the end. Nothing but care keeps two machines from running one run at once; both would come to the same results.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ecgl_scale.base.durable import storage_errors
from ecgl_scale.base.events import EventSink, ignore_events
from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.objects.client import ObjectClient
from ecgl_scale.base.objects.mirror import Mirror
from ecgl_scale.base.objects.url import AnyPath, ObjectUrl
from ecgl_scale.base.versions import SEAL_NAME, version_directory
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.errors import EcglError, UsageError
from ecgl_scale.session.checkpoint import WEIGHTS_DIRECTORY
from ecgl_scale.session.directory import CONFIG_NAME
from ecgl_scale.session.remote_files import RemoteRun, fetch_plain, state_text
from ecgl_scale.session.run import run
from ecgl_scale.session.saved_model import ABOUT_NAME, MODEL_NAME

_log = logging.getLogger(__name__)

SECONDS_BETWEEN = 30.0
LOOK_SECONDS = 1.0


def run_at(
    config: RunConfig,
    out: AnyPath,
    *,
    resume: bool = False,
    memray: bool = False,
    on_event: EventSink = ignore_events,
) -> dict[str, Any]:
    """Run a config into a directory, as ``run`` does, or into a URL."""
    if isinstance(out, Path):
        return run(config, out, resume=resume, memray=memray, on_event=on_event)
    if memray:
        raise UsageError(
            "--memray writes as it goes and needs a file system", where=out, fix="give --out a path of this machine"
        )
    remote = RemoteRun(out)
    with _own_place(out) as place:
        directory = place / out.name
        remote.prepare(directory, resume=resume)
        with _Saver(remote, directory):
            results = run(config, directory, resume=resume, on_event=on_event)
        remote.finish(directory)
        shutil.rmtree(directory, ignore_errors=True)
    return results


@contextmanager
def model_directory(location: AnyPath) -> Iterator[Path]:
    """The directory of a run or saved model; from a URL, the files of its model are fetched."""
    if isinstance(location, Path):
        yield version_directory(location)
        return
    client = ObjectClient(location)
    listed = client.list()
    is_run = f"{WEIGHTS_DIRECTORY}/{ABOUT_NAME}" in listed
    folder = f"{WEIGHTS_DIRECTORY}/" if is_run else ""
    names = [CONFIG_NAME, SEAL_NAME, f"{folder}{MODEL_NAME}", f"{folder}{ABOUT_NAME}"]
    with tempfile.TemporaryDirectory(prefix="ecgl-model-") as temporary:
        for name in set(names) & listed.keys():
            fetch_plain(client, name, listed[name].size_bytes, Path(temporary) / name)
        yield Path(temporary)


@contextmanager
def _own_place(url: ObjectUrl) -> Iterator[Path]:
    place = Mirror.from_environment().place_for("runs", url)
    with storage_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        lock = take_lock(place / ".lock", target=url)
    try:
        for left in place.glob(".save-*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        yield place
    finally:
        os.close(lock)


class _Saver:
    """Saves a run while it goes on, in a thread, and once more when it ends, however it ends."""

    def __init__(self, remote: RemoteRun, directory: Path) -> None:
        self._remote = remote
        self._directory = directory
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="save-run", daemon=True)
        self._is_warned = False

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        self._ended.set()
        self._thread.join()
        if kind is not None:  # else the finished run is put
            self._try_to_save()

    def _watch(self) -> None:
        seen, last = state_text(self._directory), time.monotonic()
        while not self._ended.wait(LOOK_SECONDS):
            now = state_text(self._directory)
            if now and now != seen and time.monotonic() - last >= SECONDS_BETWEEN:
                seen, last = now, time.monotonic()
                self._try_to_save()

    def _try_to_save(self) -> None:
        """Save; a failure is told once and costs no result, as the run's files are still on the local disk."""
        try:
            if state_text(self._directory):
                self._remote.save(self._directory)
        except (EcglError, OSError) as error:
            if not self._is_warned:
                _log.warning("the run is not saved at %s for now: %s", self._remote.url, error)
            self._is_warned = True

"""The files of a run at a URL: as they were saved while it went on, and as they are when it is finished.

While a run is not finished, what a resume needs is below ``.saved``: files by the digest of their content, and an index
that names those of one moment, put last. So whatever happens, the index leads to files that belong together. Task
graphs and half-done stages are not put: whoever resumes on another machine makes them again.
When it is finished, its files are put under their own names, ``state.json`` last, and ``.saved`` is removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from ecgl_scale.base.durable import WrittenFile, crc32c_of, storage_errors
from ecgl_scale.base.objects.client import ObjectClient
from ecgl_scale.base.objects.fetch import fetch_file, read_ranges
from ecgl_scale.base.objects.url import ObjectUrl
from ecgl_scale.errors import InvalidInputError, StorageError, StoreExistsError
from ecgl_scale.session.directory import WORK_NAME
from ecgl_scale.session.state import STATE_NAME, RunState
from ecgl_scale.units import MIB

SAVED = ".saved"
INDEX_NAME = f"{SAVED}/index.json"
NOT_PUT = (WORK_NAME, "tasks")
"""Folders of a run that whoever resumes it elsewhere makes again."""
GROWING = (".jsonl", ".log")
"""Files that are added to; all others are replaced as a whole."""
TRIES = 5
MAX_INDEX_BYTES = 16 * MIB

Index = dict[str, tuple[str, WrittenFile]]
"""Name of a file in the run -> the object that holds it, and what it is."""
NOT_KNOWN = -1
"""The crc32c of a file of a finished run, of which none is kept."""


class RemoteRun:
    """What of a run is at its URL."""

    def __init__(self, url: ObjectUrl) -> None:
        self.url = url
        self._client = ObjectClient(url)
        self._index: Index = {}
        self._is_finished = False

    def prepare(self, directory: Path, *, resume: bool) -> None:
        """Make ``directory`` what a run can begin in; or go on in, from where the run was last saved anywhere."""
        listed = self._client.list()
        if not resume:
            if listed:
                raise StoreExistsError(
                    "the run directory already exists", where=self.url, fix="choose another --out, or pass --resume"
                )
            shutil.rmtree(directory, ignore_errors=True)  # of a run that is no longer at its URL
            return
        if INDEX_NAME in listed:
            self._index = self._read_index()
        elif STATE_NAME in listed:
            self._is_finished = True
            self._index = {name: (name, WrittenFile(info.size_bytes, NOT_KNOWN)) for name, info in listed.items()}
        elif listed:
            raise StoreExistsError(
                "there is something here that is no run", where=self.url / min(listed), fix="choose another --out"
            )
        if self._index:
            self._take_further(directory)

    def _take_further(self, directory: Path) -> None:
        """Fetch the run, unless what this machine has left of it is of the same config and as far."""
        with storage_errors(directory):
            coming = directory.with_name(f".{directory.name}.coming")
            shutil.rmtree(coming, ignore_errors=True)
            coming.mkdir()
            self._fetch(STATE_NAME, coming)
            if _is_further(coming, directory):
                for name in self._index:
                    self._fetch(name, coming)
                shutil.rmtree(directory, ignore_errors=True)
                coming.rename(directory)
            else:
                shutil.rmtree(coming)

    def _fetch(self, name: str, directory: Path) -> None:
        found, expected = self._index[name]
        if expected.crc32c == NOT_KNOWN:
            fetch_plain(self._client, found, expected.size_bytes, directory / name)
        else:
            fetch_file(self._client, found, expected, directory / name)

    def _read_index(self) -> Index:
        where = self.url / INDEX_NAME
        try:
            listed = json.loads(self._client.read_whole(INDEX_NAME, MAX_INDEX_BYTES))["files"]
            index = {name: (f"{SAVED}/{entry[0]}", WrittenFile(*entry[1:])) for name, entry in listed.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidInputError(
                f"the index of a saved run cannot be read: {error}", where=where, fix="choose another --out"
            ) from error
        if STATE_NAME not in index or any(Path(name).is_absolute() or ".." in Path(name).parts for name in index):
            raise InvalidInputError("the index of a saved run names no run", where=where, fix="choose another --out")
        return index

    def save(self, directory: Path) -> None:
        """Put what a resume elsewhere needs, as it is at one moment; what is there already is not put again."""
        with tempfile.TemporaryDirectory(prefix=".save-", dir=directory.parent) as temporary:
            snapshot = Path(temporary)
            if not _take_snapshot(directory, snapshot):
                return  # the state changes faster than we can look: next time
            index: Index = {}
            there = {found for found, _ in self._index.values()}
            for name in _names(snapshot):
                digest, written = _digest(snapshot / name)
                found = f"{SAVED}/{digest}"
                index[name] = (found, written)
                if found not in there:
                    self._client.put_file(found, snapshot / name)
        files = {n: [found.removeprefix(f"{SAVED}/"), w.size_bytes, w.crc32c] for n, (found, w) in index.items()}
        self._client.put_bytes(INDEX_NAME, json.dumps({"files": files}).encode())
        stale = there.difference(found for found, _ in index.values())
        self._index = index
        self._client.delete(name for name in stale if name.startswith(f"{SAVED}/"))

    def finish(self, directory: Path) -> None:
        """Put the files of a finished run under their names, the state last; where they are there, do nothing."""
        if self._is_finished:
            return
        names = [name for name in _names(directory) if name != STATE_NAME]
        for name in [*names, STATE_NAME]:
            self._client.put_file(name, directory / name)
        self._client.delete(name for name in self._client.list() if name.startswith(f"{SAVED}/"))


def _take_snapshot(directory: Path, snapshot: Path) -> bool:
    """Link or copy the files as they belong to one state; False where the state was replaced each time we looked."""
    for _ in range(TRIES):
        before = state_text(directory)
        shutil.rmtree(snapshot)
        snapshot.mkdir()
        try:
            for name in _names(directory):
                target = snapshot / name
                target.parent.mkdir(parents=True, exist_ok=True)
                _keep(directory / name, target, is_growing=name.endswith(GROWING))
        except FileNotFoundError:
            continue  # replaced while we looked
        if before and before == state_text(directory):
            return True
    return False


def _keep(path: Path, target: Path, *, is_growing: bool) -> None:
    """Keep a file as it is now, by another name where it will be replaced, as a copy where it will be added to."""
    try:
        if not is_growing:
            os.link(path, target)
            return
    except FileNotFoundError:
        raise
    except OSError:  # a file system without such names
        target.unlink(missing_ok=True)
    shutil.copyfile(path, target)


def _digest(path: Path) -> tuple[str, WrittenFile]:
    """A name for the content of a file, and what it is. Memory: a MiB."""
    digest, crc = hashlib.sha256(), 0
    with path.open("rb") as file:
        while part := file.read(MIB):
            digest.update(part)
            crc = crc32c_of(part, crc)
        return digest.hexdigest()[:32], WrittenFile(file.tell(), crc)


def _names(directory: Path) -> list[str]:
    """Files of a run that are put."""
    found = [path.relative_to(directory) for path in sorted(directory.rglob("*")) if path.is_file()]
    return [str(path) for path in found if path.parts[0] not in NOT_PUT and not path.name.startswith(".")]


def state_text(directory: Path) -> bytes:
    """The state of a run as its file has it; nothing before the first."""
    try:
        return (directory / STATE_NAME).read_bytes()
    except FileNotFoundError:
        return b""


def _is_further(coming: Path, directory: Path) -> bool:
    """Whether a run is further at ``coming`` than in a directory that may be of another run, damaged or not there."""
    there = RunState.read(coming)
    try:
        here = RunState.read(directory) if directory.is_dir() else None
    except InvalidInputError:
        here = None
    if there is None or here is None:
        return here is None
    is_same = (here.digest, here.store_id) == (there.digest, there.store_id)
    return not is_same or _progress(there) > _progress(here)


def _progress(state: RunState) -> tuple[int, ...]:
    step = ("train", "remember", "evaluate").index(state.step)
    return (state.is_finished, state.task, step, state.epoch, sum(map(len, state.macro + state.macro_seen)))


def fetch_plain(client: ObjectClient, name: str, size_bytes: int, target: Path) -> None:
    """Fetch a file of which no checksum is kept: those of a finished run that matter carry their own."""
    with storage_errors(target, needed_bytes=size_bytes):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            for part in read_ranges(client, name, size_bytes):
                file.write(part)
            if file.tell() != size_bytes:
                raise StorageError("an object has changed while it was read", where=client.url / name, fix="try again")

"""A generation on its way into a store: a directory of its own, then a name, then the head that names it.

    generations/.0001.staging     everything is written here
    generations/0001              one rename; nobody looks at it yet
    generations/0000.json         with the first append: another name of the manifest of the first ingest
    manifest.json                 the head, replaced in one step: from here on the store has the generation

A kill leaves the store as it was or as it will be, and perhaps a directory that no head names: readers pass over it,
and the next append removes it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import uuid
from contextlib import suppress
from pathlib import Path

from ecgl_scale.base.durable import fsync_directory, fsync_file, storage_errors
from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.base.signals import uninterrupted
from ecgl_scale.base.staging import lock_path_of
from ecgl_scale.errors import StoreError
from ecgl_scale.store.format import MANIFEST_NAME, Manifest
from ecgl_scale.store.generation import (
    BASE_NAME,
    GENERATIONS_DIRECTORY,
    MAX_GENERATIONS,
    GenerationManifest,
    Head,
    generation_folder,
)
from ecgl_scale.store.view import StoreView, read_view

_LEFT_OVER = re.compile(r"\d{4}|0000\.json|\.\d{4}\.(staging.*|head|json)")


class NewGeneration:
    """Where the files of an append are written, owned by this process alone until the store has them."""

    before: StoreView
    """The store when the append began."""
    path: Path

    def __init__(self, store: Path, *, is_shared: bool) -> None:
        self._store = store.absolute()
        self._folder = self._store / GENERATIONS_DIRECTORY
        # A worker of an earlier append that nobody has told of its end must not write into this one.
        self._own = f"-{uuid.uuid4().hex}" if is_shared else ""
        self._lock: int | None = None
        self._is_committed = False

    def __enter__(self) -> NewGeneration:
        read_view(self._store)  # what is no store is refused before anything is made beside it
        try:
            with storage_errors(self._store), uninterrupted():
                self._lock = take_lock(lock_path_of(self._store), target=self._store)
                self.before = read_view(self._store)
                self._number = next_number(self.before)
                self._head_bytes = self._read_head()
                self._remove_leftovers()
                self.path = self._folder / f".{self._number:04d}.staging{self._own}"
                self.path.mkdir(parents=True)
                fsync_directory(self._store)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def commit(self, generation: GenerationManifest, after: Manifest) -> None:
        """Give the store the generation, of which all files but the manifest are written."""
        with storage_errors(self._store):
            entry = generation.write(self.path, after)
            for directory, _, _ in os.walk(self.path):
                fsync_directory(Path(directory))
            self._refuse_changed_head()
            self.path.rename(self._store / generation_folder(self._number))
            fsync_directory(self._folder)
            if self._number == 1:
                self._keep_first_manifest()
            head = self._folder / f".{self._number:04d}.head"
            head.write_text(Head((*self.before.head.generations, entry)).encode(), encoding="utf-8")
            fsync_file(head)
            self._refuse_changed_head()
            head.replace(self._store / MANIFEST_NAME)
            fsync_directory(self._store)
            self._is_committed = True

    def _keep_first_manifest(self) -> None:
        """Another name for the manifest of the first ingest, which costs nothing, or a copy where links fail."""
        manifest, kept = self._store / MANIFEST_NAME, self._store / BASE_NAME
        try:
            os.link(manifest, kept)
        except OSError:
            copy = self._folder / ".0000.json"
            shutil.copyfile(manifest, copy)
            fsync_file(copy)
            copy.replace(kept)
        fsync_directory(self._folder)

    def _read_head(self) -> bytes:
        return (self._store / MANIFEST_NAME).read_bytes()

    def _refuse_changed_head(self) -> None:
        if self._read_head() != self._head_bytes:
            raise changed_head(self._store, self.before)

    def _remove_leftovers(self) -> None:
        """Remove what appends that were killed have left: all of ours that the head of now does not name."""
        named = {Path(entry.manifest).parts[1] for entry in read_view(self._store).head.generations[1:]}
        if named:
            named.add(Path(BASE_NAME).name)
        for entry in self._folder.iterdir() if self._folder.is_dir() else ():
            if entry.name in named or not _LEFT_OVER.fullmatch(entry.name):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if self._folder.is_dir() and not any(self._folder.iterdir()):
            self._folder.rmdir()

    def __exit__(self, *failure: object) -> None:
        if self._lock is None:
            return  # what is there belongs to somebody else
        with uninterrupted():
            if not self._is_committed:
                with suppress(OSError, StoreError):  # the failure itself is what the user should hear of
                    self._remove_leftovers()
            lock_path_of(self._store).unlink(missing_ok=True)
            os.close(self._lock)


def next_number(before: StoreView) -> int:
    """The number of the generation that comes next."""
    number = len(before.head.generations)
    if number >= MAX_GENERATIONS:
        raise StoreError(f"the store has {number:,} generations", where=before.location, fix="compact it first")
    return number


def changed_head(store: AnyPath, before: StoreView) -> StoreError:
    """The error of an append that finds another head than it began from."""
    return StoreError(
        f"the store has changed since this append began from its generation {before.generation}",
        where=store,
        expected="one writer at a time",
        fix="run the same command again",
    )

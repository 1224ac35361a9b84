"""A generation on its way to an object store: built on the local disk, put object by object, the head last.

The head is replaced only if it is still the one that the append began from, which the object store itself compares.
Two machines that append at once put objects of the same names; who finds them replaced gives up, as does who finds
another head. Objects that no head names are passed over by readers, and removed by the next append.
"""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from ecgl_scale.base.durable import storage_errors
from ecgl_scale.base.events import BlockFinished, EventSink, StageStarted
from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.objects.client import ObjectClient
from ecgl_scale.base.objects.url import ObjectUrl
from ecgl_scale.errors import EcglError, StoreExistsError
from ecgl_scale.store.format import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest
from ecgl_scale.store.generation import BASE_NAME, GENERATIONS_DIRECTORY, GenerationManifest, Head, generation_folder
from ecgl_scale.store.new_generation import changed_head, next_number
from ecgl_scale.store.publish import PUT_STAGE, PUTS_AT_ONCE, place_of_build, refuse_other_writer
from ecgl_scale.store.view import StoreView, read_view


class PutGeneration:
    """Where the files of an append to a URL are written before they are put there."""

    before: StoreView
    """The store when the append began."""
    path: Path

    def __init__(self, url: ObjectUrl, on_event: EventSink) -> None:
        self._url = url
        self._on_event = on_event
        self._client = ObjectClient(url)
        self._place = place_of_build(url).parent
        self._lock: int | None = None

    def __enter__(self) -> PutGeneration:
        read_view(self._url)  # what is no store is refused before anything is made here
        try:
            with storage_errors(self._place):
                self._place.mkdir(parents=True, exist_ok=True)
                self._lock = take_lock(self._place / ".lock", target=self._url)
                # Its tag comes before its bytes: a head that is replaced between the two is not taken for ours.
                self._tag = self._client.tag(MANIFEST_NAME)
                self.before = read_view(self._url)
                self._number = next_number(self.before)
                self.path = self._place / f"generation-{self._number:04d}"
                shutil.rmtree(self.path, ignore_errors=True)
                self.path.mkdir()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def commit(self, generation: GenerationManifest, after: Manifest) -> None:
        """Put the generation, of which all files but the manifest are written, and then the head."""
        entry = generation.write(self.path, after)
        self._client.delete(self._left_over())
        files = {f"{generation.folder}/{name}": name for name in (*sorted(generation.files), MANIFEST_NAME)}
        sizes = {name: (self.path / local).stat().st_size for name, local in files.items()}
        put = self._put(files, sizes)
        if self._number == 1:
            self._client.put_bytes(BASE_NAME, self._client.read_whole(MANIFEST_NAME, MAX_MANIFEST_BYTES))
        refuse_other_writer(self._client, sizes, put)
        head = Head((*self.before.head.generations, entry)).encode().encode()
        try:
            self._client.replace_bytes(MANIFEST_NAME, head, self._tag)
        except StoreExistsError as error:
            raise changed_head(self._url, self.before) from error

    def _put(self, files: dict[str, str], sizes: dict[str, int]) -> dict[str, str | None]:
        self._on_event(StageStarted(PUT_STAGE, sum(sizes.values()), "bytes"))
        put: dict[str, str | None] = {}
        with ThreadPoolExecutor(PUTS_AT_ONCE, thread_name_prefix="put") as pool:
            tags = pool.map(lambda name: self._client.put_file(name, self.path / files[name]), files)
            for name, tag in zip(files, tags, strict=True):
                put[name] = tag
                self._on_event(BlockFinished(PUT_STAGE, sum(sizes[done] for done in put)))
        return put

    def _left_over(self) -> list[str]:
        """Names of objects that appends which were killed have put, and no head names."""
        folder = f"{generation_folder(self._number)}/"
        first = [BASE_NAME] if self._number == 1 else []
        found = self._client.list(GENERATIONS_DIRECTORY)
        return [name for name in found if name.startswith(folder) or name in first]

    def __exit__(self, *failure: object) -> None:
        if self._lock is None:
            return
        if hasattr(self, "path"):
            shutil.rmtree(self.path, ignore_errors=True)
        if any(failure):
            with suppress(
                EcglError, OSError, AttributeError
            ):  # the last of a failure before there was anything to remove
                if self._client.tag(MANIFEST_NAME) == self._tag:
                    self._client.delete(self._left_over())
        os.close(self._lock)

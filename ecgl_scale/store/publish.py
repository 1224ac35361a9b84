"""A store is built on the local disk and put to its URL object by object, the manifest last.

Until the manifest is there, nobody takes the objects for a store. An object ``.uploading`` names them meanwhile, so
that the rerun of an upload that was cut off knows what it may replace; nothing that we have not named is ever removed.
An object store has no rename: while a store is replaced, from its manifest's removal to the new one's coming, there is
none.
"""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict, Unpack

from ecgl_scale.base.durable import storage_errors
from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.objects.client import NoObjectError, ObjectClient
from ecgl_scale.base.objects.mirror import Mirror
from ecgl_scale.base.objects.url import AnyPath, ObjectUrl
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import CorruptStoreError, InvalidInputError, LockedError, StoreExistsError
from ecgl_scale.store.build import build_store
from ecgl_scale.store.compose import is_beside, manifest_names
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.format import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, encode_manifest
from ecgl_scale.store.remote import UPLOAD_NAME, mirror_key
from ecgl_scale.store.source import GraphSource
from ecgl_scale.store.view import read_manifest

PUT_STAGE = "put objects"
PUTS_AT_ONCE = 4
"""Files that are put at the same time. Memory: 10 MiB each."""


class BuildChoices(TypedDict, total=False):
    """What ``build_store`` may be told besides where to build."""

    options: BuildOptions | None
    features_as: str
    feature_dtype: str


def build_store_at(
    source: GraphSource,
    target: AnyPath,
    resources: Resources,
    *,
    overwrite: bool = False,
    **choices: Unpack[BuildChoices],
) -> Manifest:
    """Build a store at a path, as ``build_store`` does, or at a URL."""
    if isinstance(target, Path):
        return build_store(source, target, resources, overwrite=overwrite, **choices)
    before = _refuse_existing(target, overwrite=overwrite)
    mirror, built = Mirror.from_environment(), place_of_build(target)
    with storage_errors(built):
        built.parent.mkdir(parents=True, exist_ok=True)
        lock = take_lock(built.with_name(".lock"), target=target)
    try:
        manifest = build_store(source, built, resources, overwrite=True, **choices)
        put_store(built, target, manifest, before, resources)
        (built / MANIFEST_NAME).unlink()
        mirror.adopt(mirror_key(manifest), target, built, manifest.total_bytes)
    finally:
        shutil.rmtree(built, ignore_errors=True)
        os.close(lock)
    return manifest


def place_of_build(target: AnyPath) -> Path:
    """Where a store is built, which workers that take part must see: the path itself, or a directory for its URL."""
    if isinstance(target, Path):
        return target
    return Mirror.from_environment().place_for("building", target) / target.name


def _refuse_existing(url: ObjectUrl, *, overwrite: bool) -> set[str]:
    """Names of our own objects that are at the URL already and may be replaced; refuses anything else there."""
    for parent in _parents(url):
        if ObjectClient(parent).has(MANIFEST_NAME):
            raise InvalidInputError(
                "this would be put into a store", where=f"{url}, in the store {parent}", fix="choose another URL"
            )
    client = ObjectClient(url)
    found = client.list().keys()
    if MANIFEST_NAME in found and not overwrite:
        raise StoreExistsError("the target already exists", where=url, fix="choose another URL, or pass --overwrite")
    ours = {MANIFEST_NAME, UPLOAD_NAME} | _named_by_manifest(url, found) | _named_by_upload(client)
    strangers = sorted(found - ours)
    if strangers:
        raise StoreExistsError(
            "the target holds something we did not put there",
            where=url / strangers[0],
            fix="choose another URL, or remove it",
        )
    return ours - {MANIFEST_NAME, UPLOAD_NAME}


def _parents(url: ObjectUrl) -> list[ObjectUrl]:
    parts = url.key.split("/")[:-1]
    return [ObjectUrl(url.scheme, url.bucket, "/".join(parts[: count + 1])) for count in range(len(parts))]


def _named_by_manifest(url: ObjectUrl, found: Any) -> set[str]:
    if MANIFEST_NAME not in found:
        return set()
    try:
        manifest = read_manifest(url)
    except CorruptStoreError as error:
        raise StoreExistsError(
            f"the target exists and cannot be told to be a store: {error.what}", where=url, fix="remove it first"
        ) from error
    beside = {name for name in found if is_beside(name, manifest)}
    return {*manifest.files, *manifest_names(manifest), *beside}


def _named_by_upload(client: ObjectClient) -> set[str]:
    try:
        named = json.loads(client.read_whole(UPLOAD_NAME, MAX_MANIFEST_BYTES))
        return {str(name) for name in named["files"]}
    except NoObjectError:
        return set()
    except (ValueError, KeyError, TypeError) as error:
        raise StoreExistsError(
            "the target holds something we did not put there", where=client.url / UPLOAD_NAME, fix="remove it first"
        ) from error


def put_store(built: Path, url: ObjectUrl, manifest: Manifest, before: set[str], resources: Resources) -> None:
    """Put a store's files, then its manifest; ``before`` are names of our own that may be replaced or removed."""
    client, names = ObjectClient(url), sorted(manifest.files)
    client.put_bytes(UPLOAD_NAME, json.dumps({"files": sorted(before.union(names))}).encode())
    client.delete([MANIFEST_NAME])
    resources.on_event(StageStarted(PUT_STAGE, manifest.total_bytes, "bytes"))
    tags: dict[str, str | None] = {}
    done_bytes = 0
    pool = ThreadPoolExecutor(PUTS_AT_ONCE, thread_name_prefix="put")
    try:
        for name, tag in zip(names, pool.map(lambda name: client.put_file(name, built / name), names), strict=True):
            tags[name] = tag
            done_bytes += manifest.files[name].size_bytes
            resources.on_event(BlockFinished(PUT_STAGE, done_bytes))
    finally:
        pool.shutdown(cancel_futures=True)
    client.delete(before.difference(names))
    refuse_other_writer(client, {name: manifest.files[name].size_bytes for name in names}, tags)
    try:
        client.put_bytes(MANIFEST_NAME, encode_manifest(manifest).encode(), is_new=True)
    except StoreExistsError as error:
        raise StoreExistsError("another process has put a store here meanwhile", where=url) from error
    client.delete([UPLOAD_NAME])


def refuse_other_writer(client: ObjectClient, sizes: dict[str, int], tags: dict[str, str | None]) -> None:
    """Refuse to finish a store of which somebody else has replaced objects since we put them."""
    found = client.list()
    for name, tag in tags.items():
        now = found.get(name)
        same = now is not None and now.size_bytes == sizes[name]
        if now is None or not same or (tag and now.tag and tag != now.tag):
            raise LockedError(
                "another process is writing this target",
                where=client.url / name,
                fix="wait for it to end, or choose another URL",
            )

"""The feature part of a store: chosen, written and opened, dense or sparse."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import WrittenFile
from ecgl_scale.errors import CorruptStoreError
from ecgl_scale.store.compose import address_of, generations_of
from ecgl_scale.store.dropped import Dropped
from ecgl_scale.store.features.choose import as_dense, as_sparse, choose_kind
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.features.dense_write import DenseDtype, DenseLayout, write_dense
from ecgl_scale.store.features.face import FeatureStore
from ecgl_scale.store.features.joined import join_features
from ecgl_scale.store.features.live import live_features
from ecgl_scale.store.features.sparse import SparseFeatures, SparseLayout, write_sparse
from ecgl_scale.store.files import StoreFiles
from ecgl_scale.store.format import DENSE_DIRECTORY, SPARSE_DIRECTORY, FeatureSection, Manifest
from ecgl_scale.store.row_source import RowSource
from ecgl_scale.store.source import DenseSource, SparseSource

WriteShards = Callable[[DenseSource, RowSource, DenseLayout, Path], dict[str, WrittenFile]]
AnyFeatures = DenseFeatures | SparseFeatures
"""Either, for those who tell them apart by ``kind``; others take a ``FeatureStore``."""


def write_features(
    source: DenseSource | SparseSource,
    num_rows: int,
    store: Path,
    *,
    requested: str,
    dtype: str,
    on_rows: Callable[[int], None],
    write_shards: WriteShards | None = None,
    is_even: bool = False,
) -> tuple[FeatureSection, dict[str, WrittenFile]]:
    """Write the features below ``store``, as asked or by their density. Memory: a few chunks, or one sparse block.

    ``write_shards`` takes the place of ``write_dense`` where rows can be read apart, by others than this process;
    ``is_even`` is as in ``DenseLayout.plan``.
    """
    kind = choose_kind(source, cast("Literal['auto', 'dense', 'sparse']", requested), num_rows=num_rows)
    if kind == "dense":
        dense = source if source.kind == "dense" else as_dense(source)
        layout = DenseLayout.plan(num_rows, dense.num_features, cast("DenseDtype", dtype), is_even=is_even)
        if write_shards is not None and dense.rows is not None:
            files = write_shards(dense, dense.rows, layout, store / DENSE_DIRECTORY)
        else:
            files = write_dense(dense, layout, _new(store / DENSE_DIRECTORY), on_rows=on_rows)
        section = FeatureSection(
            kind, dense.num_features, dtype, layout.rows_per_block, layout.rows_per_chunk, num_rows * dense.num_features
        )
        return section, _below(DENSE_DIRECTORY, files)
    sparse = source if source.kind == "sparse" else as_sparse(source)
    plan = SparseLayout.plan(num_rows, sparse.num_features, sparse.num_values)
    files = write_sparse(sparse, plan, _new(store / SPARSE_DIRECTORY), on_rows=on_rows)
    section = FeatureSection(
        kind, sparse.num_features, "float32", plan.rows_per_block, plan.rows_per_block, sparse.num_values
    )
    return section, _below(SPARSE_DIRECTORY, files)


def open_features(files: StoreFiles, manifest: Manifest, dropped: Dropped | None = None) -> AnyFeatures | None:
    """The features of an open store; None where it has none. Those of several generations are seen as one matrix."""
    if manifest.features is None:
        return None
    base, appended = generations_of(manifest)
    parts = [(base.features, "", base.num_nodes)]
    parts += [(part.features, f"{part.folder}/", part.num_new_nodes) for part in appended]
    opened = [
        _open_part(files, manifest, section, folder, num_rows)
        for section, folder, num_rows in parts
        if section is not None
    ]
    features = opened[0] if len(opened) == 1 else join_features(opened)
    if dropped is not None:
        features = live_features(opened, dropped)
    features.store = address_of(files.location, manifest)
    return features


def _open_part(
    files: StoreFiles, manifest: Manifest, section: FeatureSection, folder: str, num_rows: int
) -> AnyFeatures:
    if section.kind == "dense":
        dense = DenseLayout(
            num_rows,
            section.num_features,
            cast("DenseDtype", section.dtype),
            section.rows_per_chunk,
            section.rows_per_block,
        )
        directory = f"{folder}{DENSE_DIRECTORY}"
        return DenseFeatures.open(files.inside(directory), dense, _inside(directory, manifest))
    if section.kind == "sparse":
        sparse = SparseLayout(num_rows, section.num_features, section.rows_per_block, section.num_values)
        directory = f"{folder}{SPARSE_DIRECTORY}"
        return SparseFeatures.open(files.inside(directory), sparse, _inside(directory, manifest))
    raise CorruptStoreError(f"the manifest names an unknown kind of features: {section.kind!r}", where=files.location)


def dense_matrix(features: FeatureStore) -> NDArray[Any]:
    """All features as one array. Memory: the whole matrix, twice."""
    return np.concatenate([features.read_dense(block) for block in features.blocks()])


def _new(directory: Path) -> Path:
    """A directory that is not there, whatever an earlier process has left."""
    shutil.rmtree(directory, ignore_errors=True)
    return directory


def _below(directory: str, files: Mapping[str, WrittenFile]) -> dict[str, WrittenFile]:
    return {f"{directory}/{name}": file for name, file in files.items()}


def _inside(directory: str, manifest: Manifest) -> dict[str, WrittenFile]:
    prefix = f"{directory}/"
    return {
        name.removeprefix(prefix): record.written for name, record in manifest.files.items() if name.startswith(prefix)
    }

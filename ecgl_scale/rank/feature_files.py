"""Features in files that are no part of a store: those a user gives, and those that workers are to see.

Both are .npy files with a row for each node, such as a model's outputs. They are mapped, so that their bytes are the
page cache's and not ours. A file for workers is whole before any of them opens it, and is never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import DurableWriter, crc32c_of, storage_errors
from ecgl_scale.engine.place import shared_directory
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import CorruptStoreError, InvalidInputError
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.sources.npy import open_npy, reading
from ecgl_scale.units import MIB

DTYPES = ("float16", "float32", "float64")

Features = DenseFeatures | SparseFeatures | NDArray[Any]


def map_features(path: Path, num_nodes: int) -> NDArray[Any]:
    """Look at the header and map the rest; reads none of it.

    Raises
    ------
    InvalidInputError
        No .npy file, or not a row of floating point for each node.
    """
    file = open_npy(path)
    header = file.header
    expected = f"{', '.join(DTYPES)} of shape ({num_nodes}, columns): a row for each node"
    if len(header.shape) != 2 or header.dtype.name not in DTYPES or header.shape[0] != num_nodes or not header.size:
        raise InvalidInputError(f"features are {header.dtype} of shape {header.shape}", where=path, expected=expected)
    with reading(path):
        order = "F" if header.fortran_order else "C"
        mapped = np.memmap(path, header.stored_dtype, "r", header.header_bytes, header.shape, order)  # type: ignore[call-overload]
    return np.asarray(mapped)  # kernels know plain arrays


def check_finite(features: NDArray[Any], path: Path) -> None:
    """Refuse a file with a number that is no finite float32. Reads everything once. Memory: a few blocks of a MiB."""
    for start, rows in _blocks(features):
        with np.errstate(over="ignore"):
            finite = np.isfinite(rows.astype(np.float32, copy=False)).all(axis=1)
        if not finite.all():
            raise InvalidInputError(
                "a feature is not a finite float32", where=f"{path}, row {start + int(np.argmin(finite))}",
                expected="finite numbers",
            )  # fmt: skip


def digest_features(features: NDArray[Any]) -> list[Any]:
    """Return what tells these features from others, so that no journal of others is gone on with; reads all once."""
    crc = 0
    for _, rows in _blocks(features):
        crc = crc32c_of(rows, crc)
    return [str(features.dtype), list(features.shape), crc]


def _blocks(features: NDArray[Any]) -> Any:
    """Yield first row and rows, about a MiB at once."""
    step = max(MIB // max(features.itemsize * features.shape[1], 1), 1)
    return ((start, np.ascontiguousarray(features[start : start + step])) for start in range(0, len(features), step))


@dataclass(frozen=True)
class FeatureSource:
    """The features that a work reads, and what another process needs to find them."""

    features: Features
    description: Json = None
    """None where all workers share the memory of this process."""

    @classmethod
    def of(cls, features: Features, resources: Resources, name: str) -> FeatureSource:
        """Make features findable: those of a store by its path, an array by a file below the working directory."""
        if resources.executor.shares_memory:
            return cls(features)
        if not isinstance(features, np.ndarray):
            return cls(features, {"store": features.store})
        if features.dtype.name not in DTYPES or not features.dtype.isnative:
            features = features.astype(np.float32)
        path = shared_directory(resources, name) / "features.npy"
        _write_npy(path, features)
        # As workers see them: what is planned here, by the order of the rows, holds there.
        return cls(map_features(path, len(features)), {"file": str(path), "digest": digest_features(features)})

    @classmethod
    def open(cls, description: Json) -> FeatureSource:
        """Find the features that another process has described."""
        if "store" in description:
            return cls(GraphStore.open(description["store"]).require_features(), description)
        path, digest = Path(description["file"]), description["digest"]
        features = map_features(path, digest[1][0])
        if digest_features(features) != digest:
            raise CorruptStoreError("features are not as they were written", where=path)
        return cls(features, description)


def _write_npy(path: Path, array: NDArray[Any]) -> None:
    with storage_errors(path, needed_bytes=array.nbytes):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    with DurableWriter(path) as writer:
        header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(writer, header)
        for _, rows in _blocks(array):
            writer.write(rows)
        writer.finish()

"""Features that are not the store's: an .npy file with a row for each node, such as a model's outputs.

The file is mapped, so its bytes are the page cache's and not ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.sources.npy import open_npy, reading
from ecgl_scale.units import MIB

DTYPES = ("float16", "float32", "float64")


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


def digest_features(features: NDArray[Any], path: Path) -> list[Any]:
    """What tells these features from others, so that no journal of others is gone on with; all must be finite.

    Reads everything once. Memory: a few blocks of a MiB.
    """
    crc = 0
    rows = max(MIB // (features.itemsize * features.shape[1]), 1)
    for start in range(0, len(features), rows):
        block = np.ascontiguousarray(features[start : start + rows])
        crc = crc32c_of(block, crc)
        with np.errstate(over="ignore"):
            finite = np.isfinite(block.astype(np.float32, copy=False)).all(axis=1)
        if not finite.all():
            raise InvalidInputError(
                "a feature is not a finite float32", where=f"{path}, row {start + int(np.argmin(finite))}",
                expected="finite numbers",
            )  # fmt: skip
    return [str(features.dtype), list(features.shape), crc]

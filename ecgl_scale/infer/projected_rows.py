"""Rows that a model is given, whose products lie in files already: random features of sparse rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.engine.work import Json
from ecgl_scale.infer.matrix import map_matrix
from ecgl_scale.infer.random_features import PRODUCT_ROWS
from ecgl_scale.infer.settings import Matrix


class ProjectedRows:
    """relu(z) of z as ``projection`` makes it: a matrix for every 512 columns."""

    def __init__(self, parts: Sequence[Matrix]) -> None:
        self._parts = parts
        self.width = sum(part.shape[1] for part in parts)

    def __len__(self) -> int:
        """Count the nodes."""
        return len(self._parts[0])

    def __getitem__(self, local: NDArray[np.int64]) -> Matrix:
        """Rows of some nodes. Memory: the rows, and 2 MiB."""
        local = np.asarray(local)
        found = np.empty((local.size, self.width), np.float32)
        for start in range(0, local.size, PRODUCT_ROWS):
            here, first = local[start : start + PRODUCT_ROWS], 0
            for part in self._parts:
                stop = first + part.shape[1]
                np.maximum(part[here], 0, out=found[start : start + here.size, first:stop])
                first = stop
        return found

    def describe(self) -> Json:
        """Say where the files are."""
        files: list[Json] = [[part.shape[1], str(part.filename)] for part in self._parts if isinstance(part, np.memmap)]
        return {"num_rows": len(self), "projected": files}

    @classmethod
    def open(cls, description: Json) -> ProjectedRows:
        """Open what another process has described."""
        num_rows = description["num_rows"]
        return cls([map_matrix(num_rows, width, Path(path)) for width, path in description["projected"]])

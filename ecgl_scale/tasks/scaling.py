"""Feature scaling, applied to rows as they stream by and recorded with the task graph.

    none       rows as they are
    row_sum    x / sum |x|       (the row sum, where nothing is negative)
    row_l2     x / |x|_2         rows of zeros stay zero in both
    standard   (x - mean) / deviation, column by column, by moments that are fitted once

All sums are float64, each row or column in one fixed order, so the result does not depend on how rows are cut.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.checked import checked_ids
from ecgl_scale.store.features.face import FeatureStore
from ecgl_scale.store.source import CsrBlock
from ecgl_scale.units import MIB

ScalingKind = Literal["none", "row_sum", "row_l2", "standard"]
KINDS: tuple[str, ...] = get_args(ScalingKind)
CHUNK_BYTES = MIB
"""Rows are scaled this many float64 bytes at a time: what is computed stays in cache."""
FIT_BYTES = 8 * MIB
"""Float64 bytes of the rows that are fitted at a time."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """How rows are scaled; ``standard`` has a mean and a deviation for each column."""

    kind: ScalingKind = "none"
    mean: NDArray[np.float64] | None = None
    deviation: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"there is no scaling {self.kind!r}", expected=", ".join(KINDS))
        if (self.kind == "standard") != (self.mean is not None and self.deviation is not None):
            raise UsageError(
                f"scaling {self.kind!r} with{'' if self.mean is not None else 'out'} moments",
                fix="make it with fit_standard" if self.kind == "standard" else "give no mean and deviation",
            )

    @property
    def keeps_zeros(self) -> bool:
        """Whether a zero stays one, so that sparse rows stay sparse."""
        return self.kind != "standard"

    def apply(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Scaled rows as float32; the given array itself where nothing is to do. Memory: the result + 2 MiB."""
        if self.kind == "none":
            return rows.astype(np.float32, copy=False)
        if self.mean is not None and rows.shape[1] != self.mean.size:
            raise UsageError(f"rows have {rows.shape[1]} columns", expected=f"{self.mean.size}, as were fitted")
        scaled = np.empty(rows.shape, np.float32)
        step = max(CHUNK_BYTES // (8 * max(rows.shape[1], 1)), 1)
        for start in range(0, len(rows), step):
            chunk = rows[start : start + step].astype(np.float64)
            if self.mean is not None and self.deviation is not None:
                chunk -= self.mean
                chunk /= self.deviation
            else:
                chunk /= self._lengths((np.abs(chunk) if self.kind == "row_sum" else chunk * chunk).sum(axis=1))[
                    :, None
                ]
            scaled[start : start + step] = chunk
        return scaled

    def apply_sparse(self, rows: CsrBlock) -> CsrBlock:
        """Scaled sparse rows, for all kinds that keep zeros. Memory: 20 bytes a value."""
        if self.kind == "none":
            return rows
        if not self.keeps_zeros:
            raise UsageError("standardised rows are not sparse", fix="turn them into dense rows and use apply")
        values = rows.values.astype(np.float64)
        counts = np.diff(rows.indptr)
        squared = np.abs(values) if self.kind == "row_sum" else values * values
        sums = np.zeros(counts.size)
        if values.size:
            # Only rows with values: reduceat takes an empty one for the value that follows.
            sums[counts > 0] = np.add.reduceat(squared, rows.indptr[:-1][counts > 0])
        values /= np.repeat(self._lengths(sums), counts)
        return CsrBlock(rows.indptr, rows.indices, values.astype(np.float32))

    def _lengths(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        lengths = np.sqrt(sums) if self.kind == "row_l2" else sums
        lengths[lengths == 0] = 1.0
        return lengths

    def to_json(self) -> str:
        """Text from which ``from_json`` makes the same scaling, bit by bit."""
        moments = [None if column is None else column.tolist() for column in (self.mean, self.deviation)]
        return json.dumps({"kind": self.kind, "mean": moments[0], "deviation": moments[1]}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Scaling:
        """Read what ``to_json`` gave."""
        try:
            body = json.loads(text)
            mean, deviation = (
                None if body[name] is None else np.array(body[name], np.float64) for name in ("mean", "deviation")
            )
            if mean is not None and deviation is not None:
                fits = mean.ndim == 1 and mean.shape == deviation.shape
                if not fits or not np.isfinite(mean).all() or not (np.isfinite(deviation) & (deviation > 0)).all():
                    raise ValueError("moments make no sense")
            return cls(body["kind"], mean, deviation)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidInputError(f"this is no scaling: {error}", where=text[:200]) from error


def fit_standard(features: FeatureStore, ids: Any = None) -> Scaling:
    """Mean and (population) deviation of every column over the rows ``ids``, all rows without; one pass.

    Moments are taken of the differences to the first row and joined block by block (Chan, Golub and LeVeque 1983),
    so a column of equal values has deviation 0 exactly; it is then divided by 1.
    Memory: 40 bytes a column + three times ``FIT_BYTES`` + what a gather takes.
    """
    wanted = np.arange(features.num_rows) if ids is None else np.unique(checked_ids(ids, features.num_rows))
    if not wanted.size:
        raise UsageError("there are no rows to standardise by", expected="at least one")
    step = max(FIT_BYTES // (8 * features.num_features), 1)
    origin = features.rows_dense(wanted[:1])[0].astype(np.float64)
    mean = np.zeros(features.num_features)
    squares = np.zeros(features.num_features)
    for start in range(0, wanted.size, step):
        rows = features.rows_dense(wanted[start : start + step]).astype(np.float64)
        rows -= origin
        block_mean = rows.mean(axis=0)
        rows -= block_mean
        block_squares = np.einsum("ij,ij->j", rows, rows)
        total = start + len(rows)
        shift = block_mean - mean
        mean += shift * (len(rows) / total)
        squares += block_squares + shift * shift * (start * len(rows) / total)
    deviation = np.sqrt(squares / wanted.size)
    deviation[deviation == 0] = 1.0
    return Scaling("standard", origin + mean, deviation)

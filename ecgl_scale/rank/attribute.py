"""The attribute vector r: how much each node resembles all others, the restart of attributed PageRank.

    r_i ~ w_i (a + x_i.b + x_i^T C x_i)     w_i = exp(-gamma |x_i|^2), divided by its sum (paper: A.2)

It is sum_j exp(-gamma |x_i - x_j|^2) with exp(2 gamma x_i.x_j) expanded to second order; ``exact_error_bound`` says how
far off that may be. Two passes over dense features, two for each strip of C over sparse ones; the result is the same
bits for any block size, budget and number of threads.

Dense and sparse storage of one matrix agree to 1e-6, not bit for bit: BLAS sums a chunk in float32 and in its own
order, zeros included; the sparse sums are float64 over what is not zero.
"""

from __future__ import annotations

import math
import shutil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.engine.place import shared_directory
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import UsageError
from ecgl_scale.rank.attribute_dense import DensePasses, plan_dense
from ecgl_scale.rank.attribute_sparse import SparsePasses, plan_sparse
from ecgl_scale.rank.feature_files import Features, FeatureSource
from ecgl_scale.rank.sizes import FeatureSizes, Need
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.source import FloatArray

STAGE = "attribute vector"
NAME = "attributes"
"""The directory of what workers of other processes see."""

Vector = NDArray[np.float64]


def plan_attributes(sizes: FeatureSizes, threads: int) -> Need:
    """Plan the memory of the vector on top of what the process holds."""
    return plan_dense(sizes, threads) if sizes.num_values is None else plan_sparse(sizes)


def plan_attribute_worker(sizes: FeatureSizes, *, room_bytes: int, threads: int) -> StagePlan:
    """What a worker needs that shares no memory: no more than one process that does it all."""
    needed = plan_attributes(sizes, threads).within(room_bytes)
    formula = f"units of rows for {threads} threads and sums of {sizes.num_columns:,} columns"
    return StagePlan("attributes", needed, formula, setting="memory")


def attribute_vector(
    features: Features,
    resources: Resources,
    *,
    gamma: float | None = None,
    num_nodes: int | None = None,
) -> Vector:
    """The vector r [N], which sums to one.

    Parameters
    ----------
    features
        Features of a store, or an array [N, K] of numbers (model outputs, say), which is worked on as float32.
    gamma
        Of the similarity exp(-gamma |x_i - x_j|^2); 1/K without one.
    num_nodes
        How many rows there must be, where the caller knows.

    Raises
    ------
    UsageError
        No columns or no rows, another number of rows than nodes, gamma not above 0, values that are not finite, or
        weights that all underflow.
    DoesNotFitError
        Before starting, with the smallest budget that works.

    Memory
    ------
    Dense: ``8 N + threads * 3 chunk_bytes + K^2 (12 + 4 (threads + 2) chunks a unit)`` and a reserve, where a chunk has
    4,096 rows of float32 and a unit 8 MiB; ``threads`` shrink to fit the budget. Sparse: ``16 N`` + one strip of C;
    see ``attribute_sparse``.
    """
    source = features if isinstance(features, DenseFeatures | SparseFeatures) else _checked_array(features)
    num_rows, num_features = source.shape if isinstance(source, np.ndarray) else (source.num_rows, source.num_features)
    if num_rows < 1 or num_features < 1:
        raise UsageError("there are no features", where=f"{num_rows} rows, {num_features} columns")
    if num_nodes is not None and num_rows != num_nodes:
        raise UsageError(f"features have {num_rows:,} rows", expected=f"{num_nodes:,}, one a node")
    gamma = 1.0 / num_features if gamma is None else gamma
    if not 0.0 < gamma < math.inf:
        raise UsageError(f"gamma is {gamma}", expected="gamma > 0")
    kind = SparsePasses if isinstance(source, SparseFeatures) else DensePasses
    passes = kind(FeatureSource.of(source, resources, NAME), gamma, resources)
    on_event = resources.on_event
    on_event(StageStarted(STAGE, passes.num_passes * num_rows, "rows"))
    values = passes.run(on_rows=lambda done: on_event(BlockFinished(STAGE, done)))
    if not resources.executor.shares_memory:
        shutil.rmtree(shared_directory(resources, NAME), ignore_errors=True)
    values /= values.sum()
    return values


def exact_error_bound(x: NDArray[Any], *, gamma: float | None = None) -> Vector:
    """How far the expansion may be from the exact sum_j exp(-gamma |x_i - x_j|^2), for each row, before dividing.

    With t = 2 gamma x_i.x_j, Lagrange's remainder is |e^t - (1 + t + t^2/2)| <= |t|^3/6 e^max(t, 0), so the bound is
    sum_j w_i w_j |t|^3/6 e^max(t, 0). Takes N^2 K steps: for tests and small samples. Memory: 40 N.
    """
    rows = np.asarray(x, np.float64)
    gamma = 1.0 / rows.shape[1] if gamma is None else gamma
    exponents = gamma * np.einsum("ij,ij->i", rows, rows)
    bounds = np.empty(len(rows), np.float64)
    for i, row in enumerate(rows):
        t = 2.0 * gamma * (rows @ row)
        bounds[i] = np.sum(np.exp(np.maximum(t, 0.0) - exponents - exponents[i]) * np.abs(t) ** 3 / 6.0)
    return bounds


def _checked_array(features: Any) -> FloatArray:
    array = np.asarray(features)
    if array.ndim != 2 or array.dtype.kind not in "fiub":
        raise UsageError(f"features are {array.dtype} of shape {array.shape}", expected="numbers, [N, K]")
    return array

"""The memory of choosing a task's nodes, known before its graph is there."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.rank.attribute_dense import RESERVE_BYTES as ATTRIBUTE_RESERVE_BYTES
from ecgl_scale.rank.attribute_dense import dense_bytes
from ecgl_scale.rank.attribute_sparse import MAX_STRIPS
from ecgl_scale.rank.choose import ChooseSettings
from ecgl_scale.rank.columns import SPARSE_SCRATCH_BYTES, SPARSE_VALUE_BYTES
from ecgl_scale.rank.diversity import RESERVE_BYTES as DIVERSITY_RESERVE_BYTES
from ecgl_scale.rank.pagerank import planned_bytes
from ecgl_scale.rank.topk import BLOCK_BYTES, PLACE_BYTES
from ecgl_scale.store.features.dense import DenseFeatures, DenseLayout
from ecgl_scale.units import MIB, format_bytes

STAGE = "choose nodes"
CANDIDATE_BYTES = 64
"""Ids, labels and scores, and the sorted copies that count the classes."""
CHOICE_BYTES = 160
"""Of a place where two rankings are united: its ids in both, and as a number of Python in what is chosen so far."""
EDGE_BYTES = 4
BLAS_BYTES = 32 * MIB
"""What BLAS keeps for its next product, once it has made the attribute vector."""


def plan_choose(
    num_nodes: int,
    num_features: int,
    *,
    num_candidates: int,
    settings: ChooseSettings,
    num_edges: int = 0,
    num_values: int | None = None,
    rank_columns: int | None = None,
    room_bytes: int,
    threads: int,
) -> StagePlan:
    """What ``choose_nodes`` will need for a task graph of this size.

    Parameters
    ----------
    num_values
        Stored values where features are sparse; None for dense ones, which count as float32.
    rank_columns
        Columns of ``rank_features``, where importance is not of the store's features. The array itself is the caller's.

    Memory
    ------
    ``64 candidates`` + the largest of these, rankings as far as they have places, where N = nodes and K = columns:

    the choice itself, once all are ranked: ``160 budget`` and 6 MiB;

    attributes: dense ``8 N + threads (unit + chunk) + K^2 (12 + 4 (threads + 2) chunks a unit)``, see ``dense_bytes``;
    sparse ``16 N + 8 K + strip`` with a strip of 4 K (K + 1) bytes or down to 1/16 of it; and 48 MiB.
    importance: ``16 N`` (the attribute vector, and its padded copy) + ``20 N`` (28 up to 2 M nodes) + read buffers.
    diversity: ``8 N`` + dense ``4 N columns`` (all of them, or down to four and read buffers), sparse
    ``8 N + 8 values + 13 K threads``; and 24 MiB, after an attribute vector 32 MiB more.

    Where not everything fits the budget, attributes and diversity take what there is, and more passes.
    """
    room = max(room_bytes - CANDIDATE_BYTES * num_candidates, 0)
    by_importance, by_diversity = settings.places if settings.budget < num_candidates else (0, 0)
    feature_bytes = 4 * num_nodes * num_features if num_values is None else 8 * (num_nodes + num_values)
    needs: dict[str, int] = {}
    read_bytes = passes = 0
    if by_importance:
        columns = num_features if rank_columns is None else rank_columns
        if columns:
            sparse = num_values is not None and rank_columns is None
            in_memory = rank_columns is not None
            least, whole = attribute_bytes(num_nodes, columns, sparse=sparse, in_memory=in_memory, threads=threads)
            needs["attribute vector"] = min(max(least, room), whole)
            read_bytes += 0 if rank_columns is not None else 2 * feature_bytes
        ranking = planned_bytes(num_nodes, settings.pagerank, with_reset=columns > 0, threads=threads)
        needs["importance"] = ranking + 8 * num_nodes
        passes = _num_sweeps(settings)
        read_bytes += passes * num_edges * EDGE_BYTES
    if by_diversity:
        kept = BLAS_BYTES if "attribute vector" in needs else 0
        least, whole = diversity_bytes(num_nodes, num_features, num_values, threads)
        needs["diversity"] = min(max(least + kept, room), whole + kept)
        read_bytes += feature_bytes + num_edges * EDGE_BYTES
    picking = 0
    if settings.budget < num_candidates:
        picking = (CHOICE_BYTES if needs else PLACE_BYTES) * settings.budget + BLOCK_BYTES
    largest = max(needs, key=lambda name: needs[name], default="")
    most = max(needs.get(largest, 0), picking)
    what = f"for the {largest} of {num_nodes:,} nodes" if largest else "to choose, nothing is ranked"
    return StagePlan(
        STAGE,
        CANDIDATE_BYTES * num_candidates + most,
        f"{CANDIDATE_BYTES} bytes for each of {num_candidates:,} candidates + {format_bytes(most)} {what}",
        read_bytes=read_bytes,
        passes=passes,
        setting="bank.select" if largest else "",
    )


def attribute_bytes(num_nodes: int, columns: int, *, sparse: bool, in_memory: bool, threads: int) -> tuple[int, int]:
    """Least and most that an attribute vector takes."""
    if sparse:
        strip = 4 * columns * (columns + 1)
        fixed = 16 * num_nodes + 8 * columns + ATTRIBUTE_RESERVE_BYTES
        return fixed + min(-(-strip // MAX_STRIPS) + 8 * columns, strip), fixed + strip
    # An array of no memory that is in no order: one that is not float32 in row order needs most.
    source = np.broadcast_to(np.float32(0), (num_nodes, columns)) if in_memory else _features_of(num_nodes, columns)
    return dense_bytes(source, threads=1), dense_bytes(source, threads=threads)


def _features_of(num_nodes: int, num_features: int) -> DenseFeatures:
    """Features that are not there yet, to ask about their sizes."""
    return DenseFeatures(Path(), DenseLayout.plan(num_nodes, num_features), ())


def diversity_bytes(num_nodes: int, num_features: int, num_values: int | None, threads: int) -> tuple[int, int]:
    """Least and most that diversity takes; ``num_values`` of sparse features, None for dense ones."""
    fixed = 8 * num_nodes + DIVERSITY_RESERVE_BYTES
    if num_values is not None:
        fixed += 8 * num_nodes + threads * SPARSE_SCRATCH_BYTES * num_features
        # No column has more values than there are nodes.
        return fixed + SPARSE_VALUE_BYTES * min(num_nodes, num_values), fixed + SPARSE_VALUE_BYTES * num_values
    if not num_features:
        return fixed, fixed
    features = _features_of(num_nodes, num_features)
    readers = threads * features.chunk_buffer_bytes
    whole = 4 * num_nodes * num_features
    return fixed + min(16 * num_nodes + readers, whole), fixed + whole


def _num_sweeps(settings: ChooseSettings) -> int:
    """A sweep takes a share of ``damping`` off the change, so that many reach the tolerance; or the cap."""
    pagerank = settings.pagerank
    if pagerank.tol <= 0.0 or pagerank.damping <= 0.0:
        return pagerank.max_iter if pagerank.damping > 0.0 else min(2, pagerank.max_iter)
    return min(max(math.ceil(math.log(pagerank.tol) / math.log(pagerank.damping)), 1), pagerank.max_iter)

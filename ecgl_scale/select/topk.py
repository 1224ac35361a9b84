"""The best nodes by a score, among candidates, with places for every class where asked.

Memory: 16 bytes for each of the k places and 8 a candidate; scores are looked at in blocks.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.topk import fill_quotas, keep_best, keep_best_of_classes
from ecgl_scale.errors import UsageError
from ecgl_scale.store.block import checked_ids

BLOCK_NODES = 1 << 20

Ids = NDArray[np.int64]


def top_nodes(
    scores: Any,
    k: int,
    *,
    candidates: Any = None,
    labels: Any = None,
    quota: Literal["none", "class"] = "none",
) -> Ids:
    """Ids of the k best nodes, best first; of equal scores the smaller id comes first.

    Parameters
    ----------
    scores
        One number a node.
    k
        How many; all candidates where there are fewer.
    candidates
        Only these nodes: ids (each counts once), or a mask with an entry for every node. All nodes without.
    labels
        The class of every node, below 0 for none; for ``quota="class"``.
    quota
        ``class`` splits k equally over the classes among the candidates: one place at a time to each class in the
        order of the labels, passing over classes that have no candidate left, until k are given. So a class gets its
        equal share or all it has, and a remainder goes to the smaller labels. In a class its best nodes are chosen.
        Nodes without a class are not chosen. The order of the result is by score all the same.

    Raises
    ------
    UsageError
        A candidate's score is NaN (the message names the node), or the arguments do not fit each other.
    """
    values = np.asarray(scores)
    if values.ndim != 1 or values.dtype.kind not in "fiub":
        raise UsageError(f"scores are {values.dtype} of shape {values.shape}", expected="one number a node")
    if k < 0:
        raise UsageError(f"k is {k}", expected="at least 0")
    if quota not in ("none", "class"):
        raise UsageError(f"quota is {quota!r}", expected="none or class")
    ids = _candidate_ids(candidates, values.size)
    k = min(k, ids.size)
    if quota == "class":
        chosen, chosen_scores = _best_of_classes(values, ids, k, _checked_labels(labels, values.size))
    else:
        chosen, chosen_scores = _best(values, ids, k)
    return chosen[np.lexsort((chosen, -chosen_scores))]


def _candidate_ids(candidates: Any, num_nodes: int) -> Ids:
    if candidates is None:
        return np.arange(num_nodes, dtype=np.int64)
    given = np.asarray(candidates)
    if given.dtype == np.bool_:
        if given.shape != (num_nodes,):
            raise UsageError(f"the mask has shape {given.shape}", expected=f"an entry for each of {num_nodes} nodes")
        return np.flatnonzero(given).astype(np.int64, copy=False)
    return np.unique(checked_ids(given, num_nodes))


def _checked_labels(labels: Any, num_nodes: int) -> NDArray[Any]:
    if labels is None:
        raise UsageError("a quota for each class needs labels", fix="give labels, or quota='none'")
    given = np.asarray(labels)
    if given.shape != (num_nodes,) or given.dtype.kind not in "iu":
        raise UsageError(
            f"labels are {given.dtype} of shape {given.shape}", expected=f"an integer for each of {num_nodes} nodes"
        )
    return given


def _best(values: NDArray[Any], ids: Ids, k: int) -> tuple[Ids, NDArray[np.float64]]:
    best, best_ids = np.empty(k, np.float64), np.empty(k, np.int64)
    kept = 0
    for start in range(0, ids.size, BLOCK_NODES):
        block = ids[start : start + BLOCK_NODES]
        kept, bad = keep_best(values[block].astype(np.float64, copy=False), block, best, best_ids, kept)
        _refuse_nan(block, bad)
    return best_ids, best


def _best_of_classes(values: NDArray[Any], ids: Ids, k: int, labels: NDArray[Any]) -> tuple[Ids, NDArray[np.float64]]:
    # Labels may be any integers: classes are numbered by the labels that are there, in their order.
    own = labels[ids]
    classes, counts = np.unique(own[own >= 0], return_counts=True)
    quotas = np.zeros(classes.size, np.int64)
    fill_quotas(counts.astype(np.int64, copy=False), k, quotas)
    offsets = np.concatenate([[0], np.cumsum(quotas)]).astype(np.int64, copy=False)
    best, best_ids = np.empty(offsets[-1], np.float64), np.empty(offsets[-1], np.int64)
    kept = np.zeros(classes.size, np.int64)
    for start in range(0, ids.size, BLOCK_NODES):
        block, label = ids[start : start + BLOCK_NODES], own[start : start + BLOCK_NODES]
        numbers = np.where(label >= 0, np.searchsorted(classes, label), -1).astype(np.int64, copy=False)
        scores = values[block].astype(np.float64, copy=False)
        _refuse_nan(block, keep_best_of_classes(scores, block, numbers, offsets, kept, best, best_ids))
    return best_ids, best


def _refuse_nan(ids: Ids, position: int) -> None:
    if position >= 0:
        raise UsageError(
            f"the score of node {ids[position]} is NaN, which has no rank", expected="a number for every candidate"
        )

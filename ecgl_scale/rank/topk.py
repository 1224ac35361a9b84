"""The best nodes by a score, among candidates, with places for every class where asked.

Nodes are looked at in blocks, so memory is for the places, not for the nodes: ``PLACE_BYTES`` for each of the k and
``BLOCK_BYTES``; where candidates are given by ids that are not in order, 16 bytes each besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels.topk import fill_quotas, keep_best, keep_best_of_classes
from ecgl_scale.errors import UsageError
from ecgl_scale.store.checked import checked_ids

BLOCK_NODES = 1 << 16
BLOCK_BYTES = 96 * BLOCK_NODES
"""A block takes this: ids, scores, labels, and their sorted copies where classes are counted."""
PLACE_BYTES = 48
"""A chosen node takes this: id and score, and what sorting them takes."""

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
    given = _checked_candidates(candidates, values.size)
    num_candidates = values.size if given is None else int(np.count_nonzero(given) if _is_mask(given) else given.size)
    k = min(k, num_candidates)
    if quota == "class":
        chosen, chosen_scores = _best_of_classes(values, given, k, _checked_labels(labels, values.size))
    else:
        chosen, chosen_scores = _best(values, given, k)
    return chosen[np.lexsort((chosen, -chosen_scores))]


def _checked_candidates(candidates: Any, num_nodes: int) -> NDArray[Any] | None:
    """A mask, or ascending ids, each once."""
    if candidates is None:
        return None
    given = np.asarray(candidates)
    if _is_mask(given):
        if given.shape != (num_nodes,):
            raise UsageError(f"the mask has shape {given.shape}", expected=f"an entry for each of {num_nodes} nodes")
        return given
    ids = checked_ids(given, num_nodes)
    return ids if bool((ids[1:] > ids[:-1]).all()) else np.unique(ids)


def _is_mask(candidates: NDArray[Any]) -> bool:
    return candidates.dtype == np.bool_


def _blocks(candidates: NDArray[Any] | None, num_nodes: int) -> Iterator[Ids]:
    """The ids of all candidates, some at a time."""
    if candidates is not None and not _is_mask(candidates):
        yield from (candidates[start : start + BLOCK_NODES] for start in range(0, candidates.size, BLOCK_NODES))
        return
    for start in range(0, num_nodes, BLOCK_NODES):
        stop = min(start + BLOCK_NODES, num_nodes)
        if candidates is None:
            yield np.arange(start, stop, dtype=np.int64)
        else:
            yield np.flatnonzero(candidates[start:stop]).astype(np.int64, copy=False) + start


def _checked_labels(labels: Any, num_nodes: int) -> NDArray[Any]:
    if labels is None:
        raise UsageError("a quota for each class needs labels", fix="give labels, or quota='none'")
    given = np.asarray(labels)
    if given.shape != (num_nodes,) or given.dtype.kind not in "iu":
        raise UsageError(
            f"labels are {given.dtype} of shape {given.shape}", expected=f"an integer for each of {num_nodes} nodes"
        )
    return given


def _best(values: NDArray[Any], candidates: NDArray[Any] | None, k: int) -> tuple[Ids, NDArray[np.float64]]:
    best, best_ids = np.empty(k, np.float64), np.empty(k, np.int64)
    kept = 0
    for block in _blocks(candidates, values.size):
        kept, bad = keep_best(values[block].astype(np.float64, copy=False), block, best, best_ids, kept)
        _refuse_nan(block, bad)
    return best_ids, best


def _best_of_classes(
    values: NDArray[Any], candidates: NDArray[Any] | None, k: int, labels: NDArray[Any]
) -> tuple[Ids, NDArray[np.float64]]:
    # Labels may be any integers: classes are numbered by the labels that are there, in their order.
    counted: dict[int, int] = {}
    for block in _blocks(candidates, values.size):
        own = labels[block]
        for label, count in zip(*(part.tolist() for part in np.unique(own, return_counts=True)), strict=True):
            counted[label] = counted.get(label, 0) + count
    present = sorted(label for label in counted if label >= 0)
    classes = np.array(present, labels.dtype)
    quotas = np.zeros(classes.size, np.int64)
    fill_quotas(np.array([counted[label] for label in present], np.int64), k, quotas)
    offsets = np.concatenate([[0], np.cumsum(quotas)]).astype(np.int64, copy=False)
    best, best_ids = np.empty(offsets[-1], np.float64), np.empty(offsets[-1], np.int64)
    kept = np.zeros(classes.size, np.int64)
    for block in _blocks(candidates, values.size):
        own = labels[block]
        numbers = np.where(own >= 0, np.searchsorted(classes, own), -1).astype(np.int64, copy=False)
        scores = values[block].astype(np.float64, copy=False)
        _refuse_nan(block, keep_best_of_classes(scores, block, numbers, offsets, kept, best, best_ids))
    return best_ids, best


def _refuse_nan(ids: Ids, position: int) -> None:
    if position >= 0:
        raise UsageError(
            f"the score of node {ids[position]} is NaN, which has no rank", expected="a number for every candidate"
        )

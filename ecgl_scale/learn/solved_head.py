"""A last layer that is solved for instead of trained: a ridge head on what the layers below it make of the rows.

    f_i = the last hidden row of row i, and a one for the bias
    G = sum c_i f_i f_i^T      Q[:, k] = sum of c_i f_i over rows of class k
    W = (G + STRENGTH * (tr G / width) I)^-1 Q

The rows are those of the last epoch, new ones and the bank's, and c_i is their coefficient in its loss: where that is
balanced, so is the head. The layers below change in the next task, so sums of old tasks would be stale: the bank's rows
go through them anew each time. What it gains is in bench/README.md, "ablation".

Memory: a block and its hidden rows, three times 1,024 of them in float64, three squares of the last hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.learn.gram import add_gram, mirror
from ecgl_scale.learn.loss import Segment
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.ridge import BalancedSums, solve_head
from ecgl_scale.learn.train import Trainer

STRENGTH = 0.1
"""How strong the ridge is, relative to the mean of G's diagonal."""
CHUNK_ROWS = 1024


def solving_bytes(num_hidden: int) -> int:
    """Memory besides that of an epoch, for a last hidden layer of this width."""
    width = num_hidden + 1
    return 8 * (3 * width * width + 3 * CHUNK_ROWS * width)


def solve_last_layer(trainer: Trainer, segments: Sequence[Segment]) -> None:
    """Put the solved head in place of the last layer's numbers; the layers below stay as they are.

    It depends on those layers and the rows alone, so doing it again gives the same.
    """
    weight, bias = trainer.weights.layers[-1]
    num_classes, num_hidden = weight.shape
    width = num_hidden + (bias is not None)
    square, sums = np.zeros((width, width)), np.zeros((num_classes, width))
    for segment in segments:
        for rows, hidden in _chunks(trainer, segment):
            given = np.ones((len(hidden), width))
            np.maximum(hidden, 0, out=given[:, :num_hidden])
            coefficients = segment.coefficients[rows].astype(np.float64)[:, None]
            np.add.at(sums, segment.labels[rows], coefficients * given)
            add_gram(square, np.sqrt(coefficients) * given, threads=1)
    mirror(square)
    found = np.count_nonzero(sums.any(axis=1))
    head = solve_head(BalancedSums(square, np.ascontiguousarray(sums.T), int(found)), STRENGTH).astype(np.float32)
    with torch.no_grad():
        weight.copy_(torch.from_numpy(head[:num_hidden].T.copy()))
        if bias is not None:
            bias.copy_(torch.from_numpy(head[-1].copy()))


def _chunks(trainer: Trainer, segment: Segment) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Which rows, and what the layer below the last makes of them, a few at a time."""
    below, first = SharedWeights(trainer.weights.layers[:-1]), 0
    for block in trainer.stream_logits(segment.rows, weights=below):
        for start in range(0, len(block), CHUNK_ROWS):
            part = block[start : start + CHUNK_ROWS]
            yield slice(first + start, first + start + len(part)), part
        first += len(block)

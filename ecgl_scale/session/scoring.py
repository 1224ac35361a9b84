"""Predictions from logits, block by block: what a test takes besides the logits is little, whatever is scored.

64 bytes a scored node: its id, row, label and prediction, and what counting the right ones takes
+ three blocks of logits: as they are found, among the allowed columns, and on their way
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.tasks.metrics import Accuracy, accuracy
from ecgl_scale.units import MIB

Ids = NDArray[np.int64]
Matrix = NDArray[np.float32]
SCORED_NODE_BYTES = 64
BLOCK_BYTES = 4 * MIB


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of a task: the class of some of its nodes."""

    ids: Ids
    labels: Ids
    """Their head positions."""
    positions: Ids
    """Head positions of the task's classes."""
    allowed: Ids
    """Head positions that may be predicted."""

    def score(self, logits: Iterable[Matrix]) -> Accuracy:
        """Accuracy of these nodes' logits, which come in blocks."""
        predicted, start = np.empty(self.ids.size, np.int64), 0
        for block in logits:
            predicted[start : start + len(block)] = self.allowed[block[:, self.allowed].argmax(axis=1)]
            start += len(block)
        return accuracy(predicted[:start], self.labels, positions=self.positions)


def rows_in_blocks(logits: Matrix, rows: Ids) -> Iterator[Matrix]:
    """Some rows, a block in memory at a time."""
    step = _block_rows(logits.shape[1])
    for start in range(0, rows.size, step):
        yield np.array(logits[rows[start : start + step]], np.float32)


def scoring_bytes(num_scored: int, num_outputs: int) -> int:
    """What scoring so many nodes takes besides the logits."""
    return SCORED_NODE_BYTES * num_scored + 3 * 4 * num_outputs * min(num_scored, _block_rows(num_outputs))


def _block_rows(num_outputs: int) -> int:
    return max(BLOCK_BYTES // (4 * num_outputs), 1)

"""A solved last layer is the ridge regression of naive code on the hidden rows, whatever way the rows are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from ecgl_scale.learn import solved_head
from ecgl_scale.learn.loss import Labelled, LossSettings, make_segments
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.solved_head import STRENGTH, solve_last_layer
from ecgl_scale.learn.train import Trainer
from ecgl_scale.store.source import CsrBlock

NUM_FEATURES, NUM_CLASSES = 12, 5
POSITIONS = [np.array([0, 1]), np.array([2, 3])]


def _rows(num_rows: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(num_rows, NUM_FEATURES)) * (rng.random((num_rows, NUM_FEATURES)) < 0.4)).astype(np.float32)


NEW, BANK = _rows(90, 0), _rows(20, 1)
NEW_LABELS = np.random.default_rng(2).choice([2, 3], 90, p=[0.9, 0.1])
BANK_LABELS = np.repeat([0, 1], 10)


def _cache(x: np.ndarray, *, is_sparse: bool) -> RowCache:
    if not is_sparse:
        return RowCache.from_array(x)
    csr = sparse.csr_matrix(x)
    block = CsrBlock(csr.indptr.astype(np.int64), csr.indices.astype(np.uint32), csr.data)
    return RowCache.from_csr(block, NUM_FEATURES)


def _solve(*, bias: bool = True, is_sparse: bool = False, block_rows: int | None = None) -> Trainer:
    weights = SharedWeights.create(NUM_FEATURES, (8, 6), NUM_CLASSES, bias=bias, seed=4)
    trainer = Trainer(weights, block_rows=block_rows)
    new = Labelled.of_task(1, NEW_LABELS, _cache(NEW, is_sparse=is_sparse))
    bank = Labelled.of_task(0, BANK_LABELS, _cache(BANK, is_sparse=is_sparse))
    segments = make_segments([new], bank, positions=POSITIONS, num_classes=NUM_CLASSES, settings=LossSettings())
    solve_last_layer(trainer, segments)
    once = [parameter.detach().clone() for parameter in weights.parameters()]
    solve_last_layer(trainer, segments)
    assert all(torch.equal(a, b) for a, b in zip(once, weights.parameters(), strict=True))
    return trainer


def _naive(trainer: Trainer, *, bias: bool) -> np.ndarray:
    """Weights, and the bias as the last column."""
    hidden, labels = np.concatenate([NEW, BANK]).astype(np.float64), np.concatenate([NEW_LABELS, BANK_LABELS])
    for weight, offset in trainer.weights.arrays()[:-1]:
        hidden = np.maximum(hidden @ weight.T + (0 if offset is None else offset), 0)
    hidden = np.column_stack([hidden, np.ones(len(hidden))]) if bias else hidden
    shares = 1 / np.bincount(labels)[labels]
    square = (hidden * shares[:, None]).T @ hidden
    square += STRENGTH * np.trace(square) / len(square) * np.eye(len(square))
    return np.linalg.solve(square, (hidden * shares[:, None]).T @ np.eye(NUM_CLASSES)[labels]).T


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("is_sparse", [True, False])
def test_it_is_the_balanced_ridge_head_of_new_rows_and_the_bank(
    bias: bool, is_sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solved_head, "CHUNK_ROWS", 7)
    trainer = _solve(bias=bias, is_sparse=is_sparse, block_rows=32)
    weight, offset = trainer.weights.arrays()[-1]
    found = weight if offset is None else np.column_stack([weight, offset])
    np.testing.assert_allclose(found, _naive(trainer, bias=bias), rtol=2e-5, atol=1e-6)
    assert not found[4].any()  # a class that has not come yet has no output


def test_layers_below_stay_as_they_are() -> None:
    trainer = _solve()
    drawn = SharedWeights.create(NUM_FEATURES, (8, 6), NUM_CLASSES, seed=4)
    for kept, first in zip(trainer.weights.parameters()[:-2], drawn.parameters(), strict=False):
        assert torch.equal(kept, first)

"""Rows compared with old outputs: loss and gradient against autograd, on rows, batches of them and graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ecgl_scale.errors import UsageError
from ecgl_scale.learn.gradient import MlpGradient
from ecgl_scale.learn.loss import Segment
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.soft import SoftTargets
from ecgl_scale.learn.train import Trainer
from ecgl_scale.store.source import CsrBlock

ROWS, FEATURES, CLASSES, TEMPERATURE = 90, 7, 8, 2.5
TERMS = {"one, apart": [[0, 2]], "two": [[0, 1], [5, 7]], "overlapping with the labels": [[0, 1, 2, 3], [3, 4]]}


def mask(columns):
    found = np.zeros(CLASSES, np.bool_)
    found[columns] = True
    return found


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def segment_of(rng, terms, *, grouped=False):
    needed = np.any([mask(columns) for columns in terms], axis=0)
    labels = rng.choice([3, 4], ROWS)
    columns, groups = mask([3, 4, 6]), None
    if grouped:
        columns, groups = np.array([mask([3, 4]), mask([3, 4, 6])]), rng.integers(0, 2, ROWS)
    return Segment(
        rows=RowCache.from_array(rng.normal(size=(ROWS, FEATURES)).astype(np.float32)),
        labels=labels,
        coefficients=rng.random(ROWS).astype(np.float32),
        columns=columns,
        groups=groups,
        soft=SoftTargets(
            logits=RowCache.from_array(3 * rng.normal(size=(ROWS, needed.sum())).astype(np.float32)),
            terms=np.array([mask(columns) for columns in terms]),
            coefficients=rng.random(ROWS).astype(np.float32),
            temperature=TEMPERATURE,
        ),
    )


def naive(segment, weights, terms, rows=slice(None)):
    """The sum as the formula says, over all classes."""
    x = torch.from_numpy(segment.rows.read(0, ROWS))[rows]
    old = torch.zeros(ROWS, CLASSES)
    old[:, np.flatnonzero(segment.soft.needed)] = torch.from_numpy(segment.soft.logits.read(0, ROWS))
    z, old = weights.mlp(x), old[rows]
    allowed = segment.columns if segment.groups is None else segment.columns[segment.groups][rows]
    barred = z.masked_fill(~torch.from_numpy(np.broadcast_to(allowed, z.shape).copy()), -torch.inf)
    ce = torch.nn.functional.cross_entropy(barred, torch.from_numpy(segment.labels)[rows], reduction="none")
    total = (ce * torch.from_numpy(segment.coefficients)[rows]).sum()
    for columns in terms:
        q, p = (torch.softmax(t[:, columns] / TEMPERATURE, 1) for t in (old, z))
        total = total - ((q * p.log()).sum(1) * torch.from_numpy(segment.soft.coefficients)[rows]).sum()
    return total, torch.autograd.grad(total, weights.parameters())


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_loss_and_gradient_are_the_formulas(rng, terms, grouped):
    segment = segment_of(rng, terms, grouped=grouped)
    weights = SharedWeights.create(FEATURES, [5], CLASSES, seed=1)
    trainer = Trainer(weights, block_rows=16)
    loss, gradients = naive(segment, weights, terms)
    assert trainer.gradient([segment]) == pytest.approx(float(loss.detach()), rel=1e-5)
    for parameter, wanted in zip(weights.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-5)


def test_any_rows_may_be_taken_and_scaled(rng):
    terms = TERMS["two"]
    segment = segment_of(rng, terms)
    weights = SharedWeights.create(FEATURES, [5], CLASSES, seed=1)
    chosen = np.array([3, 40, 7, 89])
    gradient = MlpGradient(weights)
    gradient.begin()
    found = gradient.add(torch.from_numpy(segment.rows.take(chosen)), segment, chosen, scale=2.0)
    loss, gradients = naive(segment, weights, terms, chosen)
    assert float(found) == pytest.approx(float(loss.detach()), rel=1e-5)
    for parameter, wanted in zip(weights.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * wanted, rtol=1e-4, atol=1e-5)


def test_the_terms_for_autograd_are_the_same(rng):
    segment = segment_of(rng, TERMS["two"], grouped=True)
    weights = SharedWeights.create(FEATURES, [5], CLASSES, seed=1)
    logits = weights.mlp(torch.from_numpy(segment.rows.read(0, ROWS)), columns=segment.head)
    total = sum((losses * factors).sum() for losses, factors in segment.terms(logits, slice(0, ROWS)))
    loss, _ = naive(segment, weights, TERMS["two"])
    torch.testing.assert_close(total.detach(), loss.detach(), rtol=1e-5, atol=1e-5)


def test_at_the_old_outputs_there_is_nothing_to_learn(rng):
    segment = segment_of(rng, [[0, 1, 2]])
    weights = SharedWeights.create(FEATURES, [5], CLASSES, seed=1)
    old = weights.mlp(torch.from_numpy(segment.rows.read(0, ROWS)))[:, :3].detach().numpy()
    soft = replace(segment.soft, logits=RowCache.from_array(old))
    Trainer(weights).gradient([replace(segment, coefficients=np.zeros(ROWS, np.float32), soft=soft)])
    assert max(float(parameter.grad.abs().max()) for parameter in weights.parameters()) < 1e-5


def test_squares_of_logits_are_a_measure_too(rng):
    segment = replace(segment_of(rng, [[0]], grouped=True), soft=None, measure="squares")
    weights = SharedWeights.create(FEATURES, [5], CLASSES, seed=1)
    z = weights.mlp(torch.from_numpy(segment.rows.read(0, ROWS)))
    allowed = torch.from_numpy(segment.columns[segment.groups])
    loss = ((z**2 * allowed).sum(1) * torch.from_numpy(segment.coefficients)).sum()
    wanted = torch.autograd.grad(loss, weights.parameters())
    assert Trainer(weights, block_rows=32).gradient([segment]) == pytest.approx(float(loss.detach()), rel=1e-5)
    for parameter, gradient in zip(weights.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_squares_of_every_rows_gradient_are_summed(rng, sparse):
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32) * (rng.random((ROWS, FEATURES)) < 0.4)
    cells = np.nonzero(x)
    indptr = np.concatenate([[0], np.cumsum(np.count_nonzero(x, axis=1))]).astype(np.int64)
    csr = CsrBlock(indptr, cells[1].astype(np.uint32), x[cells])
    rows = RowCache.from_csr(csr, FEATURES) if sparse else RowCache.from_array(x)
    segment = replace(segment_of(rng, [[0]]), soft=None, rows=rows)
    weights = SharedWeights.create(FEATURES, [6, 5], CLASSES, seed=1)
    Trainer(weights, block_rows=16, dropout=0.5).gradient([segment], squares=True, with_dropout=False)
    wanted = [torch.zeros_like(parameter) for parameter in weights.parameters()]
    for row in range(ROWS):
        logits = weights.mlp(torch.from_numpy(x[row : row + 1]), columns=segment.head)
        loss = segment.losses(logits, slice(row, row + 1))[0] * float(segment.coefficients[row])
        for total, gradient in zip(wanted, torch.autograd.grad(loss, weights.parameters()), strict=True):
            total.add_(gradient**2)
    for parameter, total in zip(weights.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, total, rtol=1e-4, atol=1e-6)


def test_old_outputs_that_do_not_fit_are_refused(rng):
    segment = segment_of(rng, [[0, 1]])
    with pytest.raises(UsageError, match="old outputs"):
        replace(segment.soft, logits=RowCache.from_array(np.zeros((ROWS, 3), np.float32)))
    with pytest.raises(UsageError, match="temperature"):
        replace(segment.soft, temperature=0.0)
    fewer = replace(segment.soft, logits=RowCache.from_array(np.zeros((4, 2))), coefficients=np.ones(4, np.float32))
    with pytest.raises(UsageError, match="old outputs of 4 rows"):
        replace(segment, soft=fewer)

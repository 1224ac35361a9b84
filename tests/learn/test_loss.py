"""Coefficients and columns are what the formulas of every preset say, shown against torch's own losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from ecgl_scale.errors import UsageError
from ecgl_scale.learn.loss import (
    Labelled,
    LossSettings,
    Segment,
    Targets,
    class_weights,
    make_segments,
    make_targets,
)
from ecgl_scale.learn.rows import RowCache

NUM_CLASSES = 8
POSITIONS = [np.array([0, 1]), np.array([2, 5]), np.array([3, 4])]
"""Three tasks seen; classes 6 and 7 are still to come, and a task's columns need not be side by side."""
SEEN = [0, 1, 2, 3, 4, 5]


@pytest.fixture
def new():
    labels = np.array([3, 3, 3, 4, 3, 4, 4, 3])
    return Labelled.of_task(2, labels, RowCache.from_array(np.random.default_rng(0).random((8, 5), np.float32)))


@pytest.fixture
def bank():
    labels, tasks = np.array([0, 1, 1, 0, 0, 2, 5, 2]), np.array([0, 0, 0, 0, 0, 1, 1, 1])
    return Labelled(labels, tasks, RowCache.from_array(np.random.default_rng(1).random((8, 5), np.float32)))


def logits_of(part):
    return torch.from_numpy(np.random.default_rng(7).normal(size=(len(part.labels), NUM_CLASSES)).astype(np.float32))


def total_of(targets, parts):
    """Sum of coefficient * CE, as the trainer adds it up."""
    total = 0.0
    for target, part in zip(targets, parts, strict=True):
        losses = target.losses(logits_of(part)[:, target.head], slice(0, target.num_rows))
        total += float(losses @ torch.from_numpy(target.coefficients))
    return total


def torch_loss(part, columns, weight=None, reduction="mean"):
    """torch's own CE on a slice of the head, labels shifted into it."""
    places = {column: place for place, column in enumerate(columns)}
    shifted = torch.tensor([places[label] for label in part.labels.tolist()])
    weight = None if weight is None else torch.tensor(weight, dtype=torch.float32)[columns]
    return cross_entropy(logits_of(part)[:, columns], shifted, weight=weight, reduction=reduction).item()


def total_for(new, bank, **settings):
    targets = make_targets([new], bank, positions=POSITIONS, num_classes=NUM_CLASSES, settings=LossSettings(**settings))
    return total_of(targets, [new, bank][: len(targets)])


def split_by_task(bank):
    for task in np.unique(bank.tasks):
        here = bank.tasks == task
        yield task, here


def own_replay(bank, weight=None):
    """Sum over old tasks, each on its own columns: weighted sums, to be divided by the caller."""
    total = weights = 0.0
    for task, here in split_by_task(bank):
        columns = POSITIONS[task].tolist()
        logits = logits_of(bank)[torch.from_numpy(here)][:, columns]
        shifted = torch.from_numpy(np.searchsorted(POSITIONS[task], bank.labels[here]))
        each = cross_entropy(logits, shifted, reduction="none").double()
        w = torch.ones(len(each)) if weight is None else torch.tensor(weight)[torch.from_numpy(bank.labels[here])]
        total += float(each @ w.double())
        weights += float(w.sum())
    return total, weights


def close(found, wanted):
    assert found == pytest.approx(wanted, rel=1e-5)


# --- class-IL


@pytest.mark.parametrize("lambda_", [1.0, 0.3])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_without_balance_it_is_the_plain_loss_of_new_rows_and_lambda_times_the_banks(new, bank, reduction, lambda_):
    found = total_for(new, bank, balance="none", reduction=reduction, lambda_=lambda_)
    close(found, torch_loss(new, SEEN, reduction=reduction) + lambda_ * torch_loss(bank, SEEN, reduction=reduction))


def test_balanced_by_task_is_torchs_weighted_mean_of_each_part(new, bank):
    found = total_for(new, bank, balance="task", lambda_=0.5)
    of_new, of_bank = (class_weights(part.labels, NUM_CLASSES) for part in (new, bank))
    close(found, torch_loss(new, SEEN, of_new) + 0.5 * torch_loss(bank, SEEN, of_bank))


def test_reference_weighs_all_but_the_banks_last_task_with_one(new, bank):
    found = total_for(new, bank, balance="reference")
    of_bank = np.ones(NUM_CLASSES)
    of_bank[2], of_bank[5] = 1 / 2, 1 / 1
    close(found, torch_loss(new, SEEN, class_weights(new.labels, NUM_CLASSES)) + torch_loss(bank, SEEN, of_bank))


@pytest.mark.parametrize("lambda_", [1.0, 0.25])
def test_unified_is_one_weighted_mean_over_both_parts(new, bank, lambda_):
    found = total_for(new, bank, balance="unified", lambda_=lambda_)
    weight = class_weights(np.concatenate([new.labels, bank.labels]), NUM_CLASSES)
    numerator = torch_loss(new, SEEN, weight, "sum") + lambda_ * torch_loss(bank, SEEN, weight, "sum")
    close(found, numerator / (weight[new.labels].sum() + lambda_ * weight[bank.labels].sum()))


def test_unified_gives_every_class_the_same_share(new, bank):
    targets = make_targets([new], bank, positions=POSITIONS, num_classes=NUM_CLASSES, settings=LossSettings())
    labels = np.concatenate([target.labels for target in targets])
    coefficients = np.concatenate([target.coefficients for target in targets])
    shares = np.bincount(labels, coefficients, NUM_CLASSES)
    np.testing.assert_allclose(shares[SEEN], 1 / 6, rtol=1e-6)
    assert not shares[6:].any()


# --- task-IL


def test_new_rows_compete_within_their_task_and_the_banks_within_all_seen(new, bank):
    found = total_for(new, bank, setting="task-il", balance="reference", replay_slice="seen")
    of_bank = np.ones(NUM_CLASSES)
    of_bank[2], of_bank[5] = 1 / 2, 1 / 1
    close(found, torch_loss(new, [3, 4], class_weights(new.labels, NUM_CLASSES)) + torch_loss(bank, SEEN, of_bank))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_banks_rows_compete_within_their_own_task(new, bank, reduction):
    found = total_for(new, bank, setting="task-il", balance="none", reduction=reduction)
    replay, count = own_replay(bank)
    close(found, torch_loss(new, [3, 4], reduction=reduction) + (replay / count if reduction == "mean" else replay))


def test_unified_in_task_il_is_one_mean_too(new, bank):
    found = total_for(new, bank, setting="task-il", balance="unified")
    weight = class_weights(np.concatenate([new.labels, bank.labels]), NUM_CLASSES)
    replay, replay_weight = own_replay(bank, weight)
    numerator = torch_loss(new, [3, 4], weight, "sum") + replay
    close(found, numerator / (weight[new.labels].sum() + replay_weight))


def test_only_the_columns_a_part_needs_are_asked_of_the_model(new, bank):
    settings = LossSettings(setting="task-il")
    of_new, of_bank = make_targets([new], bank, positions=POSITIONS, num_classes=NUM_CLASSES, settings=settings)
    assert of_new.head == slice(3, 5)
    assert of_bank.head.tolist() == [0, 1, 2, 5]
    (seen, _) = make_targets([new], bank, positions=POSITIONS, num_classes=NUM_CLASSES, settings=LossSettings())
    assert seen.head == slice(0, 6)


def test_a_barred_column_gets_no_gradient(new, bank):
    settings = LossSettings(setting="task-il")
    _, target = make_targets([new], bank, positions=POSITIONS, num_classes=NUM_CLASSES, settings=settings)
    logits = logits_of(bank)[:, target.head].requires_grad_()
    target.losses(logits, slice(0, 8)).sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert not logits.grad[:5, 2:].any()
    assert not logits.grad[5:, :2].any()
    assert logits.grad[:5, :2].all()


# --- several parts, and none


def test_joint_training_has_a_part_for_each_task_and_one_loss_over_all(new):
    old = Labelled.of_task(0, np.array([0, 1, 1]), RowCache.from_array(np.ones((3, 5), np.float32)))
    for settings in (LossSettings(balance="task"), LossSettings(balance="unified")):
        targets = make_targets([old, new], None, positions=POSITIONS, num_classes=NUM_CLASSES, settings=settings)
        weight = class_weights(np.concatenate([old.labels, new.labels]), NUM_CLASSES)
        numerator = torch_loss(old, SEEN, weight, "sum") + torch_loss(new, SEEN, weight, "sum")
        close(total_of(targets, [old, new]), numerator / (weight[old.labels].sum() + weight[new.labels].sum()))
    targets = make_targets(
        [old, new], None, positions=POSITIONS, num_classes=NUM_CLASSES, settings=LossSettings(setting="task-il")
    )
    assert [target.head for target in targets] == [slice(0, 2), slice(3, 5)]


@pytest.mark.parametrize("balance", ["none", "task", "unified", "reference"])
def test_the_first_task_has_no_bank(new, balance):
    settings = LossSettings(balance=balance)
    empty = Labelled(np.zeros(0, np.int64), np.zeros(0, np.int64))
    for bank in (None, empty):
        targets = make_targets([new], bank, positions=POSITIONS, num_classes=NUM_CLASSES, settings=settings)
        weight = None if balance == "none" else class_weights(new.labels, NUM_CLASSES)
        close(total_of(targets, [new]), torch_loss(new, SEEN, weight))


def test_a_bank_that_counts_nothing_costs_nothing(new, bank):
    found = make_targets(
        [new], bank, positions=POSITIONS, num_classes=NUM_CLASSES, settings=LossSettings(lambda_=0, balance="task")
    )
    assert len(found) == 1


def test_segments_are_targets_with_their_rows(new, bank):
    segments = make_segments([new], bank, positions=POSITIONS, num_classes=NUM_CLASSES, settings=LossSettings())
    assert [segment.rows for segment in segments] == [new.rows, bank.rows]
    close(total_of(segments, [new, bank]), total_for(new, bank))
    with pytest.raises(UsageError, match="without rows"):
        make_segments(
            [Labelled.of_task(2, new.labels)], None, positions=POSITIONS, num_classes=8, settings=LossSettings()
        )


# --- bad input


def test_a_label_outside_its_columns_is_refused(new):
    wrong = Labelled.of_task(2, np.array([3, 0]))
    with pytest.raises(UsageError, match="row 1 has the label 0"):
        make_targets([wrong], None, positions=POSITIONS, num_classes=8, settings=LossSettings(setting="task-il"))
    for label in (-1, 8):
        with pytest.raises(UsageError, match="label"):
            Targets(labels=np.array([label]), coefficients=np.ones(1, np.float32), columns=np.ones(8, bool))


def test_a_class_set_larger_than_the_head_is_refused(new):
    with pytest.raises(UsageError, match="head has 5 classes"):
        make_targets([new], None, positions=POSITIONS, num_classes=5, settings=LossSettings())


def test_a_task_without_rows_is_refused():
    with pytest.raises(UsageError, match="no row"):
        make_targets(
            [Labelled.of_task(0, np.zeros(0, np.int64))],
            None,
            positions=POSITIONS,
            num_classes=8,
            settings=LossSettings(),
        )


def test_numbers_that_do_not_match_are_refused(new):
    columns, ones = np.ones(8, bool), np.ones(8, np.float32)
    with pytest.raises(UsageError, match="differ in number"):
        Targets(labels=new.labels, coefficients=ones[:3], columns=columns)
    with pytest.raises(UsageError, match="shape"):
        Targets(labels=new.labels, coefficients=ones, columns=columns[None])
    with pytest.raises(UsageError, match="7 rows have 8 labels"):
        Segment(labels=new.labels, coefficients=ones, columns=columns, rows=new.rows.select(np.arange(7)))


@pytest.mark.parametrize(
    "wrong",
    [{"setting": "domain-il"}, {"balance": "some"}, {"reduction": "max"}, {"lambda_": -1}, {"replay_slice": "no"}],
)
def test_an_unknown_setting_is_refused(wrong):
    with pytest.raises(UsageError):
        LossSettings(**wrong)

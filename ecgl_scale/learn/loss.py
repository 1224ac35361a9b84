"""The loss of every method is one sum: over all rows, coefficient_i * CE(logits_i among the allowed columns, label_i).

Settings, presets and methods differ only in coefficients and columns, which are made here, once a task:

    balance    none: every row counts the same            task: 1 / n_c of its own part (new rows, bank)
               unified: 1 / n_c of both parts together    reference: the bank by its last task's counts
    reduction  sum: as it is     mean: divided by the sum of the part's weights (unified: of both parts together)
    lambda     the bank's part times lambda
    columns    class-IL: all seen classes. task-IL: a row's own task; the bank's rows as ``replay_slice`` says

n_c counts the rows of class c, at least 1. A method may have rows compared with old outputs as well (``soft``), or ask
for another measure of the logits (``squares``: coefficient_i * sum of logits_i^2). Memory: 20 bytes a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.errors import UsageError
from ecgl_scale.learn.model import Columns
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.soft import Positions, SoftTargets

Labels = NDArray[np.int64]
Setting = Literal["task-il", "class-il"]
Balance = Literal["none", "task", "unified", "reference"]


@dataclass(frozen=True)
class LossSettings:
    """How rows are weighed and which classes they compete with."""

    setting: Setting = "class-il"
    balance: Balance = "unified"
    reduction: Literal["mean", "sum"] = "mean"
    lambda_: float = 1.0
    replay_slice: Literal["own", "seen"] = "own"

    def __post_init__(self) -> None:
        allowed: dict[str, tuple[str, ...]] = {
            "setting": ("task-il", "class-il"),
            "balance": ("none", "task", "unified", "reference"),
            "reduction": ("mean", "sum"),
            "replay_slice": ("own", "seen"),
        }
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise UsageError(f"{name} is {getattr(self, name)!r}", expected=f"one of {', '.join(values)}")
        if not 0 <= self.lambda_ < float("inf"):
            raise UsageError(f"lambda is {self.lambda_}", expected="a number, at least 0")


@dataclass(frozen=True, eq=False)
class Labelled:
    """What is known of some rows: head position of the label, and task, of each."""

    labels: Labels
    tasks: Labels
    rows: RowCache | None = None
    """The rows themselves; a part that is trained as a graph has none here."""

    @classmethod
    def of_task(cls, task: int, labels: Labels, rows: RowCache | None = None) -> Labelled:
        """Rows of one task."""
        return cls(labels, np.full(len(labels), task, np.int64), rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class Targets:
    """What logits are compared with: row i adds ``coefficients[i] * CE`` among the columns its group allows."""

    labels: Labels
    coefficients: NDArray[np.float32]
    columns: NDArray[np.bool_]
    """[classes], or [groups, classes] where rows differ."""
    groups: Labels | None = None
    """The group of each row, where there are several."""
    soft: SoftTargets | None = None
    """Old outputs that the logits are compared with as well."""
    measure: Literal["cross-entropy", "squares"] = "cross-entropy"
    """What is summed: the labels' CE, or the squares of the allowed logits."""

    def __post_init__(self) -> None:
        if self.columns.ndim != (1 if self.groups is None else 2):
            raise UsageError(f"columns have the shape {list(self.columns.shape)}", expected="one row of them a group")
        if len(self.coefficients) != self.num_rows or (self.groups is not None and len(self.groups) != self.num_rows):
            raise UsageError("labels, coefficients and groups differ in number", expected=f"{self.num_rows} of each")
        width = self.columns.shape[-1]
        if self.soft is not None and (self.soft.terms.shape[1], len(self.soft.coefficients)) != (width, self.num_rows):
            raise UsageError(
                f"old outputs of {len(self.soft.coefficients)} rows for {self.soft.terms.shape[1]} classes",
                expected=f"{self.num_rows} rows, {width} classes",
            )
        allowed = (self.labels >= 0) & (self.labels < width)
        if allowed.all():
            allowed = self.columns[self.labels] if self.groups is None else self.columns[self.groups, self.labels]
        if not allowed.all():
            row = int(np.argmin(allowed))
            raise UsageError(
                f"row {row} has the label {int(self.labels[row])}, which it may not be given",
                expected=f"one of its task's classes, below {width}",
            )

    @property
    def num_rows(self) -> int:
        """Rows that are compared."""
        return len(self.labels)

    @cached_property
    def head(self) -> Columns:
        """Columns of the head that any row needs: no others are computed."""
        wanted = self.head_columns
        if wanted.size and wanted[-1] - wanted[0] + 1 == wanted.size:
            return slice(int(wanted[0]), int(wanted[-1]) + 1)
        return torch.from_numpy(wanted)

    @cached_property
    def head_columns(self) -> Labels:
        """Head positions of the columns of ``head``."""
        return np.flatnonzero(self._needed)

    def labels_and_coefficients(self, positions: Positions, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Labels, counted among the columns of ``head``, and coefficients, of the rows at ``positions``."""
        return self._targets[positions].to(device), self._weights[positions].to(device)

    def mask_forbidden(self, logits: torch.Tensor, positions: Positions) -> None:
        """Set the logits of columns that a row does not compete with to what does not count, in place."""
        if self._forbidden is not None:
            forbidden = self._forbidden if self._groups is None else self._forbidden[self._groups[positions]]
            value = float("-inf") if self.measure == "cross-entropy" else 0.0
            logits.masked_fill_(forbidden.to(logits.device), value)

    def losses(self, logits: torch.Tensor, positions: Positions) -> torch.Tensor:
        """Loss of the rows at ``positions``, one number each, for autograd; ``logits`` has the columns of ``head``."""
        if self._forbidden is not None:
            logits = logits.clone()
            self.mask_forbidden(logits, positions)
        if self.measure == "squares":
            return logits.square().sum(1)
        labels, _ = self.labels_and_coefficients(positions, logits.device)
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")

    def terms(self, logits: torch.Tensor, positions: Positions) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Losses of the rows and their coefficients, for autograd: by labels, and by old outputs if there are any."""
        found = [(self.losses(logits, positions), self.labels_and_coefficients(positions, logits.device)[1])]
        if self.soft is not None:
            losses = self.soft.losses(logits, positions, self.head_columns)
            found.append((losses, self.soft.outputs_and_coefficients(positions, logits.device)[1]))
        return found

    @cached_property
    def _allowed(self) -> NDArray[np.bool_]:
        return np.asarray(self.columns.reshape(-1, self.columns.shape[-1]).any(axis=0))

    @cached_property
    def _needed(self) -> NDArray[np.bool_]:
        return self._allowed if self.soft is None else self._allowed | self.soft.needed

    @cached_property
    def _targets(self) -> torch.Tensor:
        return torch.from_numpy((np.cumsum(self._needed) - 1)[self.labels].astype(np.int64))

    @cached_property
    def _weights(self) -> torch.Tensor:
        return torch.from_numpy(np.array(self.coefficients, np.float32))

    @cached_property
    def _groups(self) -> torch.Tensor | None:
        return None if self.groups is None else torch.from_numpy(np.array(self.groups, np.int64))

    @cached_property
    def _forbidden(self) -> torch.Tensor | None:
        """Columns of ``head`` that rows do not compete with, by group or for all rows; None where there are none."""
        if self.groups is None and self._needed.sum() == self._allowed.sum():
            return None
        return torch.from_numpy(~self.columns[..., self._needed])


def target_fields(targets: Targets) -> dict[str, Any]:
    """The fields of targets, as arguments of a segment."""
    return {field.name: getattr(targets, field.name) for field in fields(Targets)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Segment(Targets):
    """Rows by themselves, and their targets."""

    rows: RowCache

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows.num_rows != self.num_rows:
            raise UsageError(f"{self.rows.num_rows} rows have {self.num_rows} labels", expected="one each")


def class_weights(labels: Labels, num_classes: int) -> NDArray[np.float64]:
    """1 / n_c for each class, where n_c counts its labels, at least 1."""
    counts = np.bincount(labels, minlength=num_classes)
    return np.asarray(1.0 / np.maximum(counts, 1))


def make_targets(
    new: Sequence[Labelled],
    bank: Labelled | None,
    *,
    positions: Sequence[Labels],
    num_classes: int,
    settings: LossSettings,
) -> list[Targets]:
    """Targets of every new part (joint training has several) and, where it counts at all, of the bank, as the last.

    ``positions[t]`` are the head positions of task t; tasks up to the current one are given, and only those are seen.
    """
    if sum(len(part.labels) for part in new) == 0:
        raise UsageError("there is no row to train on", expected="a task with training nodes")
    weights = _row_weights(new, bank, num_classes, settings)
    is_used = bank is not None and len(bank.labels) > 0 and settings.lambda_ > 0
    replayed = [bank] if bank is not None and is_used else []
    seen = _mask(np.concatenate(positions), num_classes)
    targets = []
    for part, coefficients in zip([*new, *replayed], weights, strict=False):
        is_own = settings.setting == "task-il" and (part is not bank or settings.replay_slice == "own")
        columns, groups = _own_columns(part.tasks, positions, num_classes) if is_own else (seen, None)
        narrow = coefficients.astype(np.float32)
        labels = np.asarray(part.labels, np.int64)
        targets.append(Targets(labels=labels, coefficients=narrow, columns=columns, groups=groups))
    return targets


def make_segments(
    new: Sequence[Labelled],
    bank: Labelled | None,
    *,
    positions: Sequence[Labels],
    num_classes: int,
    settings: LossSettings,
) -> list[Segment]:
    """``make_targets`` with the rows they belong to."""
    targets = make_targets(new, bank, positions=positions, num_classes=num_classes, settings=settings)
    segments = []
    parts = [*new, *([] if bank is None else [bank])]
    for part, target in zip(parts, targets, strict=False):
        if part.rows is None:
            raise UsageError("labels without rows", expected="a part with rows")
        segments.append(Segment(rows=part.rows, **target_fields(target)))
    return segments


def _row_weights(
    new: Sequence[Labelled], bank: Labelled | None, num_classes: int, settings: LossSettings
) -> list[NDArray[np.float64]]:
    """Coefficients of every part, the bank's last."""
    new_labels = np.concatenate([part.labels for part in new])
    bank_labels = np.zeros(0, np.int64) if bank is None else bank.labels
    ones = np.ones(num_classes)
    if settings.balance == "none":
        new_weights, bank_weights = ones, ones
    elif settings.balance == "unified":
        new_weights = bank_weights = class_weights(np.concatenate([new_labels, bank_labels]), num_classes)
    else:
        new_weights = class_weights(new_labels, num_classes)
        counted = bank_labels
        if bank is not None and settings.balance == "reference":
            counted = bank_labels[bank.tasks == bank.tasks.max(initial=0)]
        bank_weights = class_weights(counted, num_classes)
    of_new, of_bank = new_weights[new_labels], bank_weights[bank_labels]
    if settings.balance == "unified":
        of_bank = settings.lambda_ * of_bank
        total = of_new.sum() + of_bank.sum()
        new_scale = bank_scale = 1.0 if settings.reduction == "sum" else 1.0 / total
    else:
        new_scale = 1.0 if settings.reduction == "sum" else 1.0 / of_new.sum()
        bank_scale = settings.lambda_ * (
            1.0 if settings.reduction == "sum" or not of_bank.size else 1.0 / of_bank.sum()
        )
    ends = np.cumsum([len(part.labels) for part in new])[:-1]
    return [*np.split(of_new * new_scale, ends), of_bank * bank_scale]


def _mask(positions: Labels, num_classes: int) -> NDArray[np.bool_]:
    if positions.size and not 0 <= positions.min() <= positions.max() < num_classes:
        raise UsageError(
            f"the head has {num_classes} classes, a task has the position {int(positions.max())}",
            expected="a head as wide as the stream's classes",
        )
    mask = np.zeros(num_classes, np.bool_)
    mask[positions] = True
    return mask


def _own_columns(
    tasks: Labels, positions: Sequence[Labels], num_classes: int
) -> tuple[NDArray[np.bool_], Labels | None]:
    present, groups = np.unique(tasks, return_inverse=True)
    if present.size and not 0 <= present[0] <= present[-1] < len(positions):
        raise UsageError(f"rows of task {present[-1]} among {len(positions)} tasks", expected="tasks seen so far")
    masks = [_mask(positions[task], num_classes) for task in present.tolist()]
    if len(masks) == 1:
        return masks[0], None
    return np.array(masks).reshape(len(masks), num_classes), groups.astype(np.int64)

"""Distillation: rows are also compared with the outputs that another model has given them.

    row i adds   coefficient_i * sum over terms k of H(softmax(old_i / T), softmax(z_i / T))   among the columns of k

    H(q, p) = -sum q log p         d / dz = (p - q) / T

The old outputs are made once and never change. Memory: 4 bytes a row and column that any term needs, or a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.errors import UsageError
from ecgl_scale.learn.products import weighted_sum
from ecgl_scale.learn.rows import RowCache

Positions = slice | NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class SoftTargets:
    """What the logits of rows are distilled from."""

    logits: RowCache
    """Old outputs: a column for each class that any term needs, in the order of the head."""
    terms: NDArray[np.bool_]
    """[terms, classes]: the columns of each softmax."""
    coefficients: NDArray[np.float32]
    """Weight of each row."""
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.terms.ndim != 2 or not self.terms.any(axis=1).all() or not self.temperature > 0:
            raise UsageError(
                f"{self.terms.shape} columns at the temperature {self.temperature}",
                expected="a row of columns for each term, at least one in each; a temperature above 0",
            )
        if self.logits.num_features != self.needed.sum() or self.logits.num_rows != len(self.coefficients):
            raise UsageError(
                f"old outputs of shape {[self.logits.num_rows, self.logits.num_features]}",
                expected=f"shape {[len(self.coefficients), int(self.needed.sum())]}",
            )

    @cached_property
    def needed(self) -> NDArray[np.bool_]:
        """Classes that any term compares."""
        return np.asarray(self.terms.any(axis=0))

    def outputs_and_coefficients(self, positions: Positions, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Old outputs and coefficients of the rows at ``positions``."""
        if isinstance(positions, slice):
            start, stop, _ = positions.indices(self.logits.num_rows)
            old = self.logits.read(start, stop)
        else:
            old = self.logits.take(positions)
        return torch.from_numpy(old).to(device), self._weights[positions].to(device)

    def losses(self, logits: torch.Tensor, positions: Positions, columns: NDArray[np.int64]) -> torch.Tensor:
        """The sum of H over all terms, one number a row, for autograd; ``columns`` are the classes of ``logits``."""
        old, _ = self.outputs_and_coefficients(positions, logits.device)
        losses = logits.new_zeros(len(logits))
        for own, given in self._places(columns):
            q = torch.softmax(old[:, own] / self.temperature, 1)
            losses = losses - (q * torch.log_softmax(logits[:, given] / self.temperature, 1)).sum(1)
        return losses

    def add_gradient(
        self, logits: torch.Tensor, positions: Positions, columns: NDArray[np.int64], gradient: torch.Tensor
    ) -> torch.Tensor:
        """Add d/dz of these rows' weighted losses to ``gradient``; returns their sum in float64."""
        old, weights = self.outputs_and_coefficients(positions, logits.device)
        loss = torch.zeros((), dtype=torch.float64, device=logits.device)
        for own, given in self._places(columns):
            q = torch.softmax(old[:, own] / self.temperature, 1)
            logp = torch.log_softmax(logits[:, given] / self.temperature, 1)
            loss -= weighted_sum((q * logp).sum(1), weights)
            gradient.index_add_(1, given.to(logits.device), (logp.exp() - q) * (weights / self.temperature)[:, None])
        return loss

    def _places(self, columns: NDArray[np.int64]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """For each term: where its classes are among the old outputs and among ``columns``."""
        kept = np.flatnonzero(self.needed)
        return [
            (torch.from_numpy(np.searchsorted(kept, classes)), torch.from_numpy(np.searchsorted(columns, classes)))
            for classes in map(np.flatnonzero, self.terms)
        ]

    @cached_property
    def _weights(self) -> torch.Tensor:
        return torch.from_numpy(np.array(self.coefficients, np.float32))

"""What weights are held to: the sum over old tasks j of F_j (w - w*_j)^2, in memory that does not grow with them.

    sum_j F_j (w - w*_j)^2  =  A (w - m)^2 + c        A = sum F_j,   m = sum F_j w*_j / A,   c = what is left, constant

A task is added by  A' = A + F,  m' = m + F (w* - m) / A',  c' = c + sum A F / A' (w* - m)^2. Memory: 8 bytes a weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.learn.model import SharedWeights, padded_like

BYTES_PER_WEIGHT = 8


class Anchors:
    """Strengths A and places m for every weight; none before the first task."""

    def __init__(self) -> None:
        self.strengths: list[torch.Tensor] = []
        self.places: list[torch.Tensor] = []
        self.rest = 0.0

    def __bool__(self) -> bool:
        return bool(self.strengths)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def add(self, weights: SharedWeights, importances: Sequence[torch.Tensor]) -> None:
        """Hold the weights to where they are now, as strongly as ``importances`` say."""
        self.fit(weights)
        here = [parameter.detach() for parameter in weights.parameters()]
        if not self:
            self.strengths = [importance.clone() for importance in importances]
            self.places = [place.clone() for place in here]
            return
        strengths = []
        for place, now, old, new in zip(self.places, here, self.strengths, importances, strict=True):
            total = old + new
            share = torch.where(total > 0, new / total, torch.ones_like(total))
            step = now - place
            self.rest += float((old * share * step.square()).sum(dtype=torch.float64))
            place.add_(share * step)
            strengths.append(total)
        self.strengths = strengths

    def penalty(self, weights: SharedWeights) -> torch.Tensor:
        """The sum over old tasks of F_j (w - w*_j)^2, for autograd."""
        value = torch.zeros((), device=weights.device)
        for parameter, place, strength in zip(weights.parameters(), self.places, self.strengths, strict=True):
            value = value + (strength * (parameter - place).square()).sum()
        return value + self.rest

    def state(self) -> dict[str, NDArray[Any]]:
        """All that ``of_state`` needs, as arrays."""
        if not self:
            return {}
        state: dict[str, NDArray[Any]] = {"anchor.rest": np.array([self.rest])}
        for index, (strength, place) in enumerate(zip(self.strengths, self.places, strict=True)):
            state[f"anchor.strength.{index}"] = strength.cpu().numpy()
            state[f"anchor.place.{index}"] = place.cpu().numpy()
        return state

    @classmethod
    def of_state(cls, state: Mapping[str, NDArray[Any]]) -> Anchors:
        """The anchors of a ``state()``; other arrays may be there too."""
        found = cls()
        if "anchor.rest" in state:
            found.rest = float(state["anchor.rest"][0])
            count = sum(name.startswith("anchor.place.") for name in state)
            found.strengths = [torch.from_numpy(np.array(state[f"anchor.strength.{i}"])) for i in range(count)]
            found.places = [torch.from_numpy(np.array(state[f"anchor.place.{i}"])) for i in range(count)]
        return found

    def fit(self, weights: SharedWeights) -> Anchors:
        """Move strengths and places to where the weights are; rows of the head that are new since are not held."""
        for tensors in (self.strengths, self.places):
            tensors[:] = [padded_like(old, like) for old, like in zip(tensors, weights.parameters(), strict=False)]
        return self

"""A method of your own, to copy: weights are drawn back to where the last task left them.

    L = CE + strength |w - w*|^2        w*: the weights after the last task

Fill in your own term, and name the class in a config, with its folder in PYTHONPATH:

    method: method_template:MyMethod
    my_method: {strength: 0.1}

As it stands, with a strength of 0, it is fine-tuning. docs/adding-a-method.md has the other hooks and the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field

from ecgl_scale.config.sections import Section
from ecgl_scale.learn.method.base import Context, Method
from ecgl_scale.learn.method.kept import weights_of_state, weights_state, without_outputs
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.train import Penalty
from ecgl_scale.tasks.forgotten import Forgotten


class MyMethodConfig(Section):
    """The section of the config; leave it out where there is nothing to set."""

    strength: float = Field(default=0.0, ge=0, description="Weight of the penalty.")


class MyMethod(Method):
    """Say here what the method adds, with its formula, and where it is published."""

    name: ClassVar[str] = "my_method"  # also that of its section
    category: ClassVar[str] = "regularisation"  # bound, regularisation or replay
    stores: ClassVar[str] = "the weights after the last task"  # of old tasks
    reference: ClassVar[str] = "title (authors, where and when)"
    settings: ClassVar[type[Section]] = MyMethodConfig
    weight_copies: ClassVar[int] = 2  # numbers for every weight that it keeps or holds: all that its plan needs

    def penalty(self, context: Context) -> Penalty | None:
        """A function of the weights that gives a further term of the loss, or None."""
        strength = context.config.section(MyMethodConfig).strength
        if not self.kept or not strength:
            return None
        last = weights_of_state(self.kept, "last", context.trainer.weights).parameters()

        def term(weights: SharedWeights) -> torch.Tensor:
            pairs = zip(weights.parameters(), last, strict=True)
            return strength * torch.stack([(now - old.detach()).square().sum() for now, old in pairs]).sum()

        return term

    def end_task(self, context: Context) -> None:
        """After the last epoch: put into ``kept``, as arrays by name, all that the next task needs."""
        self.kept = weights_state(context.trainer.weights, "last")

    def forget(self, gone: Forgotten, head: Sequence[int]) -> int:
        """On request: take nodes, and outputs of classes, out of ``kept``; returns how many rows have left it."""
        self.kept = without_outputs(self.kept, gone, head, ["last"])
        return 0

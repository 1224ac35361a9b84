"""The shape of a model: what it is given, and the layers that follow."""

from __future__ import annotations

from dataclasses import dataclass

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.infer.model_input import ModelInput


@dataclass(frozen=True)
class ModelShape:
    """Input and layers, but for the number of features and classes."""

    made: ModelInput
    """How its input is made of the features."""
    hidden: tuple[int, ...]
    """Widths between input and output."""
    bias: bool

    @classmethod
    def of(cls, config: RunConfig) -> ModelShape:
        """The shape that a config's section ``learn`` describes."""
        learn = config.learn
        return cls(ModelInput(learn.num_hops), learn.hidden, learn.bias)

    def widths(self, num_features: int, num_classes: int) -> tuple[int, ...]:
        """Widths of all layers for a store with so many features."""
        return (self.made.num_columns(num_features), *self.hidden, num_classes)

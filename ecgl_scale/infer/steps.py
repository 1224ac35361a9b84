"""A program and a layout as a list of steps; each writes one matrix, partition by partition.

prepare    features times the first weight                        -> source of the first pass
fused      aggregate, all dense work up to the next aggregation   -> source of the next pass, or the logits
slice      aggregate some columns                                 -> those columns
dense      the dense work on slices                               -> as fused
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ecgl_scale.infer.layout import Layout
from ecgl_scale.infer.program import Program, padded

FEATURES = -1
"""Stands for the store where an input is the number of a step."""


@dataclass(frozen=True)
class Step:
    """One step: what it reads, and the matrix it writes."""

    kind: Literal["prepare", "fused", "slice", "dense"]
    number: int
    """Which pass it belongs to."""
    inputs: tuple[int, ...]
    """Steps whose matrices are read, or ``FEATURES``."""
    first: int
    stop: int
    """Columns of the input that are aggregated."""
    width: int
    """Columns of the matrix it writes, with padding."""
    writes_file: bool
    is_scaled: bool
    """Whether rows are written times the source scale, as an aggregation follows."""


def list_steps(program: Program, layout: Layout) -> list[Step]:
    """List all steps in order."""
    steps: list[Step] = []
    source = FEATURES
    if program.before is not None:
        width = program.source_width
        steps.append(Step("prepare", 0, (FEATURES,), 0, width, padded(width), layout.prepares_file, is_scaled=True))
        source = 0
    for number, (layer_pass, laid) in enumerate(zip(program.passes, layout.passes, strict=True)):
        is_last = number == len(program.passes) - 1
        width = layer_pass.widths[-1] if is_last else padded(layer_pass.widths[-1])
        slices = [*pairwise(laid.columns)]
        inputs: tuple[int, ...] = (source,)
        kind: Literal["fused", "dense"] = "fused"
        if len(slices) > 1:
            inputs = tuple(range(len(steps), len(steps) + len(slices)))
            kind = "dense"
            steps += [Step("slice", number, (source,), a, b, b - a, True, is_scaled=False) for a, b in slices]
        steps.append(Step(kind, number, inputs, 0, layer_pass.width, width, laid.writes_file, is_scaled=not is_last))
        source = len(steps) - 1
    return steps

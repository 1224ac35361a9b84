"""The words for how layers send messages, which settings, training and inference share."""

from __future__ import annotations

from typing import Literal

Norm = Literal["sym", "sum", "mean"]
"""How P weighs an edge: see ``adjacency.Scales``."""
Encoder = Literal["gcn", "sage", "sgc"]
"""gcn and sage propagate in every layer, sage always by the mean; sgc propagates the features and is an MLP then."""
BiasPlace = Literal["inside", "outside"]
"""Inside: the bias is sent along with the messages, as the reference code does; outside: it is added afterwards."""


def norm_of(encoder: Encoder, norm: Norm) -> Norm:
    """The norm that counts: ``sage`` averages whatever ``norm`` says."""
    return "mean" if encoder == "sage" else norm

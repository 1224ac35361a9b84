"""What to infer with: the settings, the weights as they are given, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.errors import UsageError
from ecgl_scale.graph.convolution import BiasPlace, Encoder, Norm, norm_of
from ecgl_scale.graph.partition import Partitioner

Matrix = NDArray[np.float32]
BackendName = Literal["auto", "dgl", "numba", "torch"]
Sources = Literal["auto", "held", "halo"]

Layers = Sequence[tuple[Any, Any]]
"""(weight [out, in], bias [out] or None) of each layer, first to last: numpy arrays or torch tensors."""


@dataclass(frozen=True)
class InferSettings:
    """How weights become a graph network, and how the work is cut."""

    encoder: Encoder = "gcn"
    norm: Norm = "sym"
    """How the adjacency with self loops is normalised; ``sage`` is always the mean."""
    bias_place: BiasPlace = "inside"
    """Inside: the bias is aggregated with the rest, as the reference code does; outside: added afterwards."""
    backend: BackendName = "auto"
    partitioner: Partitioner = "contiguous"
    partitions: int | Literal["auto"] = "auto"
    device: str = "auto"
    """auto, cpu, cuda or cuda:N; other than the processor only with the torch backend."""
    sources: Sources = "auto"
    """held: columns of all nodes in memory, as many as fit; halo: the rows that a partition needs. auto: held for
    contiguous partitions, halo for the partitioners that make halos small."""

    def __post_init__(self) -> None:
        kinds: dict[str, Any] = {
            "encoder": Encoder,
            "norm": Norm,
            "bias_place": BiasPlace,
            "backend": BackendName,
            "partitioner": Partitioner,
            "sources": Sources,
        }
        for name, kind in kinds.items():
            if getattr(self, name) not in get_args(kind):
                raise UsageError(f"{name} is {getattr(self, name)!r}", expected=" or ".join(get_args(kind)))
        count: Any = self.partitions
        if count != "auto" and not (isinstance(count, int) and not isinstance(count, bool) and count >= 1):
            raise UsageError(f"partitions is {self.partitions!r}", expected="auto, or a whole number from 1 on")
        place, _, number = self.device.partition(":")
        if place not in ("auto", "cpu", "cuda") or (number and (place != "cuda" or not number.isdigit())):
            raise UsageError(f"device is {self.device!r}", expected="auto, cpu, cuda or cuda:N")
        if self.sources == "held" and self.partitioner != "contiguous":
            raise UsageError(
                f"sources are held, but partitions come from {self.partitioner}",
                expected="contiguous partitions where sources are held; others are there for their halos",
            )
        if place == "cuda" and self.backend in ("numba", "dgl"):
            raise UsageError(
                f"the {self.backend} backend runs on the processor, the device is {self.device!r}",
                fix="backend: torch, or device: cpu",
            )

    @property
    def effective_norm(self) -> Norm:
        """The norm that counts."""
        return norm_of(self.encoder, self.norm)

    @property
    def uses_halos(self) -> bool:
        """Whether partitions gather the rows they need."""
        return self.sources == "halo" or (self.sources == "auto" and self.partitioner != "contiguous")


@dataclass(frozen=True)
class Layer:
    """One layer's parameters."""

    weight: Matrix
    """[out, in]."""
    bias: Matrix | None


@dataclass(frozen=True)
class InferResult:
    """Logits of every node, and how they were reached."""

    logits: Matrix
    """[N, C]; in memory where the budget allowed it, else a ``np.memmap`` of a file in the work directory."""
    seconds: float
    read_bytes: int
    """Features, edges and intermediate rows that went through; what the page cache held is in it."""
    backend: str
    partitions: int
    resumed_partitions: int
    """Partitions, of all passes, that an earlier, killed call had finished."""
    order: tuple[str, ...]
    """The products in the order in which they were formed."""
    planned_bytes: int
    """What the memory plan said, on top of what the process held."""


def read_layers(layers: Layers, num_features: int) -> tuple[Layer, ...]:
    """Weights as contiguous float32 arrays, checked against each other and the features."""
    found: list[Layer] = []
    width = num_features
    for number, (given_weight, given_bias) in enumerate(layers):
        weight = _as_array(given_weight)
        bias = None if given_bias is None else _as_array(given_bias)
        if weight.ndim != 2 or weight.shape[1] != width or weight.shape[0] < 1:
            what = "features" if number == 0 else f"outputs of layer {number - 1}"
            raise UsageError(
                f"the weight of layer {number} has shape {list(weight.shape)}",
                expected=f"[out, {width}], as there are {width} {what}",
            )
        if bias is not None and bias.shape != weight.shape[:1]:
            raise UsageError(
                f"the bias of layer {number} has shape {list(bias.shape)}", expected=f"[{weight.shape[0]}]"
            )
        if not np.isfinite(weight).all() or (bias is not None and not np.isfinite(bias).all()):
            raise UsageError(f"layer {number} has weights that are not finite", expected="finite numbers")
        found.append(Layer(weight, bias))
        width = weight.shape[0]
    if not found:
        raise UsageError("there are no layers", expected="at least one (weight, bias)")
    return tuple(found)


def _as_array(given: Any) -> Matrix:
    # Without importing torch: with numpy weights and our own kernels nobody pays for it.
    for method in ("detach", "cpu", "numpy"):
        given = getattr(given, method)() if hasattr(given, method) else given
    return np.asarray(given, np.float32)

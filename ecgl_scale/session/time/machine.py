"""What this machine does in a second: its disk, the kernel that sweeps edges, matrix products at a model's widths."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch

from ecgl_scale.base.disk_speed import measure_disk
from ecgl_scale.base.stopwatch import best_seconds
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.threads import torch_threads
from ecgl_scale.infer.speed import measure_messages
from ecgl_scale.learn.feed import block_rows_for
from ecgl_scale.rank.sweep_speed import measure_sweeps
from ecgl_scale.session.learner import device_of
from ecgl_scale.units import MIB

DISK_TEST_BYTES = 32 * MIB
TEST_SECONDS = 0.2
"""The seconds of each measurement in memory."""
TEST_ROWS, TEST_WIDTH = 256, 256
"""These make rounds of a millisecond: the best of many is not disturbed by others, who get a core for longer than that.
Products of wider layers are no faster."""


@dataclass(frozen=True)
class MachineRates:
    """What this machine does in a second."""

    read_bytes: float
    written_bytes: float
    edges: float
    """Edges that the sweep of a ranking passes, in the cache."""
    messages: float
    """Numbers sent along edges, of rows as wide as the first hidden layer."""
    operations: float
    """Multiplications and additions of the model's matrix products, on the device that trains."""


TYPICAL = MachineRates(read_bytes=1e9, written_bytes=5e8, edges=1e9, messages=4e9, operations=1e11)
"""The rates of a machine of some years ago."""


def measure_machine(
    directory: Path, widths: Sequence[int], config: RunConfig, resources: Resources, *, num_nodes: int
) -> MachineRates:
    """Measure for about a second. Where ``directory`` cannot be written to, the disk is that of temporary files.

    Messages are sent in a graph of ``num_nodes``. One thread is measured and counted as often as there are threads:
    several that wait for each other would measure who else uses the machine at the moment.
    """
    threads = resources.threads
    where = directory if os.access(directory, os.W_OK) else Path(tempfile.gettempdir())
    disk = measure_disk(where, DISK_TEST_BYTES)
    edges = threads * measure_sweeps(seconds=TEST_SECONDS)
    messages = threads * measure_messages(widths[1], num_nodes, seconds=TEST_SECONDS)
    device = torch.device(device_of(config.learn.device))
    products = _measure_products(widths, config, device) * (threads if device.type == "cpu" else 1)
    return MachineRates(disk.read, disk.write, edges, messages, products)


def _measure_products(widths: Sequence[int], config: RunConfig, device: torch.device) -> float:
    """Operations a second in the three products of each layer: forward, and backward to weights and to inputs."""
    rows = min(block_rows_for(widths, config.learn.block_rows, is_sparse=False), TEST_ROWS)
    narrow = [min(width, TEST_WIDTH) for width in widths]
    layers = [
        tuple(torch.ones(shape, device=device) for shape in ((rows, a), (b, a), (rows, b), (b, a), (rows, a)))
        for a, b in pairwise(narrow)
    ]

    def multiply() -> None:
        for inputs, weight, outputs, to_weight, to_inputs in layers:
            torch.mm(inputs, weight.t(), out=outputs)
            torch.mm(outputs.t(), inputs, out=to_weight)
            torch.mm(outputs, weight, out=to_inputs)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with torch.no_grad(), torch_threads(1):
        return 6 * rows * num_weights(narrow) / best_seconds(multiply, seconds=TEST_SECONDS)


def num_weights(widths: Sequence[int]) -> int:
    """The number of weights of layers from each width to the next, without biases."""
    return sum(fan_in * fan_out for fan_in, fan_out in pairwise(widths))

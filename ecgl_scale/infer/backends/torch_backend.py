"""torch: a sparse CSR product for each partition, on any device. The DGL backend differs in that product alone."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch

from ecgl_scale.engine.threads import torch_threads
from ecgl_scale.errors import UsageError
from ecgl_scale.graph.adjacency import CsrRows
from ecgl_scale.infer.chunks import Target
from ecgl_scale.infer.program import Pass
from ecgl_scale.infer.settings import Matrix
from ecgl_scale.infer.source_block import SourceBlock


class TorchBackend:
    """Works on a whole partition at once, with torch's own threads."""

    name = "torch"

    def __init__(self, device: str, threads: int) -> None:
        self._device = find_device(device)
        self._threads = threads
        self._buffers: list[torch.Tensor] = []

    def begin(self, layer_pass: Pass, source_width: int) -> None:
        """Put the weights where the work is."""
        del source_width
        self._pass = layer_pass
        self._weights = [None if step.weight_t is None else self._tensor(step.weight_t) for step in layer_pass.dense]
        self._biases = [None if step.bias is None else self._tensor(step.bias) for step in layer_pass.dense]
        self._buffers = [torch.empty(0, device=self._device) for _ in layer_pass.dense]

    def take_source(self, source: Matrix) -> None:
        """Put the rows to sum where the work is; on the processor they stay where they are."""
        self._source = torch.from_numpy(source).to(self._device)

    def end(self) -> None:
        """Let go of the source and the buffers."""
        self._source = torch.empty(0)
        self._buffers = []

    def aggregate(self, block: SourceBlock, out: Matrix) -> None:
        """One product, copied out."""
        with torch_threads(self._threads):
            summed = self._sum(block, block.cut(0, block.num_rows))
            out[:] = summed[:, : out.shape[1]].cpu().numpy()

    def run(self, block: SourceBlock, target: Target) -> None:
        """The product, then the dense steps."""
        with torch_threads(self._threads):
            self._run(block, target)

    def _run(self, block: SourceBlock, target: Target) -> None:
        num_rows = block.num_rows
        rows = block.cut(0, num_rows)
        found = self._sum(block, rows)[:, : self._pass.width]
        sums = self._tensor(block.row_sums(rows, 0, num_rows)) if self._pass.needs_sums else None
        for number, step in enumerate(self._pass.dense):
            weight, bias = self._weights[number], self._biases[number]
            if weight is not None:
                found = torch.mm(found, weight, out=self._buffer(number, num_rows, weight.shape[1]))
            if bias is not None and sums is not None and step.bias_times_sums:
                found.addr_(sums, bias)
            elif bias is not None:
                found += bias
            if step.relu:
                found.relu_()
        if target.scale is not None:
            found *= self._tensor(target.scale)[:, None]
        target.matrix[target.where, : found.shape[1]] = found.cpu().numpy()

    def _buffer(self, number: int, num_rows: int, width: int) -> torch.Tensor:
        """Used again by every partition: fresh pages cost more than most products."""
        if self._buffers[number].numel() < num_rows * width:
            self._buffers[number] = torch.empty(0, device=self._device)
            self._buffers[number] = torch.empty(num_rows * width, device=self._device)
        return self._buffers[number][: num_rows * width].view(num_rows, width)

    def _sum(self, block: SourceBlock, rows: CsrRows) -> torch.Tensor:
        num_rows, num_sources = block.num_rows, len(block.source)
        if rows.num_edges:
            indptr, indices = _as_signed(rows, num_sources)
            summed = self.multiply(
                torch.from_numpy(indptr).to(self._device), torch.from_numpy(indices).to(self._device), num_sources
            )
        else:
            summed = torch.zeros((num_rows, block.source.shape[1]), device=self._device)
        if block.adds_self:
            summed += self._source[block.first_own : block.first_own + num_rows]
        if block.row_scale is not None:
            summed *= self._tensor(block.row_scale)[:, None]
        return summed

    def multiply(self, indptr: torch.Tensor, indices: torch.Tensor, num_sources: int) -> torch.Tensor:
        """Rows of ones at ``indices`` times the source."""
        ones = torch.ones(indices.numel(), device=self._device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "in beta state", since years
            shape = (indptr.numel() - 1, num_sources)
            adjacency = torch.sparse_csr_tensor(indptr, indices, ones, shape, check_invariants=False)
        product: torch.Tensor = adjacency @ self._source
        return product

    def _tensor(self, array: Matrix) -> torch.Tensor:
        tensor: torch.Tensor = torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
        return tensor


def _as_signed(rows: CsrRows, num_sources: int) -> tuple[Any, Any]:
    """Row offsets from 0 and ids as signed integers of one width, both as copies that may be written to."""
    start, stop = int(rows.indptr[0]), int(rows.indptr[-1])
    dtype = np.int32 if max(num_sources, stop - start) < 1 << 31 else np.int64
    return (rows.indptr - start).astype(dtype), rows.indices[start:stop].astype(dtype)


def find_device(device: str) -> Any:
    """The device, which must be there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda"):
        number = int(device.partition(":")[2] or 0)
        if not torch.cuda.is_available() or number >= torch.cuda.device_count():
            raise UsageError(
                f"there is no device {device!r}",
                expected=f"{torch.cuda.device_count()} CUDA devices were found by torch {torch.__version__}",
                fix="device: cpu, or auto",
            )
    return torch.device(device)

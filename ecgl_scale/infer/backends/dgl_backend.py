"""DGL: message passing on a block whose destinations are the partition's rows."""

from __future__ import annotations

import os
from typing import Any

import torch

from ecgl_scale.errors import UsageError
from ecgl_scale.infer.backends.torch_backend import TorchBackend


class DglBackend(TorchBackend):
    """The torch backend with DGL's sum over in-neighbours."""

    name = "dgl"

    def __init__(self, threads: int) -> None:
        super().__init__("cpu", threads)  # the wheels on PyPI know no other device
        self._dgl = import_dgl()

    def multiply(self, indptr: torch.Tensor, indices: torch.Tensor, num_sources: int) -> torch.Tensor:
        """Copy from sources, sum at destinations."""
        edges = torch.empty(0, dtype=indices.dtype)
        block = self._dgl.create_block(
            ("csc", (indptr, indices, edges)), num_src_nodes=num_sources, num_dst_nodes=indptr.numel() - 1
        )
        summed: torch.Tensor = self._dgl.ops.copy_u_sum(block, self._source)
        return summed


def import_dgl() -> Any:
    """DGL, or how to get it."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    try:
        import dgl
    except ImportError as error:
        raise UsageError(
            "DGL is not installed here",
            expected="dgl 1.1.3, which has wheels for Python 3.11 and older",
            fix="pip install dgl==1.1.3, or backend: numba",
        ) from error
    return dgl

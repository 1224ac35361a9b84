"""The first layer on sparse rows, for torch: the product and its gradient by our kernels, without densifying a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_kernels.product import add_outer_rows, multiply_rows
from ecgl_scale.engine.threads import run_parts
from ecgl_scale.store.source import CsrBlock

Numbers = NDArray[np.float32]

SERIAL_PRODUCTS = 1 << 20
"""Below so many products (a fraction of a millisecond) threads cost more than they save."""
LINE_FLOATS = 16
"""Threads that write the gradient meet at the ends of cache lines, never inside one."""


def linear_of_sparse(rows: CsrBlock, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``rows @ weight.T + bias`` on the CPU. Memory: the result, and the weight once more unless it lies by columns."""
    product: torch.Tensor = _SparseProduct.apply(weight, rows)
    return product if bias is None else product + bias


def multiply_sparse(rows: CsrBlock, w: Numbers, out: Numbers) -> None:
    """out = rows @ w; ``w`` is [columns, width]."""

    def multiply(first: int, stop: int) -> None:
        multiply_rows(rows.indptr[first : stop + 1], rows.indices, rows.values, w, out[first:stop])

    threads = _threads_for(rows, w.shape[1])
    run_parts(multiply, np.linspace(0, len(out), threads + 1).astype(int).tolist())


def add_sparse_gradient(rows: CsrBlock, g: Numbers, grad: Numbers) -> None:
    """grad += rows^T @ g; ``grad`` is [columns, width]."""
    width = grad.shape[1]

    def add(first: int, stop: int) -> None:
        add_outer_rows(rows.indptr, rows.indices, rows.values, g, first, stop, grad)

    threads = max(min(_threads_for(rows, width), width // LINE_FLOATS), 1)
    run_parts(add, [*(width * t // threads // LINE_FLOATS * LINE_FLOATS for t in range(threads)), width])


class _SparseProduct(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, rows: CsrBlock) -> torch.Tensor:
        ctx.rows = rows
        ctx.shape = weight.shape
        out = np.empty((rows.indptr.size - 1, weight.shape[0]), np.float32)
        multiply_sparse(rows, weight.detach().t().contiguous().numpy(), out)
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        width, num_columns = ctx.shape
        grad = np.zeros((num_columns, width), np.float32)
        add_sparse_gradient(ctx.rows, gradients[0].contiguous().numpy(), grad)
        return torch.from_numpy(grad).t(), None


def _threads_for(rows: CsrBlock, width: int) -> int:
    num_values = int(rows.indptr[-1] - rows.indptr[0])
    return 1 if num_values * width < SERIAL_PRODUCTS else int(torch.get_num_threads())

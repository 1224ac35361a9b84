"""Dense products of training, with the same bits for any number of threads.

    multiply     out  = x W [+ bias]        strips of 256 rows of x
    add_outer    into += g^T x              tiles of 128 columns of x, and of 64 of g where x has few

A BLAS that has several threads may cut the sum itself among them, and does where the result is small: MKL adds up
g^T x of 500 rows and 256 x 100 numbers in another order with two threads than with one. So a product is cut into
strips whose shapes depend on those of the operands alone, each is done by one thread of BLAS, and our threads share
them. MKL gives the strips the very bits that one thread gives the whole product.
On a GPU products are left to torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ecgl_scale.engine.threads import map_bounded, torch_threads

STRIP_ROWS = 256
TILE_COLUMNS = 128
TILE_HEIGHT = 64
MANY_TILES = 4
"""With so many tiles of columns there is work for the threads, and g is not cut, too."""
WHOLE_PRODUCTS = 1 << 26
"""Fewer products (about two milliseconds) are not cut: threads have to be started."""

Strip = Callable[[int], None]


def multiply(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """``out = x @ weight``, and ``bias`` added to every row."""
    if x.device.type != "cpu":
        return _multiply(x, weight, out, bias)
    size = STRIP_ROWS if x.numel() * weight.shape[1] >= WHOLE_PRODUCTS else max(len(x), 1)

    def strip(number: int) -> None:
        rows = slice(number * size, (number + 1) * size)
        _multiply(x[rows], weight, out[rows], bias)

    _run(strip, -(-len(x) // size))
    return out


def add_outer(into: torch.Tensor, g: torch.Tensor, x: torch.Tensor) -> None:
    """``into += g^T @ x``: the gradient of a weight, from those of its outputs and from its inputs."""
    if x.device.type != "cpu":
        into.addmm_(g.t(), x)
        return
    width, height = x.shape[1], g.shape[1]
    if x.numel() * g.shape[1] >= WHOLE_PRODUCTS:
        width = TILE_COLUMNS
        height = height if x.shape[1] > (MANY_TILES - 1) * TILE_COLUMNS else TILE_HEIGHT
    num_columns = -(-x.shape[1] // width)

    def tile(number: int) -> None:
        row, column = divmod(number, num_columns)
        rows = slice(row * height, (row + 1) * height)
        columns = slice(column * width, (column + 1) * width)
        into[rows, columns].addmm_(g[:, rows].t(), x[:, columns])

    _run(tile, num_columns * -(-g.shape[1] // height))


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight^T + bias`` for autograd."""
    product: torch.Tensor = _Linear.apply(x, weight, bias)
    return product


def weighted_sum(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The sum of ``values * weights`` in float64, by one thread, so that its order is always the same."""
    with torch_threads(1):
        return torch.dot(values.double(), weights.double())


def exact_sum(values: torch.Tensor) -> float:
    """The sum in float64, by one thread, as ``weighted_sum``."""
    with torch_threads(1):
        return float(values.sum(dtype=torch.float64))


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return multiply(x, weight.t(), x.new_empty(len(x), len(weight)), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        g = gradients[0].contiguous()
        if torch.is_grad_enabled():  # the gradient is to be differentiated, too
            return g @ weight, g.t() @ x, g.sum(0) if ctx.has_bias else None
        of_x = multiply(g, weight, g.new_empty(len(g), weight.shape[1])) if ctx.needs_input_grad[0] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = torch.zeros_like(weight)
            add_outer(of_weight, g, x)
        return of_x, of_weight, g.sum(0) if ctx.has_bias else None


def _run(strip: Strip, count: int) -> None:
    threads = min(torch.get_num_threads(), count)
    with torch_threads(1):
        if threads <= 1:
            _share(strip, 0, count, 1)
            return
        for _ in map_bounded(lambda first: _share(strip, first, count, threads), range(threads), threads=threads):
            pass


def _share(strip: Strip, first: int, count: int, step: int) -> None:
    torch.set_num_threads(1)  # BLAS asks for the threads of the thread that calls it, and a new one has all cores
    with torch.no_grad():  # and begins with gradients on
        for number in range(first, count, step):
            strip(number)


def _multiply(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.mm(x, weight, out=out) if bias is None else torch.addmm(bias, x, weight, out=out)

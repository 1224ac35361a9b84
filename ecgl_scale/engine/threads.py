"""Run work in threads with a bound on what is in flight; results come in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def one_blas_thread() -> AbstractContextManager[Any]:
    """numpy's BLAS uses one thread meanwhile: with one for each of ours, sums never depend on how many there are."""
    limit: AbstractContextManager[Any] = _blas().limit(limits=1, user_api="blas")
    return limit


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Torch uses so many threads meanwhile, and afterwards what it used before."""
    import torch  # here, as most users of threads have no need of it

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _blas() -> ThreadpoolController:
    """Finding the libraries of a process takes milliseconds, and numpy's is there from its import on."""
    return ThreadpoolController()


def map_bounded(function: Callable[[Item], Result], items: Iterable[Item], *, threads: int) -> Iterator[Result]:
    """``map`` in threads: at most ``threads`` items are worked on and one more is waiting; the first error stops it."""
    with ThreadPoolExecutor(threads, thread_name_prefix="build") as pool:
        pending: deque[Future[Result]] = deque()
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def run_parts(work: Callable[[int, int], None], cuts: list[int]) -> None:
    """``work(cuts[i], cuts[i + 1])`` of every part in a thread of its own; one part here, without any."""
    parts = list(pairwise(cuts))
    if len(parts) == 1:
        work(*parts[0])
        return
    for _ in map_bounded(lambda part: work(*part), parts, threads=len(parts)):
        pass

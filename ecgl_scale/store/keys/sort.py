"""Pairs of a code and a row, sorted by code out of core: runs that fit in memory, then ranges of codes of all runs.

Runs are sorted and laid in scratch files. Every so many codes of each run are samples; between two of them lie at most
as many pairs as a run has, so that a range of codes is read from all runs, sorted and written in the same memory. Rows
come in ascending order, and pairs of equal code keep it. Memory: ``PAIR_BYTES`` for each pair of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.store.edges.scratch import ScratchValues

PAIR_BYTES = 64
"""A code and a row, their copies in order, the order, and what numpy's sort takes besides."""
MIN_RUN_ROWS = 1 << 17
SAMPLES = 4
"""A run's samples for each run that there is."""

Pairs = tuple[NDArray[Any], NDArray[Any]]


def rows_of_a_run(room_bytes: int, num_rows: int) -> int:
    """How many pairs a run has."""
    return max(min(MIN_RUN_ROWS, num_rows), min(num_rows, room_bytes // PAIR_BYTES))


def sort_pairs(
    codes: Iterable[NDArray[Any]],
    directory: Path,
    *,
    run_rows: int,
    row_dtype: np.dtype[Any],
    check: Callable[[NDArray[Any], NDArray[Any]], None],
) -> Pairs:
    """Codes of rows 0, 1, 2, ... -> codes in order and their rows, as arrays in scratch files in ``directory``.

    ``check`` sees every range of sorted pairs, all equal codes of a range together, and may refuse them.
    """
    runs = [
        (_kept(directory / f"codes-{index}", pairs[0]), _kept(directory / f"rows-{index}", pairs[1]))
        for index, pairs in enumerate(_runs(codes, run_rows, row_dtype, check))
    ]
    if len(runs) == 1:
        return runs[0]
    with (
        ScratchValues(directory / "codes", runs[0][0].dtype) as all_codes,
        ScratchValues(directory / "rows", row_dtype) as all_rows,
    ):
        for own_codes, own_rows in _ranges(runs, run_rows):
            check(own_codes, own_rows)
            all_codes.append(own_codes)
            all_rows.append(own_rows)
        return all_codes.mapped(), all_rows.mapped()


def _kept(path: Path, values: NDArray[Any]) -> NDArray[Any]:
    """An array in a scratch file, which has no name any more."""
    with ScratchValues(path, values.dtype) as scratch:
        scratch.append(values)
        return scratch.mapped()


def _runs(
    codes: Iterable[NDArray[Any]], run_rows: int, row_dtype: np.dtype[Any], check: Callable[..., None]
) -> Iterator[Pairs]:
    held: list[NDArray[Any]] = []
    first_row = held_rows = 0
    for block in codes:
        for first in range(0, block.size, run_rows):
            part = block[first : first + run_rows]
            if held_rows + part.size > run_rows:
                yield _sorted_run(held, first_row, row_dtype, check)
                first_row, held_rows, held = first_row + held_rows, 0, []
            held.append(part)
            held_rows += part.size
    if held_rows:
        yield _sorted_run(held, first_row, row_dtype, check)


def _sorted_run(
    held: list[NDArray[Any]], first_row: int, row_dtype: np.dtype[Any], check: Callable[..., None]
) -> Pairs:
    codes = np.concatenate(held)
    order = np.argsort(codes, kind="stable")
    pairs = codes[order], (order + first_row).astype(row_dtype)
    check(*pairs)  # here too: many equal codes would make a range larger than a run
    return pairs


def _ranges(runs: list[Pairs], run_rows: int) -> Iterator[Pairs]:
    step = max(1, run_rows // (SAMPLES * len(runs)))
    samples = np.sort(np.concatenate([codes[step - 1 :: step] for codes, _ in runs]))
    bounds = samples[:: max(1, (SAMPLES - 1) * len(runs))]
    cuts = [np.concatenate([[0], np.searchsorted(codes, bounds, side="right"), [codes.size]]) for codes, _ in runs]
    for number in range(bounds.size + 1):
        slices = [slice(*cut[number : number + 2]) for cut in cuts]
        codes = np.concatenate([run[part] for (run, _), part in zip(runs, slices, strict=True)])
        rows = np.concatenate([run[part] for (_, run), part in zip(runs, slices, strict=True)])
        order = np.argsort(codes, kind="stable")
        yield codes[order], rows[order]

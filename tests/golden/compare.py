"""How a record is compared with what is found now, and on which machines bits are expected to agree.

A record has these parts, each a tree of names and lists:

exact    the same everywhere: bytes of stores, splits, tasks, plain PageRank
bits     checksums of numbers that matrix products went into
close    those numbers themselves, or sums of them: losses, scores of a ranking
trained  the same of weights, and of what they predict
percent  accuracies
chosen   node ids, as sets
labels   predicted classes, by node

Where the processor's arithmetic is that of the record, all parts have to be equal, to the last bit. Elsewhere BLAS and
torch round differently, so ``bits`` are not looked at and ``close`` may differ by 1e-6 of a value. Adam divides a
gradient by its own size, so where one is small a weight moves by its rounding: ``trained`` may differ by 1e-5, and
methods that hold weights by a penalty of 10,000 times their distance have both a hundredfold. (Measured without
torch's vector instructions: 2e-6, and 3e-5 with such a penalty.) An accuracy is a share of few nodes: one logit that
ends up on the other side of another moves it by a whole node, so ``percent``, ``chosen`` and ``labels`` may differ by
a few nodes.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

CLOSE = {"close": 1e-6, "trained": 1e-5}
PERCENT = 10.0
"""The smallest class has six test nodes of a task's two classes: one that flips moves the macro accuracy by 8.3."""
FEW = 0.02
"""Share of the nodes that may be others, or one node where that is less than one."""

Same = Callable[[Any, Any], bool]


@cache
def fingerprint() -> str:
    """What decides how sums are rounded here: the kernels that BLAS and torch chose for this processor."""
    import numpy as np
    import scipy
    import scipy.linalg  # loads its BLAS, which is not numpy's
    import torch
    from threadpoolctl import threadpool_info

    blas = {
        f"{info['internal_api']} {info['architecture']}" for info in threadpool_info() if info["user_api"] == "blas"
    }
    versions = f"numpy {np.__version__}, scipy {scipy.__version__}, torch {torch.__version__}"
    kernels = f"{' and '.join(sorted(blas))}, torch for {torch.backends.cpu.get_cpu_capability()}"
    processor = f"{platform.machine()} {_vendor()}"  # torch's MKL has other kernels for other vendors
    return f"{versions}; {kernels}; {processor}"


def differences(
    record: dict[str, Any], found: dict[str, Any], *, expect_bits: bool, rounding: float = 1.0
) -> list[str]:
    """A line for each value that is not as recorded, none if all is well; ``rounding`` widens what is close."""
    lines: list[str] = []
    for part in sorted((record.keys() | found.keys()) - {"fingerprint"}):
        if part == "bits" and not expect_bits:
            continue
        same = _equal if expect_bits else _rule(part, rounding)
        old, new = (dict(_leaves(tree.get(part, {}))) for tree in (record, found))
        for path in sorted(old.keys() | new.keys()):
            if path not in old or path not in new:
                lines.append(f"{part}{path}: {'new' if path in new else 'gone'}")
            elif not same(old[path], new[path]):
                lines.append(f"{part}{path}: recorded {old[path]!r}, found {new[path]!r}")
    return lines


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for name, inside in tree.items():
            yield from _leaves(inside, f"{path}.{name}")
    elif isinstance(tree, list):
        yield f"{path}.length", len(tree)
        for index, inside in enumerate(tree):
            yield from _leaves(inside, f"{path}[{index}]")
    else:
        yield path, tree


def _equal(old: Any, new: Any) -> bool:
    return type(old) is type(new) and (old == new or (old != old and new != new))  # noqa: PLR0124 - NaN


def _is_close(tolerance: float, old: Any, new: Any) -> bool:
    if not (isinstance(old, float) and isinstance(new, float)):
        return _equal(old, new)
    return _equal(old, new) or math.isclose(old, new, rel_tol=tolerance, abs_tol=0.0)


def _is_near(old: Any, new: Any) -> bool:
    if not (isinstance(old, float) and isinstance(new, float)):
        return _equal(old, new)
    return abs(old - new) <= PERCENT


def _are_nearly_all_chosen(old: Any, new: Any) -> bool:
    before, after = set(old.split()), set(new.split())
    return len(old.split()) == len(new.split()) and len(before - after) <= max(1, FEW * len(before))


def _are_nearly_all_equal(old: Any, new: Any) -> bool:
    before, after = old.split(), new.split()
    num_others = sum(one != other for one, other in zip(before, after, strict=False))
    return len(before) == len(after) and num_others <= max(1, FEW * len(before))


RULES: dict[str, Same] = {
    "exact": _equal,
    "bits": _equal,
    "percent": _is_near,
    "chosen": _are_nearly_all_chosen,
    "labels": _are_nearly_all_equal,
}


def _rule(part: str, rounding: float) -> Same:
    return partial(_is_close, CLOSE[part] * rounding) if part in CLOSE else RULES[part]


def _vendor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), "unknown")

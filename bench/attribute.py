"""The two passes of the attribute vector against this machine's sgemm, features in memory and streamed from a store.

    python -m bench.attribute [--rows 4000000] [--features 100] [--repeats 5]

Both passes are counted as 2 N K^2 flops, what a plain matrix product would do. The second does that many. The first
forms a symmetric matrix, of which BLAS (syrk) computes one half only, so its rate may exceed that of sgemm, which is
a square product with all threads, timed in turn with the passes. Wanted of the first pass: 60 % of sgemm.
The store is read through a warm page cache, and checked as always.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.harness import DEFAULT_WORK, save, spread
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.threads import available_cores
from ecgl_scale.rank.attribute import attribute_vector
from ecgl_scale.rank.attribute_dense import DensePasses
from ecgl_scale.rank.feature_files import FeatureSource
from ecgl_scale.store.features.dense import DenseFeatures, DenseLayout, write_dense
from ecgl_scale.store.source import DenseSource

WANTED_RATIO = 0.60
MAX_SQUARE = 3072
CHECKED_ROWS = 50_000


def run(work: Path, num_rows: int, num_features: int, repeats: int) -> dict[str, Any]:
    """Time sgemm and all passes in turn, so that a busy moment of the machine falls on all; then check the result."""
    x = np.random.default_rng(1).standard_normal((num_rows, num_features), dtype=np.float32)
    directory = work / "attribute.zarr"
    shutil.rmtree(directory, ignore_errors=True)
    try:
        features = _write(x, directory)
        side = min(MAX_SQUARE, num_rows)
        square = np.random.default_rng(2).random((2, side, side), dtype=np.float32)
        product = np.empty((side, side), np.float32)
        seconds: dict[str, list[float]] = {}
        values: dict[str, NDArray[np.float64]] = {}
        for round_number in range(repeats + 1):
            times = {"sgemm": _seconds(lambda: np.matmul(square[0], square[1], out=product))}
            for name, source in (("memory", x), ("store", features)):
                passes = DensePasses(FeatureSource(source), 1.0 / num_features, Resources.of())
                times |= _time_passes(name, passes)
                values[name] = passes.values
            if round_number:  # the first touches memory and loads compiled code
                for way, taken in times.items():
                    seconds.setdefault(way, []).append(taken)
                print(", ".join(f"{way} {taken:.3f} s" for way, taken in times.items()), flush=True)
        assert np.array_equal(values["memory"], values["store"]), "features in memory and in a store differ"
        return _result(seconds, side, num_rows, num_features) | {"largest_relative_error": _error(x[:CHECKED_ROWS])}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _time_passes(name: str, passes: DensePasses) -> dict[str, float]:
    started = time.perf_counter()
    sums = passes.accumulate()
    accumulated = time.perf_counter()
    passes.evaluate(sums)
    return {f"{name}_accumulate": accumulated - started, f"{name}_evaluate": time.perf_counter() - accumulated}


def _result(seconds: dict[str, list[float]], side: int, num_rows: int, num_features: int) -> dict[str, Any]:
    medians = {way: spread(taken) for way, taken in seconds.items()}
    flops = {way: 2 * (side**3 if way == "sgemm" else num_rows * num_features**2) for way in medians}
    rates = {way: flops[way] / medians[way]["median"] / 1e9 for way in medians}
    ratios = {way: rate / rates["sgemm"] for way, rate in rates.items() if way != "sgemm"}
    return {
        "num_rows": num_rows,
        "num_features": num_features,
        "threads": available_cores(),
        "sgemm_side": side,
        "seconds": medians,
        "gflop_per_second": rates,
        "ratio_to_sgemm": ratios,
        "wanted_ratio": WANTED_RATIO,
        "holds": ratios["memory_accumulate"] >= WANTED_RATIO and ratios["store_accumulate"] >= WANTED_RATIO,
    }


def _error(x: NDArray[np.float32]) -> float:
    """Largest relative difference from the same formula in float64 throughout."""
    wide, gamma = x.astype(np.float64), 1.0 / x.shape[1]
    weights = np.exp(-gamma * (wide**2).sum(axis=1))
    quadratic = 2 * gamma**2 * (wide.T * weights) @ wide
    wanted = weights * (weights.sum() + 2 * gamma * wide @ (weights @ wide) + ((wide @ quadratic) * wide).sum(axis=1))
    return float(np.abs(attribute_vector(x, Resources.of()) / (wanted / wanted.sum()) - 1).max())


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _write(x: NDArray[np.float32], directory: Path) -> DenseFeatures:
    layout = DenseLayout.plan(*x.shape)
    source = DenseSource(
        x.shape[1], x.dtype, "noise", lambda step: (x[start : start + step] for start in range(0, len(x), step))
    )
    return DenseFeatures.open(directory, layout, write_dense(source, layout, directory, on_rows=lambda _: None))


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--work", type=Path, default=DEFAULT_WORK)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    result = run(arguments.work, arguments.rows, arguments.features, arguments.repeats)
    for way, ratio in result["ratio_to_sgemm"].items():
        print(f"{way}: {result['gflop_per_second'][way]:.1f} GFLOP/s, {ratio:.2f} of sgemm")
    save("attribute", result)


if __name__ == "__main__":
    main()

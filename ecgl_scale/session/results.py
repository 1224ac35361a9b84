"""What a run leaves for people and for ``report``: results.json and metrics.parquet.

AA = mean over j of M[T, j], the last row of the performance matrix; AF = mean over j < T of M[T, j] - M[j, j].
"""

from __future__ import annotations

import math
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ecgl_scale.config.schema import RunConfig, changed_keys
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.session.methods import about_method
from ecgl_scale.session.state import MATRICES, Rows, RunState
from ecgl_scale.tasks.measures import format_accuracies
from ecgl_scale.tasks.metrics import PerformanceMatrix
from ecgl_scale.tasks.stream import TaskStream

PACKAGES = ("ecgl-scale", "torch", "dgl", "numpy", "numba", "pyarrow", "zarr")


def make_results(config: RunConfig, stream: TaskStream, state: RunState, plan: MemoryPlan) -> dict[str, Any]:
    """The content of ``results.json``; only ``stages`` differs between two runs of one config."""
    planned, names = plan.planned_bytes, stream.class_names
    return {
        "version": 1,
        **_accuracies(config, state, len(stream)),
        "accuracy": "macro",
        "eval_scope": config.tasks.eval_scope,
        "num_epochs": sum(map(len, state.losses)),
        "final_losses": [losses[-1] for losses in state.losses],
        "method": config.method,
        "about_method": about_method(config.method),
        "preset": config.preset,
        "setting": config.setting,
        "score": config.tasks.score,
        "seed": config.seed,
        "split_hash": state.split_hash,
        "store": str(config.store),
        "store_id": state.store_id,
        "config_digest": state.digest,
        "changed": changed_keys(config),
        "num_tasks": len(stream),
        "tasks": [
            {
                "name": task.name,
                "classes": list(task.classes),
                **({} if names is None else {"class_names": [names[label] for label in task.classes]}),
                "num_nodes": task.num_nodes,
            }
            for task in stream
        ],
        "dropped_classes": [
            {**asdict(gone), **({} if names is None else {"name": names[gone.label]})} for gone in stream.dropped
        ],
        "stages": {
            name: {**asdict(record), "planned_bytes": planned.get(name, 0)} for name, record in state.stages.items()
        },
        "versions": _versions(),
    }


def _accuracies(config: RunConfig, state: RunState, num_tasks: int) -> dict[str, Any]:
    """Measures of the first scope by their plain names, of the scope ``seen`` with ``_seen``."""
    macro, micro = (matrices_of(config, rows, num_tasks) for rows in (state.macro_rows, state.micro_rows))
    found = _measures(macro[0], micro[0])
    if macro[1] is not None and micro[1] is not None:
        found |= {f"{name}_seen": value for name, value in _measures(macro[1], micro[1]).items()}
    return found


def _measures(macro: PerformanceMatrix, micro: PerformanceMatrix) -> dict[str, Any]:
    return {
        "aa": _number(macro.average_accuracy()),
        "af": _number(macro.average_forgetting()),
        "matrix": macro.to_lists(),
        "aa_micro": _number(micro.average_accuracy()),
        "af_micro": _number(micro.average_forgetting()),
        "matrix_micro": micro.to_lists(),
        "aa_after_each_task": [_number(value) for value in macro.average_accuracies()],
        "af_after_each_task": [_number(value) for value in macro.average_forgettings()],
    }


def summary(results: dict[str, Any]) -> str:
    """The accuracy of a run as text, of both scopes where both were tested."""
    scope = results.get("eval_scope", "task")
    keys = {"task": ("aa", "af"), "seen": ("aa_seen", "af_seen")}
    scopes = keys if scope == "both" else {scope: keys[scope]}
    return format_accuracies({name: (results[aa], results[af]) for name, (aa, af) in scopes.items()})


def matrices_of(
    config: RunConfig, rows: tuple[Rows, Rows], num_tasks: int
) -> tuple[PerformanceMatrix, PerformanceMatrix | None]:
    """The performance matrix of the first scope, and that of the scope ``seen``, where it is tested."""
    found = {scope: matrix_of(one, num_tasks) for scope, one in zip(config.tasks.scopes, rows, strict=False)}
    return found[config.tasks.scopes[0]], found.get("seen")


def matrix_of(rows: Rows, num_tasks: int) -> PerformanceMatrix:
    """The performance matrix of the rows that are there."""
    matrix = PerformanceMatrix.empty(num_tasks)
    for task, row in enumerate(rows):
        matrix.set_row(task, row)
    return matrix


def write_metrics(path: Path, state: RunState) -> None:
    """Write one row a measured value: losses by task and epoch, accuracies by task and tested task."""
    import pyarrow as pa

    from ecgl_scale.base.arrow import numbers_as_arrow, texts_as_arrow
    from ecgl_scale.base.parquet import write_tables

    rows: list[tuple[str, int, int | None, int | None, float]] = []
    for task, losses in enumerate(state.losses):
        rows += [("loss", task, epoch, None, loss) for epoch, loss in enumerate(losses)]
    for kind in MATRICES:
        for task, row in enumerate(getattr(state, kind)):
            rows += [(kind, task, None, tested, value) for tested, value in enumerate(row)]
    places = {"task": pa.int64(), "epoch": pa.int64(), "tested": pa.int64()}
    schema = pa.schema({"kind": pa.string(), **places, "value": pa.float64()})
    kinds, *numbers = zip(*rows, strict=True) if rows else [()] * len(schema)
    columns = [texts_as_arrow(kinds), *map(numbers_as_arrow, numbers, schema.types[1:])]
    write_tables(path, schema, [pa.table(columns, schema=schema)], repeated=["kind", *places])


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found

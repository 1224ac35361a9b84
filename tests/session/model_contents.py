"""All that the files of a model hold, taken apart: for tests that look for what should have left them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ecgl_scale.learn.tensors import load_tensors
from ecgl_scale.store.graph import GraphStore

ID_NAMES = ("node", "node_ids")


def arrays_of(model: Path) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Every array of every file below a directory, as ``file:name``; a file of an unknown kind is an error."""
    stores = sorted(path.parent for path in model.rglob("manifest.json"))
    for store in stores:
        graph = GraphStore.open(store)
        name = str(store.relative_to(model))
        features = graph.require_features()
        yield f"{name}:rows", np.asarray(features.rows(np.arange(graph.num_nodes)))
        yield from ((f"{name}:{column}", graph.column(column)) for column in ("node", "label"))
    for path in sorted(path for path in model.rglob("*") if path.is_file()):
        name = str(path.relative_to(model))
        if any(store in path.parents for store in stores):
            continue
        if path.suffix == ".safetensors":
            yield from ((f"{name}:{key}", array) for key, array in load_tensors(path)[0].items())
        elif path.suffix in (".arrow", ".parquet"):
            table = pa.ipc.open_file(path).read_all() if path.suffix == ".arrow" else pq.read_table(path)
            for column in table.column_names:
                values = table[column].combine_chunks()
                while isinstance(values, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
                    values = values.flatten()
                yield f"{name}:{column}", values.to_numpy(zero_copy_only=False)
        else:
            assert path.suffix in (".json", ".jsonl", ".yaml", ".log") or path.name == ".lock", path


def ids_of(model: Path) -> dict[str, set[int]]:
    """Ids of nodes, by the array that has them."""
    return {
        name: set(np.asarray(array).tolist())
        for name, array in arrays_of(model)
        if name.rpartition(":")[2] in ID_NAMES or name.rpartition(":")[2].startswith("nodes.")
    }


def floats_of(model: Path) -> set[float]:
    """Every number that any array has, and any JSON."""
    found: set[float] = set()
    for _, array in arrays_of(model):
        if array.dtype.kind == "f":
            found |= set(array.astype(np.float64).reshape(-1).tolist())
    for path in model.rglob("*.json"):
        found |= set(_numbers(json.loads(path.read_text())))
    return found


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)
    elif isinstance(value, int | float):
        yield float(value)


def all_bytes(model: Path) -> bytes:
    """The raw bytes of all files, one after the other."""
    return b"\n".join(path.read_bytes() for path in sorted(model.rglob("*")) if path.is_file())

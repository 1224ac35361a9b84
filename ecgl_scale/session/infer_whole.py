"""Predictions for every node of a store: what they need, and the outputs themselves."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.engine.plan import MemoryPlan, StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.infer.hop_rows import draw_map
from ecgl_scale.infer.input_rows import make_input_rows
from ecgl_scale.infer.layerwise import infer_logits, plan_inference, plan_inference_worker
from ecgl_scale.infer.random_features import RandomFeatures
from ecgl_scale.session.predict import rows_at_once
from ecgl_scale.session.saved_model import SavedModel
from ecgl_scale.session.score_table import WRITE_COPIES, WRITE_ROWS, WRITTEN_ROW_BYTES
from ecgl_scale.session.setup import infer_settings
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB

KERNEL_BYTES = 32 * MIB
"""What kernels take once they are loaded, which an inference does before it looks at what is held."""


def require_same_features(model: SavedModel, graph: GraphStore) -> None:
    """Refuse a store whose features are not those the model was trained on."""
    graph.require_features()
    if graph.num_features != model.num_features:
        raise UsageError(
            f"the store has {graph.num_features} features, the run was trained on {model.num_features}",
            where=graph.path,
            expected="a store with the same features",
        )


def plan_whole(model: SavedModel, graph: GraphStore, resources: Resources) -> MemoryPlan:
    """What predicting and writing will need; reads nothing."""
    config, held, widths = model.config, own_memory_bytes(), model.weights.widths
    room, threads = max(resources.room_bytes - KERNEL_BYTES, 0), resources.threads
    logits = 4 * graph.num_nodes * widths[-1]
    if model.made.is_made:
        made = model.made_on(graph)
        stage = made.plan(graph, norm=config.infer.norm, room_bytes=room, threads=threads)
        rows = 4 * min(rows_at_once(made), graph.num_nodes) * (widths[0] + 2 * sum(widths[1:]))
        rows += made.reading_bytes(graph.num_features)
        stage = replace(stage, host_bytes=max(stage.host_bytes, logits + rows))  # the rows are in files by then
        written = plan_write(model, graph.num_nodes, held_bytes=logits)
    else:
        written = plan_write(model, graph.num_nodes, held_bytes=0)
        stage = plan_inference(
            graph,
            widths,
            settings=infer_settings(config),
            room_bytes=room,
            threads=threads,
            beside_result_bytes=written.host_bytes,
        )
        # The logits are still there, unless they are in a file.
        written = replace(written, host_bytes=min(written.host_bytes + logits, stage.host_bytes))
    stages = (replace(stage, stage="infer", host_bytes=stage.host_bytes + KERNEL_BYTES), written)
    return MemoryPlan(stages, held, resources.budget)


def plan_write(model: SavedModel, num_rows: int, *, held_bytes: int) -> StagePlan:
    """What writing rows of a table needs, while what they are made of is held."""
    rows = min(WRITE_ROWS, num_rows) * (WRITE_COPIES * 8 * model.weights.num_classes + WRITTEN_ROW_BYTES)
    return StagePlan("write", held_bytes + rows, f"outputs of {num_rows:,} nodes", setting="memory")


def plan_whole_worker(model: SavedModel, graph: GraphStore, *, room_bytes: int, threads: int) -> StagePlan:
    """What one worker needs where the work is spread."""
    if model.made.is_made:
        found = model.made_on(graph).plan(graph, norm=model.config.infer.norm, room_bytes=room_bytes, threads=threads)
    else:
        settings = infer_settings(model.config)
        found = plan_inference_worker(
            graph, model.weights.widths, settings=settings, room_bytes=room_bytes, threads=threads
        )
    return replace(found, stage="infer")


def infer_whole(model: SavedModel, graph: GraphStore, work: Path, resources: Resources) -> dict[str, Any]:
    """``logits`` of every node, with ``seconds`` and ``backend``; in memory, or mapped from a file in ``work``."""
    if model.made.is_made:
        return _infer_propagated(model, graph, work, resources)
    settings = infer_settings(model.config)
    found = infer_logits(
        graph,
        model.weights.arrays(),
        resources,
        settings=settings,
        scaling=model.scaling,
        work_directory=work,
        beside_result_bytes=plan_write(model, graph.num_nodes, held_bytes=0).host_bytes,
    )
    return {"logits": found.logits, "seconds": found.seconds, "backend": found.backend}


def _infer_propagated(model: SavedModel, graph: GraphStore, work: Path, resources: Resources) -> dict[str, Any]:
    started = time.perf_counter()
    made = model.made_on(graph)
    rows = make_input_rows(
        graph,
        made,
        model_map(model, resources),
        resources,
        norm=model.config.infer.norm,
        scaling=model.scaling,
        directory=work,
    )
    logits, step = np.empty((graph.num_nodes, model.weights.num_classes), np.float32), rows_at_once(made)
    for start in range(0, graph.num_nodes, step):
        local = np.arange(start, min(start + step, graph.num_nodes))
        logits[start : start + step] = multiply_layers(model, rows[local])
    return {"logits": logits, "seconds": time.perf_counter() - started, "backend": "numba"}


def model_map(model: SavedModel, resources: Resources) -> RandomFeatures | None:
    """The random numbers of a model's input, which must be those that it was made with."""
    found = draw_map(model.made, model.num_features, resources)
    expected = model.more.get("input_crc32c")
    if found is not None and expected is not None and found.crc32c != expected:
        raise InvalidInputError(
            "the model's random features cannot be drawn again: this version of numpy draws other numbers",
            expected=f"numbers with the crc32c {expected:08x}",
            fix="use the version of numpy that results.json of the run names",
        )
    return found


def multiply_layers(model: SavedModel, features: Any) -> Any:
    """Outputs for rows of the model's input that were made already."""
    import torch

    with torch.no_grad():
        return model.weights.mlp(torch.from_numpy(np.asarray(features, np.float32))).numpy()

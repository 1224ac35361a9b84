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
from ecgl_scale.errors import UsageError
from ecgl_scale.infer.hops import k_hop_features, plan_k_hops
from ecgl_scale.infer.layerwise import infer_logits, plan_inference, plan_inference_worker
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
    if graph.num_features != model.weights.num_features:
        raise UsageError(
            f"the store has {graph.num_features} features, the run was trained on {model.weights.num_features}",
            where=graph.path,
            expected="a store with the same features",
        )


def plan_whole(model: SavedModel, graph: GraphStore, resources: Resources) -> MemoryPlan:
    """What predicting and writing will need; reads nothing."""
    config, held, widths = model.config, own_memory_bytes(), model.weights.widths
    room, threads = resources.room_bytes, resources.threads
    logits = 4 * graph.num_nodes * widths[-1]
    if config.learn.num_hops:
        stage = plan_k_hops(graph, config.learn.num_hops, norm=config.infer.norm, room_bytes=room, threads=threads)
        rows = 4 * min(WRITE_ROWS, graph.num_nodes) * (widths[0] + 2 * sum(widths[1:]))
        stage = replace(stage, host_bytes=stage.host_bytes + logits + rows)
    else:
        stage = plan_inference(graph, widths, settings=infer_settings(config), room_bytes=room, threads=threads)
    written = plan_write(model, graph.num_nodes, held_bytes=logits)
    stages = (replace(stage, stage="infer", host_bytes=stage.host_bytes + KERNEL_BYTES), written)
    return MemoryPlan(stages, held, resources.budget)


def plan_write(model: SavedModel, num_rows: int, *, held_bytes: int) -> StagePlan:
    """What writing rows of a table needs, while what they are made of is held."""
    rows = min(WRITE_ROWS, num_rows) * (WRITE_COPIES * 8 * model.weights.num_classes + WRITTEN_ROW_BYTES)
    return StagePlan("write", held_bytes + rows, f"outputs of {num_rows:,} nodes", setting="memory")


def plan_whole_worker(model: SavedModel, graph: GraphStore, *, room_bytes: int, threads: int) -> StagePlan:
    """What one worker needs where the work is spread."""
    learn, norm = model.config.learn, model.config.infer.norm
    if learn.num_hops:
        found = plan_k_hops(graph, learn.num_hops, norm=norm, room_bytes=room_bytes, threads=threads)
    else:
        settings = infer_settings(model.config)
        found = plan_inference_worker(
            graph, model.weights.widths, settings=settings, room_bytes=room_bytes, threads=threads
        )
    return replace(found, stage="infer")


def infer_whole(model: SavedModel, graph: GraphStore, work: Path, resources: Resources) -> dict[str, Any]:
    """``logits`` of every node, with ``seconds`` and ``backend``; in memory, or mapped from a file in ``work``."""
    if model.config.learn.num_hops:
        return _infer_propagated(model, graph, work, resources)
    settings = infer_settings(model.config)
    found = infer_logits(
        graph, model.weights.arrays(), resources, settings=settings, scaling=model.scaling, work_directory=work
    )
    return {"logits": found.logits, "seconds": found.seconds, "backend": found.backend}


def _infer_propagated(model: SavedModel, graph: GraphStore, work: Path, resources: Resources) -> dict[str, Any]:
    started, config = time.perf_counter(), model.config
    features = k_hop_features(
        graph,
        config.learn.num_hops,
        resources,
        norm=config.infer.norm,
        scaling=model.scaling,
        work_directory=work,
    )
    logits = np.empty((graph.num_nodes, model.weights.num_classes), np.float32)
    for start in range(0, graph.num_nodes, WRITE_ROWS):
        logits[start : start + WRITE_ROWS] = multiply_layers(model, features[start : start + WRITE_ROWS])
    return {"logits": logits, "seconds": time.perf_counter() - started, "backend": "numba"}


def multiply_layers(model: SavedModel, features: Any) -> Any:
    """Outputs for rows of features that were passed along the edges already."""
    import torch

    with torch.no_grad():
        return model.weights.mlp(torch.from_numpy(np.array(features, np.float32))).numpy()

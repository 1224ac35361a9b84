"""``ecgl infer``: predict every node of a store, this or another, with a finished run's weights."""

from __future__ import annotations

import json
import logging
import math
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_scale.errors import EcglError, InvalidInputError, UsageError
from ecgl_scale.infer.layerwise import infer_logits, plan_inference
from ecgl_scale.infer.propagate import plan_propagated, propagate_features
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.scaling import Scaling
from ecgl_scale.pipeline.directory import CONFIG_NAME
from ecgl_scale.pipeline.learner import ABOUT_NAME, MODEL_NAME
from ecgl_scale.pipeline.setup import infer_settings
from ecgl_scale.run.config import RunConfig, load_config
from ecgl_scale.run.durable import storage_errors
from ecgl_scale.run.events import EventSink, ignore_events
from ecgl_scale.run.memory import MemoryBudget, PeakSampler, own_memory_bytes
from ecgl_scale.run.plan import MemoryPlan, StagePlan
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import MIB

_log = logging.getLogger(__name__)
WRITE_ROWS = 1 << 16
WRITE_COPIES, WRITTEN_ROW_BYTES = 3, 100
"""Of the outputs of rows that are written at once, in float64; and of the row itself, on its way through Arrow."""
KERNEL_BYTES = 32 * MIB
"""What kernels take once they are loaded, which an inference does before it looks at what is held."""


def infer_store(
    run: Path,
    store: Path,
    out: Path,
    *,
    memory: str | None = None,
    threads: int | None = None,
    on_event: EventSink = ignore_events,
) -> dict[str, Any]:
    """Write ``node, label, score`` of every node to a Parquet file; ``score`` is the softmax of the label's output.

    Raises
    ------
    InvalidInputError
        There is no finished run.
    UsageError
        The store's features are not those the run was trained on.
    """
    config, weights, classes, scaling = _load_model(run)
    graph = GraphStore.open(store)
    if graph.num_features != weights.num_features:
        raise UsageError(
            f"the store has {graph.num_features} features, the run was trained on {weights.num_features}",
            where=store,
            expected="a store with the same features",
        )
    plan = _plan(config, weights, graph, memory, threads)
    _log.info(plan.summary())
    work = out.absolute().with_name(f".{out.name}.work")
    with storage_errors(out):
        work.mkdir(parents=True, exist_ok=True)
    result: Any
    try:
        with PeakSampler() as sampler:
            if config.learn.num_hops:
                result = _infer_propagated(config, weights, graph, scaling, work, memory, threads, on_event)
            else:
                found = infer_logits(
                    graph,
                    weights.arrays(),
                    settings=infer_settings(config),
                    scaling=scaling,
                    memory=memory,
                    threads=threads,
                    work_directory=work,
                    on_event=on_event,
                )
                result = {"logits": found.logits, "seconds": found.seconds, "backend": found.backend}
            _write(out, result.pop("logits"), np.array(classes, np.int64))
    except EcglError:
        with suppress(OSError):
            work.rmdir()  # only where nothing is in it that the same command could go on with
        raise
    shutil.rmtree(work, ignore_errors=True)
    about = {"out": str(out), "num_nodes": graph.num_nodes, "num_classes": len(classes), **result}
    return {**about, "peak_bytes": sampler.peak_bytes, "plan": plan.as_json()}


def _plan(
    config: RunConfig, weights: SharedWeights, graph: GraphStore, memory: str | None, threads: int | None
) -> MemoryPlan:
    """What predicting and writing will need; reads nothing."""
    held, widths = own_memory_bytes(), weights.widths
    logits = 4 * graph.num_nodes * widths[-1]
    if config.learn.num_hops:
        stage = plan_propagated(graph, config.learn.num_hops, norm=config.infer.norm, memory=memory, threads=threads)
        rows = 4 * min(WRITE_ROWS, graph.num_nodes) * (widths[0] + 2 * sum(widths[1:]))
        stage = replace(stage, host_bytes=stage.host_bytes + logits + rows)
    else:
        stage = plan_inference(graph, widths, settings=infer_settings(config), memory=memory, threads=threads)
    rows = min(WRITE_ROWS, graph.num_nodes) * (WRITE_COPIES * 8 * widths[-1] + WRITTEN_ROW_BYTES)
    written = StagePlan("write", logits + rows, f"outputs of {graph.num_nodes:,} nodes", setting="memory")
    stages = (replace(stage, stage="infer", host_bytes=stage.host_bytes + KERNEL_BYTES), written)
    return MemoryPlan(stages, held, MemoryBudget.of(memory))


def _load_model(run: Path) -> tuple[RunConfig, SharedWeights, list[int], Scaling]:
    try:
        about = json.loads((run / ABOUT_NAME).read_text(encoding="utf-8"))
        classes, scaling = about["classes"], Scaling.from_json(json.dumps(about["scaling"]))
    except (OSError, ValueError, KeyError) as error:
        raise InvalidInputError(
            "this is not the directory of a finished run", where=run, fix="let it finish: ecgl run --resume"
        ) from error
    weights = SharedWeights.load(run / MODEL_NAME)
    if weights.num_classes != len(classes):
        raise InvalidInputError(
            f"the weights have {weights.num_classes} outputs for {len(classes)} classes", where=run / MODEL_NAME
        )
    return load_config(run / CONFIG_NAME), weights, classes, scaling


def _infer_propagated(
    config: RunConfig,
    weights: SharedWeights,
    graph: GraphStore,
    scaling: Scaling,
    work: Path,
    memory: str | None,
    threads: int | None,
    on_event: EventSink,
) -> dict[str, Any]:
    import torch

    started = time.perf_counter()
    features = propagate_features(
        graph,
        config.learn.num_hops,
        norm=config.infer.norm,
        scaling=scaling,
        memory=memory,
        threads=threads,
        work_directory=work,
        on_event=on_event,
    )
    logits = np.empty((graph.num_nodes, weights.num_classes), np.float32)
    with torch.no_grad():
        for start in range(0, graph.num_nodes, WRITE_ROWS):
            rows = torch.from_numpy(np.array(features[start : start + WRITE_ROWS], np.float32))
            logits[start : start + WRITE_ROWS] = weights.mlp(rows).numpy()
    return {"logits": logits, "seconds": time.perf_counter() - started, "backend": "numba"}


def _write(out: Path, logits: Any, classes: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("node", pa.int64()), ("label", pa.int64()), ("score", pa.float32())])
    partial = out.with_name(f".{out.name}.partial")
    with storage_errors(out, needed_bytes=20 * len(logits)):
        with pq.ParquetWriter(partial, schema) as writer:
            for start in range(0, len(logits), WRITE_ROWS):
                rows = np.asarray(logits[start : start + WRITE_ROWS], np.float64)
                best = rows.argmax(axis=1)
                shifted = np.exp(rows - rows.max(axis=1, keepdims=True))
                score = 1.0 / shifted.sum(axis=1)
                if not math.isfinite(float(score.sum())):
                    where = f"nodes {start} to {start + len(rows) - 1}"
                    raise InvalidInputError("an output is not finite", where=where)
                columns = (np.arange(start, start + len(rows)), classes[best], score.astype(np.float32))
                writer.write_table(pa.table([pa.array(column) for column in columns], schema=schema))
        partial.replace(out)

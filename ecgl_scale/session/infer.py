"""``ecgl infer``: predict every node of a store, this or another, with a finished run's or a saved model's weights."""

from __future__ import annotations

import logging
import math
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_scale.base.durable import storage_errors
from ecgl_scale.base.events import EventSink, ignore_events
from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.base.output_file import check_output_file
from ecgl_scale.engine.cluster.entrance import with_workers
from ecgl_scale.engine.cluster.settings import ALONE, ClusterSettings
from ecgl_scale.engine.cluster.worker_memory import require_workers
from ecgl_scale.engine.plan import MemoryPlan, StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.infer.hops import k_hop_features, plan_k_hops
from ecgl_scale.infer.layerwise import infer_logits, plan_inference, plan_inference_worker
from ecgl_scale.session.remote_run import model_directory
from ecgl_scale.session.saved_model import SavedModel, load_model
from ecgl_scale.session.setup import infer_settings
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.remote import manifest_files
from ecgl_scale.units import MIB

_log = logging.getLogger(__name__)
RUN_TABLES = ("metrics.parquet", "split.parquet")
"""A run's own files that are Parquet, as predictions are."""
WRITE_ROWS = 1 << 16
WRITE_COPIES, WRITTEN_ROW_BYTES = 3, 100
"""Copies in float64 of the outputs that are written at once; and the bytes of a row on its way through Arrow."""
KERNEL_BYTES = 32 * MIB
"""What kernels take once they are loaded, which an inference does before it looks at what is held."""


def infer_store(
    run: AnyPath,
    store: AnyPath,
    out: Path,
    *,
    memory: str | None = None,
    threads: int | None = None,
    cluster: ClusterSettings = ALONE,
    on_event: EventSink = ignore_events,
) -> dict[str, Any]:
    """Write ``node, label, score`` of every node to a Parquet file; ``score`` is the softmax of the label's output.

    ``memory`` and ``threads`` are those of the run's config where they are not given; its workers are not asked.

    Raises
    ------
    InvalidInputError
        There is no finished run or saved model, its files do not belong together, or ``out`` cannot be written.
    UsageError
        The store's features are not those the run was trained on.
    """
    target = check_output_file(out)
    if isinstance(run, Path):
        _refuse_own_files(run, target)
    with model_directory(run) as directory:
        model = load_model(directory)
    config, num_features = model.config, model.weights.num_features
    resources = Resources.of(
        config.memory if memory is None else memory,
        config.threads if threads is None else threads,
        on_event=on_event,
    )
    graph = GraphStore.open(store)
    graph.require_features()
    if graph.num_features != num_features:
        raise UsageError(
            f"the store has {graph.num_features} features, the run was trained on {num_features}",
            where=store,
            expected="a store with the same features",
        )
    _warn(model, graph)
    with with_workers(cluster, resources, shared=[target], inputs=manifest_files(graph.path)) as resources:
        found = _predict(model, graph, target, resources)
    return {"out": str(out), "num_nodes": graph.num_nodes, "num_classes": len(model.classes), **found}


def _predict(model: SavedModel, graph: GraphStore, target: Path, resources: Resources) -> dict[str, Any]:
    """Plan, predict and write; what is finished waits in a directory beside the target where that fails."""
    config = model.config
    plan = _plan(model, graph, resources)
    _log.info(plan.summary())
    require_workers(
        resources, lambda room, threads: [_plan_worker(model, graph, room_bytes=room, threads=threads)], with_torch=True
    )
    work = target.absolute().with_name(f".{target.name}.work")
    resources = resources.with_work(work / "engine")
    with storage_errors(target):
        work.mkdir(exist_ok=True)
    result: Any
    try:
        with PeakSampler() as sampler:
            if config.learn.num_hops:
                result = _infer_propagated(model, graph, work, resources)
            else:
                found = infer_logits(
                    graph,
                    model.weights.arrays(),
                    resources,
                    settings=infer_settings(config),
                    scaling=model.scaling,
                    work_directory=work,
                )
                result = {"logits": found.logits, "seconds": found.seconds, "backend": found.backend}
            _write(target, result.pop("logits"), model)
    except BaseException:  # Ctrl-C and requests to stop too
        with suppress(OSError):
            work.rmdir()  # only where nothing is in it that the same command could go on with
        raise
    shutil.rmtree(work, ignore_errors=True)
    return {**result, "peak_bytes": sampler.peak_bytes, "plan": plan.as_json()}


def _refuse_own_files(run: Path, target: Path) -> None:
    """Refuse to write over a run's files: predictions may go beside them, but never in the place of one."""
    is_inside = run.resolve() in target.resolve().parents
    if is_inside and target.exists() and (target.suffix != ".parquet" or target.name in RUN_TABLES):
        raise InvalidInputError("this file belongs to the run", where=target, fix="choose another --out")


def _warn(model: SavedModel, graph: GraphStore) -> None:
    """Warn of what someone might not expect, though it is no error."""
    if model.config.setting == "task-il":
        _log.warning(
            "the model was trained for task-il, but nothing says which task a node is of: "
            "every node is predicted among all %d classes (class-il), where such models do worse",
            len(model.classes),
        )
    partitions = model.config.infer.partitions
    if partitions != "auto" and partitions > graph.num_nodes:
        _log.warning("infer.partitions is %d; the store is cut into its %d nodes", partitions, graph.num_nodes)


def _plan(model: SavedModel, graph: GraphStore, resources: Resources) -> MemoryPlan:
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
    rows = min(WRITE_ROWS, graph.num_nodes) * (WRITE_COPIES * 8 * widths[-1] + WRITTEN_ROW_BYTES)
    written = StagePlan("write", logits + rows, f"outputs of {graph.num_nodes:,} nodes", setting="memory")
    stages = (replace(stage, stage="infer", host_bytes=stage.host_bytes + KERNEL_BYTES), written)
    return MemoryPlan(stages, held, resources.budget)


def _plan_worker(model: SavedModel, graph: GraphStore, *, room_bytes: int, threads: int) -> StagePlan:
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


def _infer_propagated(
    model: SavedModel,
    graph: GraphStore,
    work: Path,
    resources: Resources,
) -> dict[str, Any]:
    import torch

    started, weights = time.perf_counter(), model.weights
    features = k_hop_features(
        graph,
        model.config.learn.num_hops,
        resources,
        norm=model.config.infer.norm,
        scaling=model.scaling,
        work_directory=work,
    )
    logits = np.empty((graph.num_nodes, weights.num_classes), np.float32)
    with torch.no_grad():
        for start in range(0, graph.num_nodes, WRITE_ROWS):
            rows = torch.from_numpy(np.array(features[start : start + WRITE_ROWS], np.float32))
            logits[start : start + WRITE_ROWS] = weights.mlp(rows).numpy()
    return {"logits": logits, "seconds": time.perf_counter() - started, "backend": "numba"}


def _write(out: Path, logits: Any, model: SavedModel) -> None:
    from ecgl_scale.base.parquet import write_parquet

    def batch(start: int) -> tuple[Any, Any, Any]:
        rows = np.array(logits[start : start + WRITE_ROWS], np.float64)
        rows[:, model.forgotten] = -np.inf
        return _columns(rows, start, np.array(model.classes, np.int64))

    batches = (batch(start) for start in range(0, len(logits), WRITE_ROWS))
    columns = {"node": np.int64, "label": np.int64, "score": np.float32}
    write_parquet(out, columns, batches, repeated=("label",), needed_bytes=20 * len(logits))


def _columns(rows: Any, start: int, classes: Any) -> tuple[Any, Any, Any]:
    """Node, label and score of rows of outputs."""
    score = 1.0 / np.exp(rows - rows.max(axis=1, keepdims=True)).sum(axis=1)
    if not math.isfinite(float(score.sum())):
        raise InvalidInputError("an output is not finite", where=f"nodes {start} to {start + len(rows) - 1}")
    return np.arange(start, start + len(rows)), classes[rows.argmax(axis=1)], score.astype(np.float32)

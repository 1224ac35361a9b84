"""Inference over a whole store: layer by layer, partition by partition, under a memory budget.

Features and edges are read once for each aggregation that the layers need (two layers: two), more often only where the
columns of all nodes do not fit the budget. With our own kernels the logits are the same bits for any number of
threads, partitions and slices; with torch and DGL they agree to float32 rounding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_kernels.halo import add_source_scales
from ecgl_kernels.product import multiply_rows
from ecgl_kernels.spmm import propagate_rows
from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.base.memory import MemoryBudget, own_memory_bytes
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.graph.adjacency import Adjacency
from ecgl_scale.infer.backends.choose import choose_backend, find_device_room, make_worker
from ecgl_scale.infer.execute import Execution
from ecgl_scale.infer.features import FeatureRows, StoredFeatures
from ecgl_scale.infer.journal import InferJournal
from ecgl_scale.infer.kept_cut import KeptCuts
from ecgl_scale.infer.layout import Layout, Planner, halo_bytes
from ecgl_scale.infer.partition import Partition, cut_partitions, measure_halos
from ecgl_scale.infer.program import Program, shape_layers, write_program
from ecgl_scale.infer.settings import InferResult, InferSettings, Layer, Layers, RowScaling, read_layers
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.units import format_bytes

STAGE = "infer"


def infer_logits(
    graph: GraphStore,
    layers: Layers,
    resources: Resources,
    *,
    settings: InferSettings | None = None,
    scaling: RowScaling | None = None,
    work_directory: Path,
    cuts_directory: Path | None = None,
) -> InferResult:
    """Logits of every node: the weights as a graph network over the stored edges.

    Parameters
    ----------
    layers
        (weight [out, in], bias [out] or None) of each layer, arrays or tensors.
    scaling
        Applied to the features as they are read; none for stores whose features are scaled already.
    work_directory
        Where matrices go that do not fit, and finished partitions, so that a killed inference goes on. One inference
        at a time; nothing is left there but logits that did not fit in memory.
    cuts_directory
        Where METIS's cut of the graph is kept for the next inference over it; nowhere without.

    Raises
    ------
    UsageError
        No features, weights that do not fit them or each other, a backend or device that is not there.
    DoesNotFitError
        Not even four columns of all nodes fit; the message has the smallest budget that works.

    Memory
    ------
    See ``layout``; at least 28 bytes a node.
    """
    started = time.perf_counter()
    settings = settings or InferSettings()
    features = FeatureRows(graph, scaling)
    found = read_layers(layers, features.width)
    program = write_program(found, settings, sparse=features.is_sparse)
    return run_program(
        graph, program, features, _identity(graph, found, settings, scaling), resources,
        settings=settings, work_directory=work_directory, cuts_directory=cuts_directory, started=started,
    )  # fmt: skip


def run_program(
    graph: GraphStore,
    program: Program,
    features: FeatureRows,
    identity: dict[str, Any],
    resources: Resources,
    *,
    settings: InferSettings,
    work_directory: Path,
    started: float,
    cuts_directory: Path | None = None,
) -> InferResult:
    """Plan, find what an earlier call has done, and do the rest."""
    backend, threads = choose_backend(settings), resources.threads
    worker = make_worker(backend, settings, threads)
    edges = Adjacency(graph)
    _load_kernels(edges)
    budget = resources.budget
    held = own_memory_bytes()
    device_room = find_device_room(backend, settings)
    planner = Planner(graph, program, settings, backend=backend, threads=threads, device_room=device_room)
    journal = InferJournal(work_directory, identity)
    finished = journal.load()
    if finished is not None and held + finished.layout.host_bytes > budget.total_bytes:
        finished = None  # it was laid out for more memory
    layout = planner.find(budget.total_bytes - held) if finished is None else finished.layout
    formula = f"{format_bytes(held)} held already + {planner.formula(layout)}"
    budget.require(held + layout.host_bytes, stage="the inference", formula=formula)
    edges.read_all(threads=threads)
    layout, partitions = _cut(
        layout, edges, program, settings,
        row_weight=planner.row_weight, store=graph.path, scratch=work_directory, budget=budget,
        kept=None if cuts_directory is None else KeptCuts.of(graph, cuts_directory),
    )  # fmt: skip
    with ExitStack() as stack:
        if backend != "numba":
            from ecgl_scale.infer.backends.torch_backend import torch_threads

            stack.enter_context(torch_threads(threads))
        execution = Execution(
            edges, edges.scales(settings.effective_norm), program, features, layout, partitions,
            worker=worker, journal=journal, threads=threads,
        )  # fmt: skip
        if finished is None or not execution.resume(finished):
            journal.clear()
        logits = execution.run(resources.on_event)
    return InferResult(
        logits, time.perf_counter() - started, execution.read_bytes, backend, len(partitions), execution.resumed,
        program.order, layout.host_bytes,
    )  # fmt: skip


def plan_inference(
    graph: GraphStore,
    widths: Sequence[int],
    *,
    room_bytes: int,
    threads: int,
    settings: InferSettings | None = None,
    num_nodes: int | None = None,
    num_edges: int | None = None,
    made_dense: bool = False,
) -> StagePlan:
    """What ``infer_logits`` would need with layers of these widths (features first, classes last).

    ``num_nodes`` and ``num_edges`` are those of a subgraph that is still to be extracted; ``made_dense`` where its
    features will be dense though the store's are sparse.

    Memory
    ------
    ``host_bytes`` is what it would use of the budget, or where that is too small the least it can do with: see
    ``layout`` for the formula.
    """
    settings = settings or InferSettings()
    program = write_program(
        shape_layers(widths), settings, sparse=StoredFeatures.of(graph).is_sparse and not made_dense
    )
    return plan_program(
        graph, program, settings, room_bytes=room_bytes, threads=threads, num_nodes=num_nodes, num_edges=num_edges,
        made_dense=made_dense,
    )  # fmt: skip


def plan_program(
    graph: GraphStore,
    program: Program,
    settings: InferSettings,
    *,
    room_bytes: int,
    threads: int,
    num_nodes: int | None = None,
    num_edges: int | None = None,
    made_dense: bool = False,
) -> StagePlan:
    """What ``run_program`` would need."""
    stored, rows = StoredFeatures.of(graph), num_nodes or graph.num_nodes
    features = StoredFeatures.made_dense(rows, stored.num_features) if made_dense else stored
    backend = choose_backend(settings)
    planner = Planner(
        graph, program, settings, backend=backend, threads=threads, num_nodes=num_nodes, num_edges=num_edges,
        device_room=find_device_room(backend, settings), features=features,
    )  # fmt: skip
    layout = planner.find(room_bytes)
    share = 1.0 if made_dense else rows / graph.num_nodes
    traffic = planner.traffic(layout, int(features.read_bytes * share))
    return StagePlan(
        STAGE, layout.host_bytes, planner.formula(layout),
        read_bytes=traffic.read_bytes, written_bytes=traffic.written_bytes, passes=traffic.passes,
        blocks=layout.partitions, device_bytes=planner.device_bytes(layout),
        setting="memory" if settings.partitions == "auto" else "infer.partitions",
    )  # fmt: skip


def _cut(
    layout: Layout,
    edges: Adjacency,
    program: Program,
    settings: InferSettings,
    *,
    row_weight: float,
    store: Path,
    scratch: Path,
    budget: MemoryBudget,
    kept: KeptCuts | None,
) -> tuple[Layout, list[Partition]]:
    """Cut partitions; where halos are gathered, into as many as it takes for each halo to fit."""
    count = layout.partitions
    width = max(one.width for one in program.passes)
    while True:
        partitions = cut_partitions(
            settings.partitioner, edges, count,
            row_weight=row_weight, store=store, scratch=scratch, budget=budget, kept=kept,
        )  # fmt: skip
        if not layout.halo:
            return layout, partitions
        need = max(halo_bytes(width, one.num_sources, one.num_edges) for one in measure_halos(edges, partitions))
        if need <= layout.halo_room:
            grown = replace(layout, partitions=count, host_bytes=layout.host_bytes - layout.halo_need + need)
            return replace(grown, halo_need=need), partitions
        if settings.partitions != "auto" or count >= edges.num_nodes:
            budget.require(
                budget.total_bytes - layout.halo_room + need,
                stage="the inference",
                formula=f"{format_bytes(need)} for the sources of the largest of {len(partitions)} partitions",
            )
        count = min(2 * count, edges.num_nodes)


def _identity(
    graph: GraphStore, layers: Sequence[Layer], settings: InferSettings, scaling: RowScaling | None
) -> dict[str, Any]:
    """What a journal belongs to. How much memory there is does not count: its layout is taken over where it fits."""
    crc = 0
    for layer in layers:
        # As they lie, by rows or by columns: nobody pays for turning them.
        crc = crc32c_of(layer.weight if layer.weight.flags.c_contiguous else np.ascontiguousarray(layer.weight.T), crc)
        crc = crc if layer.bias is None else crc32c_of(layer.bias, crc)
    return {
        "store": graph.identity,
        "weights": [[list(layer.weight.shape), layer.bias is not None] for layer in layers],
        "weights_crc32c": crc,
        "settings": [settings.encoder, settings.norm, settings.bias_place, choose_backend(settings)],
        "partitions": [settings.partitioner, settings.partitions, settings.uses_halos],
        "scaling": describe_scaling(scaling),
    }


def describe_scaling(scaling: RowScaling | None) -> Any:
    """As much of a scaling as tells it from another."""
    if scaling is None or scaling.kind == "none":
        return None
    arrays = [getattr(scaling, name, None) for name in ("mean", "deviation")]
    return [scaling.kind, *[None if one is None else crc32c_of(np.ascontiguousarray(one)) for one in arrays]]


def _load_kernels(edges: Adjacency) -> None:
    """Compile (or load) what we need before memory is planned, as the compiler's memory stays with the process."""
    indptr, indices, floats = np.zeros(1, np.int64), np.zeros(0, edges.id_dtype), np.zeros(0, np.float32)
    columns, values = np.zeros(0, np.uint32), np.zeros(0, np.float32)
    for array in (indptr, indices, columns, values):
        array.setflags(write=False)
    rows = np.zeros((0, 4), np.float32)
    propagate_rows(indptr, indices, rows, 0, edges.adds_self, None, None, rows)
    propagate_rows(indptr, indices, rows, 0, edges.adds_self, None, floats, rows)
    add_source_scales(indptr, indices, floats, np.zeros(0, np.float64))
    multiply_rows(indptr, columns, values, rows, rows)

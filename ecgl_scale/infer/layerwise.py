"""Inference over a whole store: layer by layer, partition by partition, under a memory budget.

Features and edges are read once for each aggregation that the layers need (two layers: two), more often only where the
columns of all nodes do not fit the budget. With our own kernels the logits are the same bits for any number of
threads, partitions and slices; with torch and DGL they agree to float32 rounding.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_kernels.halo import add_source_scales
from ecgl_kernels.product import multiply_rows
from ecgl_kernels.spmm import propagate_rows
from ecgl_scale.base.durable import crc32c_of
from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.graph.adjacency import Adjacency
from ecgl_scale.graph.metis import Metis
from ecgl_scale.graph.partition import Partitions, cut_partitions, measure_halos
from ecgl_scale.infer.asked import AskedRows
from ecgl_scale.infer.backends.choose import choose_backend, find_device_room, make_backend
from ecgl_scale.infer.execute import STAGE, Execution
from ecgl_scale.infer.feature_reader import FeatureReader
from ecgl_scale.infer.job import Job
from ecgl_scale.infer.journal import StepJournal
from ecgl_scale.infer.layout import Layout, Planner, halo_bytes
from ecgl_scale.infer.program import Program, shape_layers, write_program
from ecgl_scale.infer.settings import InferResult, InferSettings, Layer, Layers, read_layers
from ecgl_scale.infer.sizes import Sizes
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.scaling import Scaling
from ecgl_scale.units import format_bytes


def infer_logits(
    graph: GraphStore,
    layers: Layers,
    resources: Resources,
    *,
    settings: InferSettings | None = None,
    scaling: Scaling | None = None,
    work_directory: Path,
    cuts_directory: Path | None = None,
    beside_result_bytes: int = 0,
    asked: AskedRows | None = None,
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
    beside_result_bytes
        What the caller needs of the budget while it has the logits.
    asked
        The rows that the caller will look at: others may be zeros, as partitions without one are left out of the last
        layer. It needs contiguous partitions; from other partitioners all rows come.

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
    features = FeatureReader(graph, scaling)
    found = read_layers(layers, features.width)
    program = write_program(found, settings, sparse=features.is_sparse)
    identity = _identity(found, settings, features)
    if asked is not None:
        identity["asked"] = crc32c_of(asked.chunks)
    result = run_program(
        program,
        features,
        settings,
        identity,
        resources,
        work_directory,
        cuts_directory,
        beside_result_bytes=beside_result_bytes,
        asked=asked,
    )
    return replace(result, seconds=time.perf_counter() - started)


def run_program(
    program: Program,
    features: FeatureReader,
    settings: InferSettings,
    identity: dict[str, Any],
    resources: Resources,
    work_directory: Path,
    cuts_directory: Path | None = None,
    *,
    beside_result_bytes: int = 0,
    asked: AskedRows | None = None,
) -> InferResult:
    """Plan, find what an earlier call has done, and do the rest."""
    started, graph = time.perf_counter(), features.graph
    name, threads = choose_backend(settings), resources.threads
    backend = make_backend(name, settings, threads)
    adjacency = Adjacency(graph)
    _load_kernels(adjacency)
    shares_memory = resources.executor.shares_memory
    planner = Planner(
        Sizes.of(graph),
        program,
        settings,
        backend=name,
        threads=threads,
        device_room=find_device_room(name, settings),
        shares_memory=shares_memory,
        beside_result_bytes=beside_result_bytes,
    )
    journal = StepJournal(work_directory, {**identity, "shares_memory": shares_memory})
    budget, held = resources.budget, own_memory_bytes()
    finished = journal.load()
    if finished is not None and held + finished.layout.host_bytes > budget.total_bytes:
        finished = None  # it was laid out for more memory
    layout = planner.find(budget.total_bytes - held) if finished is None else finished.layout
    formula = f"{format_bytes(held)} held already + {planner.formula(layout)}"
    budget.require(held + layout.host_bytes, stage="the inference", formula=formula)
    adjacency.keep_merged((budget.total_bytes - held - layout.host_bytes) // 2)
    adjacency.read_all(threads=threads)
    metis = Metis(graph, work_directory, budget, cuts_directory)
    layout, partitions = _cut(layout, adjacency, program, settings, planner.row_weight, metis)
    job = Job(adjacency, features, program, settings, layout, partitions, work_directory, asked)
    execution = Execution(job, backend, journal, resources)
    execution.resume(finished)
    logits = execution.run()
    return InferResult(
        logits=logits,
        seconds=time.perf_counter() - started,
        read_bytes=execution.read_bytes,
        backend=name,
        partitions=len(partitions.blocks),
        resumed_partitions=execution.num_resumed,
        order=program.order,
        planned_bytes=layout.host_bytes,
    )


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
    beside_result_bytes: int = 0,
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
    sizes = Sizes.of(graph, num_nodes=num_nodes, num_edges=num_edges, made_dense=made_dense)
    program = write_program(shape_layers(widths), settings, sparse=sizes.features.is_sparse)
    return plan_program(
        sizes, program, settings, room_bytes=room_bytes, threads=threads, beside_result_bytes=beside_result_bytes
    )


def plan_program(
    sizes: Sizes,
    program: Program,
    settings: InferSettings,
    *,
    room_bytes: int,
    threads: int,
    beside_result_bytes: int = 0,
) -> StagePlan:
    """What ``run_program`` would need."""
    backend = choose_backend(settings)
    planner = Planner(
        sizes,
        program,
        settings,
        backend=backend,
        threads=threads,
        device_room=find_device_room(backend, settings),
        beside_result_bytes=beside_result_bytes,
    )
    layout = planner.find(room_bytes)
    traffic = planner.traffic(layout)
    return StagePlan(
        STAGE,
        layout.host_bytes,
        planner.formula(layout),
        read_bytes=traffic.read_bytes,
        written_bytes=traffic.written_bytes,
        passes=traffic.passes,
        blocks=layout.partitions,
        device_bytes=planner.device_bytes(layout),
        setting="memory" if settings.partitions == "auto" else "infer.partitions",
    )


def plan_inference_worker(
    graph: GraphStore,
    widths: Sequence[int],
    *,
    room_bytes: int,
    threads: int,
    settings: InferSettings | None = None,
    num_nodes: int | None = None,
    num_edges: int | None = None,
    made_dense: bool = False,
    beside_result_bytes: int = 0,
) -> StagePlan:
    """What a worker of ``infer_logits`` needs that shares no memory: the columns that a step reads of all nodes, as
    one process that does it all, and besides rows of its own partition on their way to and from files.
    """
    settings = settings or InferSettings()
    sizes = Sizes.of(graph, num_nodes=num_nodes, num_edges=num_edges, made_dense=made_dense)
    program = write_program(shape_layers(widths), settings, sparse=sizes.features.is_sparse)
    backend = choose_backend(settings)
    planner = Planner(
        sizes,
        program,
        settings,
        backend=backend,
        threads=threads,
        shares_memory=False,
        beside_result_bytes=beside_result_bytes,
    )
    layout = planner.find(room_bytes)
    passing = format_bytes(planner.block_bytes(layout.partitions))
    formula = f"{planner.formula(layout)}, {passing} for rows of a partition"
    return StagePlan(STAGE, layout.host_bytes, formula, setting="memory")


def _cut(
    layout: Layout, adjacency: Adjacency, program: Program, settings: InferSettings, row_weight: float, metis: Metis
) -> tuple[Layout, Partitions]:
    """Cut partitions; where halos are gathered, into as many as it takes for each halo to fit."""
    count = layout.partitions
    width = max(layer_pass.width for layer_pass in program.passes)
    while True:
        partitions = cut_partitions(settings.partitioner, adjacency, count, row_weight=row_weight, metis=metis)
        if not layout.halo:
            return layout, partitions
        sizes = measure_halos(adjacency, partitions)
        need = max(halo_bytes(width, size.num_sources, size.num_edges) for size in sizes)
        if need <= layout.halo_room:
            grown = replace(layout, partitions=count, host_bytes=layout.host_bytes - layout.halo_need + need)
            return replace(grown, halo_need=need), partitions
        if settings.partitions != "auto" or count >= adjacency.num_nodes:
            metis.budget.require(
                metis.budget.total_bytes - layout.halo_room + need,
                stage="the inference",
                formula=f"{format_bytes(need)} for the sources of the largest of {len(sizes)} partitions",
            )
        count = min(2 * count, adjacency.num_nodes)


def _identity(layers: Sequence[Layer], settings: InferSettings, features: FeatureReader) -> dict[str, Any]:
    """What a journal belongs to. How much memory there is does not count: its layout is taken over where it fits."""
    crc = 0
    for layer in layers:
        # As they lie, by rows or by columns: nobody pays for turning them.
        crc = crc32c_of(layer.weight if layer.weight.flags.c_contiguous else np.ascontiguousarray(layer.weight.T), crc)
        crc = crc if layer.bias is None else crc32c_of(layer.bias, crc)
    return {
        **features.identity(),
        "weights": [[list(layer.weight.shape), layer.bias is not None] for layer in layers],
        "weights_crc32c": crc,
        "settings": [settings.encoder, settings.norm, settings.bias_place, choose_backend(settings)],
        "partitions": [settings.partitioner, settings.partitions, settings.uses_halos],
    }


def _load_kernels(adjacency: Adjacency) -> None:
    """Compile (or load) what we need before memory is planned, as the compiler's memory stays with the process."""
    indptr, indices, floats = np.zeros(1, np.int64), np.zeros(0, adjacency.id_dtype), np.zeros(0, np.float32)
    columns, values = np.zeros(0, np.uint32), np.zeros(0, np.float32)
    for array in (indptr, indices, columns, values):
        array.setflags(write=False)
    rows = np.zeros((0, 4), np.float32)
    propagate_rows(indptr, indices, rows, 0, adjacency.adds_self, None, None, rows)
    propagate_rows(indptr, indices, rows, 0, adjacency.adds_self, None, floats, rows)
    add_source_scales(indptr, indices, floats, np.zeros(0, np.float64))
    multiply_rows(indptr, columns, values, rows, rows)

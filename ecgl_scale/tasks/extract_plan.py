"""What extracting a task's graph needs, before it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.store.build import MIN_SPARE_BYTES, MemoryShares, plan_build_worker
from ecgl_scale.store.edges.plan import EdgePlan
from ecgl_scale.store.edges.spill import KEY_BYTES
from ecgl_scale.store.edges.write import RESERVE_BYTES
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.scaling import Scaling
from ecgl_scale.tasks.split import Ids
from ecgl_scale.tasks.subset import Subset

STAGE = "extract task graph"


def plan_extract(
    graph: GraphStore,
    node_ids: Ids,
    *,
    self_loops: bool = False,
    scaling: Scaling | None = None,
    room_bytes: int,
    threads: int,
    in_degrees: NDArray[Any] | None = None,
) -> StagePlan:
    """What an extraction needs within ``room_bytes``, or the least that it ever needs where that is more.

    Memory
    ------
    ``4 N + 40 MiB + threads * share + min(kept, 8 E)`` with N the nodes of the whole graph and E about the edges
    into the subset. ``share`` (up to 1 GiB a thread, and no more than the largest block takes) and ``kept`` are what
    the build cuts from the rest of the budget; features go through in pieces that need less. Without ``in_degrees``
    of the whole graph the largest block is not known, and the whole share is counted.
    """
    subset = Subset(graph, node_ids, scaling or Scaling(), threads)
    num_keys = subset.num_edges_hint + (node_ids.size if self_loops else 0)
    rest = max(room_bytes - subset.nodes.map_bytes, RESERVE_BYTES + MIN_SPARE_BYTES)
    shares = MemoryShares.of(rest, threads=threads, num_keys_hint=subset.num_edges_hint)
    thread_bytes = _thread_bytes(subset, shares, in_degrees, self_loops=self_loops)
    work_bytes = max(shares.threads * thread_bytes, min(MIN_SPARE_BYTES, shares.threads * shares.share_bytes))
    build_bytes = RESERVE_BYTES + work_bytes + min(shares.kept_bytes, num_keys * KEY_BYTES)
    feature_read, feature_written = subset.feature_bytes()
    return StagePlan(
        STAGE,
        host_bytes=subset.nodes.map_bytes + build_bytes,
        formula=f"{subset.nodes.map_dtype.itemsize} bytes a node of the whole graph + 40 MiB"
        f" + {shares.threads} thread{'s' * (shares.threads > 1)} x {thread_bytes >> 20} MiB"
        " + edges of the subset that stay in memory",
        read_bytes=sum(graph.edges.file_bytes(block) for block in subset.blocks) + feature_read,
        written_bytes=num_keys * 2 * graph.edges.id_dtype.itemsize + 20 * node_ids.size + feature_written,
        passes=1,
        blocks=len(subset.blocks),
        setting="memory",
    )


def from_one_pass(graph: GraphStore, plans: Sequence[StagePlan]) -> list[StagePlan]:
    """Plans of single graphs as they are where one pass over the store parts it for all of them.

    The pass reads every edge and row once and writes what each graph is then built of, which is read again once. It
    needs no more memory than the largest of the builds, whose pieces it has.
    """
    if len(plans) < 2:
        return list(plans)
    features = graph.features
    read_bytes = sum(graph.edges.file_bytes(block) for block in graph.edges.blocks())
    read_bytes += 0 if features is None else features.stored_bytes
    parted = sum(plan.written_bytes for plan in plans)
    once = replace(plans[0], read_bytes=read_bytes, written_bytes=parted, blocks=len(graph.edges.blocks()))
    built = [replace(plan, read_bytes=plan.written_bytes, passes=0, blocks=0) for plan in plans]
    return [once, *built]


def plan_extract_worker(
    graph: GraphStore, node_ids: Ids, *, room_bytes: int, driver_threads: int, threads: int
) -> StagePlan:
    """What a worker of an extraction needs that shares no memory: the map of all nodes, and what a build takes."""
    subset = Subset(graph, node_ids, Scaling(), threads)
    rest = room_bytes - subset.nodes.map_bytes
    plan = plan_build_worker(
        node_ids.size, subset.num_edges_hint, room_bytes=rest, driver_threads=driver_threads, threads=threads
    )
    formula = f"{subset.nodes.map_dtype.itemsize} bytes a node of the whole graph + {plan.formula}"
    return replace(plan, stage=STAGE, host_bytes=subset.nodes.map_bytes + plan.host_bytes, formula=formula)


def _thread_bytes(subset: Subset, shares: MemoryShares, in_degrees: NDArray[Any] | None, *, self_loops: bool) -> int:
    """What a thread uses of its share, if every edge into the subset's nodes were the subset's; all where unknown."""
    if in_degrees is None:
        return shares.share_bytes
    degrees = in_degrees[subset.ids].astype(np.int64) + self_loops
    plan = EdgePlan.of(subset.ids.size)
    counts = np.add.reduceat(degrees, np.arange(0, subset.ids.size, 1 << plan.bucket_bits))
    return shares.thread_bytes(plan, counts, max_read_edges=max(map(subset.graph.edges.num_edges_of, subset.blocks)))

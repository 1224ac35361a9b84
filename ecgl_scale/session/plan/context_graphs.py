"""The part of a plan that is extracting graphs with context: the largest is planned, the others are no larger."""

from __future__ import annotations

from dataclasses import replace

from ecgl_scale.engine.plan import StagePlan, largest
from ecgl_scale.session.plan.sizes import RunSizes
from ecgl_scale.tasks.context_sizes import CountedGraphs
from ecgl_scale.tasks.extract_plan import plan_extract
from ecgl_scale.tasks.scaling import Scaling

STAGE = "extract"


def plan_context_graphs(sizes: RunSizes, room_bytes: int, *, num_seen: int) -> StagePlan:
    """Graphs of all tasks, one by one, and ``num_seen`` graphs of several: each reads as much as the largest of its
    kind, and writes what its nodes are of that one's.
    """
    plans = _plan_each(sizes, sizes.counted_own, room_bytes)
    if num_seen:
        plans += _plan_each(sizes, sizes.counted_seen, room_bytes) * num_seen
    return largest(STAGE, plans)


def _plan_each(sizes: RunSizes, counted: CountedGraphs, room_bytes: int) -> list[StagePlan]:
    config, ids = sizes.config, counted.largest.ids
    scaling = Scaling("none" if config.learn.scale == "none" else "row_l2")  # rows are float32 by any that changes them
    worst = plan_extract(
        sizes.graph,
        ids,
        self_loops=config.rank.self_loops,
        scaling=scaling,
        room_bytes=room_bytes,
        threads=sizes.resources.threads,
        in_degrees=sizes.degrees,
    )
    shares = [one.num_nodes / ids.size for one in counted.sizes if one.num_nodes]
    return [replace(worst, written_bytes=int(share * worst.written_bytes)) for share in shares]

"""What to change where a plan does not fit: settings with a value, each of which has been planned again and does fit.

Settings that change no result are tried first, then those that change what is learned, and the message says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ecgl_scale.config.schema import RunConfig, config_from_mapping
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.engine.threads import available_cores
from ecgl_scale.errors import DoesNotFitError, EcglError
from ecgl_scale.learn.feed import block_rows_for
from ecgl_scale.learn.method.table import method_of
from ecgl_scale.session.plan.run_plan import plan_run
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.stream import TaskStream
from ecgl_scale.units import MIB

MEMORY_TRIES = 8
LEAST_BLOCK_ROWS = 16
SLACK_BYTES = 8 * MIB
"""A new process holds a little more or less than this one."""


@dataclass(frozen=True)
class _Change:
    override: str
    changes_results: bool = False


def require_fit(
    plan: MemoryPlan, graph: GraphStore, stream: TaskStream, config: RunConfig, *, besides_bytes: int = 0
) -> None:
    """Refuse a plan that does not fit, and say what would.

    ``besides_bytes`` of the memory that the user gives are for someone else.

    Raises
    ------
    DoesNotFitError
        With the stage that needs most, its formula, and settings that have been planned and fit.
    """
    try:
        plan.require()
    except DoesNotFitError as refused:
        least = _least_memory(plan, graph, stream, config) + besides_bytes
        fixes = [f"give at least --memory {-(-least // MIB)}MiB"]
        for change in _changes(graph, stream, config):
            if _fits(plan, graph, stream, config, change.override):
                note = " (which changes what is learned)" if change.changes_results else ""
                fixes.append(f"or --set {change.override}{note}")
                break
        raise DoesNotFitError(refused.what, where=refused.where, fix=", ".join(fixes)) from None


def _least_memory(plan: MemoryPlan, graph: GraphStore, stream: TaskStream, config: RunConfig) -> int:
    """A budget that is enough; stages that find more room may take more of it, so it is planned until it fits."""
    needed = plan.peak_bytes
    for _ in range(MEMORY_TRIES):
        given = needed + SLACK_BYTES
        found = plan_run(graph, stream, _changed(config, f"memory={given}"))
        peak = _peak_bytes(found, plan)
        if peak + SLACK_BYTES <= given:
            return given
        needed = peak + SLACK_BYTES
    return needed


def _changes(graph: GraphStore, stream: TaskStream, config: RunConfig) -> Iterator[_Change]:
    widths = [graph.num_features, *config.learn.hidden, stream.num_classes]
    rows = block_rows_for(widths, config.learn.block_rows, is_sparse=False) // 2
    while rows >= LEAST_BLOCK_ROWS:
        yield _Change(f"learn.block_rows={rows}")
        rows //= 4
    if config.infer.partitions != "auto":
        yield _Change("infer.partitions=auto")
    if (config.threads or available_cores()) > 1:
        yield _Change("threads=1")
    if config.learn.train_as == "gcn":
        yield _Change("learn.train_as=mlp", changes_results=True)
    if not method_of(config).keeps_bank:
        return
    if config.bank.select != "random":
        yield _Change("bank.select=random", changes_results=True)
    budget = config.bank.budget // 2
    while budget:
        yield _Change(f"bank.budget={budget}", changes_results=True)
        budget //= 4


def _fits(plan: MemoryPlan, graph: GraphStore, stream: TaskStream, config: RunConfig, override: str) -> bool:
    try:
        found = plan_run(graph, stream, _changed(config, override))
    except EcglError:  # the setting does not go with the others
        return False
    return _peak_bytes(found, plan) + SLACK_BYTES <= found.budget.total_bytes


def _peak_bytes(found: MemoryPlan, first: MemoryPlan) -> int:
    """In a new process, which holds what the first plan found: planning itself leaves 12 MiB of libraries behind."""
    return found.peak_bytes - max(found.held_bytes - first.held_bytes, 0)


def _changed(config: RunConfig, override: str) -> RunConfig:
    return config_from_mapping(config.to_mapping(), overrides=[override])

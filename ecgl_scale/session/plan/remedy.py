"""What to change where a plan does not fit: settings with a value, each of which has been planned again and does fit.

Settings that change no result are tried first, then those that change what is learned, and the message says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ecgl_scale.config.schema import config_from_mapping
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.errors import DoesNotFitError, EcglError
from ecgl_scale.learn.feed import block_rows_for
from ecgl_scale.learn.method.table import method_of
from ecgl_scale.session.plan.run_plan import plan_run
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.tasks.context import ContextRule
from ecgl_scale.units import MIB

MEMORY_TRIES = 8
LEAST_BLOCK_ROWS = 16
SLACK_BYTES = 8 * MIB
"""A new process holds a little more or less than this one."""


@dataclass(frozen=True)
class _Change:
    override: str
    changes_results: bool = False


def require_fit(plan: MemoryPlan, setup: RunSetup, *, besides_bytes: int = 0) -> None:
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
        again = _Planner(plan, setup)
        least = again.least_memory() + besides_bytes
        fixes = [f"give at least {setup.resources.budget.option} {-(-least // MIB)}MiB"]
        for change in _changes(setup):
            if again.fits(change.override):
                note = " (which changes what is learned)" if change.changes_results else ""
                fixes.append(f"or --set {change.override}{note}")
                break
        raise DoesNotFitError(refused.what, where=refused.where, fix=", ".join(fixes)) from None


def least_memory(plan: MemoryPlan, setup: RunSetup) -> int:
    """A budget, near the plan's peak, that is enough for the run: it has been planned again."""
    return _Planner(plan, setup).least_memory()


@dataclass(frozen=True)
class _Planner:
    """Plans a run again, with other settings."""

    plan: MemoryPlan
    """The one that does not fit."""
    setup: RunSetup

    def least_memory(self) -> int:
        """A budget that is enough: what every stage needs at least, as more room never makes a stage need too much.

        It is planned all the same: a method of somebody else's may plan otherwise.
        """
        needed = self._peak_bytes(self._plan(f"memory={MIB}"))
        for _ in range(MEMORY_TRIES):
            peak = self._peak_bytes(self._plan(f"memory={needed}"))
            if peak <= needed:
                break
            needed = peak
        return needed + SLACK_BYTES

    def fits(self, override: str) -> bool:
        """Whether the run fits with this setting."""
        given = self.plan.budget.total_bytes - SLACK_BYTES
        try:
            found = self._plan(override, f"memory={max(given, MIB)}")
        except EcglError:  # the setting does not go with the others
            return False
        return self._peak_bytes(found) <= given

    def _plan(self, *overrides: str) -> MemoryPlan:
        config = config_from_mapping(self.setup.config.to_mapping(), overrides=overrides)
        return plan_run(self.setup.with_config(config))

    def _peak_bytes(self, found: MemoryPlan) -> int:
        """The peak in a new process, which holds what the first plan found: planning itself leaves 12 MiB behind."""
        return found.peak_bytes - max(found.held_bytes - self.plan.held_bytes, 0)


def _changes(setup: RunSetup) -> Iterator[_Change]:
    config = setup.config
    rows = block_rows_for(setup.widths, config.learn.block_rows, is_sparse=False) // 2
    while rows >= LEAST_BLOCK_ROWS:
        yield _Change(f"learn.block_rows={rows}")
        rows //= 4
    if config.infer.partitions != "auto":
        yield _Change("infer.partitions=auto")
    if setup.resources.threads > 1:
        yield _Change("threads=1")
    if config.learn.train_as == "gcn":
        yield _Change("learn.train_as=mlp", changes_results=True)
    for override in method_of(config).remedies(config):
        yield _Change(override, changes_results=True)
    hops = ContextRule.parse(config.tasks.context).hops
    for fewer in range(2 if hops is None else hops - 1, 0, -1):
        yield _Change(f"tasks.context=hops:{fewer}", changes_results=True)
    if hops != 0:
        yield _Change("tasks.context=none", changes_results=True)
    if not method_of(config).keeps_bank:
        return
    if config.bank.select != "random":
        yield _Change("bank.select=random", changes_results=True)
    budget = config.bank.budget // 2
    while budget:
        yield _Change(f"bank.budget={budget}", changes_results=True)
        budget //= 4

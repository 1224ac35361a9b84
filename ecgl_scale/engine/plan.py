"""What each stage of a job will need, known before it starts; and the refusal of a plan that does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.units import format_bytes, format_count, format_seconds


@dataclass(frozen=True)
class StagePlan:
    """The need of one stage."""

    stage: str
    host_bytes: int
    """Peak RssAnon + RssShmem of the stage, on top of what the process holds already."""
    formula: str
    device_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    passes: int = 0
    """Times its largest input is read."""
    blocks: int = 0
    setting: str = ""
    """What to change where it does not fit."""
    seconds: float | None = None
    """About how long it will take, all turns together; None where this machine was not measured."""


@dataclass(frozen=True)
class MemoryPlan:
    """All stages of a job, one after the other, over what the process itself holds."""

    stages: tuple[StagePlan, ...]
    held_bytes: int
    budget: MemoryBudget

    @property
    def peak_bytes(self) -> int:
        """The peak of the whole job: stages follow each other, so the largest counts."""
        return self.held_bytes + max((stage.host_bytes for stage in self.stages), default=0)

    @property
    def planned_bytes(self) -> dict[str, int]:
        """The peak of the process in each stage."""
        return {stage.stage: self.held_bytes + stage.host_bytes for stage in self.stages}

    @property
    def seconds(self) -> float | None:
        """An estimate of all stages together; None where this machine was not measured."""
        found = [stage.seconds for stage in self.stages if stage.seconds is not None]
        return sum(found) if len(found) == len(self.stages) else None

    @property
    def fits(self) -> bool:
        """Whether every stage stays within the budget."""
        return self.peak_bytes <= self.budget.total_bytes

    def as_json(self) -> dict[str, Any]:
        """The plan as ``plan.json`` and ``--json`` show it."""
        return {
            "budget_bytes": self.budget.total_bytes,
            "budget_from": self.budget.origin,
            "held_bytes": self.held_bytes,
            "peak_bytes": self.peak_bytes,
            "seconds": self.seconds,
            "fits": self.fits,
            "stages": [asdict(stage) for stage in self.stages],
        }

    def summary(self) -> str:
        """The peak and the budget, in a line."""
        largest_stage = max(self.stages, key=lambda stage: stage.host_bytes)
        fits = "within" if self.fits else "NOT within"
        budget = f"{format_bytes(self.budget.total_bytes)} from {self.budget.origin}"
        return f"plan: peak {format_bytes(self.peak_bytes)} ({largest_stage.stage}), {fits} the budget of {budget}"

    def __str__(self) -> str:
        """A table of one line a stage that fits 80 columns, the formulas, then whether it fits."""
        rows = [("stage", "blocks", "memory", "device", "read", "written", "passes", "time")]
        for stage in self.stages:
            need = self.held_bytes + stage.host_bytes
            sizes = (need, stage.device_bytes, stage.read_bytes, stage.written_bytes)
            blocks, passes = (format_count(number) if number else "-" for number in (stage.blocks, stage.passes))
            time = "-" if stage.seconds is None else f"~ {format_seconds(stage.seconds)}"
            memory, device, read, written = (format_bytes(size) if size else "-" for size in sizes)
            rows.append((stage.stage, blocks, memory, device, read, written, passes, time))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
        lines += [f"need of {stage.stage}: {stage.formula}" for stage in self.stages]
        of_which = f"(of which {format_bytes(self.held_bytes)} for Python and libraries)"
        fits = "fits" if self.fits else "does NOT fit"
        budget = f"{format_bytes(self.budget.total_bytes)} from {self.budget.origin}"
        lines.append(f"peak {format_bytes(self.peak_bytes)} {of_which} {fits} the budget of {budget}")
        if self.seconds is not None:
            lines.append(f"time about {format_seconds(self.seconds)}: an estimate from a measurement of this machine")
        return "\n".join(lines)

    def require(self) -> None:
        """Refuse, naming the largest stage."""
        for stage in sorted(self.stages, key=lambda stage: -stage.host_bytes)[:1]:
            self.budget.require(self.held_bytes + stage.host_bytes, stage=stage.stage, formula=stage.formula)


def largest(stage: str, plans: Sequence[StagePlan]) -> StagePlan:
    """One plan for a stage that is repeated: the largest need, and reading and writing of all together."""
    worst = max(plans, key=lambda plan: plan.host_bytes)
    return StagePlan(
        stage,
        worst.host_bytes,
        worst.formula,
        device_bytes=max(plan.device_bytes for plan in plans),
        read_bytes=sum(plan.read_bytes for plan in plans),
        written_bytes=sum(plan.written_bytes for plan in plans),
        passes=sum(plan.passes for plan in plans),
        blocks=sum(plan.blocks for plan in plans),
        setting=worst.setting,
    )

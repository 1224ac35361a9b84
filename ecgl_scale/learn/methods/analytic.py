"""The closed-form learner: a ridge head on random features of propagated rows, from sums over rows alone.

    f = relu([x, P x, ..., P^hops x] R)      each part of length one, R drawn from the seed; see infer/random_features
    n_c, s_c = sum f, S_c = sum f f^T        of the training rows of each class, and the same of its validation rows
    W = (sum S_c / n_c + ridge)^-1 (s_c / n_c)                                              see learn/ridge

Nothing is trained by steps, so nothing is forgotten by them: after any tasks, in any order, the head is that of all
their rows together. A class that comes back adds to its sums, and rows that are to be forgotten are subtracted from
them. Sums are all that is kept; they hold neither rows nor ids. One pass over a task's rows, and a head: width^3 / 3
operations for each strength of the ridge that is tried.

Related: ACIL (Zhuang et al. 2022), RanPAC (McDonnell et al. 2023), and for graphs AL-GNN (arXiv 2512.18295).
Files: weights/sums-<class>-<task>.safetensors, the sums of a class (its place in the head) up to a task.
Memory: see ``plan``; about six squares of ``width`` in float64, and R.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.config.sections import Section, values
from ecgl_scale.engine.block import split_blocks
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.errors import UsageError
from ecgl_scale.infer.model_input import ModelInput
from ecgl_scale.learn.class_sums import ClassSums
from ecgl_scale.learn.class_sums_work import PARTS, ClassRows, ClassSumsWork
from ecgl_scale.learn.gram import Square, add_packed, mirror, pack
from ecgl_scale.learn.method.base import (
    Arrays,
    Context,
    Method,
    MethodPlan,
    TaskSizes,
    end_plan,
)
from ecgl_scale.learn.method.forgetting import Forgetting, Forgot
from ecgl_scale.learn.model_shape import ModelShape
from ecgl_scale.learn.ridge import BalancedSums, Columns, choose_strength, solve_head, validation_error
from ecgl_scale.learn.tensors import load_tensors, save_tensors
from ecgl_scale.tasks.graphs import positions_of

STAGE = "sum up"
SQUARES = 6
"""Squares of the width that are held at once: both sums, packed, of before and of now, and whole; a Cholesky factor."""


class AnalyticConfig(Section):
    """A ridge head in closed form."""

    came_later: ClassVar[bool] = True

    hops: int = Field(
        default=2, ge=0, le=99, description="Features passed along 0, 1, ... up to so many edges, side by side."
    )
    width: int = Field(
        default=4096,
        ge=0,
        le=1 << 16,
        description="Random features of a row. `0`: none, the head is linear in the propagated features.",
    )
    ridge: Literal["auto"] | float = Field(
        default="auto",
        description="Strength of the ridge, relative to the mean square of a feature. `auto`: chosen by the squared "
        "error on validation nodes, after every task.",
        json_schema_extra=values("`auto` or a number above 0"),
    )


class Analytic(Method):
    """Keeps sums over rows, and solves for the head."""

    name: ClassVar[str] = "analytic"
    choose_when: ClassVar[str] = "first of all: most accurate, one pass, no rows kept, exact forgetting; takes 1.2 GiB"
    place: ClassVar[int] = 5
    category: ClassVar[str] = "closed form"
    stores: ClassVar[str] = "for each class the number of its rows, their sum and the sum of their squares"
    cost: ClassVar[str] = "one pass over the task's rows, once"
    reference: ClassVar[str] = "ridge regression on random features; related to ACIL, RanPAC and AL-GNN"
    settings: ClassVar[type[Section]] = AnalyticConfig
    backbones: ClassVar[tuple[str, ...]] = ("mlp",)
    learns_at_once: ClassVar[bool] = True
    forgets_exactly: ClassVar[bool] = True
    kept_files: ClassVar[str] = "sums-*.safetensors"
    remark: ClassVar[str] = "`analytic` is a closed form that does not forget"

    def __init__(self) -> None:
        self._learned: tuple[int, Arrays] | None = None

    def check(self, config: RunConfig) -> None:
        """Refuse what belongs to training by steps."""
        ridge = config.section(AnalyticConfig).ridge
        if ridge != "auto" and ridge <= 0:
            raise UsageError(f"analytic.ridge is {ridge:g}", expected="`auto` or a number above 0")
        if config.learn.features != "raw":
            raise UsageError(
                f"learn.features is {config.learn.features}, and analytic passes features along edges by itself",
                fix="leave learn.features at raw, and set analytic.hops",
            )
        if (config.engine.ranks or 1) > 1:
            raise UsageError(
                f"engine.ranks is {config.engine.ranks}, and analytic has no gradient that ranks could share",
                fix="leave it out; engine.workers share the sums over classes",
            )

    def shape(self, config: RunConfig) -> ModelShape:
        """One linear layer on random features."""
        settings = config.section(AnalyticConfig)
        made = ModelInput(settings.hops, is_stacked=True, width=settings.width, seed=config.seed)
        return ModelShape(made, hidden=(), bias=False)

    # --- learning

    def learn(self, context: Context) -> float:
        """Add up the task's rows, make the head, and return its squared error on training rows."""
        self._sum_up(context)
        self._learned = context.task.index, self._add_task(context)
        train, head = self._solve(self._learned[1], context.config, context.resources.threads)
        context.trainer.weights.take([torch.from_numpy(np.ascontiguousarray(head.T, np.float32))])
        return validation_error(head, train)

    @staticmethod
    def _solve(kept: Arrays, config: RunConfig, threads: int = 1) -> tuple[BalancedSums, Columns]:
        """The sums over training rows, and the head that they give; the strength of the ridge is kept with the sums."""
        train, valid = (_balanced(kept, part) for part in PARTS)
        ridge = config.section(AnalyticConfig).ridge
        if ridge == "auto":
            strength, head = choose_strength(train, valid, threads=threads)
        else:
            strength, head = float(ridge), solve_head(train, float(ridge), threads=threads)
        kept["strength"] = np.array([strength])
        return train, head

    def end_task(self, context: Context) -> None:
        """Keep the sums; a run that was killed since reads them from the files of the task's classes."""
        if self._learned is None or self._learned[0] != context.task.index:
            self._learned = context.task.index, self._add_task(context)
            self._solve(self._learned[1], context.config, context.resources.threads)  # the strength is kept, too
        before, self.kept = self.kept, self._learned[1]
        self._learned = None
        # A kill may go back by one task, so what the last state names stays too.
        named = {path for kept in (before, self.kept) for path in _files(context.keeping, kept)}
        for path in set(context.keeping.glob(self.kept_files)) - named:
            path.unlink(missing_ok=True)

    def _sum_up(self, context: Context) -> None:
        """Write the files of the sums of the task's classes."""
        task, resources = context.task, context.resources
        classes = self._class_rows(context)
        context.work.mkdir(parents=True, exist_ok=True)
        work = ClassSumsWork(context.input_rows(task), classes, context.work / "classes.safetensors", resources)
        resources.on_event(StageStarted(STAGE, sum(one.num_rows for one in classes), "rows"))
        done = 0

        def tell(num_rows: int) -> None:
            nonlocal done
            done += num_rows
            resources.on_event(BlockFinished(STAGE, done))

        if resources.executor.shares_memory:
            work.on_rows = tell
        for block, _ in run_blocks(work, split_blocks(len(classes), 1), resources):
            if not resources.executor.shares_memory:
                tell(classes[block.index].num_rows)

    def _class_rows(self, context: Context) -> list[ClassRows]:
        task, stream = context.task, context.stream
        parts = [(ids, stream.labels_of(ids)) for ids in (task.train_ids, task.valid_ids)]
        found = []
        for position in task.positions.tolist():
            train, valid = (positions_of(task.node_ids, ids[labels == position]) for ids, labels in parts)
            before = self._file_of(position)
            path = "" if before < 0 else str(sums_path(context.keeping, position, before))
            found.append(ClassRows(train, valid, path, str(sums_path(context.keeping, position, task.index))))
        return found

    def _file_of(self, position: int) -> int:
        """The task up to which the sums of a class are kept; -1 where there are none."""
        files = self.kept.get("files")
        return -1 if files is None or position >= files.size else int(files[position])

    def _add_task(self, context: Context) -> Arrays:
        """What is kept after the task: the sums so far, and those of its classes in place of what they had."""
        task, num_classes = context.task, context.trainer.weights.num_classes
        width, threads = context.trainer.weights.num_features, context.resources.threads
        files = np.full(num_classes, -1)
        files[: self.kept["files"].size if self.kept else 0] = self.kept.get("files", ())
        classes = [(position, self._file_of(position)) for position in task.positions.tolist()]
        kept: Arrays = {}
        for part in PARTS:
            total = _Total.empty(width, num_classes)
            if self.kept:
                total.take(self.kept, part)
            for position, before in classes:
                if before >= 0:
                    total.remove(position, read_sums(context.keeping, position, before, part), threads)
                total.put(position, read_sums(context.keeping, position, task.index, part), threads)
            kept |= total.arrays(part)
        files[task.positions] = task.index
        return {**kept, "files": files}

    def forget_exactly(self, forgetting: Forgetting) -> Forgot:
        """Subtract the forgotten rows from the sums of their classes, leave out forgotten classes, and solve again.

        Rows of nodes near them have followed edges to them: these are subtracted, too, and added as they are without.
        """
        before, after, threads = forgetting.before, forgetting.after, forgetting.resources.threads
        files, num_rows = self.kept["files"].copy(), 0
        files[forgetting.gone.positions] = -1
        for path, kept_path in zip(_files(before, {"files": files}), _files(after, {"files": files}), strict=True):
            shutil.copyfile(path, kept_path)
        for change in forgetting.changes():
            path = sums_path(after, change.position, int(files[change.position]))
            arrays, about = load_tensors(path)
            sums = ClassSums.of_arrays(arrays, change.part)
            sums = sums.minus([change.removed], len(change.removed), threads=threads)
            sums = sums.plus([change.added], len(change.added), threads=threads)
            others = {name: array for name, array in arrays.items() if not name.startswith(f"{change.part}.")}
            save_tensors(path, {**others, **sums.arrays(change.part)}, about={"kind": about["kind"]})
            num_rows += len(change.removed) - len(change.added)
        self.kept = self._all_sums(after, files, threads)
        return Forgot(num_rows, self._solve(self.kept, forgetting.config, threads)[1])

    def _all_sums(self, keeping: Path, files: NDArray[Any], threads: int) -> Arrays:
        """What is kept, made anew from the files of all classes: exactly what it is without any other."""
        width = len(self.kept["train.means"])
        kept: Arrays = {"files": files}
        for part in PARTS:
            total = _Total.empty(width, files.size)
            for position in np.flatnonzero(files >= 0).tolist():
                total.put(position, read_sums(keeping, position, int(files[position]), part), threads)
            kept |= total.arrays(part)
        return kept

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from ``state()``."""
        super().load_state(state)
        self._learned = None

    # --- what it needs

    def plan(self, config: RunConfig, sizes: TaskSizes) -> MethodPlan:
        """Squares of the width, R, and rows while they are made."""
        made = sizes.made
        num_features, width = sizes.stored_features, sizes.num_features
        square = 8 * width * width
        kept = square + 16 * width * sizes.num_classes
        reading = made.reading_bytes(num_features) + 8 * 3 * 1024 * width
        end = super().plan(config, sizes).end.host_bytes
        held = made.map_bytes(num_features)  # from the first task on
        return MethodPlan(
            state_bytes=kept + held,
            work_bytes=(SQUARES - 1) * square + reading - held + end,
            end=end_plan(2 * kept + end, "the sums so far, and the same as they are written"),
        )

    def remedies(self, config: RunConfig) -> Iterator[str]:
        """Try narrower maps."""
        width = config.section(AnalyticConfig).width // 2
        while width >= 64:
            yield f"analytic.width={width}"
            width //= 2


def sums_path(keeping: Path, position: int, task_index: int) -> Path:
    """Where the sums of a class up to a task are."""
    return keeping / f"sums-{position}-{task_index}.safetensors"


def _files(keeping: Path, kept: Arrays) -> list[Path]:
    """The files that a state names."""
    return [sums_path(keeping, place, int(task)) for place, task in enumerate(kept.get("files", ())) if task >= 0]


def read_sums(keeping: Path, position: int, task_index: int, part: str) -> ClassSums:
    """Training or validation sums of a class."""
    return ClassSums.of_arrays(load_tensors(sums_path(keeping, position, task_index))[0], part)


@dataclass(frozen=True, eq=False)
class _Total:
    """Sums over classes, each divided by its number of rows."""

    square: Square
    means: Columns
    counts: NDArray[np.int64]

    @classmethod
    def empty(cls, width: int, num_classes: int) -> _Total:
        return cls(np.zeros((width, width)), np.zeros((width, num_classes)), np.zeros(num_classes, np.int64))

    def take(self, kept: Arrays, part: str) -> None:
        """Begin with what is kept, of fewer classes maybe."""
        counts = kept[f"{part}.counts"]
        self.means[:, : counts.size], self.counts[: counts.size] = kept[f"{part}.means"], counts
        add_packed(self.square, kept[f"{part}.square"])

    def put(self, position: int, sums: ClassSums, threads: int) -> None:
        """Add a class."""
        self.counts[position] = sums.count
        if sums.count:
            sums.add_to(self.square, 1.0 / sums.count, threads=threads)
            self.means[:, position] = sums.total / sums.count

    def remove(self, position: int, sums: ClassSums, threads: int) -> None:
        """Take a class out that was put in."""
        self.counts[position], self.means[:, position] = 0, 0.0
        if sums.count:
            sums.add_to(self.square, -1.0 / sums.count, threads=threads)

    def arrays(self, part: str) -> Arrays:
        """What is kept of it."""
        return {f"{part}.square": pack(self.square), f"{part}.means": self.means, f"{part}.counts": self.counts}


def _balanced(kept: Arrays, part: str) -> BalancedSums:
    means = kept[f"{part}.means"]
    square = np.zeros((len(means), len(means)))
    add_packed(square, kept[f"{part}.square"])
    mirror(square)
    return BalancedSums(square, means, int(np.count_nonzero(kept[f"{part}.counts"])))

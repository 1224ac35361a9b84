"""The section ``tasks`` of a config: how the graph's nodes arrive, and what they are tested on."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ecgl_scale.config.choices import Scope
from ecgl_scale.config.sections import Section, values
from ecgl_scale.errors import UsageError


class TasksConfig(Section):
    """How the graph's nodes arrive."""

    kind: Literal["class", "time", "generation"] = Field(
        default="class",
        description="A task brings new classes, or (`time`) the nodes with the next value of `column`, or "
        "(`generation`) what one `ecgl append` has brought.",
    )
    classes_per_task: int = Field(
        default=2, ge=1, description="Classes a task; 1 only in class-IL. Not used with `kind: time`."
    )
    column: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="Node column with the time of arrival. Needed with `kind: time`, and only there."
    )
    class_order: Annotated[tuple[Annotated[int, Field(ge=0)] | str, ...], Field(strict=False)] | None = Field(
        default=None,
        description="Labels, or names of classes, in the order in which they arrive. `null`: ascending.",
        json_schema_extra=values("list of labels or class names, or null"),
    )
    split: Literal["seeded", "store"] = Field(
        default="seeded",
        description="Draw train, validation and test nodes of each class, or take the store's column `split`.",
    )
    fractions: tuple[float, float, float] = Field(
        default=(0.6, 0.2, 0.2),
        strict=False,
        description="Shares of train, validation and test nodes of a seeded split.",
        json_schema_extra=values("three numbers from 0 to 1 that sum to 1"),
    )
    inter_task_edges: bool = Field(default=False, description="Keep edges between nodes of different tasks.")
    context: str = Field(
        default="none",
        pattern=r"^(none|all|hops:[1-9][0-9]?)$",
        description="Unlabelled nodes that come into the graphs of tasks as neighbours, never trained on, remembered "
        "or scored: those from which at most L edges lead to a node of the task, or all.",
        json_schema_extra=values("`none`, `hops:L` with L from 1 to 99, or `all`"),
    )
    eval_scope: Literal["task", "seen", "both"] = Field(
        default="both",
        description="Score on each task's own subgraph, which tells the model which task a node is of; or on the whole "
        "graph seen so far, which does not; or on both.",
    )
    evaluate: str = Field(
        default="all",
        pattern=r"^(all|last|none|every:[1-9][0-9]{0,5})$",
        description="After which tasks all tasks so far are tested: each, the last, every K-th and the last, or none.",
        json_schema_extra=values("`all`, `last`, `every:K` with K from 1, or `none`"),
    )
    min_class_nodes: int = Field(
        default=2,
        ge=1,
        description="Classes with fewer labelled nodes are left out; with `kind: time`, until they have so many.",
    )
    score: Literal["test", "valid"] = Field(
        default="test", description="Nodes that are scored. Choose settings on `valid`, report on `test`."
    )
    keep_tests: bool = Field(
        default=False,
        description="Keep each task's graph in the model, so that updates still test on it, and methods that train on "
        "old tasks still can, when its data has gone from the store.",
    )

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The graphs that tests are made on; results call those of the first just AA."""
        return ("task", "seen") if self.eval_scope == "both" else (self.eval_scope,)

    def tests_after(self, task: int, num_tasks: int) -> bool:
        """Whether tests are made after a task of so many."""
        if task + 1 == num_tasks or self.evaluate in ("all", "none"):
            return self.evaluate != "none"
        return self.evaluate != "last" and (task + 1) % int(self.evaluate.partition(":")[2]) == 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.keep_tests and (self.inter_task_edges or self.eval_scope != "task"):
            key = "inter_task_edges is true" if self.inter_task_edges else f"eval_scope is {self.eval_scope}"
            raise UsageError(
                f"tasks.keep_tests is true, but tasks.{key}",
                expected="graphs of single tasks, which can be kept: that of all tasks together needs the old data",
                fix="set `keep_tests: false`, or `inter_task_edges: false` and `eval_scope: task`",
            )
        if self.kind == "time" and self.column is None:
            raise UsageError("tasks.kind is time, but tasks.column is null", fix="name the column: `column: year`")
        if self.kind != "time" and self.column is not None:
            raise UsageError(
                f"tasks.column is given, but tasks.kind is {self.kind}", fix="set `kind: time`, or no column"
            )
        if self.kind != "class" and self.class_order is not None:
            raise UsageError(f"tasks.class_order is given, but tasks.kind is {self.kind}", fix="leave class_order out")
        if self.class_order is not None and len(set(self.class_order)) < max(len(self.class_order), 1):
            raise UsageError("tasks.class_order is empty or names a label twice", expected="each label at most once")
        if min(self.fractions) < 0 or not math.isclose(math.fsum(self.fractions), 1.0, abs_tol=1e-6):
            raise UsageError(
                f"tasks.fractions are {list(self.fractions)}", expected="three numbers from 0 to 1 that sum to 1"
            )
        scored = self.fractions[1 if self.score == "valid" else 2]
        if self.split == "seeded" and not (self.fractions[0] > 0 and scored > 0):
            raise UsageError(
                f"tasks.fractions are {list(self.fractions)}, tasks.score is {self.score}",
                expected="a share above 0 for the nodes to train on and for those to score on",
            )
        return self

"""The sections of a config: every key with its type, range, default (that of the preset ``plus``) and meaning.

The meanings are what docs/configuration.md shows; whatever contradicts itself inside a section is refused here.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ecgl_scale.config.choices import Dangling, Norm, Quota, Scope, Select
from ecgl_scale.config.kinds import Directory, Memory, Size
from ecgl_scale.errors import UsageError


def values(text: str) -> Any:
    """Metadata of a key: what to tell users it may be, where the schema alone would say it badly."""
    return {"values": text}


class Section(BaseModel):
    """A section of a config: it is frozen, knows all its keys, and takes no text for a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)

    came_later: ClassVar[bool] = False
    """Whether there were runs before there was this section: with its defaults it is not in their digest."""


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


class LearnConfig(Section):
    """The model and its training."""

    hidden: tuple[Size, ...] = Field(
        default=(256,), strict=False, description="Widths between input and output. `[]`: one linear layer."
    )
    encoder: Literal["gcn", "sage", "sgc"] = Field(
        default="gcn",
        description="The graph network that predicts. `sage` averages neighbours whatever `infer.norm` says.",
    )
    train_as: Literal["mlp", "gcn"] = Field(
        default="mlp", description="Train without edges (E-CGL), or with message passing (the paper's ablation)."
    )
    features: str = Field(
        default="raw",
        pattern=r"^(raw|propagated:[1-9][0-9]?)$",
        description="What the model is given: the store's features as they are, or passed along K edges beforehand.",
        json_schema_extra=values("`raw` or `propagated:K` with K from 1 to 99"),
    )
    scale: Literal["none", "row_sum", "row_l2", "standard"] = Field(
        default="row_l2",
        description="Divide each row by its sum or its length, or bring columns to mean 0 and deviation 1.",
    )
    epochs: int = Field(default=200, ge=1, description="Epochs a task.")
    lr: float = Field(default=0.005, gt=0, description="Step size of Adam.")
    weight_decay: float = Field(default=0.0005, ge=0, description="L2 penalty inside Adam.")
    lambda_: float = Field(
        default=1.0,
        ge=0,
        alias="lambda",
        description="Weight of remembered nodes in the loss: of `ecgl`, and of `ssm` in task-il.",
    )
    balance: Literal["none", "task", "unified", "reference"] = Field(
        default="unified",
        description="Weigh classes alike: not at all, in new and remembered nodes apart, in both together, "
        "or as the public code does.",
    )
    reduction: Literal["mean", "sum"] = Field(
        default="mean", description="Of the losses of single nodes. `sum` goes with `balance: none` only."
    )
    replay_slice: Literal["own", "seen"] = Field(
        default="own",
        description="task-il: a remembered node competes among its own task's classes, or all seen so far.",
    )
    batching: Literal["full", "minibatch"] = Field(
        default="full", description="One step an epoch with the exact gradient of all rows, or a step for each batch."
    )
    batch_rows: int = Field(default=8000, ge=1, description="Rows of a batch. Not used with `batching: full`.")
    block_rows: Size | None = Field(
        default=None, description="Rows that go through the model at once. `null`: as many as fit."
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Share of hidden values dropped in training.")
    bias: bool = Field(default=True, description="Layers have a bias.")
    bias_place: Literal["inside", "outside"] = Field(
        default="inside", description="The bias is added before neighbours are summed, or after."
    )
    init: Literal["torch", "kaiming"] = Field(
        default="torch",
        description="First weights: torch's default for linear layers, or normal with deviation 1/sqrt(inputs).",
    )
    head: Literal["grow", "whole"] = Field(
        default="grow",
        description="The model has outputs for the classes that have come so far, and gets those of a task, zeros at "
        "first, when the task comes; or, as the public code, outputs for the classes of all tasks from the beginning.",
    )
    last_layer: Literal["trained", "solved"] = Field(
        default="solved",
        description="The last layer as the epochs leave it, or solved for after each task (ridge regression on the "
        "hidden rows of new and remembered nodes). `ecgl` alone solves, and not with `train_as: gcn` or `hidden: []`.",
    )
    optimizer: Literal["carry", "reset"] = Field(
        default="carry", description="Adam's moments go on from task to task, or begin anew."
    )
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$",
        description="Where the model lives. `auto`: a GPU if there is one.",
        json_schema_extra=values("`auto`, `cpu`, `cuda` or `cuda:N`"),
    )

    @property
    def num_hops(self) -> int:
        """Hops over which features are propagated before training; 0 for raw ones."""
        return 0 if self.features == "raw" else int(self.features.partition(":")[2])

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.train_as == "gcn" and self.batching == "minibatch":
            raise UsageError(
                "learn.batching is minibatch, but learn.train_as is gcn",
                expected="a graph network is trained on the whole task graph",
                fix="set `batching: full` or `train_as: mlp`",
            )
        if self.train_as == "gcn" and self.num_hops:
            raise UsageError(
                f"learn.features is {self.features}, but learn.train_as is gcn",
                expected="features that are passed along edges beforehand go through an MLP, and are tested so",
                fix="set `features: raw` or `train_as: mlp`",
            )
        if self.reduction == "sum" and self.balance != "none":
            raise UsageError(
                f"learn.reduction is sum, but learn.balance is {self.balance}",
                expected="balanced losses are weighted means",
                fix="set `reduction: mean` or `balance: none`",
            )
        return self


class BankConfig(Section):
    """The nodes that are remembered."""

    budget: int = Field(default=1000, ge=0, description="Nodes remembered a task.")
    diversity_ratio: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="Share of the budget chosen by diversity. Not used but with `select: ecgl`.",
    )
    importance: bool = Field(default=True, description="Choose by importance. `false`: the whole budget by diversity.")
    diversity: bool = Field(default=True, description="Choose by diversity. `false`: the whole budget by importance.")
    quota: Quota = Field(
        default="class", description="The best of the whole task, or as many of each class as of any other."
    )
    select: Select = Field(
        default="herding",
        description="`ecgl`: by importance and diversity. `random` ignores both rankings: an ablation. `herding` and "
        "`kmeans` choose nodes that stand for their class, by features passed along two edges: docs/ranking.md.",
    )
    refill: bool = Field(default=True, description="Where both rankings choose the same node, choose one more.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.budget == 0 and self.quota == "class":
            raise UsageError(
                "bank.budget is 0, but bank.quota is class",
                fix="give a budget, or set `quota: none` to remember nothing",
            )
        if self.select in ("herding", "kmeans") and not (self.importance and self.diversity):
            off = "diversity" if self.importance else "importance"
            raise UsageError(
                f"bank.{off} is false, but bank.select is {self.select}, which ranks by neither",
                fix="set bank.select=ecgl, which chooses by importance and diversity, or by one of them",
            )
        if not self.importance and not self.diversity and self.select == "ecgl":
            raise UsageError(
                "bank.importance and bank.diversity are both false, so nothing is left to choose nodes by",
                expected="one of them true",
                fix="set bank.select=random to choose at random",
            )
        return self


class RankConfig(Section):
    """How nodes are ranked; see docs/ranking.md."""

    damping: float = Field(default=0.85, ge=0, lt=1, description="Share of the walk that follows edges.")
    gamma: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="How fast resemblance falls with distance. `null`: 1 / number of columns."
    )
    tol: float = Field(default=1e-8, ge=0, description="Stop when a sweep changes the ranks by less.")
    max_iter: int = Field(default=100, ge=1, description="Stop after so many sweeps.")
    norm: Norm = Field(default="l1", description="How the change of a sweep is measured.")
    dangling: Dangling = Field(
        default="uniform",
        description="Where the mass of nodes without out-edges goes: to all alike, or to where restarts go.",
    )
    features: Literal["raw", "logits"] = Field(
        default="raw",
        description="Importance compares the features, scaled by `learn.scale`, or the model's outputs in the task's "
        "last epoch. Diversity always compares the features.",
    )
    self_loops: bool = Field(default=False, description="Rank on the task graph with a self loop at every node.")
    include_self: bool = Field(default=False, description="Diversity counts a node among its own neighbours.")


class InferConfig(Section):
    """How predictions are made."""

    backend: Literal["auto", "dgl", "numba", "torch"] = Field(
        default="auto", description="What passes the messages. `auto`: the fastest that is there."
    )
    norm: Literal["sym", "sum", "mean"] = Field(
        default="sym",
        description="Neighbours, the node itself included, are added by symmetric weights, plainly, or averaged.",
    )
    partitioner: Literal["contiguous", "ldg", "metis"] = Field(
        default="contiguous", description="How the graph is cut: runs of rows, streaming greedy, or METIS."
    )
    partitions: Literal["auto"] | Size = Field(
        default="auto", description="Parts, at most one a node. `auto`: as few as fit the memory."
    )


class EngineConfig(Section):
    """Who computes. No result depends on it."""

    workers: Size | None = Field(
        default=None,
        description="Worker processes that are started on this machine and share all work on the graph; see "
        "docs/cluster.md. `null`: this process alone.",
    )
    scheduler: str | None = Field(
        default=None,
        description="Instead of `workers`, a running Dask cluster: `tcp://HOST:PORT`, `tls://HOST:PORT`, or its "
        "scheduler file.",
        json_schema_extra=values("address, path or `null`"),
    )
    worker_memory: Memory | None = Field(
        default=None,
        description="Most memory of each of `workers`. `null`: an equal share for each and for this process.",
        json_schema_extra=values("a size such as `512MiB` or `8GiB`, or `null`"),
    )
    worker_threads: Size | None = Field(
        default=None, description="Threads of each of `workers`. `null`: an equal share of the cores."
    )
    tls: Directory | None = Field(
        default=None,
        description="Folder with the certificates of the cluster, as `ecgl scheduler --tls` makes it.",
        json_schema_extra=values("path or `null`"),
    )
    ranks: Size = Field(
        default=1,
        description="Processes that share the training, each with its lanes of blocks; see docs/ranks.md. `memory` and "
        "`threads` are those of each. Where they are `null`, ranks on one machine share what it has.",
    )

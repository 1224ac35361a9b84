"""The sections of a config: every key with its type, range, default (that of the preset ``plus``) and meaning.

The meanings are what docs/configuration.md shows; whatever contradicts itself inside a section is refused here.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ecgl_scale.config.choices import Dangling, Norm, Quota, Select
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
    diversity_ratio: float = Field(default=0.25, ge=0, le=1, description="With `select: ecgl`, share of diverse nodes.")
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

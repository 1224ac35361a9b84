"""Settings of the methods that E-CGL is compared with: one section a method, values of the paper's table.

``reference: true`` follows the public code where it differs from the method's own paper.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ecgl_scale.config.sections import Section, Size

QUIRKS = "Follow the public code where it differs from the paper."


class LwfConfig(Section):
    """Learning without forgetting."""

    lambda_: float = Field(default=1.0, ge=0, alias="lambda", description="Weight of the distillation.")
    temperature: float = Field(default=2.0, gt=0, description="Softens old and new outputs.")


class EwcConfig(Section):
    """Elastic weight consolidation."""

    lambda_: float = Field(default=10000.0, ge=0, alias="lambda", description="Weight of the penalty.")
    draws: int = Field(
        default=32, ge=1, description="Random signs that estimate each node's squares with `learn.train_as: gcn`."
    )
    reference: bool = Field(
        default=False,
        description=QUIRKS
        + " EWC: squares of the full-batch mean gradient, with which 10000 was chosen, and no balance from the second "
        "task on (task-il).",
    )


class MasConfig(Section):
    """Memory-aware synapses."""

    lambda_: float = Field(default=10000.0, ge=0, alias="lambda", description="Weight of the penalty.")


class GemConfig(Section):
    """Gradient episodic memory."""

    memory_nodes: int = Field(default=100, ge=1, description="Nodes kept of each task.")
    margin: float = Field(default=0.5, ge=0, description="Least strength with which old gradients count.")
    reference: bool = Field(
        default=False,
        description=QUIRKS + " GEM: 0.001 is added to the quadratic term; nodes are drawn with replacement (task-il), "
        "or the first by class (class-il).",
    )


class TwpConfig(Section):
    """Topology-aware weight preserving."""

    lambda_loss: float = Field(default=10000.0, ge=0, description="Weight of the importance for the loss.")
    lambda_topology: float = Field(default=10000.0, ge=0, description="Weight of the importance for the attention.")
    beta: float = Field(default=0.01, ge=0, description="Weight of the norm of the loss's gradient.")
    reference: bool = Field(
        default=False,
        description=QUIRKS + " TWP: attention after messages; the loss's gradient is in both importances and twice in "
        "every step; no gradient of beta's term.",
    )


class ErgnnConfig(Section):
    """Experience replay."""

    select: Literal["mf", "cm"] = Field(default="mf", description="By the mean of features, or by coverage.")
    distance: float = Field(default=0.5, gt=0, description="Radius of the coverage, for `select: cm`.")
    reference: bool = Field(
        default=False,
        description=QUIRKS
        + " ER-GNN: nodes least like the mean are kept (mf), 1,000 candidates of a class at most (cm); "
        "losses of old tasks are nested (task-il).",
    )


class SsmConfig(Section):
    """Sparsified subgraph memory."""

    centre_nodes: int = Field(default=100, ge=1, description="Centre nodes kept of each class.")
    neighbours: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        default=(0, 0), strict=False, description="Neighbours kept of each node, hop by hop."
    )
    select: Literal["random", "degree"] = Field(default="random", description="How neighbours are chosen.")


class CatConfig(Section):
    """Condense and train."""

    nodes: int = Field(default=60, ge=1, description="Synthetic nodes of each task. The paper's table: 100 to 5,000.")
    steps: int = Field(
        default=1000,
        ge=1,
        description="Random encoders that real and synthetic nodes are matched by. The public code: 3,000 to 5,000.",
    )
    lr: float = Field(default=0.001, gt=0, description="Step size of the synthetic features.")
    hidden: tuple[Size, ...] = Field(
        default=(512,), strict=False, min_length=1, description="Widths of the encoders, each followed by a ReLU."
    )
    real_nodes: Size | None = Field(
        default=None, description="Nodes of each class drawn for every 16 encoders. `null`: all of them, as the paper."
    )


class DygrainConfig(Section):
    """A reconstruction of DyGRAIN from its paper's description; there is no public code."""

    nodes: int = Field(default=100, ge=1, description="Old nodes trained again: so many by influence, so many by loss.")
    lambda_: float = Field(default=1.0, ge=0, alias="lambda", description="Weight of the distillation.")
    temperature: float = Field(default=2.0, gt=0, description="Softens old and new outputs.")
    truth: float = Field(default=0.5, ge=0, le=1, description="Share of the true labels in the distillation.")
    restart: float = Field(default=0.15, gt=0, lt=1, description="Restart of the influence's walk.")


class ContinualgnnConfig(Section):
    """ContinualGNN."""

    lambda_: float = Field(default=80.0, ge=0, alias="lambda", description="Weight of the penalty.")
    memory_nodes: int = Field(default=250, ge=1, description="Nodes kept in all, shared by the classes' counts.")
    detect_ratio: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="Share of influenced nodes trained again, besides old nodes with new neighbours. "
        "For `tasks.inter_task_edges: true`.",
    )
    alpha: float = Field(default=0.0, ge=0, description="How much a node's importance raises its chance to be kept.")

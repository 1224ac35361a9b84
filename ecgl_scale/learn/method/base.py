"""What a continual-learning method may add to the loop that all of them share.

    check, before anything is planned or written
    for each task:   begin_task -> segments -> epochs (penalty, adjust) -> finish -> end_task -> remember -> (tests)

The loop, the stream, checkpoints and metrics are the same for all. A method never touches the evaluator, nor data of
old tasks that its paper does not keep: what it may see is what ``Context`` offers and what it has stored itself.
A method's state is arrays by name: the loop saves them after every task and gives them back to a run that goes on.

A simple method has one or two hooks: ``segments`` or ``penalty``, and ``end_task``, which puts into ``kept`` what the
next task needs. State, plan and all else have defaults, made from what the class declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.config.sections import Section
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import UsageError
from ecgl_scale.infer.input_rows import StackedRows
from ecgl_scale.infer.model_input import ModelInput
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.loss import Labelled, Targets
from ecgl_scale.learn.method.forgetting import Forgetting, Forgot
from ecgl_scale.learn.model_shape import ModelShape
from ecgl_scale.learn.rows import RowCache, plan_rows
from ecgl_scale.learn.train import AnySegment, Penalty, Trainer
from ecgl_scale.store.features.dense import GATHER_BYTES
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.forgotten import Forgotten
from ecgl_scale.tasks.stream import Task, TaskStream

Arrays = dict[str, NDArray[Any]]
Ids = NDArray[np.int64]

QUIRKS = "Follow the public code where it differs from the paper."
"""What the key ``reference`` of a method's section means; the method says what differs."""
ROW_BYTES = 64
"""Bytes of a training node while some are chosen: ids, labels, places, scores."""


@dataclass(frozen=True)
class TaskShape:
    """How large a task is."""

    num_nodes: int
    """Nodes of the graph it is trained on."""
    num_rows: int
    """Training nodes."""
    num_old_rows: int
    """Those of all earlier tasks."""
    widths: tuple[int, ...]

    @property
    def num_features(self) -> int:
        """Values of a row."""
        return self.widths[0]

    @property
    def num_classes(self) -> int:
        """Classes of the whole run."""
        return self.widths[-1]


@dataclass(frozen=True)
class TaskSizes(TaskShape):
    """What is known of a task before its graph is there, to plan with."""

    num_edges: int
    edge_bytes: int
    """Bytes of those edges in memory, as ``GraphPropagation`` holds them."""
    num_tasks: int
    """Tasks of the whole run."""
    stored_features: int
    """Columns of the store's features, of which the model's input is made."""
    values_a_row: float | None
    """Stored values of an average sparse row; None for dense features."""
    made: ModelInput
    """How the model's input is made of features: as they are, or dense rows."""
    epoch_bytes: int
    """An epoch, besides the rows."""
    training_bytes: int
    """The rows, or the graph, and an epoch, where they have all the room."""
    least_training_bytes: int
    """What they need where they have none of it: rows are in a file."""
    threads: int
    room_bytes: int
    """What the budget leaves besides what is held all the time."""

    @property
    def num_weights(self) -> int:
        """Weights of all layers, biases included."""
        return sum(fan_in * fan_out + fan_out for fan_in, fan_out in pairwise(self.widths))

    @property
    def row_bytes(self) -> int:
        """Memory of a row of the model's input, kept as it is."""
        num_values = self._num_values(1)
        return 4 * self.num_features if num_values is None else 8 * num_values

    def training_beside(self, beside_bytes: int) -> int:
        """The rows, or the graph, an epoch, and so much beside them: rows take what that leaves."""
        within = max(self.least_training_bytes + beside_bytes, self.room_bytes)
        return min(within, self.training_bytes + beside_bytes)

    def rows_bytes(self, num_rows: int, *, beside_bytes: int = 0) -> int:
        """Memory of so many rows of the model's input, held where they fit beside an epoch and ``beside_bytes``."""
        num_values = self._num_values(num_rows)
        memory_bytes = max(self.room_bytes - self.epoch_bytes - beside_bytes, 0)
        return plan_rows(num_rows, self.widths[0], memory_bytes=memory_bytes, num_values=num_values).host_bytes

    def _num_values(self, num_rows: int) -> int | None:
        """Stored values of so many sparse rows; None for dense ones."""
        if self.values_a_row is None or self.made.is_made:
            return None
        return int(np.ceil(self.values_a_row * num_rows))


@dataclass(frozen=True)
class MethodPlan:
    """What a method needs for a task, besides its bank and the plain training."""

    state_bytes: int
    """Bytes that it keeps from task to task, with its copies of weights, when all tasks are learned.

    It is asked before it is known what room it leaves, so it depends neither on ``room_bytes`` nor on the task.
    """
    end: StagePlan
    """What ``end_task`` and ``remember`` need."""
    work_bytes: int = 0
    """In all for what a task needs before or while it is trained, where that is more than ``training_bytes``.

    As the need of every stage it is never more than ``room_bytes``, or than the least: with more room it fits, too.
    """


class Context(Protocol):
    """A run as a method sees it while it learns ``task``."""

    config: RunConfig
    stream: TaskStream
    task: Task
    trainer: Trainer
    bank: MemoryBank
    """Nodes of earlier tasks that the method has remembered, with their own copy of the rows."""
    work: Path
    """For files that are needed while the task is learned."""
    keeping: Path
    """For files that belong to the method's state, see ``Method.kept_files``."""
    resources: Resources

    def parts(self, tasks: Sequence[Task]) -> list[Labelled]:
        """Training rows and labels of tasks; the rows are left out where it is trained as a graph."""
        ...

    def replay(self) -> Labelled | None:
        """Rows and labels of the bank; None while it is empty."""
        ...

    def targets(self, parts: Sequence[Labelled], replay: Labelled | None) -> list[Targets]:
        """What their logits are compared with, weighed as the config says; the bank's are the last."""
        ...

    def attach(
        self, tasks: Sequence[Task], parts: Sequence[Labelled], replay: Labelled | None, targets: Sequence[Targets]
    ) -> list[AnySegment]:
        """Targets with the rows, or the task graphs, that they belong to."""
        ...

    def segments(self, tasks: Sequence[Task], replay: Labelled | None) -> list[AnySegment]:
        """``parts``, ``targets`` and ``attach`` in one: the plain loss of these tasks and the bank."""
        ...

    def graph(self, task: Task) -> tuple[GraphStore, Ids]:
        """The graph a task is trained and ranked on, and the ids of its nodes."""
        ...

    def rows(self, task: Task, ids: Ids, name: str, *, beside_bytes: int = 0) -> RowCache:
        """Feature rows of nodes of a task, held where that leaves ``beside_bytes`` besides an epoch."""
        ...

    def input_rows(self, task: Task) -> StackedRows:
        """Rows of the model's input for every node of a task, made when they are asked for; for stacked hops."""
        ...

    def graph_rows(self, task: Task, *, beside_bytes: int = 0) -> RowCache:
        """Feature rows of every node of the graph a task is trained on, held as those of ``rows``."""
        ...

    def bank_rows(self, task: Task, ids: Ids) -> Any:
        """Feature rows of nodes of a task, as the bank keeps them: an array, or CSR."""
        ...


class Method:
    """Base of all methods: fine-tuning, to which each adds. A built-in one declares here all that others know of it."""

    name: ClassVar[str]
    """As a config names it, and its section of the config; that of its file."""
    choose_when: ClassVar[str] = ""
    """What a user chooses it for, by the records of bench/."""
    category: ClassVar[str] = "bound"
    """bound, regularisation, replay or closed form."""
    stores: ClassVar[str] = "nothing"
    cost: ClassVar[str] = "one pass over the task's rows"
    """What an epoch costs."""
    reference: ClassVar[str] = ""
    settings: ClassVar[type[Section] | None] = None
    """Its section of the config; ``config.section(...)`` gives the values."""
    backbones: ClassVar[tuple[str, ...]] = ("mlp", "gcn")
    keeps_bank: ClassVar[bool] = False
    """Whether nodes of old tasks are kept and replayed."""
    keeps_tasks: ClassVar[bool] = False
    """Whether the training rows of all old tasks are used again: then nothing is forgotten, and it is a bound."""
    keeps_graphs: ClassVar[bool] = False
    """Whether, trained as a graph, the graphs of all old tasks are held as well."""
    restarts: ClassVar[bool] = False
    """Whether every task begins with new weights."""
    shares_end: ClassVar[bool] = False
    """Whether ``end_task`` is gradients of the task's rows, which ranks then share; else the first does it alone."""
    weight_copies: ClassVar[int] = 0
    """How many numbers for every weight it keeps, or holds while a task is learned or ends."""
    forgets_exactly: ClassVar[bool] = False
    """Whether what it has learned is a sum over rows: after ``forget`` it is as if they had never been there."""
    learns_at_once: ClassVar[bool] = False
    """Whether a task is learned by one call of ``learn`` instead of epochs."""
    kept_files: ClassVar[str] = ""
    """Names of files that belong to its state and stand beside it, as ``glob`` takes them."""
    is_reconstruction: ClassVar[bool] = False
    """Whether it was made again from a paper's description, as there is no public code; it is always called so."""
    remark: ClassVar[str] = ""
    """What the key ``method`` in docs/configuration.md says of it, where it is none of the paper's tables."""
    place: ClassVar[int] = 1000
    """In lists of methods and in a resolved config those with smaller numbers come first, then it goes by name."""

    @cached_property
    def kept(self) -> Arrays:
        """Everything that the next task needs, besides weights and bank; arrays that are not changed in place."""
        return {}

    def check(self, config: RunConfig) -> None:
        """Refuse settings that the method cannot learn with, by a ``UsageError``."""

    def shape(self, config: RunConfig) -> ModelShape:
        """What the model is given, and its layers."""
        return ModelShape.of(config)

    def begin_task(self, context: Context) -> None:
        """Before the first epoch, and again where a run goes on in the middle of a task."""

    def segments(self, context: Context) -> list[AnySegment]:
        """What the loss is a sum over."""
        seen = context.stream.seen(context.task) if self.keeps_tasks else [context.task]
        tasks = [task for task in seen if task.num_train]  # else its nodes are forgotten
        return context.segments(tasks, context.replay() if self.keeps_bank else None)

    def learn(self, context: Context) -> float:
        """Learn the task, where ``learns_at_once``: sets the weights and returns the loss."""
        raise NotImplementedError

    def penalty(self, context: Context) -> Penalty | None:
        """A term of the loss that depends on the weights alone."""
        del context
        return None

    def beside_segments_bytes(self, config: RunConfig, shape: TaskShape) -> int:
        """What it needs while it has the segments of a task, besides them and an epoch; their rows leave it free."""
        del config, shape
        return 0

    def adjust(self, context: Context) -> None:
        """Change the gradients (``.grad`` of the weights) before the step."""

    def finish(self, context: Context, segments: Sequence[AnySegment]) -> None:
        """Change the weights after the last epoch, before they are saved; done again it must give the same."""

    def end_epochs(self) -> None:
        """Let go of what only the epochs needed."""

    def end_task(self, context: Context) -> None:
        """After the last epoch, with the task's segments still there to be asked for again."""

    def remember(self, context: Context) -> MemoryBank:
        """The bank with what is kept of the task; done again after a kill it must give the same."""
        return context.bank

    def state(self) -> Arrays:
        """What is saved after a task: ``kept``, unless the method keeps it in another form."""
        return self.kept

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from ``state()``."""
        self.kept = dict(state)

    def forget(self, gone: Forgotten, head: Sequence[int]) -> int:
        """Take forgotten nodes, and outputs of forgotten classes, out of ``state()``; returns how many rows have left.

        ``head`` are the places of the head's tensors among the model's. A method with a state of its own must say how.
        """
        del gone, head
        if self.state():
            raise UsageError(
                f"the method {self.name} does not say how it forgets, and it keeps something of the tasks it has seen",
                expected="a method with a function `forget`, see docs/adding-a-method.md",
            )
        return 0

    def forget_exactly(self, forgetting: Forgetting) -> Forgot:
        """Take forgotten rows out of ``state()`` and ``kept_files``, where it ``forgets_exactly``."""
        raise NotImplementedError

    def plan(self, config: RunConfig, sizes: TaskSizes) -> MethodPlan:
        """What the method needs for a task, for ``ecgl plan``; by default what follows from its declarations."""
        del config
        needed = ROW_BYTES * sizes.num_rows + GATHER_BYTES
        return MethodPlan(
            state_bytes=4 * self.weight_copies * sizes.num_weights,
            end=end_plan(needed, "what is kept is chosen and gathered"),
        )

    def remedies(self, config: RunConfig) -> Iterator[str]:
        """Settings that need less memory, and change what is learned, the least change first."""
        del config
        yield from ()


def end_plan(host_bytes: int, formula: str) -> StagePlan:
    """The plan of a task's end."""
    return StagePlan("remember", host_bytes, formula)

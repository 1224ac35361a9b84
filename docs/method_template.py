"""A method of your own, to copy: every hook of ``Method``, doing what the base does, which is fine-tuning.

Keep the hooks you need, delete the others, and name the class in a config, with its folder in PYTHONPATH:

    method: method_template:MyMethod

docs/adding-a-method.md has the order of the hooks, the rules, and a complete example.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from numpy.typing import NDArray

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.method.base import Arrays, Context, Method, TaskSizes
from ecgl_scale.learn.train import AnySegment, Penalty


class MyMethod(Method):
    """Say here what the method adds, with its formula, and where it is published."""

    name: ClassVar[str] = "my-method"
    category: ClassVar[str] = "regularisation"  # bound, regularisation or replay
    stores: ClassVar[str] = "nothing"  # of old tasks
    cost: ClassVar[str] = "one pass over the task's rows"  # of an epoch
    reference: ClassVar[str] = "title (authors, where and when)"
    backbones: ClassVar[tuple[str, ...]] = ("mlp", "gcn")  # values of learn.train_as that it works with
    keeps_bank: ClassVar[bool] = False  # True: `remember` keeps nodes of old tasks, and they are replayed
    keeps_tasks: ClassVar[bool] = False  # True: training rows of all old tasks are used again
    keeps_graphs: ClassVar[bool] = False  # True: trained as a graph, the graphs of all old tasks are held
    restarts: ClassVar[bool] = False  # True: every task begins with new weights

    def __init__(self) -> None:
        """No arguments; what the method keeps from task to task begins empty."""
        self._kept: Arrays = {}

    def check(self, config: RunConfig) -> None:
        """Before anything is planned or written: raise ``UsageError`` for settings that it cannot learn with."""
        super().check(config)

    def begin_task(self, context: Context) -> None:
        """Before the first epoch, or where a killed run goes on within a task: look, prepare."""
        super().begin_task(context)

    def segments(self, context: Context) -> list[AnySegment]:
        """Rows or graphs with labels, a weight for each, and the classes they compete with: the loss sums over them."""
        return super().segments(context)

    def penalty(self, context: Context) -> Penalty | None:
        """A function of the weights that gives a further term of the loss, or None."""
        return super().penalty(context)

    def adjust(self, context: Context) -> None:
        """Before every step: change ``.grad`` of ``context.trainer.weights.parameters()`` in place."""
        super().adjust(context)

    def end_epochs(self) -> None:
        """After the last epoch: let go of what only the epochs needed."""
        super().end_epochs()

    def end_task(self, context: Context) -> None:
        """Measure and store; ``context.trainer.gradient(segments)`` leaves exact gradients in ``.grad``."""
        super().end_task(context)

    def remember(self, context: Context) -> MemoryBank:
        """The bank with the nodes that are kept of this task; needs ``keeps_bank``."""
        return super().remember(context)

    def state(self) -> Arrays:
        """All that the next task needs besides weights and bank, as arrays by name; saved after every task."""
        return self._kept

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what ``state`` gave, in another process."""
        self._kept = dict(state)

    def planned_bytes(self, num_weights: int, num_classes: int, num_tasks: int) -> int:
        """Memory of the state when all tasks are learned, for ``ecgl plan``."""
        return super().planned_bytes(num_weights, num_classes, num_tasks)

    def planned_node_bytes(
        self, config: RunConfig, *, row_bytes: int, num_features: int, num_classes: int, num_tasks: int
    ) -> int:
        """The same of nodes that are kept in the state, where a row of features takes ``row_bytes``."""
        return super().planned_node_bytes(
            config, row_bytes=row_bytes, num_features=num_features, num_classes=num_classes, num_tasks=num_tasks
        )

    def planned_work_bytes(self, config: RunConfig, sizes: TaskSizes) -> int:
        """Memory in all of a task's training, where it is more than the plain one; 0 where it is not."""
        return super().planned_work_bytes(config, sizes)

    def planned_end(self, config: RunConfig, sizes: TaskSizes) -> StagePlan:
        """What ``end_task`` and ``remember`` need besides bank and state."""
        return super().planned_end(config, sizes)

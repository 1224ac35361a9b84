"""Joint training: at every task, new weights and the rows of all tasks so far. The upper bound; not continual."""

from __future__ import annotations

from typing import ClassVar

from ecgl_scale.learn.methods.base import Method


class Joint(Method):
    """Uses all old data, each task on its own columns in task-IL."""

    name: ClassVar[str] = "joint"
    stores: ClassVar[str] = "the training rows of all tasks"
    cost: ClassVar[str] = "one pass over the rows of all tasks so far"
    keeps_tasks: ClassVar[bool] = True
    restarts: ClassVar[bool] = True

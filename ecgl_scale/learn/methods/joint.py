"""Joint training: at every task, new weights and the rows of all tasks so far. The upper bound; not continual.

The loss is one mean over all rows, weighed as the config says; the public code adds up a mean of each task. With
balanced classes and as many of them in every task the two differ by a factor, the number of tasks, which Adam takes out
but for the weight decay. Adam's moments go on, and weights begin as ``learn.init`` says (public code: Xavier).
"""

from __future__ import annotations

from typing import ClassVar

from ecgl_scale.learn.method.base import Method


class Joint(Method):
    """Uses all old data, each task on its own columns in task-IL."""

    name: ClassVar[str] = "joint"
    choose_when: ClassVar[str] = "where all old rows may be kept and learned again: the upper bound"
    place: ClassVar[int] = 20
    stores: ClassVar[str] = "the training rows of all tasks"
    cost: ClassVar[str] = "one pass over the rows of all tasks so far"
    keeps_tasks: ClassVar[bool] = True
    restarts: ClassVar[bool] = True
    remark: ClassVar[str] = "`joint` keeps all data (upper bound)"

"""What a continual-learning method may add to the loop that all of them share.

The loop trains on the rows of the current task (and of the bank, where one is kept), then lets the method remember,
then tests. A method says what it keeps and which rows it may see; it never touches the evaluator.
"""

from __future__ import annotations

from typing import ClassVar


class Method:
    """Base of all methods: nothing is added."""

    name: ClassVar[str]
    keeps_bank: ClassVar[bool] = False
    """Whether nodes of old tasks are kept and replayed."""
    keeps_tasks: ClassVar[bool] = False
    """Whether the training rows of all old tasks are used again."""
    restarts: ClassVar[bool] = False
    """Whether every task begins with new weights."""

"""Fine-tuning: train on the current task and nothing else. The lower bound."""

from __future__ import annotations

from typing import ClassVar

from ecgl_scale.learn.method.base import Method


class Finetune(Method):
    """Learns one task after the other and keeps nothing."""

    name: ClassVar[str] = "finetune"
    choose_when: ClassVar[str] = "to see what is forgotten without any care: the lower bound"
    place: ClassVar[int] = 10
    remark: ClassVar[str] = "`finetune` forgets freely (lower bound)"

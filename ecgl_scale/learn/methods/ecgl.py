"""E-CGL: replay of a memory bank, chosen by importance and diversity; loss = new + lambda * replay."""

from __future__ import annotations

from typing import ClassVar

from ecgl_scale.learn.methods.base import Method


class Ecgl(Method):
    """Keeps a bank; how it is filled and weighed is in the sections ``bank``, ``rank`` and ``learn`` of the config."""

    name: ClassVar[str] = "ecgl"
    keeps_bank: ClassVar[bool] = True

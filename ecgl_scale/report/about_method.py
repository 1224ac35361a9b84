"""What the files of a run say of its method: a report knows no method by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEY = "about_method"
"""The key of ``results.json`` and ``plan.json`` that says it."""

UNTOLD: Mapping[str, Mapping[str, Any]] = {"joint": {"keeps_all_data": True}, "dygrain": {"is_reconstruction": True}}
"""What runs from before their files said it would have said of themselves. Nothing is ever added here."""


@dataclass(frozen=True)
class AboutMethod:
    """A method as a report shows it."""

    name: str
    section: str
    """Its section of the config."""
    keeps_all_data: bool
    """It sees every task again: its AF says nothing, and it is a bound, no competitor."""
    is_reconstruction: bool
    """It has no public code and was made again from a paper's description; it is called so wherever it is shown."""

    @classmethod
    def read(cls, name: str, file: Mapping[str, Any]) -> AboutMethod:
        """Read it from the object of ``results.json`` or ``plan.json``."""
        told = file.get(KEY)
        found = told if isinstance(told, dict) else UNTOLD.get(name, {})
        return cls(
            name=name,
            section=str(found.get("section", name)),
            keeps_all_data=bool(found.get("keeps_all_data", False)),
            is_reconstruction=bool(found.get("is_reconstruction", False)),
        )

    @property
    def shown(self) -> str:
        """The name, and that it is a reconstruction where it is one."""
        return shown_method(self.name, is_reconstruction=self.is_reconstruction)


def shown_method(name: str, *, is_reconstruction: bool) -> str:
    """A method's name wherever people read it."""
    return f"{name} (reconstruction)" if is_reconstruction else name

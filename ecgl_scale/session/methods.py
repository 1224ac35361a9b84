"""What methods there are, in words, for ``ecgl methods``; and what a run's files say of its own, for reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ecgl_scale.learn.method.table import built_in_methods, method_class


@dataclass(frozen=True)
class MethodDescription:
    """A method as a user chooses it."""

    name: str
    category: str
    """bound, regularisation, replay or closed form."""
    choose_when: str
    """What it is good for, by our records."""
    stores: str
    """What it keeps of old tasks."""
    cost: str
    """What an epoch costs."""
    backbones: tuple[str, ...]
    """Values of ``learn.train_as`` that it works with."""
    reference: str
    """Where it was published."""


def describe_methods() -> list[MethodDescription]:
    """All methods, by category, then by name."""
    order = {"bound": 0, "regularisation": 1, "replay": 2, "closed form": 3}
    found = [
        MethodDescription(
            name=kind.name,
            category=kind.category,
            choose_when=kind.choose_when,
            stores=kind.stores,
            cost=kind.cost,
            backbones=tuple(kind.backbones),
            reference=kind.reference,
        )
        for kind in built_in_methods().values()
    ]
    return sorted(found, key=lambda method: (order.get(method.category, len(order)), method.name))


def about_method(name: str) -> dict[str, Any]:
    """What ``results.json`` and ``plan.json`` say of the run's method, as a report reads files and knows no methods."""
    kind = method_class(name)
    return {
        "category": kind.category,
        "section": kind.name,
        "keeps_all_data": kind.keeps_tasks,
        "is_reconstruction": kind.is_reconstruction,
    }

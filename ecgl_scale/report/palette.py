"""Colours of pages and pictures, as roles with a value for light and one for dark.

Pictures are drawn in the light values; within a page each value is replaced by the CSS variable of its role, so that
one picture serves both. Every value stands for one role only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shade:
    """A role and its two colours."""

    name: str
    light: str
    dark: str

    @property
    def variable(self) -> str:
        """The CSS variable of the role."""
        return f"var(--{self.name})"


INK = Shade("ink", "#1c2127", "#e6e9ee")
SOFT = Shade("soft", "#5a6472", "#a2acb9")
RULE = Shade("rule", "#dfe3e8", "#353c46")
PAPER = Shade("paper", "#fffffe", "#14181d")
PLAN = Shade("plan", "#3a4048", "#c9d0d9")

SERIES = tuple(
    Shade(f"s{number}", light, dark)
    for number, (light, dark) in enumerate(
        [
            ("#2368a9", "#76b0ee"),
            ("#c05a12", "#f2a168"),
            ("#2b7f52", "#68c494"),
            ("#7a50b3", "#bb9cec"),
            ("#b2354b", "#f18a9b"),
            ("#117c84", "#57c3cb"),
            ("#757417", "#c8c75f"),
            ("#86563a", "#d2a387"),
            ("#ac4a8a", "#e79bcc"),
            ("#667080", "#a6aebb"),
        ]
    )
)
"""Colours for methods and other things that have no order."""

STAGES = {
    "extract": Shade("stage-extract", "#8794a8", "#76849a"),
    "train": Shade("stage-train", "#4d8fcc", "#4a8fd6"),
    "remember": Shade("stage-remember", "#e0955c", "#d08447"),
    "evaluate": Shade("stage-evaluate", "#6bb28d", "#4f9f77"),
}
OTHER_STAGE = Shade("stage-other", "#c3c9d2", "#4a525e")


def _between(start: str, stop: str, share: float) -> str:
    pairs = [(int(start[i : i + 2], 16), int(stop[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(low + (high - low) * share):02x}" for low, high in pairs)


RAMP = tuple(
    Shade(f"r{step}", _between("#eef3f9", "#17508b", step / 10), _between("#1d2732", "#93c7ff", step / 10))
    for step in range(11)
)
"""Colours from little to much."""
ON_LOW = Shade("on-low", "#1c2128", "#e6e9ed")
ON_HIGH = Shade("on-high", "#fffffd", "#0e1318")

SHADES = (INK, SOFT, RULE, PAPER, PLAN, *SERIES, *STAGES.values(), OTHER_STAGE, *RAMP, ON_LOW, ON_HIGH)
_ROLES = {shade.light: shade for shade in SHADES}


def series_shade(number: int) -> Shade:
    """A colour for the n-th thing; after ten they begin anew."""
    return SERIES[number % len(SERIES)]


def line_style(number: int) -> dict[str, Any]:
    """The style of the n-th line: where colours have begun anew, lines are dashed and have another mark."""
    is_first = number < len(SERIES)
    return {"marker": "o", "linestyle": "-"} if is_first else {"marker": "s", "linestyle": (0, (3, 1.5))}


def stage_shade(stage: str) -> Shade:
    """The colour of a step of a run."""
    return STAGES.get(stage, OTHER_STAGE)


def ramp_shade(share: float) -> Shade:
    """The colour of a share from 0 to 1."""
    return RAMP[round(min(max(share, 0.0), 1.0) * (len(RAMP) - 1))]


def css_variables(*, dark: bool) -> str:
    """The roles as CSS declarations."""
    return " ".join(f"--{shade.name}: {shade.dark if dark else shade.light};" for shade in SHADES)


def with_roles(svg: str) -> str:
    """A picture whose colours follow the page."""
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: _ROLES[found[0]].variable if found[0] in _ROLES else found[0], svg)

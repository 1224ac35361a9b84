"""Tables as values: what a page shows, sorts by and offers as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ecgl_scale.tasks.measures import Spread
from ecgl_scale.units import format_bytes, format_seconds

NONE = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Cell:
    """What is shown, and what it is sorted by."""

    text: str
    key: float | str = ""
    is_best: bool = False
    is_number: bool = True
    mark: str = ""
    """A class that colours it: ``warn`` or ``bad``."""
    unit: str = ""
    """Of ``key``, where the column's name does not tell."""
    deviation: float | None = None
    """Over seeds, where ``key`` is a mean."""


@dataclass(frozen=True)
class Table:
    """Named columns and rows; columns may stand under common headings."""

    name: str
    """Of its CSV file."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    over: tuple[tuple[str, int], ...] = field(default=())
    """Headings over the columns, and how many columns each covers."""

    @property
    def csv(self) -> str:
        """As text; numbers with all their digits."""
        names = list(self.columns)
        if self.over:
            headings = [heading for heading, count in self.over for _ in range(count)]
            names = [f"{heading} {name}".strip() for heading, name in zip(headings, names, strict=True)]
        columns = []
        for name, cells in zip(names, list(zip(*self.rows, strict=True)) or [()] * len(names), strict=True):
            unit = next((cell.unit for cell in cells if cell.unit), "")
            columns.append((f"{name} ({unit})" if unit else name, [_plain(cell) for cell in cells]))
            if any(cell.deviation is not None for cell in cells):
                columns.append((f"{name} deviation", [cell.deviation for cell in cells]))
        return as_csv([name for name, _ in columns], zip(*(values for _, values in columns), strict=True))


def _plain(cell: Cell) -> float | str:
    """With all digits; nothing for a dash."""
    return "" if cell.text == NONE else cell.text if cell.key == "" else cell.key


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Comma-separated text with a line of names."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return out.getvalue()


def text_cell(text: object) -> Cell:
    """Left-aligned."""
    return Cell(str(text), str(text), is_number=False)


def number_cell(value: float | None, shown: str = "{:,.1f}", *, unit: str = "") -> Cell:
    """Right-aligned; a dash for None."""
    return Cell(NONE) if value is None else Cell(shown.format(value), value, unit=unit)


def bytes_cell(value: float | None, *, mark: str = "") -> Cell:
    """With a unit."""
    return Cell(NONE) if value is None else Cell(format_bytes(value), value, mark=mark, unit="bytes")


def seconds_cell(value: float | None) -> Cell:
    """With a unit that fits."""
    return Cell(NONE) if value is None else Cell(format_seconds(value), value, unit="seconds")


def spread_cell(value: Spread | None, *, is_best: bool = False) -> Cell:
    """Mean and deviation, sorted by the mean."""
    return Cell(NONE) if value is None else Cell(str(value), value.mean, is_best=is_best, deviation=value.deviation)


def with_minus(number: str) -> str:
    """A hyphen is narrower than a plus and hard to see."""
    return number.replace("-", MINUS)

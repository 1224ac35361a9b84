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
    """One entry of a table: what is shown, and what it is sorted by."""

    text: str
    key: float | str = ""
    is_best: bool = False
    is_number: bool = True
    mark: str = ""
    """A CSS class that colours it: ``warn`` or ``bad``."""
    unit: str = ""
    """The unit of ``key``, where the column's name does not tell."""
    deviation: float | None = None
    """The deviation over seeds, where ``key`` is a mean."""


@dataclass(frozen=True)
class Table:
    """Named columns and rows; columns may stand under common headings."""

    name: str
    """The name of its CSV file."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    over: tuple[tuple[str, int], ...] = field(default=())
    """Headings over the columns, and how many columns each covers."""

    @property
    def csv(self) -> str:
        """The table as CSV; numbers have all their digits."""
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
    """The value with all its digits; empty for a dash."""
    return "" if cell.text == NONE else cell.text if cell.key == "" else cell.key


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns and rows as comma-separated text, with a line of names."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return out.getvalue()


def text_cell(text: object) -> Cell:
    """A left-aligned cell."""
    return Cell(str(text), str(text), is_number=False)


def number_cell(value: float | None, shown: str = "{:,.1f}", *, unit: str = "") -> Cell:
    """A right-aligned cell; a dash for None."""
    return Cell(NONE) if value is None else Cell(shown.format(value), value, unit=unit)


def bytes_cell(value: float | None, *, mark: str = "") -> Cell:
    """A cell of bytes with a unit that fits; a dash for None."""
    return Cell(NONE) if value is None else Cell(format_bytes(value), value, mark=mark, unit="bytes")


def seconds_cell(value: float | None) -> Cell:
    """A cell of seconds with a unit that fits; a dash for None."""
    return Cell(NONE) if value is None else Cell(format_seconds(value), value, unit="seconds")


def spread_cell(value: Spread | None, *, is_best: bool = False) -> Cell:
    """A cell of mean and deviation, sorted by the mean; a dash for None."""
    return Cell(NONE) if value is None else Cell(str(value), value.mean, is_best=is_best, deviation=value.deviation)


def with_minus(number: str) -> str:
    """The number with a minus sign for a hyphen, which is narrower than a plus and hard to see."""
    return number.replace("-", MINUS)

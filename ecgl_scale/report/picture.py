"""A picture with the numbers it shows: as SVG within a page, as SVG, PNG and CSV in a folder.

matplotlib draws it without a window system; text stays text, so a page's own fonts and colours apply to it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecgl_scale.report.palette import INK, PAPER, RULE, SOFT, with_roles
from ecgl_scale.report.tables import as_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES = 5.6
"""The width of half a page, at which text has the size of the page's notes."""
WHOLE_WIDTH_INCHES = 11.6
PNG_DOTS_PER_INCH = 160
LETTERS_AN_INCH, MARK_LETTERS = 13, 7
"""Letters that have room in an inch of a legend, in DejaVu Sans; and the line before a label with the gap after it,
counted in letters."""

_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK.light,
    "text.parse_math": False,  # a dollar sign in a name is one
    "axes.edgecolor": SOFT.light,
    "axes.labelcolor": SOFT.light,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.titlesize": 9.5,
    "axes.titlecolor": INK.light,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE.light,
    "grid.linewidth": 0.8,
    "xtick.color": SOFT.light,
    "ytick.color": SOFT.light,
    "xtick.labelcolor": SOFT.light,
    "ytick.labelcolor": SOFT.light,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.labelcolor": INK.light,
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class Picture:
    """What is drawn, and the rows it is drawn from."""

    name: str
    """The name of its files, and of its element in a page."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    draw: Callable[[Figure], None]
    note: str = ""
    height_inches: float = 2.7
    width_inches: float = WIDTH_INCHES

    @property
    def csv(self) -> str:
        """The rows as text."""
        return as_csv(self.columns, self.rows)

    def render(self, kind: str) -> bytes:
        """The picture as ``svg`` or ``png``; equal numbers give equal bytes."""
        import matplotlib as mpl
        from matplotlib.figure import Figure

        style: Any = {**_STYLE, "svg.hashsalt": self.name}
        with mpl.rc_context(style):
            figure = Figure(figsize=(self.width_inches, self.height_inches), layout="constrained")
            self.draw(figure)
            out = io.BytesIO()
            dots = {"dpi": PNG_DOTS_PER_INCH} if kind == "png" else {"metadata": {"Date": None, "Creator": None}}
            background = PAPER.light if kind == "png" else "none"
            figure.savefig(out, format=kind, facecolor=background, **dots)
        return out.getvalue()

    def inline_svg(self) -> str:
        """The picture for a page: colours by role, ids of its own, a name for those who do not see it."""
        svg = self.render("svg").decode()
        svg = svg[svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        svg = re.sub(r'\bid="', f'id="{self.name}-', svg)
        svg = re.sub(r"url\(#", f"url(#{self.name}-", svg)
        svg = re.sub(r'xlink:href="#', f'href="#{self.name}-', svg)
        svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
        svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
        svg = re.sub(r' xmlns:xlink="[^"]*"', "", svg, count=1)
        return with_roles(svg.replace("<svg", f'<svg role="img" aria-labelledby="title-{self.name}"', 1))

    @property
    def is_wide(self) -> bool:
        """Whether it takes the whole width of a page."""
        return self.width_inches > WIDTH_INCHES

    @property
    def share_percent(self) -> float:
        """How much of its place in a page it fills (page.html.j2), so that the text of all pictures has one size."""
        return round(100 * self.width_inches / (WHOLE_WIDTH_INCHES if self.is_wide else WIDTH_INCHES), 1)

    def save(self, folder: Path) -> None:
        """Write NAME.svg, NAME.png and NAME.csv to a folder."""
        for kind in ("svg", "png"):
            (folder / f"{self.name}.{kind}").write_bytes(self.render(kind))
        (folder / f"{self.name}.csv").write_text(self.csv, encoding="utf-8")


def log_ticks(axis: Any) -> None:
    """Show plain numbers on a logarithmic axis: 0.01, 1, 100."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def whole_ticks(axes: Axes) -> None:
    """Number tasks and epochs by whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))


def only_rows(axes: Axes) -> None:
    """Draw horizontal grid lines only."""
    axes.grid(visible=False, axis="x")


def legend_columns(labels: Sequence[str], *, most: int = 4, width_inches: float = WIDTH_INCHES) -> int:
    """The columns of a legend that have room: one that is too wide is cut off at the picture's edge."""
    longest = max((len(short_label(label)) for label in labels), default=0)
    return max(min(int(width_inches * LETTERS_AN_INCH) // (longest + MARK_LETTERS), most), 1)


def legend_inches(labels: Sequence[str], columns: int) -> float:
    """The height of a legend, to be added to that of what it stands below."""
    return 0.2 * -(-len(labels) // columns)


def short_label(label: str) -> str:
    """The label, cut in its middle where it has no room even alone in a row."""
    room = int(WIDTH_INCHES * LETTERS_AN_INCH) - MARK_LETTERS
    half = (room - 1) // 2
    return label if len(label) <= room else f"{label[:half]}…{label[-half:]}"


def legend_below(figure: Figure, axes: Axes, *, columns: int = 4) -> None:
    """Put a legend under the picture, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        shown = [short_label(label) for label in labels]
        figure.legend(handles, shown, loc="outside lower left", ncols=columns, handlelength=1.6, columnspacing=1.4)

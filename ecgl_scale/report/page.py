"""One HTML file that needs nothing else: styles, script, pictures and their numbers are inside.

The page forbids itself any request by its own content policy, so it says the same from a disk, a mail or a web server.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path

from ecgl_scale._version import __version__
from ecgl_scale.report.content import Content
from ecgl_scale.report.palette import css_variables
from ecgl_scale.report.picture import Picture
from ecgl_scale.report.tables import Table, with_minus

TEMPLATES = Path(__file__).parent / "templates"


def render_page(content: Content, *, moment: datetime | None = None) -> str:
    """The page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The only text that is not escaped is our own, and matplotlib's, which escapes what it is given.
    environment.globals.update(
        style=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),  # noqa: S704
        script=Markup((TEMPLATES / "page.js").read_text(encoding="utf-8")),  # noqa: S704
        light=Markup(css_variables(dark=False)),  # noqa: S704
        dark=Markup(css_variables(dark=True)),  # noqa: S704
        svg=lambda picture: Markup(picture.inline_svg()),  # noqa: S704
        csv_link=csv_link,
        with_minus=with_minus,
    )
    now = (moment or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    return environment.get_template("page.html.j2").render(content=content, version=__version__, now=now)


def csv_link(shown: Picture | Table) -> str:
    """The numbers as a link that a browser saves as a file."""
    return "data:text/csv;base64," + base64.b64encode(shown.csv.encode()).decode()

"""``ecgl methods``: what a run can learn with."""

from __future__ import annotations

import shutil
from dataclasses import asdict

from ecgl_scale.cli.options import Json
from ecgl_scale.cli.output import print_json

TITLES = {
    "name": "name",
    "category": "category",
    "backbones": "trained as",
    "choose_when": "when to use it",
    "stores": "keeps of old tasks",
    "cost": "an epoch",
    "reference": "reference",
}
NARROW = ("name", "category", "backbones")
"""Columns that are never cut into lines."""
MIN_WIDTH = 120


def methods(as_json: Json = False) -> None:
    """List the methods: when to use each, what it keeps of old tasks, what an epoch costs, where it was published."""
    from ecgl_scale.session.methods import describe_methods

    found = [asdict(method) for method in describe_methods()]
    if as_json:
        print_json({"methods": found})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for key, title in TITLES.items():
        table.add_column(title, no_wrap=key in NARROW, overflow="fold")
    for method in found:
        table.add_row(*(", ".join(method[key]) if key == "backbones" else method[key] for key in TITLES))
    width = max(shutil.get_terminal_size((120, 0)).columns, MIN_WIDTH)
    Console(width=width, highlight=False, markup=False).print(table)

"""``ecgl ingest``: files of any known format into a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ecgl_scale.cli.options import IngestSettings, build_and_report, edge_options
from ecgl_scale.cli.output import Output
from ecgl_scale.cli.sources import SourceCommands

if TYPE_CHECKING:
    from ecgl_scale.store.source import GraphSource

app = typer.Typer(help="Turn a graph in files into a store.", no_args_is_help=True, rich_markup_mode=None)


def _build(output: Output, source: GraphSource, store: Path, settings: IngestSettings, inputs: Sequence[Path]) -> None:
    build_and_report(output, source, store, settings, edge_options(settings), inputs)


SourceCommands("ingest", IngestSettings, _build, adds=False).add_to(app)

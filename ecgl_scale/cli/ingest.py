"""``ecgl ingest``: files of any known format into a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ecgl_scale.cli.options import IngestSettings, build_and_report, edge_options
from ecgl_scale.cli.output import Output
from ecgl_scale.cli.sources import SourceCommands

if TYPE_CHECKING:
    from ecgl_scale.store.source import GraphSource


def _build(output: Output, source: GraphSource, store: Path, settings: IngestSettings, inputs: Sequence[Path]) -> None:
    build_and_report(output, source, store, settings, edge_options(settings), inputs)


app = SourceCommands("ingest", IngestSettings, _build, adds=False).group("Turn a graph in files into a store.")

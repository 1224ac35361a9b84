"""``ecgl ingest``: files of any known format into a store."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ecgl_scale.cli.options import IdColumn, IngestSettings, StorePath, build_and_report, edge_options, takes_settings
from ecgl_scale.errors import UsageError

app = typer.Typer(help="Turn a graph in files into a store.", no_args_is_help=True, rich_markup_mode=None)

Cache = Annotated[Path, typer.Option("--cache", metavar="DIR", help="Where downloads are kept.")]
DEFAULT_CACHE = Path("~/.cache/ecgl_scale")
NameOrPath = Annotated[str, typer.Argument(metavar="NAME|PATH", help="Data set name, or its folder or zip.")]


class RawIds(StrEnum):
    """Id types of raw pair files."""

    UINT32 = "uint32"
    UINT64 = "uint64"


@app.command("npz")
@takes_settings
def npz(
    context: typer.Context,
    settings: IngestSettings,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="edge_index, x or its CSR parts, y, more node arrays.")],
    store: StorePath,
    columns: Annotated[
        Path | None,
        typer.Option(
            "--columns",
            metavar="FILE",
            help="More node columns from a second npz: every array in it, one value a node.",
        ),
    ] = None,
    id_column: IdColumn = None,
) -> None:
    """Ingest one npz file."""
    from ecgl_scale.store.sources.npz import open_npz_source

    source = open_npz_source(file, columns, id_column)
    build_and_report(context.obj, source, store, settings, edge_options(settings), [file])


@app.command("ogb")
@takes_settings
def ogb(
    context: typer.Context,
    settings: IngestSettings,
    name: NameOrPath,
    store: StorePath,
    cache: Cache = DEFAULT_CACHE,
) -> None:
    """Ingest ogbn-arxiv, ogbn-products or ogbn-papers100M: OGB's raw folder or zip, or by download."""
    from ecgl_scale.store.sources.ogb import open_ogb

    with context.obj.progress() as sink:
        source = open_ogb(name, cache=cache.expanduser(), on_event=sink)
    build_and_report(context.obj, source, store, settings, edge_options(settings))


@app.command("dgl")
@takes_settings
def dgl(
    context: typer.Context,
    settings: IngestSettings,
    name: NameOrPath,
    store: StorePath,
    cache: Cache = DEFAULT_CACHE,
) -> None:
    """Ingest corafull or reddit in the layout DGL publishes: files, or by download."""
    from ecgl_scale.store.sources.dgl_files import open_dgl

    with context.obj.progress() as sink:
        source = open_dgl(name, cache=cache.expanduser(), on_event=sink)
    build_and_report(context.obj, source, store, settings, edge_options(settings))


@app.command("edges")
@takes_settings
def edges(
    context: typer.Context,
    settings: IngestSettings,
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE... STORE", help="Edge files or patterns, then the store.")
    ],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of nodes; ids run from 0 to this, exclusive.")],
    features: Annotated[
        Path | None,
        typer.Option("--features", metavar="PATH", help="x.npy, or the directory of a Zarr array, one row a node."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels",
            metavar="FILE",
            help="y.npy, or Parquet, Arrow or csv with a column label (or a single column): numbers or words.",
        ),
    ] = None,
    columns: Annotated[
        Path | None, typer.Option("--columns", metavar="FILE", help="More node columns: npz, Parquet, Arrow or csv.")
    ] = None,
    id_column: IdColumn = None,
    by_key: Annotated[bool, typer.Option("--id", help="Edges name nodes by their keys, not by numbers.")] = False,
    src: Annotated[str, typer.Option("--src", metavar="COLUMN", help="Column of the sources.")] = "src",
    dst: Annotated[str, typer.Option("--dst", metavar="COLUMN", help="Column of the destinations.")] = "dst",
    raw_ids: Annotated[RawIds, typer.Option("--raw-ids", help="What raw pair files (.bin) hold.")] = RawIds.UINT32,
) -> None:
    """Ingest edge lists: Parquet, Arrow, CSV(.gz), raw pairs; several files or a pattern."""
    from ecgl_scale.store.sources.edges import open_edge_files

    if len(paths) < 2:
        raise UsageError("the store to make is missing", expected="ecgl ingest edges FILE... STORE --nodes N")
    if by_key and id_column is None:
        raise UsageError("--id is given, but nodes have no keys", fix="say which column has them: --id-column")
    source = open_edge_files(
        paths[:-1],
        num_nodes=nodes,
        features=features,
        labels=labels,
        columns=columns,
        src_column=src,
        dst_column=dst,
        raw_dtype=raw_ids.value,
        id_column=id_column,
        by_key=by_key,
    )
    files = [path for path in paths[:-1] if path.is_file()]  # others are patterns
    build_and_report(context.obj, source, paths[-1], settings, edge_options(settings), files)

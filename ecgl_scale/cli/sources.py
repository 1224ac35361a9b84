"""Where graphs come from, for ``ecgl ingest`` and ``ecgl append``: a command a format, the same arguments for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecgl_scale.base.objects.url import require_directory
from ecgl_scale.cli.options import IdColumn, StorePath, takes_settings
from ecgl_scale.cli.output import Output
from ecgl_scale.errors import UsageError

if TYPE_CHECKING:
    from ecgl_scale.store.source import GraphSource

Cache = Annotated[Path, typer.Option("--cache", metavar="DIR", help="Where downloads are kept.")]
DEFAULT_CACHE = Path("~/.cache/ecgl_scale")
NameOrPath = Annotated[str, typer.Argument(metavar="NAME|PATH", help="Data set name, or its folder or zip.")]


class RawIds(StrEnum):
    """Id types of raw pair files."""

    UINT32 = "uint32"
    UINT64 = "uint64"


@dataclass(frozen=True)
class SourceCommands:
    """What becomes of a source, and how the commands of one group speak of it."""

    name: str
    """The group is ``ingest`` or ``append``."""
    settings: type[Any]
    """The options of every command of the group, besides those of its source."""
    use: Callable[[Output, GraphSource, Path, Any, Sequence[Path]], None]
    """Called with the source, the store, the settings, and files that workers read, too."""
    adds: bool
    """Whether the source comes to a store that is there: it may then lack edges, or nodes."""

    def group(self, about: str) -> typer.Typer:
        """A command for each format."""
        app = typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)
        for command in (self.npz, self.ogb, self.dgl, self.edges):
            takes = takes_settings(command, self.settings)
            app.command(command.__name__, help=(command.__doc__ or "").format(self.name.capitalize()))(takes)
        return app

    def npz(
        self,
        context: typer.Context,
        settings: Any,
        file: Annotated[
            Path, typer.Argument(metavar="FILE", help="edge_index, x or its CSR parts, y, more node arrays.")
        ],
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
        """{} one npz file."""
        from ecgl_scale.store.sources.npz import open_npz_source

        _require_files(file, columns)
        source = open_npz_source(file, columns, self._id_column(id_column, store), adds=self.adds)
        self.use(context.obj, source, store, settings, [file])

    def ogb(
        self,
        context: typer.Context,
        settings: Any,
        name: NameOrPath,
        store: StorePath,
        cache: Cache = DEFAULT_CACHE,
    ) -> None:
        """{} ogbn-arxiv, ogbn-products or ogbn-papers100M: OGB's raw folder or zip, or by download."""
        from ecgl_scale.store.sources.ogb import open_ogb

        _require_files(name)
        with context.obj.progress() as sink:
            source = open_ogb(name, cache=cache.expanduser(), on_event=sink)
        self.use(context.obj, source, store, settings, [])

    def dgl(
        self,
        context: typer.Context,
        settings: Any,
        name: NameOrPath,
        store: StorePath,
        cache: Cache = DEFAULT_CACHE,
    ) -> None:
        """{} corafull or reddit in the layout DGL publishes: files, or by download."""
        from ecgl_scale.store.sources.dgl_files import open_dgl

        _require_files(name)
        with context.obj.progress() as sink:
            source = open_dgl(name, cache=cache.expanduser(), on_event=sink, adds=self.adds)
        self.use(context.obj, source, store, settings, [])

    def edges(
        self,
        context: typer.Context,
        settings: Any,
        paths: Annotated[
            list[Path], typer.Argument(metavar="FILE... STORE", help="Edge files or patterns, then the store.")
        ],
        nodes: Annotated[
            int | None,
            typer.Option(
                "--nodes",
                min=0,
                help="Number of nodes; ids run from 0 to this, exclusive. `append`: number of new nodes, whose ids "
                "follow those of the store. Default: the rows of --features.",
            ),
        ] = None,
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
            Path | None,
            typer.Option("--columns", metavar="FILE", help="More node columns: npz, Parquet, Arrow or csv."),
        ] = None,
        id_column: IdColumn = None,
        by_key: Annotated[bool, typer.Option("--id", help="Edges name nodes by their keys, not by numbers.")] = False,
        src: Annotated[str, typer.Option("--src", metavar="COLUMN", help="Column of the sources.")] = "src",
        dst: Annotated[str, typer.Option("--dst", metavar="COLUMN", help="Column of the destinations.")] = "dst",
        raw_ids: Annotated[RawIds, typer.Option("--raw-ids", help="What raw pair files (.bin) hold.")] = RawIds.UINT32,
    ) -> None:
        """{} edge lists: Parquet, Arrow, CSV(.gz), raw pairs; several files or a pattern."""
        from ecgl_scale.store.sources.edges import open_edge_files

        *files, store = paths
        if not files and not self.adds:
            raise UsageError("the store to make is missing", expected="ecgl ingest edges FILE... STORE --nodes N")
        if not self.adds and (nodes == 0 or (nodes is None and features is None)):
            raise UsageError("the number of nodes is missing", expected="--nodes N, at least 1, or --features PATH")
        _require_files(*files, features, labels, columns)
        id_column = self._id_column(id_column, store)
        if by_key and id_column is None:
            raise UsageError("--id is given, but nodes have no keys", fix="say which column has them: --id-column")
        source = open_edge_files(
            files or None,
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
        self.use(
            context.obj, source, store, settings, [path for path in files if path.is_file()]
        )  # others are patterns

    def _id_column(self, given: str | None, store: Path) -> str | None:
        """The column with the keys; new nodes have theirs in one of the same name as those of the store."""
        if given is not None or not self.adds:
            return given
        from ecgl_scale.store.view import read_view

        keys = read_view(store).manifest.keys
        return None if keys is None else keys.name


def _require_files(*given: str | Path | None) -> None:
    """Refuse URLs: a store may be at one, what it is made of is read from paths."""
    for path in given:
        if path is not None:
            require_directory(path, what="reading files to ingest", fix="copy them to this machine first")

"""``ecgl forget``: a model without some nodes, or without a class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ecgl_scale.base.objects.url import require_directory
from ecgl_scale.cli.options import Json, Memory
from ecgl_scale.cli.output import print_json
from ecgl_scale.units import format_count


def forget(
    context: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Directory of a finished run, of a model that ECGL.save wrote, or of an update; of its versions the "
            "newest, or MODEL@N.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="MODEL2",
            help="Directory of the model that has forgotten, new or empty; or MODEL, for its next version: the older "
            "ones are then removed.",
        ),
    ],
    nodes: Annotated[
        Path | None,
        typer.Option(
            "--nodes",
            metavar="FILE",
            help="Forget the nodes that a file names by row number: .npy, .txt, .csv, .tsv, .parquet or .arrow.",
        ),
    ] = None,
    by_key: Annotated[bool, typer.Option("--id", help="The file names nodes by their keys in the store.")] = False,
    class_name: Annotated[
        str | None,
        typer.Option("--class", metavar="NAME", help="Forget a class: all of its nodes, and its output."),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store",
            metavar="STORE",
            help="The model's store, where it is not where its config says: for --id, and for methods that keep sums.",
        ),
    ] = None,
    keep_versions: Annotated[
        bool, typer.Option("--keep-versions", help="Keep older versions of MODEL, which still hold the data.")
    ] = False,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Take nodes, or a class, out of every file of a model, and say what its weights may still carry."""
    if (nodes is None) == (class_name is None):
        raise typer.BadParameter("give either --nodes or --class", param_hint="--nodes")
    if nodes is None and by_key:
        raise typer.BadParameter("--id goes with --nodes", param_hint="--id")
    from ecgl_scale.session.forget import forget as forget_in
    from ecgl_scale.session.forget_nodes import Asked

    for path in (model, out):
        require_directory(path, what="ecgl forget", fix="copy the model to this machine first")
    asked = Asked(nodes, class_name, by_key, store)
    with context.obj.progress() as sink:
        found = forget_in(model, out, asked, keep_versions=keep_versions, memory=memory, on_event=sink)
    if as_json:
        print_json(found)
    elif not context.obj.quiet:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    what = f"class {found['class']}" if found["num_asked"] is None else f"{format_count(found['num_asked'])} nodes"
    print(
        f"{found['out']}: {what} forgotten, {format_count(found['num_known'])} nodes of it were in tasks of the model"
    )
    for name, num_rows in found["rows"].items():
        print(f"  {name}: {format_count(num_rows)} row{'s' * (num_rows != 1)} left it")
    if found["num_removed_versions"]:
        print(f"  older versions removed: {found['num_removed_versions']}")
    for line in (*found["carries"], *found["elsewhere"]):
        print(f"  {line}")

"""``ecgl drop``: nodes leave a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ecgl_scale.cli.options import Json, Memory, StorePath, Threads
from ecgl_scale.cli.output import print_json
from ecgl_scale.units import format_count


def drop(
    context: typer.Context,
    store: StorePath,
    nodes: Annotated[
        Path,
        typer.Option("--nodes", metavar="FILE", help="The nodes: .npy, .txt, .csv, .tsv, Parquet or Arrow."),
    ],
    by_key: Annotated[
        bool, typer.Option("--id", help="The file names nodes by their keys, not by row numbers.")
    ] = False,
    memory: Memory = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Drop nodes from a store: nobody sees them from now on, and `ecgl compact` erases them."""
    from ecgl_scale.base.objects.url import require_directory
    from ecgl_scale.engine.resources import Resources
    from ecgl_scale.store.drop import drop_nodes
    from ecgl_scale.store.graph import GraphStore
    from ecgl_scale.store.node_list import read_node_list

    require_directory(
        store, what="ecgl drop", fix="drop the nodes of a copy on this machine, and put that in its place"
    )
    with context.obj.progress() as sink:
        graph = GraphStore.open(store)
        graph.keys = None if graph.keys is None else graph.keys.with_dropped()
        ids = read_node_list(nodes, graph, by_key)
        resources = Resources.of(memory, threads, on_event=sink)
        report = drop_nodes(store, ids, resources, provenance={"file": nodes.name, "by_key": by_key})
    if as_json:
        from ecgl_scale.cli.inspect import summary

        print_json(
            summary(store, report.manifest)
            | {
                "dropped_now": report.num_nodes,
                "dropped_before": report.num_already,
                "dropped_edges": report.num_edges,
            }
        )
    elif not context.obj.quiet:
        before = f" ({format_count(report.num_already)} had been dropped before)" if report.num_already else ""
        counts = f"{format_count(report.num_nodes)} nodes and {format_count(report.num_edges)} edges dropped{before}"
        print(
            f"{store}: {counts}; ecgl compact erases what is on the disk" if report.num_nodes else f"{store}: {counts}"
        )

"""``ecgl compact``: all generations of a store in one."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from ecgl_scale.cli.cluster import ClusterOptions
from ecgl_scale.cli.options import Json, Memory, StorePath, Threads, takes_settings
from ecgl_scale.cli.output import print_json
from ecgl_scale.units import format_bytes, format_count


@dataclass(frozen=True)
class CompactSettings(ClusterOptions):
    """What a compaction may use."""

    memory: Memory = None
    threads: Threads = None
    as_json: Json = False


@takes_settings
def compact(context: typer.Context, settings: CompactSettings, store: StorePath) -> None:
    """Make one generation of all that a store has: the files that a single ingest would have given."""
    from ecgl_scale.base.objects.url import require_directory
    from ecgl_scale.cli.inspect import summary
    from ecgl_scale.engine.cluster.entrance import with_workers
    from ecgl_scale.engine.resources import Resources
    from ecgl_scale.store.compact import compact_store
    from ecgl_scale.store.view import read_view

    require_directory(store, what="ecgl compact", fix="compact a copy on this machine, and put that in its place")
    with context.obj.progress() as sink:
        own = Resources.of(settings.memory, settings.threads, on_event=sink)
        read_view(store)  # where there is no store, nobody needs workers
        with with_workers(settings.cluster(), own, shared=[store], inputs=[store / "manifest.json"]) as resources:
            done = compact_store(store, resources)
    if settings.as_json:
        print_json(summary(store, done.manifest) | {"generations_before": done.num_generations})
    elif not context.obj.quiet:
        manifest = done.manifest
        counts = f"{format_count(manifest.num_nodes)} nodes, {format_count(manifest.edges.num_edges)} edges"
        if done.num_generations == 1:
            print(f"{store}: one generation, nothing to compact; {counts}")
        else:
            sizes = f"{format_bytes(done.before_bytes)} before, {format_bytes(manifest.total_bytes)} now"
            print(f"{store}: {done.num_generations} generations are one; {counts}, {sizes}")

"""``ecgl info`` and ``ecgl verify``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ecgl_scale.base.objects.url import AnyPath, location_of
from ecgl_scale.cli.cluster import ClusterOptions
from ecgl_scale.cli.options import Json, StorePath, takes_settings
from ecgl_scale.cli.output import print_json, print_table
from ecgl_scale.units import format_bytes, format_count

SHOWN_CLASSES = 8

if TYPE_CHECKING:
    from ecgl_scale.store.format import Manifest


def info(store: StorePath, as_json: Json = False) -> None:
    """Show what a store holds."""
    from ecgl_scale.store.verify import check_files
    from ecgl_scale.store.view import read_view

    view = read_view(store)
    location, manifest = view.location, view.manifest
    check_files(location, manifest)
    if as_json:
        print_json(summary(location, manifest))
    else:
        print_table(_readable(location, manifest))


@takes_settings
def verify(
    context: typer.Context,
    settings: ClusterOptions,
    store: StorePath,
    fast: bool = typer.Option(False, "--fast", help="Compare names, sizes and samples only; do not read every byte."),
    as_json: Json = False,
) -> None:
    """Read every byte of a store, or of a finished model, and check it."""
    from ecgl_scale.base.versions import is_model

    if isinstance(found := location_of(store), Path) and is_model(found):
        _verify_model(context, found, as_json)
        return
    from ecgl_scale.engine.cluster.entrance import with_workers
    from ecgl_scale.engine.resources import Resources
    from ecgl_scale.store.remote import manifest_files
    from ecgl_scale.store.verify import verify_store
    from ecgl_scale.store.view import read_manifest

    location = location_of(store)
    if not settings.cluster().is_alone:
        read_manifest(location)  # where there is none, nobody needs workers
    with (
        context.obj.progress() as sink,
        with_workers(
            settings.cluster(), Resources.of(on_event=sink), shared=(), inputs=manifest_files(location)
        ) as resources,
    ):
        report = verify_store(location, resources, fast=fast)
    if as_json:
        print_json({"store": str(location), "ok": True, "fast": fast, **report.__dict__})
    elif not context.obj.quiet:
        print(
            f"{location}: good; {format_count(report.num_files)} files, {format_bytes(report.num_bytes)}, "
            f"{format_count(report.num_edges)} edges {'sampled' if fast else 'read'}"
        )


def _verify_model(context: typer.Context, model: Path, as_json: bool) -> None:
    from ecgl_scale.session.basis import Basis

    basis = Basis.open(model)
    basis.verify()
    sizes = [file.size_bytes for file in basis.seal.files.values()]
    if as_json:
        print_json({"model": str(basis.directory), "ok": True, "num_files": len(sizes), "num_bytes": sum(sizes)})
    elif not context.obj.quiet:
        learned = f"{format_count(basis.num_tasks)} task{'s' * (basis.num_tasks > 1)} learned"
        print(f"{basis.directory}: good; {format_count(len(sizes))} files, {format_bytes(sum(sizes))}, {learned}")


def summary(store: AnyPath, manifest: Manifest) -> dict[str, Any]:
    """What ``info --json`` prints."""
    from ecgl_scale.store.compose import generation_infos, num_dropped_of

    edges, features = manifest.edges, manifest.features
    return {
        "store": str(store),
        "num_nodes": manifest.num_nodes,
        "num_dropped": num_dropped_of(manifest),
        "num_edges": edges.num_edges,
        "num_features": 0 if features is None else features.num_features,
        "num_classes": manifest.num_classes,
        "class_names": manifest.class_names,
        "keys": None if manifest.keys is None else manifest.keys.__dict__,
        "columns": manifest.columns,
        "symmetrised": edges.symmetrised,
        "keeps_duplicates": edges.keeps_duplicates,
        "self_loops": edges.self_loops,
        "input_edges": edges.input_edges,
        "dropped_self_loops": edges.dropped_self_loops,
        "dropped_duplicates": edges.dropped_duplicates,
        "id_dtype": edges.id_dtype,
        "num_blocks": len(edges.block_edges),
        "features": None if features is None else features.__dict__,
        "total_bytes": manifest.total_bytes,
        "num_files": len(manifest.files),
        "provenance": manifest.provenance,
        "written_by": manifest.written_by,
        "generations": [asdict(generation) for generation in generation_infos(manifest)],
    }


def _classes(manifest: Manifest) -> str:
    if manifest.num_classes is None:
        return "none"
    names = manifest.class_names or []
    shown = ", ".join(names[:SHOWN_CLASSES]) + (", ..." if len(names) > SHOWN_CLASSES else "")
    return f"{manifest.num_classes}: {shown}" if names else str(manifest.num_classes)


def _readable(store: AnyPath, manifest: Manifest) -> dict[str, object]:
    from ecgl_scale.store.compose import generation_infos, num_dropped_of

    num_dropped = num_dropped_of(manifest)
    edges, features, generations = manifest.edges, manifest.features, generation_infos(manifest)
    direction = "both directions stored" if edges.symmetrised else "direction as given"
    rows: dict[str, object] = {
        "store": store,
        "nodes": format_count(manifest.num_nodes)
        + (f", of which {format_count(num_dropped)} are dropped" if num_dropped else ""),
        "edges": f"{format_count(edges.num_edges)} ({direction}, self loops {edges.self_loops})",
        "from": f"{format_count(edges.input_edges)} edges read; {format_count(edges.dropped_self_loops)} self loops "
        f"and {format_count(edges.dropped_duplicates)} duplicates dropped",
        "blocks": f"{len(edges.block_edges)} of rows and tiles, ids {edges.id_dtype}",
        "features": "none",
        "classes": _classes(manifest),
        "keys": "none" if manifest.keys is None else f"{manifest.keys.name}: {manifest.keys.type}",
        "columns": ", ".join(f"{name}: {kind}" for name, kind in manifest.columns.items()) or "none",
        "size": f"{format_bytes(manifest.total_bytes)} in {format_count(len(manifest.files))} files",
        "source": ", ".join(f"{name}={value}" for name, value in manifest.provenance.items()) or "unknown",
    }
    if features is not None:
        rows["features"] = f"{format_count(features.num_features)} a node, {features.kind} {features.dtype}"
    if len(generations) > 1:
        counts = [(format_count(each.num_nodes), format_count(each.num_edges)) for each in generations]
        rows["generations"] = "; ".join(f"{n}: {nodes} nodes, {edges}" for n, (nodes, edges) in enumerate(counts))
    return rows

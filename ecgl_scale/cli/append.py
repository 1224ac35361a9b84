"""``ecgl append``: new nodes and edges from files of any known format to a store that is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecgl_scale.cli.cluster import ClusterOptions
from ecgl_scale.cli.options import (
    EdgeFlags,
    FeatureKind,
    FeatureType,
    Json,
    Memory,
    Threads,
    edge_options,
)
from ecgl_scale.cli.output import Output, print_json
from ecgl_scale.cli.sources import SourceCommands
from ecgl_scale.units import format_bytes, format_count

if TYPE_CHECKING:
    from ecgl_scale.base.objects.url import AnyPath
    from ecgl_scale.store.compose import GrownManifest
    from ecgl_scale.store.fit_source import GivenOptions
    from ecgl_scale.store.generation import GenerationManifest
    from ecgl_scale.store.source import GraphSource


class OnExisting(StrEnum):
    """What becomes of a node that is there already."""

    REFUSE = "refuse"
    SKIP = "skip"


@dataclass(frozen=True)
class AppendSettings(EdgeFlags, ClusterOptions):
    """Options of every command that appends: those of ``ingest``, which follow the store where they are not given."""

    features_as: Annotated[
        FeatureKind | None, typer.Option("--features-as", help="As the store has them, or the append is refused.")
    ] = None
    feature_dtype: Annotated[
        FeatureType | None, typer.Option("--feature-dtype", help="As the store has them, or the append is refused.")
    ] = None
    on_existing: Annotated[
        OnExisting,
        typer.Option("--on-existing", help="A new node whose key the store has: refuse the append, or skip the node."),
    ] = OnExisting.REFUSE
    memory: Memory = None
    threads: Threads = None
    as_json: Json = False

    def given(self) -> GivenOptions:
        """The options that the user has named, which must be those of the store."""
        edges = edge_options(self)
        given: GivenOptions = {}
        if self.symmetrise:
            given["symmetrise"] = True
        if self.keep_duplicates:
            given["keep_duplicates"] = True
        if edges.self_loops != "drop":
            given["self_loops"] = edges.self_loops
        if self.features_as is not None:
            given["features_as"] = self.features_as.value
        if self.feature_dtype is not None:
            given["feature_dtype"] = self.feature_dtype.value
        return given


def _append(output: Output, source: GraphSource, store: Path, settings: AppendSettings, inputs: Sequence[Path]) -> None:
    from ecgl_scale.engine.cluster.entrance import with_workers
    from ecgl_scale.engine.resources import Resources
    from ecgl_scale.store.append import append_store
    from ecgl_scale.store.publish import place_of_build
    from ecgl_scale.store.view import split_address

    location, _ = split_address(store)
    given = settings.given()
    with output.progress() as sink:
        own = Resources.of(settings.memory, settings.threads, on_event=sink)
        with with_workers(settings.cluster(), own, shared=[place_of_build(location)], inputs=inputs) as resources:
            after = append_store(source, store, resources, on_existing=settings.on_existing.value, **given)
    if settings.as_json:
        print_json(_facts(location, after))
    elif output.quiet:
        return
    elif after is None:
        print(f"{location}: every node and edge is there already, so nothing is written")
    else:
        added = after.appended[-1]
        came = f"{format_count(added.num_new_nodes)} new nodes, {format_count(added.edges.num_edges)} new edges"
        now = f"{format_count(after.num_nodes)} nodes, {format_count(after.edges.num_edges)} edges"
        size = format_bytes(_written_bytes(added))
        print(f"{location}: generation {added.number}: {came}, {size}; now {now}")


def _facts(location: AnyPath, after: GrownManifest | None) -> dict[str, Any]:
    """The store, and what came to it."""
    from ecgl_scale.cli.inspect import summary
    from ecgl_scale.store.view import read_view

    if after is None:
        view = read_view(location)
        nothing = {"new_nodes": 0, "new_edges": 0, "written_bytes": 0}
        return summary(location, view.manifest) | {"generation": view.generation, **nothing}
    added = after.appended[-1]
    new = {"new_nodes": added.num_new_nodes, "new_edges": added.edges.num_edges, "written_bytes": _written_bytes(added)}
    return summary(location, after) | {"generation": added.number, **new}


def _written_bytes(added: GenerationManifest) -> int:
    return sum(record.size_bytes for record in added.files.values())


app = SourceCommands("append", AppendSettings, _append, adds=True).group(
    "Add new nodes and edges to a store, as one more generation of it."
)

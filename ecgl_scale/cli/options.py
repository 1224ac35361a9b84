"""Options that several commands share, and the build they lead to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from inspect import Parameter, Signature, get_annotations, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ecgl_scale.base.objects.url import location_of
from ecgl_scale.cli.cluster import ClusterOptions
from ecgl_scale.cli.output import Output, print_json
from ecgl_scale.errors import UsageError
from ecgl_scale.units import format_bytes, format_count

if TYPE_CHECKING:
    from ecgl_scale.store.edges.plan import BuildOptions
    from ecgl_scale.store.source import GraphSource


class FeatureKind(StrEnum):
    """How features are stored."""

    AUTO = "auto"
    DENSE = "dense"
    SPARSE = "sparse"


class FeatureType(StrEnum):
    """What dense features are stored as."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


StorePath = Annotated[
    Path, typer.Argument(metavar="STORE", help="Directory of the store, or its URL: s3://BUCKET/NAME.")
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Most memory to use: 512MiB, 4GiB, 2GB, or bytes. Default: 80 % of the tightest limit found.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads. Default: the cores this process may use."),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Replace an existing store, or an empty directory, in one step, when the new one is complete.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Symmetrise = Annotated[bool, typer.Option("--symmetrise", help="Store both directions of every edge.")]
KeepDuplicates = Annotated[bool, typer.Option("--keep-duplicates", help="Keep repeated edges.")]
KeepSelfLoops = Annotated[bool, typer.Option("--keep-self-loops", help="Keep edges from a node to itself.")]
AddSelfLoops = Annotated[
    bool,
    typer.Option(
        "--add-self-loops", help="Give every node exactly one edge to itself; those in the input are dropped first."
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option("--id-column", metavar="NAME", help="Node column with the keys of the nodes, text or int64."),
]
FeaturesAs = Annotated[
    FeatureKind,
    typer.Option(
        "--features-as", help="Dense Zarr or sparse CSR; auto: sparse if fewer than 10 % of the values are not zero."
    ),
]
FeatureDtype = Annotated[FeatureType, typer.Option("--feature-dtype", help="Stored type of dense features.")]


@dataclass(frozen=True)
class BuildSettings(ClusterOptions):
    """Options of every command that builds a store from features and edges someone made."""

    features_as: FeaturesAs = FeatureKind.AUTO
    feature_dtype: FeatureDtype = FeatureType.FLOAT32
    memory: Memory = None
    threads: Threads = None
    overwrite: Overwrite = False
    as_json: Json = False


@dataclass(frozen=True)
class EdgeFlags:
    """What happens to edges on their way in."""

    symmetrise: Symmetrise = False
    keep_duplicates: KeepDuplicates = False
    keep_self_loops: KeepSelfLoops = False
    add_self_loops: AddSelfLoops = False


@dataclass(frozen=True)
class IngestSettings(EdgeFlags, BuildSettings):
    """Options of every command that ingests files: those of a build, and what happens to the edges on their way in."""


def takes_settings(command: Callable[..., None], kind: type[Any] | None = None) -> Callable[..., None]:
    """Let a command declare one ``settings`` parameter, of its own or the given kind; its fields become options.

    Typer builds options from a function's signature and knows no groups, so the wrapper shows it a signature with the
    fields in the parameter's place.
    """
    hints = get_type_hints(command, include_extras=True)
    kind = kind or hints["settings"]
    own = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in signature(command).parameters.values()
        if parameter.name != "settings"
    ]
    field_hints = get_type_hints(kind, include_extras=True)
    own_first = [name for base in kind.__mro__ for name in get_annotations(base)]
    shared = [
        Parameter(entry.name, Parameter.KEYWORD_ONLY, default=entry.default, annotation=field_hints[entry.name])
        for entry in sorted(fields(kind), key=lambda entry: own_first.index(entry.name))
    ]

    def wrapper(**values: Any) -> None:
        names = {entry.name for entry in fields(kind)}
        settings = kind(**{name: value for name, value in values.items() if name in names})
        command(**{name: value for name, value in values.items() if name not in names}, settings=settings)

    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    keyword_only = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own]
    wrapper.__signature__ = Signature([*keyword_only, *shared])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
    return wrapper


def build_and_report(
    output: Output,
    source: GraphSource,
    store: Path,
    settings: BuildSettings,
    edges: BuildOptions,
    inputs: Sequence[Path] = (),
) -> None:
    """Build the store and say what it holds; ``inputs`` are files that workers read, too."""
    from ecgl_scale.engine.cluster.entrance import with_workers
    from ecgl_scale.engine.resources import Resources
    from ecgl_scale.store.publish import build_store_at, place_of_build

    location = location_of(store)
    with output.progress() as sink:
        own = Resources.of(settings.memory, settings.threads, on_event=sink)
        shared = place_of_build(location)
        with with_workers(settings.cluster(), own, shared=[shared], inputs=inputs) as resources:
            manifest = build_store_at(
                source,
                location,
                resources,
                options=edges,
                features_as=settings.features_as.value,
                feature_dtype=settings.feature_dtype.value,
                overwrite=settings.overwrite,
            )
    if settings.as_json:
        from ecgl_scale.cli.inspect import summary

        print_json(summary(location, manifest))
    elif not output.quiet:
        features = manifest.features
        shown = "" if features is None else f", {format_count(features.num_features)} {features.kind} features"
        counts = f"{format_count(manifest.num_nodes)} nodes, {format_count(manifest.edges.num_edges)} edges{shown}"
        print(f"{location}: {counts}, {format_bytes(manifest.total_bytes)}")


def edge_options(settings: EdgeFlags) -> BuildOptions:
    """The edge options as the builder knows them."""
    from ecgl_scale.store.edges.plan import BuildOptions

    if settings.keep_self_loops and settings.add_self_loops:
        raise UsageError("--keep-self-loops and --add-self-loops exclude each other", fix="give one of them")
    self_loops = "keep" if settings.keep_self_loops else "add" if settings.add_self_loops else "drop"
    return BuildOptions(settings.symmetrise, settings.keep_duplicates, self_loops)

"""``ecgl generate``: graphs made here, at any scale, the same for every run with the same seed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from ecgl_scale.cli.options import BuildSettings, StorePath, build_and_report, takes_settings
from ecgl_scale.errors import UsageError

app = typer.Typer(help="Make a graph of any size.", no_args_is_help=True, rich_markup_mode=None)

Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same graph.")]


class Like(StrEnum):
    """Published graphs whose counts can be matched."""

    CORAFULL = "corafull"
    ARXIV = "arxiv"
    REDDIT = "reddit"
    PRODUCTS = "products"
    PAPERS100M = "papers100m"


@app.command("kron")
@takes_settings
def kron(
    context: typer.Context,
    settings: BuildSettings,
    store: StorePath,
    scale: Annotated[int, typer.Option("--scale", min=1, max=40, help="2^scale nodes.")],
    edge_factor: Annotated[
        int,
        typer.Option(
            "--edge-factor", min=1, help="Edges drawn a node; fewer are stored, as duplicates and self loops go."
        ),
    ] = 16,
    seed: Seed = 0,
    features: Annotated[int, typer.Option("--features", min=0, help="Random normal features a node; 0 for none.")] = 0,
    directed: Annotated[
        bool, typer.Option("--directed", help="Store edges only as drawn, not in both directions.")
    ] = False,
) -> None:
    """Make a Kronecker graph with Graph500's parameters; no labels."""
    from ecgl_scale.store.edges.plan import BuildOptions
    from ecgl_scale.store.sources.kron import kron_source

    source = kron_source(scale=scale, edge_factor=edge_factor, seed=seed, num_features=features)
    build_and_report(context.obj, source, store, settings, BuildOptions(symmetrise=not directed))


@app.command("sbm")
@takes_settings
def sbm(
    context: typer.Context,
    settings: BuildSettings,
    store: StorePath,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, help="Number of nodes; with --classes and --features, unless --like is given."),
    ] = None,
    classes: Annotated[int | None, typer.Option("--classes", min=1, help="Number of classes.")] = None,
    features: Annotated[int | None, typer.Option("--features", min=1, help="Features a node.")] = None,
    like: Annotated[
        Like | None,
        typer.Option("--like", help="Match a published graph's counts of nodes, edges, features and classes."),
    ] = None,
    share: Annotated[
        float, typer.Option("--share", min=0.0, max=1.0, help="Share of the nodes and edges of --like to make.")
    ] = 1.0,
    labelled: Annotated[
        float | None,
        typer.Option(
            "--labelled",
            min=0.0,
            max=1.0,
            help="Share of the nodes of every class that have a label. All, or with --like as published.",
        ),
    ] = None,
    average_degree: Annotated[float, typer.Option("--average-degree", min=0.0, help="Neighbours a node.")] = 16.0,
    homophily: Annotated[
        float, typer.Option("--homophily", min=0.0, max=1.0, help="Share of edges inside a class.")
    ] = 0.8,
    signal: Annotated[
        float,
        typer.Option(
            "--signal", min=0.0, help="How far apart the features of two classes are, in deviations of the noise."
        ),
    ] = 4.0,
    seed: Seed = 0,
) -> None:
    """Make a degree-corrected block model with classes, features and arrival times."""
    from ecgl_scale.store.edges.plan import BuildOptions
    from ecgl_scale.store.sources.sbm import LIKE, SbmSettings, like_source, sbm_source

    if like is not None:
        if nodes is not None or classes is not None or features is not None:
            raise UsageError("--like fixes nodes, classes and features", fix="give --like alone, or the three counts")
        source = like_source(like.value, seed=seed, share=share, labelled=labelled)
        symmetrise = LIKE[like.value].symmetrise
    else:
        if share != 1.0:
            raise UsageError("--share is of a published graph", fix="give --like NAME too, or fewer --nodes")
        if nodes is None or classes is None or features is None:
            raise UsageError("the size is missing", expected="--nodes, --classes and --features, or --like NAME")
        source, symmetrise = (
            sbm_source(
                SbmSettings(
                    num_nodes=nodes,
                    num_classes=classes,
                    num_features=features,
                    average_degree=average_degree,
                    homophily=homophily,
                    signal=signal,
                    labelled=1.0 if labelled is None else labelled,
                    seed=seed,
                )
            ),
            True,
        )
    build_and_report(context.obj, source, store, settings, BuildOptions(symmetrise=symmetrise))

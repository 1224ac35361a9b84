"""``ecgl rank``: score every node of a store by importance and diversity."""

from __future__ import annotations

import re
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ecgl_scale.cli.options import Json, Memory, StorePath, Threads
from ecgl_scale.cli.output import print_json
from ecgl_scale.errors import UsageError
from ecgl_scale.units import format_bytes, format_count


class Kind(StrEnum):
    """Which scores."""

    IMPORTANCE = "importance"
    DIVERSITY = "diversity"
    BOTH = "both"


class Norm(StrEnum):
    """How the change of a sweep is measured."""

    L1 = "l1"
    L2 = "l2"


class Dangling(StrEnum):
    """Where the mass of nodes without out-edges goes."""

    UNIFORM = "uniform"
    RESET = "reset"


class Precision(StrEnum):
    """Of the sums that a sweep forms."""

    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class Quota(StrEnum):
    """How the chosen nodes are shared out."""

    NONE = "none"
    CLASS = "class"


def rank(
    context: typer.Context,
    store: StorePath,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Parquet file to write: node, then importance, diversity or both. Replaced in one step.",
        ),
    ],
    kind: Annotated[Kind, typer.Option("--kind", help="Which scores.")] = Kind.IMPORTANCE,
    damping: Annotated[
        float, typer.Option("--damping", help="Chance to follow an edge rather than restart, 0 to below 1.")
    ] = 0.85,
    tol: Annotated[float, typer.Option("--tol", help="Stop when a sweep changes less than this.")] = 1e-8,
    max_iter: Annotated[
        int,
        typer.Option(
            "--max-iter", help="Most sweeps; what is there then is written, with a word that it has not converged."
        ),
    ] = 100,
    norm: Annotated[Norm, typer.Option("--norm", help="How a sweep's change is measured.")] = Norm.L1,
    dangling: Annotated[
        Dangling,
        typer.Option(
            "--dangling", help="Where nodes without out-edges send their mass: to all alike, or where restarts go."
        ),
    ] = Dangling.UNIFORM,
    precision: Annotated[
        Precision, typer.Option("--precision", help="Of a sweep's sums. auto: float64 up to 2,097,152 nodes.")
    ] = Precision.AUTO,
    gamma: Annotated[
        float | None,
        typer.Option("--gamma", help="Width of the kernel of the attribute vector. Default: 1 / number of features."),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            "--features",
            metavar="FILE",
            help="Rank by these features, not by the store's: .npy of floats with a row for each node, such as a "
            "model's outputs.",
        ),
    ] = None,
    ignore_features: Annotated[
        bool, typer.Option("--ignore-features", help="Importance is plain PageRank: restart anywhere alike.")
    ] = False,
    include_self: Annotated[
        bool, typer.Option("--include-self", help="Count a node among its own neighbours in the diversity.")
    ] = False,
    topk: Annotated[
        int | None,
        typer.Option("--topk", help="Write only so many nodes, the best; of both scores the best by each, together."),
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(
            "--candidates",
            metavar="COLUMN=VALUE|FILE",
            help="Choose only among nodes whose column has this value, such as split=0, or among those of a file: "
            ".npy of node ids, or .parquet with a column node; of a run's split.parquet its training nodes. "
            "Needs --topk.",
        ),
    ] = None,
    quota: Annotated[
        Quota, typer.Option("--quota", help="Share the chosen nodes out over the classes. Needs --topk.")
    ] = Quota.NONE,
    start: Annotated[
        Path | None,
        typer.Option("--start", metavar="FILE", help="Scores of all nodes by an earlier ranking, to begin with."),
    ] = None,
    memory: Memory = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Rank the nodes of a store; a killed ranking goes on from its last sweep when run again."""
    from ecgl_scale.engine.resources import Resources
    from ecgl_scale.rank.pagerank import PageRankSettings
    from ecgl_scale.rank.request import RankRequest
    from ecgl_scale.rank.store_ranking import rank_store
    from ecgl_scale.store.graph import GraphStore

    request = RankRequest(
        kind=kind.value,
        pagerank=PageRankSettings(damping, tol, max_iter, norm.value, dangling.value, precision.value),
        gamma=gamma,
        use_features=not ignore_features,
        include_self=include_self,
        topk=topk,
        candidates=None if candidates is None else _candidates(candidates),
        quota=quota.value,
        start=start,
        features=features,
    )
    graph = GraphStore.open(store)
    with context.obj.progress() as sink:
        report = rank_store(graph, out, request, Resources.of(memory, threads, on_event=sink))
    if as_json:
        print_json({"store": str(store), "out": str(out), **asdict(report)})
    elif not context.obj.quiet:
        peak = f"{format_bytes(report.peak_bytes)} of {format_bytes(report.plan['peak_bytes'])} planned"
        print(f"{out}: {format_count(report.num_written)} nodes, peak memory {peak}")
        if report.importance is not None:
            found = report.importance
            state = "converged" if found["converged"] else "NOT converged; raise --max-iter or --tol"
            print(f"importance: {found['iterations']} sweeps, residual {found['residual']:.2g}, {state}")


def _candidates(text: str) -> tuple[str, int] | Path:
    if text.endswith((".npy", ".parquet")):  # first, as a path may have "=" in it
        return Path(text)
    column, _, value = text.partition("=")
    if not column or not re.fullmatch(r"-?[0-9]+", value):
        raise UsageError(
            f"{text!r} names no candidates", expected="COLUMN=VALUE, such as split=0, or a file, .npy or .parquet"
        )
    return column, int(value)

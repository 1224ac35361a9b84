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
        Path, typer.Option("--out", metavar="FILE", help="Parquet file to write: node, importance, diversity.")
    ],
    kind: Annotated[Kind, typer.Option("--kind", help="Which scores.")] = Kind.IMPORTANCE,
    damping: Annotated[float, typer.Option("--damping", help="Chance to follow an edge rather than restart.")] = 0.85,
    tol: Annotated[float, typer.Option("--tol", help="Stop when a sweep changes less than this.")] = 1e-8,
    max_iter: Annotated[int, typer.Option("--max-iter", help="Most sweeps.")] = 100,
    norm: Annotated[Norm, typer.Option("--norm", help="How the change is measured.")] = Norm.L1,
    dangling: Annotated[
        Dangling, typer.Option("--dangling", help="Where nodes without out-edges send their mass.")
    ] = Dangling.UNIFORM,
    precision: Annotated[
        Precision, typer.Option("--precision", help="Of a sweep's sums. Auto: float64 up to 2 million nodes.")
    ] = Precision.AUTO,
    gamma: Annotated[float | None, typer.Option("--gamma", help="Width of the kernel. Default: 1 / features.")] = None,
    ignore_features: Annotated[
        bool, typer.Option("--ignore-features", help="Plain PageRank: restart anywhere alike.")
    ] = False,
    include_self: Annotated[
        bool, typer.Option("--include-self", help="Count a node among its own neighbours in the diversity.")
    ] = False,
    topk: Annotated[int | None, typer.Option("--topk", help="Write only the best by each score.")] = None,
    candidates: Annotated[
        str | None, typer.Option("--candidates", metavar="COLUMN=VALUE", help="Choose only among these nodes.")
    ] = None,
    quota: Annotated[Quota, typer.Option("--quota", help="Share the chosen nodes out over classes.")] = Quota.NONE,
    start: Annotated[Path | None, typer.Option("--start", help="Scores of an earlier ranking to begin with.")] = None,
    memory: Memory = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Rank the nodes of a store; a killed ranking goes on from its last sweep when run again."""
    from ecgl_scale.select.pagerank import PageRankSettings
    from ecgl_scale.select.rank import RankRequest, rank_store
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
    )
    graph = GraphStore.open(store)
    with context.obj.progress() as sink:
        report = rank_store(graph, out, request, memory=memory, threads=threads, on_event=sink)
    if as_json:
        print_json({"store": str(store), "out": str(out), **asdict(report)})
    elif not context.obj.quiet:
        print(f"{out}: {format_count(report.num_written)} nodes, peak memory {format_bytes(report.peak_bytes)}")
        if report.importance is not None:
            found = report.importance
            state = "converged" if found["converged"] else "NOT converged; raise --max-iter or --tol"
            print(f"importance: {found['iterations']} sweeps, residual {found['residual']:.2g}, {state}")


def _candidates(text: str) -> tuple[str, int]:
    column, _, value = text.partition("=")
    if not column or not re.fullmatch(r"-?[0-9]+", value):
        raise UsageError(f"{text!r} names no candidates", expected="COLUMN=VALUE, such as split=0")
    return column, int(value)

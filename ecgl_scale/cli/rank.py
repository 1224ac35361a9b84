"""``ecgl rank``: score every node of a store by importance and diversity."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ecgl_scale.base.objects.url import location_of
from ecgl_scale.cli.cluster import ClusterOptions
from ecgl_scale.cli.options import Json, Memory, StorePath, Threads, takes_settings
from ecgl_scale.cli.output import print_json
from ecgl_scale.config.choices import Dangling, Norm, Precision, Quota, RankKind
from ecgl_scale.errors import UsageError
from ecgl_scale.units import format_bytes, format_count

if TYPE_CHECKING:
    from ecgl_scale.rank.request import RankRequest


@dataclass(frozen=True)
class RankOptions(ClusterOptions):
    """The options that say what is ranked, and how."""

    kind: Annotated[RankKind, typer.Option("--kind", help="Which scores.")] = "importance"
    damping: Annotated[
        float, typer.Option("--damping", help="Chance to follow an edge rather than restart, 0 to below 1.")
    ] = 0.85
    tol: Annotated[float, typer.Option("--tol", help="Stop when a sweep changes less than this.")] = 1e-8
    max_iter: Annotated[
        int,
        typer.Option(
            "--max-iter", help="Most sweeps; what is there then is written, with a word that it has not converged."
        ),
    ] = 100
    norm: Annotated[Norm, typer.Option("--norm", help="How a sweep's change is measured.")] = "l1"
    dangling: Annotated[
        Dangling,
        typer.Option(
            "--dangling", help="Where nodes without out-edges send their mass: to all alike, or where restarts go."
        ),
    ] = "uniform"
    precision: Annotated[
        Precision, typer.Option("--precision", help="Of a sweep's sums. auto: float64 up to 2,097,152 nodes.")
    ] = "auto"
    gamma: Annotated[
        float | None,
        typer.Option("--gamma", help="Width of the kernel of the attribute vector. Default: 1 / number of features."),
    ] = None
    features: Annotated[
        Path | None,
        typer.Option(
            "--features",
            metavar="FILE",
            help="Rank by these features, not by the store's: .npy of floats with a row for each node, such as a "
            "model's outputs.",
        ),
    ] = None
    ignore_features: Annotated[
        bool, typer.Option("--ignore-features", help="Importance is plain PageRank: restart anywhere alike.")
    ] = False
    include_self: Annotated[
        bool, typer.Option("--include-self", help="Count a node among its own neighbours in the diversity.")
    ] = False
    topk: Annotated[
        int | None,
        typer.Option("--topk", help="Write only so many nodes, the best; of both scores the best by each, together."),
    ] = None
    candidates: Annotated[
        str | None,
        typer.Option(
            "--candidates",
            metavar="COLUMN=VALUE|FILE",
            help="Choose only among nodes whose column has this value, such as split=0, or among those of a file: "
            ".npy of node ids, or .parquet with a column node; of a run's split.parquet its training nodes. "
            "Needs --topk.",
        ),
    ] = None
    quota: Annotated[
        Quota, typer.Option("--quota", help="Share the chosen nodes out over the classes. Needs --topk.")
    ] = "none"
    start: Annotated[
        Path | None,
        typer.Option("--start", metavar="FILE", help="Scores of all nodes by an earlier ranking, to begin with."),
    ] = None
    by_key: Annotated[bool, typer.Option("--id", help="Write the keys of nodes beside their numbers.")] = False
    memory: Memory = None
    threads: Threads = None
    as_json: Json = False

    def request(self) -> RankRequest:
        """What is asked for, as the ranking knows it."""
        from ecgl_scale.rank.pagerank import PageRankSettings
        from ecgl_scale.rank.request import RankRequest

        given = asdict(self)
        pagerank = PageRankSettings(**{entry.name: given[entry.name] for entry in fields(PageRankSettings)})
        same = {entry.name: given[entry.name] for entry in fields(RankRequest) if entry.name in given}
        candidates = None if self.candidates is None else _candidates(self.candidates)
        return RankRequest(
            **{**same, "candidates": candidates}, pagerank=pagerank, use_features=not self.ignore_features
        )


@takes_settings
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
    settings: RankOptions,
) -> None:
    """Rank the nodes of a store; a killed ranking goes on from its last sweep when run again."""
    from ecgl_scale.base.output_file import check_output_file
    from ecgl_scale.engine.cluster.entrance import with_workers
    from ecgl_scale.engine.resources import Resources
    from ecgl_scale.rank.store_ranking import rank_store
    from ecgl_scale.store.graph import GraphStore
    from ecgl_scale.store.remote import manifest_files

    request = settings.request()
    location = location_of(store)
    graph = GraphStore.open(location)
    check_output_file(out)
    with context.obj.progress() as sink:
        own = Resources.of(settings.memory, settings.threads, on_event=sink)
        with with_workers(settings.cluster(), own, shared=[out], inputs=manifest_files(location)) as resources:
            report = rank_store(graph, out, request, resources)
    if settings.as_json:
        print_json({"store": str(location), "out": str(out), **asdict(report)})
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

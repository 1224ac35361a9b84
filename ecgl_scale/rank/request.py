"""What ``ecgl rank`` can be asked for, and each way in which that makes no sense for a store."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from ecgl_scale.config.choices import Quota, RankKind
from ecgl_scale.errors import UsageError
from ecgl_scale.rank.pagerank import PageRankSettings
from ecgl_scale.store.graph import GraphStore


@dataclass(frozen=True)
class RankRequest:
    """What ``ecgl rank`` was asked for."""

    kind: RankKind = "importance"
    pagerank: PageRankSettings = field(default_factory=PageRankSettings)
    gamma: float | None = None
    use_features: bool = True
    """False ranks importance by edges alone: r = 1/N."""
    include_self: bool = False
    """Whether a node counts among its own neighbours in the diversity's mean."""
    topk: int | None = None
    candidates: tuple[str, int] | Path | None = None
    """Only these nodes are chosen: those whose column has a value, such as ("split", 0), or those of a file."""
    quota: Quota = "none"
    start: Path | None = None
    """Scores of an earlier ranking to begin with."""
    features: Path | None = None
    """An .npy file with a row for each node, in place of the store's features."""
    by_key: bool = False
    """Whether the keys of nodes are written beside their numbers."""

    @property
    def by_importance(self) -> bool:
        """Whether importance is asked for."""
        return self.kind != "diversity"

    @property
    def by_diversity(self) -> bool:
        """Whether diversity is asked for."""
        return self.kind != "importance"


def check_request(graph: GraphStore, request: RankRequest) -> None:
    """Refuse what this store cannot give, before anything is read."""
    if request.kind not in ("importance", "diversity", "both"):
        raise UsageError(f"kind is {request.kind!r}", expected="importance, diversity or both")
    _check_unused(request)
    if request.by_key and graph.keys is None:
        raise UsageError("the store has no keys", where=graph.path, fix="leave out --id")
    has_features = request.features is not None or graph.features is not None
    if request.by_diversity and not has_features:
        raise UsageError(
            "the store has no features, so there is no diversity",
            where=graph.path,
            fix="--kind importance, or give --features",
        )
    if request.features is not None and graph.dropped is not None:
        raise UsageError(
            "features of a file cannot be used while the store has rows of dropped nodes",
            where=graph.path,
            fix="ecgl compact the store, and leave their rows out of the file",
        )
    if request.features is not None and not request.use_features and not request.by_diversity:
        raise UsageError("features are given and to be ignored", fix="give --features or --ignore-features")
    _check_gamma(graph, request, has_features)
    if request.topk is not None and request.topk < 1:
        raise UsageError(f"topk is {request.topk}", expected="at least 1")
    if request.topk is None and (request.candidates is not None or request.quota != "none"):
        raise UsageError("candidates and quotas choose nodes, but no number is given", fix="give --topk")
    wanted = [request.candidates[0]] if isinstance(request.candidates, tuple) else []
    for column in wanted + (["label"] if request.quota == "class" else []):
        if column not in graph.manifest.columns:
            there = sorted(graph.manifest.columns)
            raise UsageError(
                f"the store has no node column {column!r}",
                where=graph.path,
                expected=f"one of {', '.join(there)}" if there else "a store with node columns; this one has none",
            )


def _check_unused(request: RankRequest) -> None:
    """An option that changes nothing was meant for something."""
    of_importance = {
        "--damping, --tol, --max-iter, --norm, --dangling or --precision": request.pagerank != PageRankSettings(),
        "--gamma": request.gamma is not None,
        "--start": request.start is not None,
        "--ignore-features": not request.use_features,
    }
    unused = [] if request.by_importance else [name for name, is_given in of_importance.items() if is_given]
    if request.include_self and not request.by_diversity:
        unused.append("--include-self")
    if unused:
        raise UsageError(
            f"{unused[0]} changes nothing in a ranking by {request.kind}", fix="leave it out, or give --kind both"
        )


def _check_gamma(graph: GraphStore, request: RankRequest, has_features: bool) -> None:
    if request.gamma is None:
        return
    if not 0.0 < request.gamma < math.inf:
        raise UsageError(f"gamma is {request.gamma}", expected="gamma > 0")
    if not (request.use_features and has_features):
        why = "the store has none" if request.use_features else "they are to be ignored"
        raise UsageError(f"gamma says how features are compared, and {why}", where=graph.path, fix="leave --gamma out")

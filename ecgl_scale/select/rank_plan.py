"""The memory of ranking a whole store, known before it starts: each stage by the rules that it keeps itself.

attributes   the vector of restarts; takes what the budget allows, between its least and its most
importance   vectors of all nodes and read buffers
diversity    a number a node and the columns that fit
write        rows of the file, and where the best are chosen, the candidates

Scores stay until they are written, and so do libraries once they have worked.
"""

from __future__ import annotations

from ecgl_scale.run.memory import MemoryBudget, own_memory_bytes
from ecgl_scale.run.plan import MemoryPlan, StagePlan
from ecgl_scale.select.attribute_dense import dense_bytes
from ecgl_scale.select.choose_plan import BLAS_BYTES, attribute_bytes, diversity_bytes
from ecgl_scale.select.pagerank import PageRankSettings, planned_bytes
from ecgl_scale.select.scores import ROWS_AT_ONCE
from ecgl_scale.store.features.dense import DenseFeatures
from ecgl_scale.store.features.sparse import SparseFeatures
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.threads import available_cores
from ecgl_scale.units import MIB

SCORE_BYTES = 8
KERNEL_BYTES = 32 * MIB
"""What its kernels take once they are loaded, which diversity does before it looks at what is held."""
CHOOSING_BYTES = 24
"""A node where the best are looked for: its id, its class, whether it is a candidate."""
WRITE_COPIES = 4
"""Of the rows that are written at once: as arrays, as a table, encoded, compressed."""


def plan_rank(
    graph: GraphStore,
    *,
    by_importance: bool,
    by_diversity: bool,
    use_features: bool,
    has_start: bool,
    topk: int | None,
    pagerank: PageRankSettings,
    memory: str | int | None,
    threads: int | None,
) -> MemoryPlan:
    """What ``rank_store`` will need; reads nothing."""
    budget, held = MemoryBudget.of(memory), own_memory_bytes()
    threads, num_nodes, features = threads or available_cores(), graph.num_nodes, graph.features
    room = max(budget.total_bytes - held, 0)
    stages: list[StagePlan] = []
    kept = BLAS_BYTES if by_importance and use_features and isinstance(features, DenseFeatures) else 0
    if by_importance and use_features and features is not None:
        least, most = _attributes(features, num_nodes, threads)
        stages.append(_stage("attributes", min(max(least, room), most), f"attributes of {num_nodes:,} nodes"))
    if by_importance:
        sweepers = max(1, min(threads, len(graph.tiles.blocks())))
        has_reset = use_features and features is not None
        needed = planned_bytes(num_nodes, pagerank, with_reset=has_reset, threads=sweepers)
        needed += SCORE_BYTES * num_nodes * (has_reset + has_start) + kept
        stages.append(_stage("importance", needed, f"vectors of {num_nodes:,} nodes and read buffers"))
        kept += SCORE_BYTES * num_nodes
    if by_diversity and features is not None:
        section, is_sparse = graph.manifest.features, isinstance(features, SparseFeatures)
        num_values = section.num_values if section is not None and is_sparse else None
        least, most = diversity_bytes(num_nodes, features.num_features, num_values, threads)
        kept += KERNEL_BYTES
        what = f"a score and columns of {num_nodes:,} nodes"
        stages.append(_stage("diversity", min(max(least + kept, room), most + kept), what))
        kept += SCORE_BYTES * num_nodes
    rows = min(ROWS_AT_ONCE, num_nodes) * SCORE_BYTES * (1 + by_importance + by_diversity) * WRITE_COPIES
    choosing = 0 if topk is None else CHOOSING_BYTES * num_nodes + 2 * SCORE_BYTES * min(topk, num_nodes)
    stages.append(_stage("write", kept + max(rows, choosing), f"scores of {num_nodes:,} nodes"))
    return MemoryPlan(tuple(stages), held, budget)


def _stage(name: str, needed: int, formula: str) -> StagePlan:
    return StagePlan(name, needed, formula, setting="memory")


def _attributes(features: DenseFeatures | SparseFeatures, num_nodes: int, threads: int) -> tuple[int, int]:
    """Least and most."""
    if isinstance(features, SparseFeatures):
        return attribute_bytes(num_nodes, features.num_features, sparse=True, in_memory=False, threads=threads)
    return dense_bytes(features, threads=1), dense_bytes(features, threads=threads)

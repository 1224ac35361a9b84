"""Features after some steps along the edges, for learners that see no graph: P^k X."""

from __future__ import annotations

from pathlib import Path

from ecgl_scale.engine.plan import StagePlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import UsageError
from ecgl_scale.graph.convolution import Norm
from ecgl_scale.infer.feature_reader import FeatureReader
from ecgl_scale.infer.layerwise import plan_program, run_program
from ecgl_scale.infer.program import Pass, Program
from ecgl_scale.infer.settings import BackendName, InferSettings, Matrix
from ecgl_scale.infer.sizes import Sizes
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.scaling import Scaling


def k_hop_features(
    graph: GraphStore,
    hops: int,
    resources: Resources,
    *,
    norm: Norm = "sym",
    scaling: Scaling | None = None,
    backend: BackendName = "auto",
    work_directory: Path,
) -> Matrix:
    """P^hops X as float32 [N, K], dense whatever the features are; P as in ``infer_logits``.

    In memory where the budget allows it, else a ``np.memmap`` of a file in ``work_directory``, which is then the
    caller's. Killed, it goes on where it was.

    Memory
    ------
    See ``layout``: at least four columns of all nodes.
    """
    if hops < 1:
        raise UsageError(f"features cannot be propagated {hops} times", expected="a whole number from 1 on")
    features = FeatureReader(graph, scaling)
    settings = hop_settings(norm, backend)
    identity = {**features.identity(), "kind": "propagated features", "hops": hops, "norm": norm}
    return run_program(write_hops(features.width, hops), features, settings, identity, resources, work_directory).logits


def plan_k_hops(
    graph: GraphStore,
    hops: int,
    *,
    norm: Norm = "sym",
    room_bytes: int,
    threads: int,
    num_nodes: int | None = None,
    num_edges: int | None = None,
    made_dense: bool = False,
) -> StagePlan:
    """What ``k_hop_features`` would need; of a subgraph that is still to be extracted where sizes are given.

    ``made_dense`` as in ``plan_inference``.
    """
    sizes = Sizes.of(graph, num_nodes=num_nodes, num_edges=num_edges, made_dense=made_dense)
    program, settings = write_hops(sizes.features.num_features, hops), hop_settings(norm)
    return plan_program(sizes, program, settings, room_bytes=room_bytes, threads=threads)


def hop_settings(norm: Norm, backend: BackendName = "auto") -> InferSettings:
    """How features are passed along."""
    return InferSettings(norm=norm, backend=backend)


def write_hops(width: int, hops: int) -> Program:
    """So many aggregations of all columns, and nothing else."""
    return Program(width, None, tuple(Pass(width, ()) for _ in range(hops)))

"""Rows of a model's input, whichever way they are made; see ``model_input`` for which ways there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json
from ecgl_scale.graph.convolution import Norm
from ecgl_scale.infer.feature_reader import FeatureReader
from ecgl_scale.infer.hop_rows import HopRows, propagate_hops
from ecgl_scale.infer.model_input import ModelInput
from ecgl_scale.infer.projected_rows import ProjectedRows
from ecgl_scale.infer.projection import Projection
from ecgl_scale.infer.random_features import RandomFeatures
from ecgl_scale.infer.settings import Matrix
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.scaling import Scaling

StackedRows = HopRows | ProjectedRows
"""Stacked hops, or their random features."""
InputRows = Matrix | HopRows | ProjectedRows
"""Rows of a model's input, some of which are asked for by ``rows[local]``."""

NODES_NAME = "nodes.npy"


def make_input_rows(
    graph: GraphStore,
    made: ModelInput,
    mapping: RandomFeatures | None,
    resources: Resources,
    *,
    norm: Norm,
    scaling: Scaling | None = None,
    part: tuple[GraphStore | None, NDArray[np.int64]] | None = None,
    directory: Path,
) -> InputRows:
    """The rows that a model is given for every node of a graph, from files in ``directory``.

    ``mapping`` is what ``draw_map`` gives, which many may share. With ``part``, rows are those of some nodes alone: the
    graph that they are by themselves, where there is one, and their places in ``graph``.
    """
    own = None if part is None else part[1]
    features = FeatureReader(graph, scaling)
    if made.multiplies_first and mapping is not None and features.stays_sparse:
        return ProjectedRows(Projection(features, mapping, made.num_hops, norm, resources, directory, own).run())
    hops = propagate_hops(graph, made, resources, norm=norm, scaling=scaling, own=own, directory=directory)
    if not made.is_stacked:
        return hops[-1]
    if part is None or part[0] is None:
        return HopRows(made, features, hops, mapping, own, directory / NODES_NAME)
    return HopRows(made, FeatureReader(part[0], scaling), hops, mapping)


def open_stacked(description: Json, resources: Resources) -> StackedRows:
    """Rows that another process has described."""
    if "projected" in description:
        return ProjectedRows.open(description)
    return HopRows.open(description, resources)

"""Predictions for some nodes of a store: those asked for, or those that have changed since a table was written."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ecgl_scale.base.memory import own_memory_bytes
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.infer.feature_reader import FeatureReader
from ecgl_scale.infer.hop_rows import HopRows
from ecgl_scale.infer.hops import hop_settings, write_hops
from ecgl_scale.infer.matrix import make_matrix
from ecgl_scale.infer.program import write_program
from ecgl_scale.infer.settings import read_layers
from ecgl_scale.infer.some_nodes import NeighbourhoodTooLargeError, NodeInference
from ecgl_scale.session.infer_whole import (
    KERNEL_BYTES,
    infer_whole,
    model_map,
    multiply_layers,
    plan_whole,
    plan_write,
    require_same_features,
)
from ecgl_scale.session.predict import rows_at_once
from ecgl_scale.session.saved_model import SavedModel
from ecgl_scale.session.score_table import (
    WRITE_ROWS,
    Ints,
    Scores,
    TableInfo,
    digest_of,
    read_scores,
    scores_of,
    scores_of_all,
    settings_of,
)
from ecgl_scale.session.setup import infer_settings
from ecgl_scale.store.checked import checked_ids
from ecgl_scale.store.compose import num_erased_of
from ecgl_scale.store.graph import GraphStore

WRITE_ANEW = "write the predictions anew, without --update"
_log = logging.getLogger(__name__)
SCORED_BYTES = 8 + 8 + 4
"""Node, label and score, as they are held."""


@dataclass(frozen=True, eq=False)
class SomePredictions:
    """Scores of the nodes that were computed, and how."""

    scores: Scores
    plan: MemoryPlan
    about: dict[str, Any]
    """seconds, backend, batches, and how many nodes the ``neighbourhood`` has: all where every node was predicted."""


def predict_some(model: SavedModel, graph: GraphStore, ids: Ints, work: Path, resources: Resources) -> SomePredictions:
    """Scores of the nodes ``ids``, which ascend: from their neighbourhood, or where that is no less from the graph."""
    started = time.perf_counter()
    scores = Scores(ids, np.empty(ids.size, np.int64), np.empty(ids.size, np.float32))
    classes = model.labels_in(graph)
    inference = _inference(model, graph, resources)
    try:
        plan = _plan(model, inference, ids, resources)
        if model.made.is_stacked:
            _score_stacked(model, graph, inference, scores, work, resources)
        else:
            for start, rows in inference.run(ids):
                logits = multiply_layers(model, rows) if model.made.is_made else rows
                _put(scores, start, logits, classes)
        about = {"batches": inference.num_batches, "neighbourhood": inference.num_sources}
    except NeighbourhoodTooLargeError:
        _log.info("the nodes' neighbourhood is most of the graph, or does not fit: every node is predicted")
        plan = plan_whole(model, graph, resources)
        logits = infer_whole(model, graph, work, resources)["logits"]
        for start in range(0, ids.size, WRITE_ROWS):
            _put(scores, start, logits[ids[start : start + WRITE_ROWS]], classes)
        about = {"batches": 1, "neighbourhood": graph.num_nodes}
    seconds = time.perf_counter() - started
    return SomePredictions(scores, plan, {"seconds": seconds, "backend": inference.backend, **about})


def predict_labels(model: SavedModel, graph: GraphStore, nodes: Any, resources: Resources) -> Ints:
    """The label of each of ``nodes``, in their order; of every node where there are none."""
    require_same_features(model, graph)
    with TemporaryDirectory(prefix="ecgl-predict-") as name:
        work = Path(name)
        resources = resources.with_work(work / "engine")
        if nodes is None:
            logits, classes = infer_whole(model, graph, work, resources)["logits"], model.labels_in(graph)
            return np.concatenate([scores.label for scores in scores_of_all(logits, classes)])
        ids, places = np.unique(checked_ids(nodes, graph.num_nodes), return_inverse=True)
        return predict_some(model, graph, ids, work, resources).scores.label[places]


def _score_stacked(
    model: SavedModel, graph: GraphStore, longest: NodeInference, scores: Scores, work: Path, resources: Resources
) -> None:
    """Scores from every number of hops, each of which is inferred by itself; ``longest`` is that of most hops."""
    ids, made, features = scores.nodes, model.made, FeatureReader(graph, model.scaling)
    hops = []
    for count in range(1, made.num_hops + 1):
        inference = longest if count == made.num_hops else _hop_inference(model, features, count, resources)
        found = make_matrix(ids.size, features.width, work / f"some-{count}.rows")
        for start, rows in inference.run(ids):
            found[start : start + len(rows)] = rows
        hops.append(found)
    rows_of = HopRows(made, features, hops, model_map(model, resources), nodes=ids)
    for start in range(0, ids.size, rows_at_once(made)):
        local = np.arange(start, min(start + rows_at_once(made), ids.size))
        _put(scores, start, multiply_layers(model, rows_of[local]), model.labels_in(graph))


def _hop_inference(model: SavedModel, features: FeatureReader, hops: int, resources: Resources) -> NodeInference:
    settings = hop_settings(model.config.infer.norm)
    program, besides = write_hops(features.width, hops), _mapping_bytes(model)
    return NodeInference(program, features, settings, resources, besides_bytes=besides)


def _mapping_bytes(model: SavedModel) -> int:
    """What it takes to make the model's input of hops, and outputs of it; R is held from the first row on."""
    made, widths = model.made, model.weights.widths
    if not made.is_stacked:
        return 0
    return made.reading_bytes(model.num_features) + 4 * rows_at_once(made) * (widths[0] + 2 * sum(widths[1:]))


def _inference(model: SavedModel, graph: GraphStore, resources: Resources) -> NodeInference:
    config, features = model.config, FeatureReader(graph, model.scaling)
    if model.made.is_made:
        return _hop_inference(model, features, model.made.num_hops, resources)
    settings = infer_settings(config)
    layers = read_layers(model.weights.arrays(), features.width)
    return NodeInference(write_program(layers, settings, sparse=features.is_sparse), features, settings, resources)


def _plan(model: SavedModel, inference: NodeInference, ids: Ints, resources: Resources) -> MemoryPlan:
    held, scored = own_memory_bytes(), SCORED_BYTES * ids.size
    stage = inference.plan(ids)
    besides = scored + KERNEL_BYTES + _mapping_bytes(model)
    stage = replace(stage, host_bytes=stage.host_bytes + besides)
    plan = MemoryPlan((stage, plan_write(model, ids.size, held_bytes=scored)), held, resources.budget)
    _log.info(plan.summary())
    return plan


def _put(scores: Scores, start: int, logits: Any, classes: Ints) -> None:
    for first in range(0, len(logits), WRITE_ROWS):
        rows = logits[first : first + WRITE_ROWS]
        here = slice(start + first, start + first + len(rows))
        found = scores_of(rows, scores.nodes[here], classes)
        scores.label[here], scores.score[here] = found.label, found.score


def is_of_model(info: TableInfo, model: SavedModel) -> bool:
    """Whether a table's scores are what this model would give: other weights or settings change every row."""
    return info.model == digest_of(model) and info.settings == settings_of(model)


def require_same_store(info: TableInfo, graph: GraphStore, where: Path) -> GraphStore:
    """The store as it was when a table of all its nodes was written; refuses a table that is not of this store."""
    if info.nodes != "all":
        raise InvalidInputError(
            "the predictions are of some nodes alone", where=where, expected="all nodes", fix=WRITE_ANEW
        )
    before = None if info.generation > graph.generation else _at(graph, info.generation)
    if before is None or before.identity != info.store:
        raise InvalidInputError(
            "the predictions are of another store",
            where=where,
            expected=f"predictions of {graph.path}, up to the generation {graph.generation} or an earlier one",
            fix=WRITE_ANEW,
        )
    return before


def require_same_classes(model: SavedModel, before: GraphStore, graph: GraphStore, where: Path) -> None:
    """Refuse a table whose numbers stand for other classes now."""
    if not np.array_equal(model.labels_in(before), model.labels_in(graph)):
        raise InvalidInputError("the store has other numbers for the model's classes now", where=where, fix=WRITE_ANEW)


def _at(graph: GraphStore, generation: int) -> GraphStore:
    return graph if generation == graph.generation else GraphStore.open(graph.path, generation)


def updated(old: Path, info: TableInfo, fresh: Scores, num_nodes: int) -> Iterator[Scores]:
    """The rows of a table with those that were computed anew, and those of nodes that are new, in order.

    Memory: a batch, a few times.
    """
    batches = read_scores(old, info.num_nodes)
    waiting = Scores(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
    for start in range(0, num_nodes, WRITE_ROWS):
        nodes = np.arange(start, min(start + WRITE_ROWS, num_nodes))
        while waiting.nodes.size < min(nodes[-1] + 1, info.num_nodes) - start:
            waiting = _joined(waiting, next(batches))
        label, score = np.zeros(nodes.size, np.int64), np.zeros(nodes.size, np.float32)
        copied = slice(0, min(waiting.nodes.size, nodes.size))
        label[copied], score[copied] = waiting.label[copied], waiting.score[copied]
        waiting = waiting.part(copied.stop, waiting.nodes.size)
        here = slice(*np.searchsorted(fresh.nodes, [start, start + nodes.size]))
        places = fresh.nodes[here] - start
        label[places], score[places] = fresh.label[here], fresh.score[here]
        yield Scores(nodes, label, score)
    for _ in batches:  # which ends where its count is checked
        pass


def _joined(first: Scores, second: Scores) -> Scores:
    return Scores(
        np.append(first.nodes, second.nodes), np.append(first.label, second.label), np.append(first.score, second.score)
    )


def first_new_node(model: SavedModel, graph: GraphStore) -> int:
    """New are the nodes that the model has not learned from, and those that the last append has brought."""
    appended = [part.first_node for part in graph.generations[1:] if part.first_node < part.num_nodes]
    return min([_learned_nodes(model, graph), *appended[-1:]])


def _learned_nodes(model: SavedModel, graph: GraphStore) -> int:
    found = model.more.get("num_nodes")
    if not isinstance(found, int):
        raise UsageError(
            "the model does not say which nodes of the store are new to it",
            expected="a model with its seal, sealed.json",
            fix="name the nodes in a file",
        )
    erased = model.more.get("num_erased")
    if erased is not None:  # nodes before the new ones may have been erased since, which then have lower numbers
        found -= num_erased_of(graph.manifest) - erased
    if found > graph.num_nodes:
        raise InvalidInputError(
            f"the model has learned from {found:,} nodes, and the store has {graph.num_nodes:,}",
            where=graph.path,
            expected="the store that it has learned from, as it is now",
        )
    return found

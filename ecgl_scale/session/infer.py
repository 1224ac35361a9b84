"""``ecgl infer``: predict nodes of a store, this or another, with a finished run's or a saved model's weights.

Every node (``infer_whole``), those asked for, or those whose predictions have changed since a table was written
(``infer_some``). What is written says which model and store it is of (``score_table``).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ecgl_scale.base.durable import storage_errors
from ecgl_scale.base.events import EventSink, ignore_events
from ecgl_scale.base.memory import PeakSampler
from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.base.output_file import check_output_file
from ecgl_scale.engine.cluster.entrance import with_workers
from ecgl_scale.engine.cluster.settings import ALONE, ClusterSettings
from ecgl_scale.engine.cluster.worker_memory import require_workers
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.graph.changed import changed_since
from ecgl_scale.session.infer_some import (
    first_new_node,
    is_of_model,
    predict_some,
    require_same_classes,
    require_same_store,
    updated,
)
from ecgl_scale.session.infer_whole import infer_whole, plan_whole, plan_whole_worker, require_same_features
from ecgl_scale.session.remote_run import model_directory
from ecgl_scale.session.saved_model import SavedModel, load_model
from ecgl_scale.session.score_table import Ints, Naming, TableInfo, read_info, scores_of_all, write_scores
from ecgl_scale.session.setup import infer_settings
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.node_list import read_node_list
from ecgl_scale.store.remote import manifest_files

_log = logging.getLogger(__name__)
RUN_TABLES = ("metrics.parquet", "split.parquet")
"""A run's own files that are Parquet, as predictions are."""


@dataclass(frozen=True)
class Asked:
    """Which nodes are to be predicted; every one where nothing is said."""

    nodes: Path | Literal["new"] | None = None
    """A file that names them; or those that the model has not learned from or the last append has brought; with a table
    to update, those newer than it."""
    by_key: bool = False
    """Whether the file names nodes by key, and the table that is written has the keys."""
    update: Path | None = None
    """A table of all nodes: its rows are copied, but for nodes that have changed since; all have, if the model has."""


def infer_store(
    run: AnyPath,
    store: AnyPath,
    out: Path,
    *,
    asked: Asked | None = None,
    memory: str | None = None,
    threads: int | None = None,
    cluster: ClusterSettings = ALONE,
    on_event: EventSink = ignore_events,
) -> dict[str, Any]:
    """Write ``node, label, score`` of every node to a Parquet file; ``score`` is the softmax of the label's output.

    ``memory`` and ``threads`` are those of the run's config where they are not given; its workers are not asked. Of
    the nodes that are ``asked`` for only the neighbourhood is read, in this process; workers are for whole graphs.

    Raises
    ------
    InvalidInputError
        There is no finished run or saved model, its files do not belong together, ``out`` cannot be written, the table
        to update is of another model or store, or a node that is asked for does not exist.
    UsageError
        The store's features are not those the run was trained on, or nobody knows which nodes are new.
    """
    target = check_output_file(out)
    if isinstance(run, Path):
        _refuse_own_files(run, target)
    with model_directory(run) as directory:
        model = load_model(directory)
    config = model.config
    resources = Resources.of(
        config.memory if memory is None else memory,
        config.threads if threads is None else threads,
        on_event=on_event,
    )
    graph = GraphStore.open(store)
    require_same_features(model, graph)
    _warn(model, graph)
    asked = asked or Asked()
    prediction = _Prediction(model, graph, target, by_key=asked.by_key)
    if asked.nodes is None and asked.update is None:
        with with_workers(cluster, resources, shared=[target], inputs=manifest_files(graph.path)) as resources:
            found = prediction.of_all(resources)
    else:
        found = prediction.of_some(asked, resources)
    return {"out": str(out), "num_nodes": graph.num_nodes, "num_classes": len(model.classes), **found}


class _Prediction:
    """Plans, predicts and writes; what is finished waits in a directory beside the target where that fails."""

    def __init__(self, model: SavedModel, graph: GraphStore, target: Path, *, by_key: bool) -> None:
        self._model = model
        self._graph = graph
        self._target = target
        self._naming = Naming.of(model, graph, by_key=by_key)
        self._work = target.absolute().with_name(f".{target.name}.work")

    def of_all(self, resources: Resources) -> dict[str, Any]:
        """Predict every node."""
        model, graph = self._model, self._graph
        plan = plan_whole(model, graph, resources)
        _log.info(plan.summary())
        require_workers(
            resources,
            lambda room, threads: [plan_whole_worker(model, graph, room_bytes=room, threads=threads)],
            with_torch=True,
        )
        with self._working(), PeakSampler() as sampler:
            result = infer_whole(model, graph, self._work, resources.with_work(self._work / "engine"))
            logits, classes = result.pop("logits"), model.labels_in(graph)
            info = TableInfo.of(model, graph)
            write_scores(self._target, scores_of_all(logits, classes), info, self._naming, num_rows=len(logits))
        return {**result, "num_predicted": graph.num_nodes, "peak_bytes": sampler.peak_bytes, "plan": plan.as_json()}

    def of_some(self, asked: Asked, resources: Resources) -> dict[str, Any]:
        """Predict nodes that are asked for, or bring a table up to date."""
        model, graph, old = self._model, self._graph, asked.update
        table = None if old is None else read_info(old)
        if table is not None and old is not None:
            before = require_same_store(table, graph, old)
            if asked.nodes is None and not is_of_model(table, model):
                _log.info("the model has changed since %s was written: every node is predicted", old)
                return self.of_all(resources)
            require_same_classes(model, before, graph, old)
        is_whole = asked.nodes is None and table is not None
        with self._working(), PeakSampler() as sampler:
            resources = resources.with_work(self._work / "engine")
            if asked.nodes is None and table is not None:
                ids = _changed(model, graph, table.generation, resources)
            else:
                ids = _asked_nodes(asked, model, graph, table)
            found = predict_some(model, graph, ids, self._work, resources)
            info = TableInfo.of(model, graph, nodes="all" if is_whole else "some")
            if is_whole and table is not None and old is not None:
                batches = updated(old, table, found.scores, graph.num_nodes)
            else:
                batches = found.scores.batches()
            num_rows = graph.num_nodes if is_whole else ids.size
            write_scores(self._target, batches, info, self._naming, num_rows=num_rows)
        about = {"num_predicted": int(ids.size), "peak_bytes": sampler.peak_bytes, "plan": found.plan.as_json()}
        return {**found.about, **about}

    @contextmanager
    def _working(self) -> Iterator[None]:
        with storage_errors(self._target):
            self._work.mkdir(exist_ok=True)
        try:
            yield
        except BaseException:  # Ctrl-C and requests to stop too
            with suppress(OSError):
                self._work.rmdir()  # only where nothing is in it that the same command could go on with
            raise
        shutil.rmtree(self._work, ignore_errors=True)


def _asked_nodes(asked: Asked, model: SavedModel, graph: GraphStore, table: TableInfo | None) -> Ints:
    """The nodes to predict, ascending."""
    if isinstance(asked.nodes, Path):
        if table is not None:
            raise UsageError(
                "--update finds the nodes itself that have to be predicted", fix="give --nodes FILE or --update"
            )
        return read_node_list(asked.nodes, graph, asked.by_key)
    num_known = table.num_nodes if table is not None else first_new_node(model, graph)
    return np.arange(num_known, graph.num_nodes)


def _changed(model: SavedModel, graph: GraphStore, generation: int, resources: Resources) -> Ints:
    config = model.config
    made = model.made
    hops = made.num_hops if made.is_made else len(model.weights.layers)
    norm = config.infer.norm if made.is_made else infer_settings(config).effective_norm
    return changed_since(graph, generation, hops, norm, resources)


def _refuse_own_files(run: Path, target: Path) -> None:
    """Refuse to write over a run's files: predictions may go beside them, but never in the place of one."""
    is_inside = run.resolve() in target.resolve().parents
    if is_inside and target.exists() and (target.suffix != ".parquet" or target.name in RUN_TABLES):
        raise InvalidInputError("this file belongs to the run", where=target, fix="choose another --out")


def _warn(model: SavedModel, graph: GraphStore) -> None:
    """Warn of what someone might not expect, though it is no error."""
    if model.config.setting == "task-il":
        _log.warning(
            "the model was trained for task-il, but nothing says which task a node is of: "
            "every node is predicted among all %d classes (class-il), where such models do worse",
            len(model.classes),
        )
    partitions = model.config.infer.partitions
    if partitions != "auto" and partitions > graph.num_nodes:
        _log.warning("infer.partitions is %d; the store is cut into its %d nodes", partitions, graph.num_nodes)

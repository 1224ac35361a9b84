"""The files of a model without some nodes, or without a class.

written anew   split.parquet, bank.arrow, the method's state, tests/, and whatever names the split: all that has rows
               or ids; for a class also the weights and moments, in which its outputs become zero
taken along    CARRIED, which know of no node: settings, plan, curves, samples of memory
left behind    run.log and notes in events.jsonl, as text may name a node; earlier checkpoints; tasks/ and work/, which
               are made again from the store; files that are none of a model's
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.base.durable import write_atomically
from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.base.timeline import TIMELINE_NAME
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import EcglError, UsageError
from ecgl_scale.learn.method.kept import without_nodes, without_outputs
from ecgl_scale.learn.method.table import method_of
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.tensors import load_tensors, save_tensors
from ecgl_scale.learn.train import EARLIER
from ecgl_scale.session.basis import KEPT_FOLDERS, SPLIT_NAME, Basis, link_file, link_tree
from ecgl_scale.session.checkpoint import WEIGHTS_DIRECTORY
from ecgl_scale.session.directory import CONFIG_NAME, RESULTS_NAME
from ecgl_scale.session.forget_sums import ForgettingSums
from ecgl_scale.session.learner import BANK_NAME
from ecgl_scale.session.saved_model import save_model
from ecgl_scale.session.worker_table import WORKERS_NAME
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.nodes import LABEL
from ecgl_scale.tasks.forgotten import Forgotten, SplitWithout, about_forgotten, write_split_without
from ecgl_scale.tasks.graphs import extract_graph
from ecgl_scale.tasks.split import read_column
from ecgl_scale.tasks.subset import NODE

CARRIED = (CONFIG_NAME, "plan.json", "metrics.parquet", TIMELINE_NAME, WORKERS_NAME)
EVENTS_NAME = "events.jsonl"
TENSORS = ("parameter", EARLIER, "adam.mean", "adam.square")
"""What a checkpoint has of every tensor of the model."""


@dataclass(frozen=True)
class Left:
    """What has left a model."""

    num_known: int
    """Nodes of its tasks that were forgotten."""
    rows: dict[str, int]
    """How many rows left which file; files that had none of them are not named."""
    has_state: bool
    """Whether the method keeps something besides weights and bank."""
    is_exact: bool
    """Whether what was learned is now as if they had never been there."""


class ForgettingFiles:
    """Writes the files of a model into a new directory, all but the seal and what is said about it."""

    def __init__(self, basis: Basis, target: Path, resources: Resources, store: AnyPath) -> None:
        """``store`` is that of the model: methods whose state is a sum over rows read the rows there."""
        self._basis = basis
        self._store = store
        self._exact_head: torch.Tensor | None = None
        self._source, self._target = basis.directory, target
        self._resources = resources
        self._rows: dict[str, int] = {}

    def write(self, asked: Forgotten) -> Left:
        """Write them; ``asked`` may name nodes that the model has never seen."""
        (self._target / WEIGHTS_DIRECTORY).mkdir()
        for name in CARRIED:
            if (self._source / name).exists():
                link_file(self._source / name, self._target / name)
        left = write_split_without(self._source / SPLIT_NAME, self._target / SPLIT_NAME, asked)
        if not any(classes for classes, _ in left.tasks):
            raise UsageError(
                "this is the only class that the model still knows, and a model of no class predicts nothing",
                where=self._source,
                fix="remove the model",
            )
        self._refuse_context(np.setdiff1d(asked.node_ids, left.gone.node_ids))
        gone = left.gone
        self._count(SPLIT_NAME, gone.node_ids.size)
        self._write_bank(gone)
        has_state = self._write_method(gone)
        self._write_weights(left)
        self._write_graphs(gone)
        self._write_results(left)
        self._write_events()
        replace(self._basis.state, split_hash=left.split_hash).write(self._target)
        is_exact = method_of(self._basis.saved.config).forgets_exactly
        return Left(int(gone.node_ids.size), self._rows, has_state, is_exact)

    def _refuse_context(self, unknown: NDArray[np.int64]) -> None:
        """Refuse nodes that may have been context: the model has no list of them, and would take them in again."""
        context = self._basis.saved.config.tasks.context
        if context == "none" or not unknown.size:
            return
        with suppress(EcglError):  # without the store nobody knows which of them have a label
            unknown = unknown[read_column(GraphStore.open(self._store), LABEL, unknown) < 0]
        if unknown.size:
            raise UsageError(
                f"{unknown.size:,} of the nodes are in no task of the model and have no label, and with tasks.context "
                f"{context} tasks were learned with such nodes around theirs",
                where=self._source,
                expected="nodes of the model's tasks",
                fix="drop them from the store (ecgl drop), and train a model anew: ecgl run",
            )

    def _count(self, name: str, num_rows: int) -> None:
        if num_rows:
            self._rows[name] = int(num_rows)

    @property
    def _head(self) -> tuple[int, ...]:
        """Places of the head's tensors among the model's."""
        weights = self._basis.saved.weights
        num_tensors, of_head = len(weights.parameters()), weights.layers[-1]
        return tuple(range(num_tensors - sum(tensor is not None for tensor in of_head), num_tensors))

    def _write_bank(self, gone: Forgotten) -> None:
        if (self._source / BANK_NAME).exists():
            bank = self._basis.bank()
            kept = without_nodes(bank, gone)
            kept.save(self._target / BANK_NAME)
            self._count(BANK_NAME, len(bank) - len(kept))

    def _write_method(self, gone: Forgotten) -> bool:
        """The state of the method; whether there is any."""
        name = f"{WEIGHTS_DIRECTORY}/method-{self._basis.num_tasks - 1}.safetensors"
        if not (self._source / name).exists():
            return False
        state, about = load_tensors(self._source / name)
        method = method_of(self._basis.saved.config)
        method.load_state(state)
        if method.forgets_exactly:
            forgot = method.forget_exactly(
                ForgettingSums(self._basis, gone, self._target, self._store, self._resources)
            )
            self._exact_head = torch.from_numpy(np.ascontiguousarray(forgot.head.T, np.float32))
            self._count(name, forgot.num_rows)
        else:
            self._count(name, method.forget(gone, self._head))
        kept = method.state()
        if kept:
            save_tensors(self._target / name, kept, about={"method": about.get("method", method.name)})
        return True

    def _write_weights(self, left: SplitWithout) -> None:
        """Checkpoint and model, in which the outputs of forgotten classes, and their moments, are zero."""
        basis, gone = self._basis, left.gone
        checkpoint = f"{WEIGHTS_DIRECTORY}/{basis.state.checkpoint}"
        weights = basis.saved.weights
        if gone.positions.size or self._exact_head is not None:
            tensors, about = load_tensors(self._source / checkpoint)
            kept = without_outputs(tensors, gone, self._head, TENSORS)
            weights = _without_outputs(weights, gone)
            if self._exact_head is not None:
                weights = weights.take([*weights.parameters()[:-1], self._exact_head])
                kept[f"parameter.{self._head[-1]}"] = self._exact_head.numpy()
            save_tensors(self._target / checkpoint, kept, about={"place": about["place"]})
        else:
            link_file(self._source / checkpoint, self._target / checkpoint)
        more = {**basis.saved.more, "split_hash": left.split_hash}
        more |= about_forgotten(basis.saved.classes, [classes for classes, _ in left.tasks])
        save_model(self._target / WEIGHTS_DIRECTORY, weights, basis.saved.classes, basis.saved.scaling, **more)

    def _write_graphs(self, gone: Forgotten) -> None:
        """Kept task graphs; a graph that is left without nodes is gone."""
        for path in sorted((self._source / KEPT_FOLDERS[0]).glob("*.ecgl")):
            name = f"{KEPT_FOLDERS[0]}/{path.name}"
            graph = GraphStore.open(path)
            stays = ~np.isin(graph.column(NODE), gone.node_ids)
            self._count(name, int(np.count_nonzero(~stays)))
            if stays.all():
                link_tree(path, self._target / name)
            elif stays.any():
                self_loops = self._basis.saved.config.rank.self_loops
                places = np.flatnonzero(stays)
                extract_graph(graph, places, self._target / name, self._resources, self_loops=self_loops)

    def _write_results(self, left: SplitWithout) -> None:
        """The results as they were: only the tasks are now smaller."""
        path = self._source / RESULTS_NAME
        if path.exists():
            results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            tasks = zip(results["tasks"], left.tasks, strict=True)
            results["tasks"] = [
                {**task, "classes": list(classes), "num_nodes": num_nodes} for task, (classes, num_nodes) in tasks
            ]
            results["split_hash"] = left.split_hash
            write_atomically(self._target / RESULTS_NAME, json.dumps(results, indent=1))

    def _write_events(self) -> None:
        path = self._source / EVENTS_NAME
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            write_atomically(self._target / EVENTS_NAME, "".join(line for line in lines if _has_no_text(line)))


def _has_no_text(line: str) -> bool:
    """Whether a line of events is one without text that somebody has put together, in which a node may be named."""
    try:
        event = json.loads(line)
        return bool(event["event"] != "Note" and event.get("reason", "finished") == "finished")
    except (ValueError, TypeError, LookupError):  # half a line
        return False


def _without_outputs(weights: SharedWeights, gone: Forgotten) -> SharedWeights:
    found = weights.copy()
    with torch.no_grad():
        for tensor in found.layers[-1]:
            if tensor is not None:
                tensor[torch.from_numpy(gone.positions)] = 0
    return found

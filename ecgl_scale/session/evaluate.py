"""The test of a task as work on the engine: weights and a task graph in, accuracies out.

On this machine tasks are tested one after the other, each by all threads. Where workers share no memory each tests a
whole task by itself: task graphs are parts of the store, and layer by layer over all workers the rows between layers
would go through files for every one of them. Propagated features are no such work: their test is a small dense product
on rows that are in a file already, and stays with the driver.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar

from ecgl_scale.base.objects.url import AnyPath, absolute_text, location_of
from ecgl_scale.engine.block import Block, split_blocks
from ecgl_scale.engine.executor import run_blocks
from ecgl_scale.engine.place import shared_directory
from ecgl_scale.engine.resources import Resources
from ecgl_scale.engine.work import Json, Work
from ecgl_scale.infer.asked import AskedRows
from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.settings import InferSettings
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.tensors import load_tensors, save_tensors
from ecgl_scale.session.scoring import Question, rows_in_blocks, scoring_bytes
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.graphs import positions_of
from ecgl_scale.tasks.metrics import Accuracy
from ecgl_scale.tasks.subset import NODE

WEIGHTS_NAME = "weights.safetensors"


class EvaluateWork(Work[None, Accuracy]):
    """Tests of tasks with one set of weights; block i is the i-th test. A worker has one at a time."""

    name: ClassVar[str] = "evaluate.task"
    record: ClassVar[type[Any]] = Accuracy
    uses_all_threads: ClassVar[bool] = True
    has_small_records: ClassVar[bool] = True

    def __init__(
        self,
        directory: Path,
        graphs: Sequence[AnyPath],
        settings: InferSettings,
        cuts: Path | None,
        resources: Resources,
    ) -> None:
        self._directory = directory
        self._graphs = graphs
        self._settings = settings
        self._cuts = cuts
        self._resources = resources

    def describe(self) -> Json:
        """Where weights and tests are, the graphs, and how logits are made."""
        return {
            "directory": str(self._directory),
            "graphs": [absolute_text(path) for path in self._graphs],
            "settings": asdict(self._settings),
            "cuts": None if self._cuts is None else str(self._cuts),
        }

    @classmethod
    def open(cls, description: Json, resources: Resources) -> EvaluateWork:
        """An inference by threads of this process, whatever executor there is around it."""
        return cls(
            Path(description["directory"]),
            [location_of(path) for path in description["graphs"]],
            InferSettings(**description["settings"]),
            None if description["cuts"] is None else Path(description["cuts"]),
            resources.alone(),
        )

    def run(self, block: Block, given: Json, scratch: None) -> Accuracy:
        """Logits of the whole graph, then the accuracy of the nodes that are asked for."""
        del given, scratch
        question = Question(**load_tensors(self._directory / f"{block.index}.safetensors")[0])
        graph = GraphStore.open(self._graphs[block.index])
        weights = SharedWeights.load(self._directory / WEIGHTS_NAME)
        asked = AskedRows.of(positions_of(graph.column(NODE), question.ids))
        own = self._directory / f"infer-{block.index}-{socket.gethostname()}-{os.getpid()}"
        try:
            result = infer_logits(
                graph,
                weights.arrays(),
                self._resources,
                settings=self._settings,
                work_directory=own,
                cuts_directory=self._cuts,
                asked=asked,
                beside_result_bytes=scoring_bytes(question.ids.size, weights.num_classes),
            )
            rows = positions_of(graph.column(NODE), question.ids)
            return question.score(rows_in_blocks(result.logits, rows))
        finally:
            shutil.rmtree(own, ignore_errors=True)


def evaluate_elsewhere(
    weights: SharedWeights,
    graphs: Sequence[GraphStore],
    asked: Iterable[Question],
    settings: InferSettings,
    cuts: Path | None,
    resources: Resources,
) -> Iterator[Accuracy]:
    """Answers in the order of the graphs, by workers that share no memory; what they read is in files meanwhile."""
    directory = shared_directory(resources, "evaluate")
    directory.mkdir(parents=True, exist_ok=True)
    try:
        weights.save(directory / WEIGHTS_NAME)
        for index, question in enumerate(asked):
            arrays = {entry.name: getattr(question, entry.name) for entry in fields(question)}
            save_tensors(directory / f"{index}.safetensors", arrays, about={})
        work = EvaluateWork(directory, [graph.path for graph in graphs], settings, cuts, resources)
        for _, found in run_blocks(work, split_blocks(len(graphs), 1), resources):
            yield found
    finally:
        shutil.rmtree(directory, ignore_errors=True)

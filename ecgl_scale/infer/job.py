"""One inference as every worker must know it: what is multiplied, over which graph, how it is cut and laid out.

A process that shares no memory gets it as JSON; weights and the order of rows, which are arrays, go to files below the
work directory.
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ecgl_scale.engine.block import Block
from ecgl_scale.engine.place import FilePlace
from ecgl_scale.engine.work import Json
from ecgl_scale.graph.adjacency import Adjacency, Scales
from ecgl_scale.graph.partition import Partitions
from ecgl_scale.infer.asked import AskedRows
from ecgl_scale.infer.feature_reader import FeatureReader
from ecgl_scale.infer.layout import Layout
from ecgl_scale.infer.program import Dense, Pass, Program
from ecgl_scale.infer.settings import InferSettings, Matrix
from ecgl_scale.infer.steps import Step, list_steps
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.scaling import Scaling

WEIGHTS, ORDER = "job-weights", "job-order"


@dataclass(frozen=True, eq=False)
class Job:
    """An inference that is laid out and cut."""

    adjacency: Adjacency
    features: FeatureReader
    program: Program
    settings: InferSettings
    layout: Layout
    partitions: Partitions
    directory: Path
    """It has the matrices between steps, where those are in files."""
    asked: AskedRows | None = None
    """Rows of the last matrix that are asked for; all without."""
    _scales: list[Scales] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def steps(self) -> list[Step]:
        """What is done, in order."""
        return list_steps(self.program, self.layout)

    @property
    def scales(self) -> Scales:
        """The scales of P; counted once, by whoever asks first."""
        with self._lock:
            if not self._scales:
                self._scales.append(self.adjacency.scales(self.settings.effective_norm))
            return self._scales[0]

    def parts_of(self, step: int) -> Partitions:
        """The blocks of a step: those of the features where they are multiplied, else the partitions."""
        return self._stored_blocks if self.steps[step].kind == "prepare" else self.partitions

    def blocks_of(self, step: int) -> list[Block]:
        """The blocks of a step that are computed: of the last layer those that have a row which is asked for."""
        parts, about = self.parts_of(step), self.steps[step]
        is_last = about.kind != "prepare" and about.number == len(self.program.passes) - 1
        if self.asked is None or not is_last or parts.order is not None:
            return list(parts.blocks)
        return [block for block in parts.blocks if self.asked.any_in(block)]

    @cached_property
    def _stored_blocks(self) -> Partitions:
        return Partitions(self.features.blocks())

    def describe(self) -> Json:
        """A few kilobytes of JSON; the arrays it refers to are written."""
        program, arrays = _pack(self.program)
        vector = np.concatenate([np.empty(0, np.float32), *(array.ravel() for array in arrays)])
        if vector.size:
            _vector_place(self.directory, WEIGHTS, vector.size, "<f4").write(0, vector)
        order = self.partitions.order
        if order is not None:
            _vector_place(self.directory, ORDER, order.size, "<i8").write(0, order)
        scaling = self.features.scaling
        return {
            "store": self.features.graph.address,
            "scaling": None if scaling is None else scaling.to_json(),
            "program": program,
            "num_weights": int(vector.size),
            "settings": asdict(self.settings),
            "layout": self.layout.to_json(),
            "cuts": self.partitions.cuts,
            "is_ordered": order is not None,
            "directory": str(self.directory),
        }

    def forget_description(self) -> None:
        """Remove the files that ``describe`` has written."""
        for name in (WEIGHTS, ORDER):
            shutil.rmtree(self.directory / name, ignore_errors=True)

    @classmethod
    def open(cls, description: Json) -> Job:
        """Read the job that another process has described."""
        graph, directory = GraphStore.open(description["store"]), Path(description["directory"])
        scaling, num_weights = description["scaling"], description["num_weights"]
        vector = _vector_place(directory, WEIGHTS, num_weights, "<f4").read(0, num_weights)
        ordered, num_nodes = description["is_ordered"], graph.num_nodes
        order = _vector_place(directory, ORDER, num_nodes, "<i8").read(0, num_nodes) if ordered else None
        return cls(
            Adjacency(graph),
            FeatureReader(graph, None if scaling is None else Scaling.from_json(scaling)),
            _unpack(description["program"], vector),
            InferSettings(**description["settings"]),
            Layout.from_json(description["layout"]),
            Partitions.from_cuts(description["cuts"], order),
            directory,
        )


def _vector_place(directory: Path, name: str, size: int, dtype: str) -> FilePlace:
    return FilePlace(directory / name, (0, size), dtype)


def _pack(program: Program) -> tuple[Json, list[Matrix]]:
    """A program as JSON, with shapes in place of arrays, and the arrays in the order of their shapes."""
    arrays: list[Matrix] = []

    def shape(array: Matrix | None) -> list[int] | None:
        if array is None:
            return None
        arrays.append(array)
        return list(array.shape)

    def dense(step: Dense) -> Json:
        about = {"bias_times_sums": step.bias_times_sums, "relu": step.relu}
        return {"weight_t": shape(step.weight_t), "bias": shape(step.bias), **about}

    before = None if program.before is None else dense(program.before)
    passes = [[layer_pass.width, [dense(step) for step in layer_pass.dense]] for layer_pass in program.passes]
    return {"num_features": program.num_features, "before": before, "passes": passes}, arrays


def _unpack(entry: Json, vector: Matrix) -> Program:
    used = 0

    def take(shape: list[int] | None) -> Matrix | None:
        nonlocal used
        if shape is None:
            return None
        start, used = used, used + int(np.prod(shape))
        return vector[start:used].reshape(shape).copy()

    def dense(found: dict[str, Any]) -> Dense:
        return Dense(**{**found, "weight_t": take(found["weight_t"]), "bias": take(found["bias"])})

    before = None if entry["before"] is None else dense(entry["before"])
    passes = tuple(Pass(width, tuple(map(dense, steps))) for width, steps in entry["passes"])
    return Program(entry["num_features"], before, passes)

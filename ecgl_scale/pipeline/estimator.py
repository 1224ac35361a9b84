"""The learner as a Python object, in sklearn's manners: the constructor only stores, what is learned ends in ``_``."""

from __future__ import annotations

import inspect
import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ecgl_scale.errors import UsageError
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.tasks import Task, TaskStream
from ecgl_scale.pipeline.learner import Learner
from ecgl_scale.pipeline.plan import plan_run
from ecgl_scale.report.metrics import PerformanceMatrix
from ecgl_scale.run.config import RunConfig, config_from_mapping
from ecgl_scale.run.durable import write_atomically
from ecgl_scale.run.events import EventSink, ignore_events
from ecgl_scale.run.plan import MemoryPlan
from ecgl_scale.store.graph import GraphStore


class ECGL:
    """Continual learner of a stream of tasks.

    Parameters
    ----------
    hidden, epochs, lr, device, budget, diversity_ratio, setting, preset, seed, memory
        As the config keys of the same names (docs/configuration.md).
    method
        ``ecgl``, or another to compare with.
    config
        Any other keys, by their dotted names: ``{"learn.lambda": 0.5}``.
    directory
        Where task graphs and other working files are kept; a temporary one without.

    Attributes
    ----------
    weights_
        ``SharedWeights``.
    bank_
        ``MemoryBank``.
    matrix_
        ``PerformanceMatrix``, filled by ``evaluate``.
    """

    def __init__(
        self,
        hidden: Sequence[int] = (256,),
        *,
        budget: int = 1000,
        diversity_ratio: float = 0.25,
        epochs: int = 200,
        lr: float = 0.005,
        setting: str = "class-il",
        preset: str = "plus",
        method: str = "ecgl",
        seed: int = 0,
        memory: str | None = None,
        device: str = "auto",
        config: Mapping[str, Any] | None = None,
        directory: str | Path | None = None,
    ) -> None:
        self.hidden = hidden
        self.budget = budget
        self.diversity_ratio = diversity_ratio
        self.epochs = epochs
        self.lr = lr
        self.setting = setting
        self.preset = preset
        self.method = method
        self.seed = seed
        self.memory = memory
        self.device = device
        self.config = config
        self.directory = directory
        self._learner: Learner | None = None
        self._remove_temporary: Callable[[], object] | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        del deep
        names = [name for name in inspect.signature(type(self).__init__).parameters if name != "self"]
        return {name: getattr(self, name) for name in names}

    def set_params(self, **params: Any) -> ECGL:
        """Other arguments; they count from the next first task on."""
        unknown = sorted(set(params) - set(self.get_params()))
        if unknown:
            raise UsageError(f"no such parameter: {', '.join(unknown)}", expected=", ".join(self.get_params()))
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def plan(self, graph: GraphStore, tasks: TaskStream) -> MemoryPlan:
        """What learning these tasks will need; printing it shows a table."""
        return plan_run(graph, tasks, self._config(graph))

    def fit_task(self, graph: GraphStore, task: Task, *, on_event: EventSink = ignore_events) -> ECGL:
        """Train on a task, rank its nodes and remember some. Tasks come in order; the first begins anew."""
        stream = task.stream
        if stream is None:
            raise UsageError(f"task {task.index} is of no stream", expected="a task of a TaskStream")
        if task.index == 0:
            self._begin(graph, stream, on_event)
        learner = self._learner
        if learner is None or learner.stream is not stream or task.index != self._next:
            raise UsageError(
                f"task {task.index} cannot be learned now",
                expected=f"task {0 if learner is None else self._next} of one stream",
            )
        learner.begin_task(task, is_new=True)
        for epoch in range(learner.config.learn.epochs):
            learner.train_epoch(task, epoch)
        learner.end_task()
        learner.remember(task)
        self._next += 1
        self.weights_, self.bank_ = learner.weights, learner.bank
        return self

    def evaluate(self, graph: GraphStore, tasks: Sequence[Task]) -> list[float]:
        """Accuracy (macro, percent) on each of these tasks; on all seen ones it fills a row of ``matrix_``."""
        del graph  # the task graphs were extracted from it
        learner = self._fitted()
        last = learner.stream[self._next - 1]
        found = [learner.evaluate(after=last, on=task).macro for task in tasks]
        if [task.index for task in tasks] == list(range(self._next)):
            self.matrix_.set_row(last.index, found)
        return found

    def save(self, path: str | Path) -> None:
        """Write weights (safetensors) and what they mean (JSON) to a directory."""
        learner, directory = self._fitted(), Path(path)
        directory.mkdir(parents=True, exist_ok=True)
        learner.weights.save(directory / "model.safetensors")
        about = {
            "classes": list(learner.stream.classes),
            "scaling": json.loads(learner.scaling.to_json()),
            "config": json.loads(json.dumps(learner.config.to_mapping(), default=str)),
        }
        write_atomically(directory / "model.json", json.dumps(about, indent=1))

    @staticmethod
    def load_weights(path: str | Path) -> SharedWeights:
        """Weights that ``save`` wrote."""
        return SharedWeights.load(Path(path) / "model.safetensors")

    def _begin(self, graph: GraphStore, stream: TaskStream, on_event: EventSink) -> None:
        if graph.num_nodes != stream.num_nodes:
            raise UsageError(
                f"the tasks are of a graph of {stream.num_nodes:,} nodes, this one has {graph.num_nodes:,}",
                where=graph.path,
                expected="the graph that the tasks were made of",
            )
        config = self._config(graph)
        if self._remove_temporary is not None:
            self._remove_temporary()
        directory = Path(self.directory or tempfile.mkdtemp(prefix="ecgl-"))
        if self.directory is None:
            self._remove_temporary = weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        self._learner = Learner(config, graph, stream, directory, on_event)
        self.matrix_ = PerformanceMatrix.empty(len(stream))
        self._next = 0

    def _config(self, graph: GraphStore) -> RunConfig:
        given = {
            "store": str(graph.path),
            "method": self.method,
            "preset": self.preset,
            "setting": self.setting,
            "seed": int(self.seed),
            "memory": self.memory,
            "learn": {
                "hidden": [int(width) for width in self.hidden],
                "epochs": int(self.epochs),
                "lr": float(self.lr),
                "device": self.device,
            },
            "bank": {"budget": int(self.budget), "diversity_ratio": float(self.diversity_ratio)},
        }
        overrides = [f"{key}={json.dumps(value)}" for key, value in (self.config or {}).items()]
        return config_from_mapping(given, overrides=overrides)

    def _fitted(self) -> Learner:
        if self._learner is None or not self._next:
            raise UsageError("nothing has been learned yet", fix="call fit_task first")
        return self._learner

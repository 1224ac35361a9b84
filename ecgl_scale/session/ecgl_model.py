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

from ecgl_scale.base.durable import storage_errors
from ecgl_scale.base.events import EventSink, ignore_events
from ecgl_scale.base.output_file import refuse_inside_store
from ecgl_scale.config.schema import RunConfig, config_from_mapping
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.errors import UsageError
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.session.learner import Learner, learn_task
from ecgl_scale.session.plan.run_plan import plan_run
from ecgl_scale.session.saved_model import MODEL_NAME, SavedModel, load_model, names_of_outputs, save_model
from ecgl_scale.session.setup import RunSetup, resources_of
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.metrics import PerformanceMatrix
from ecgl_scale.tasks.stream import Task, TaskStream

PARAMETER_KEYS = {
    **{name: name for name in ("method", "preset", "setting", "seed", "memory")},
    **{name: f"learn.{name}" for name in ("hidden", "epochs", "lr", "device")},
    **{name: f"bank.{name}" for name in ("budget", "diversity_ratio")},
}
"""The constructor's parameters that stand for a single key of the config."""


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
    classes_
        The label of each output.
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
        self._saved: SavedModel | None = None
        self._next = 0
        self._remove_temporary: Callable[[], object] | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments by name, as sklearn asks for them."""
        del deep
        names = [name for name in inspect.signature(type(self).__init__).parameters if name != "self"]
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        """The arguments that are not the defaults."""
        defaults = {name: one.default for name, one in inspect.signature(type(self).__init__).parameters.items()}
        given = [f"{name}={value!r}" for name, value in self.get_params().items() if value != defaults[name]]
        return f"{type(self).__name__}({', '.join(given)})"

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
        config = self._config(graph)
        return plan_run(RunSetup(config, graph, tasks, resources_of(config)))

    def fit_task(self, graph: GraphStore, task: Task, *, on_event: EventSink = ignore_events) -> ECGL:
        """Train on a task, rank its nodes and remember some. Tasks come in order; the first begins anew."""
        stream = task.stream
        if stream is None:
            raise UsageError(f"task {task.index} is of no stream", expected="a task of a TaskStream")
        if task.index == 0:
            self._begin(graph, stream, on_event)
        learner = self._learner
        if self._saved is not None:
            raise UsageError(
                f"task {task.index} cannot be learned by a model that was loaded",
                expected="a model saved is weights alone: nodes it remembered and the optimizer's moments are gone",
                fix="begin with task 0, or use `ecgl run`, which can be resumed",
            )
        if learner is None or learner.stream is not stream or task.index != self._next:
            raise UsageError(
                f"task {task.index} cannot be learned now",
                expected=f"task {0 if learner is None else self._next} of one stream",
            )
        for _ in learn_task(learner, task):
            pass
        learner.remember(task)
        self._next += 1
        self.weights_, self.bank_, self.classes_ = learner.weights, learner.bank, learner.classes
        return self

    def evaluate(self, graph: GraphStore, tasks: Sequence[Task]) -> list[float]:
        """Accuracy (macro, percent) on each of these tasks; on all seen ones it fills a row of ``matrix_``."""
        if self._saved is not None and self._learner is None:
            self._reopen(self._saved, graph, tasks)
        learner = self._fitted()  # which has extracted the task graphs
        last = learner.stream[self._next - 1]
        found = [accuracy.macro for accuracy in learner.evaluate(after=last, on=tasks)]
        if [task.index for task in tasks] == list(range(self._next)):
            self.matrix_.set_row(last.index, found)
        return found

    def save(self, path: str | Path) -> None:
        """Write weights (safetensors) and what they mean (JSON) to a directory, for ``load`` and ``ecgl infer``."""
        directory, saved = Path(path), self._saved
        refuse_inside_store(directory / MODEL_NAME)
        if saved is None:
            learner = self._fitted()
            more = {
                "tasks_learned": self._next,
                "split_hash": learner.stream.split_hash,
                "matrix": self.matrix_.to_lists(),
                **names_of_outputs(learner.classes, learner.stream.class_names),
            }
            saved = SavedModel(learner.config, learner.weights, learner.classes, learner.scaling, more)
        with storage_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
        config = saved.config.to_mapping()
        save_model(directory, saved.weights, saved.classes, saved.scaling, config=config, **saved.more)

    @classmethod
    def load(cls, path: str | Path) -> ECGL:
        """A model that ``save`` or ``ecgl run`` wrote: parameters, ``weights_``, ``classes_`` and what ``matrix_`` was.

        It can evaluate tasks of the same stream, but learn only from the first on: it remembers no nodes.
        """
        saved = load_model(Path(path))
        model = cls(**_params_of(saved.config))
        model._saved = saved
        model.weights_, model.classes_ = saved.weights, saved.classes
        if "matrix" in saved.more:
            model.matrix_ = PerformanceMatrix.from_lists(saved.more["matrix"])
        return model

    @staticmethod
    def load_weights(path: str | Path) -> SharedWeights:
        """Weights that ``save`` wrote."""
        return SharedWeights.load(Path(path) / MODEL_NAME)

    def _reopen(self, saved: SavedModel, graph: GraphStore, tasks: Sequence[Task]) -> None:
        """A learner for a model that was loaded, as soon as there are tasks."""
        stream = tasks[0].stream if tasks else None
        if stream is None or stream.split_hash != saved.more.get("split_hash"):
            raise UsageError("these tasks are not those the model was trained on", expected="the same stream and split")
        learner = self._begin(graph, stream, ignore_events)
        learner.trainer.grow_head(saved.weights.num_classes)
        learner.weights.take(saved.weights.parameters())
        self._saved, self._next, self.weights_ = saved, int(saved.more["tasks_learned"]), learner.weights
        if "matrix" in saved.more:
            self.matrix_ = PerformanceMatrix.from_lists(saved.more["matrix"])

    def _begin(self, graph: GraphStore, stream: TaskStream, on_event: EventSink) -> Learner:
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
        self._learner = learner = Learner(RunSetup(config, graph, stream, resources_of(config, on_event)), directory)
        self.matrix_ = PerformanceMatrix.empty(len(stream))
        self._saved, self._next = None, 0
        return learner

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


def _params_of(config: RunConfig) -> dict[str, Any]:
    """The constructor's arguments that give this config, but for the store, which is that of the graph it is given."""
    keys: dict[str, Any] = {}
    for name, value in config.to_mapping().items():
        keys.update({f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value})
    params = {name: keys.pop(key) for name, key in PARAMETER_KEYS.items()}
    del keys["store"]
    return {**params, "config": keys}

"""The learner as a Python object, in sklearn's manners: the constructor only stores, what is learned ends in ``_``."""

from __future__ import annotations

import inspect
import json
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.events import EventSink, ignore_events
from ecgl_scale.base.output_file import refuse_inside_store
from ecgl_scale.base.versions import version_directory
from ecgl_scale.config.schema import RunConfig, config_from_mapping
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.errors import UsageError
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.session.basis import Basis
from ecgl_scale.session.checkpoint import WEIGHTS_DIRECTORY
from ecgl_scale.session.directory import CONFIG_NAME
from ecgl_scale.session.infer_some import predict_labels
from ecgl_scale.session.learner import Learner, learn_task
from ecgl_scale.session.plan.run_plan import plan_run
from ecgl_scale.session.results import matrices_of
from ecgl_scale.session.save_learner import remove_learned, save_learner
from ecgl_scale.session.saved_model import load_model
from ecgl_scale.session.setup import RunSetup, resources_of
from ecgl_scale.session.state import RunState
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.scaling import Scaling
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
        As the config keys of the same names (docs/configuration.md). ``diversity_ratio`` is of banks which importance
        and diversity choose: those of the presets ``paper`` and ``reference``.
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
    matrix_seen_
        The one on the whole graph seen so far, where ``tasks.eval_scope`` is ``both`` or ``seen``; else None.
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
        self._basis: Basis | None = None
        self._state: RunState | None = None
        self._next = 0
        self._temporary: list[Callable[[], object]] = []

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
        """Train on a task, rank its nodes and remember some. Tasks come in order; the first begins anew.

        A model that was loaded, or has learned a shorter stream, goes on with a stream that has the same tasks before.
        """
        stream = task.stream
        if stream is None:
            raise UsageError(f"task {task.index} is of no stream", expected="a task of a TaskStream")
        if task.index == 0:
            self._begin(graph, stream, on_event)
        elif task.index == self._next and self._learner is not None and self._learner.stream is stream:
            pass
        elif task.index == self._next and self._has_learned(stream):
            self._go_on(graph, stream, on_event)
        else:
            raise UsageError(
                f"task {task.index} cannot be learned now",
                expected=f"task {self._next} of one stream, or of one that begins with the tasks learned so far",
            )
        learner = self._fitted(is_begun=True)
        losses = tuple(finished.loss for _, finished in learn_task(learner, task))
        learner.remember(task)
        self._next += 1
        self._note(losses=(*self._progress.losses, losses), task=self._next)
        self.weights_, self.bank_, self.classes_ = learner.weights, learner.bank, learner.classes
        return self

    def evaluate(self, graph: GraphStore, tasks: Sequence[Task]) -> list[float]:
        """Accuracy (macro, percent) on each of these tasks; on all seen ones it fills a row of each matrix."""
        if self._learner is None and self._basis is not None:
            stream = tasks[0].stream if tasks else None
            if stream is None or not self._has_learned(stream):
                raise UsageError(
                    "these tasks are not those the model was trained on", expected="the same stream and split"
                )
            self._go_on(graph, stream, ignore_events)
        learner = self._fitted()  # which has extracted the task graphs
        last = learner.stream[self._next - 1]
        fills_row = [task.index for task in tasks] == list(range(self._next))
        scopes = learner.config.tasks.scopes[: None if fills_row else 1]
        rows = [list(learner.evaluate(after=last, on=tasks, scope=scope)) for scope in scopes]
        if fills_row:
            for number, row in enumerate(rows):
                self._state = self._progress.with_row(last.index, row, is_seen=number == 1)
            self._fill_matrices(learner.config, len(learner.stream))
        return [accuracy.macro for accuracy in rows[0]]

    def _fill_matrices(self, config: RunConfig, num_tasks: int) -> None:
        self.matrix_, self.matrix_seen_ = matrices_of(config, self._progress.macro_rows, num_tasks)

    def predict(self, graph: GraphStore, nodes: Any = None) -> NDArray[np.int64]:
        """The label of each of ``nodes``, in their order, or of every node; of some only the neighbourhood is read."""
        basis = self._basis if self._learner is None else None
        saved = self._fitted().as_saved() if basis is None else basis.saved
        return predict_labels(saved, graph, nodes, resources_of(saved.config))

    def save(self, path: str | Path) -> None:
        """Write the whole learner to a directory, for ``load``, ``ecgl infer`` and ``ecgl update``."""
        directory = Path(path)
        refuse_inside_store(directory / CONFIG_NAME)
        if self._learner is None and self._basis is not None:
            self._basis.copy_whole(directory)
        else:
            save_learner(directory, self._fitted(), self._progress)

    @classmethod
    def load(cls, path: str | Path) -> ECGL:
        """A model that ``save``, ``ecgl run`` or ``ecgl update`` wrote; it evaluates its tasks and learns the next."""
        basis = Basis.open(Path(path))
        model = cls(**_params_of(basis.saved.config))
        model._take_over(basis)
        return model

    def forget(self, *, nodes: Any = None, label: int | str | None = None) -> dict[str, Any]:
        """Take nodes, or a class, out of all that the model keeps; says how much it was and what weights may carry.

        Models that were saved before are as they were. To go on, use the stream that has forgotten the same:
        ``TaskStream.without``.

        Parameters
        ----------
        nodes
            Row numbers.
        label
            A label id, or the name of a class where the store has names.
        """
        from ecgl_scale.session.forget import forget
        from ecgl_scale.session.forget_nodes import Asked

        directory = self._temporary_directory() / "model"
        self.save(directory)
        found = forget(directory, directory, Asked(nodes, None if label is None else str(label)))
        if self.directory is not None and self._learner is not None:
            remove_learned(Path(self.directory))
        self._remove_temporary(keep=1)
        self._take_over(Basis.open(directory))
        return {name: value for name, value in found.items() if name not in ("out", "num_removed_versions")}

    def _take_over(self, basis: Basis) -> None:
        self._learner = None
        self._basis, self._state, self._next = basis, basis.state, basis.num_tasks
        self.weights_, self.classes_, self.bank_ = basis.saved.weights, basis.saved.classes, basis.bank()
        self._fill_matrices(basis.saved.config, basis.num_tasks)

    @staticmethod
    def load_weights(path: str | Path) -> SharedWeights:
        """Weights that ``save`` wrote."""
        return load_model(version_directory(Path(path))).weights

    @property
    def _progress(self) -> RunState:
        if self._state is None:
            raise UsageError("nothing has been learned yet", fix="call fit_task first")
        return self._state

    def _note(self, **changed: Any) -> None:
        self._state = replace(self._progress, **changed)

    def _has_learned(self, stream: TaskStream) -> bool:
        """Whether a stream begins with the tasks that have been learned, and has no fewer."""
        if not self._next or len(stream) < self._next:
            return False
        if self._learner is None:
            return self._basis is not None and stream.hash_of(self._next) == self._basis.state.split_hash
        return stream.hash_of(self._next) == self._learner.stream.hash_of(self._next)

    def _begin(self, graph: GraphStore, stream: TaskStream, on_event: EventSink) -> None:
        """A learner that knows nothing, in a directory that is its own."""
        self._remove_temporary()
        self._learner = self._basis = None
        setup = self._setup(graph, stream, on_event, None)
        self._learner = Learner(setup, self._own_directory())
        self._state, self._next = RunState.of(setup), 0
        self._fill_matrices(setup.config, len(stream))

    def _go_on(self, graph: GraphStore, stream: TaskStream, on_event: EventSink) -> None:
        """A learner that knows what has been learned, for a stream that begins with it."""
        before, basis = self._learner, self._basis
        if before is not None:
            setup = self._setup(graph, stream, on_event, before.scaling)
            directory, tensors = before.directory, before.tensors()
        elif basis is not None:
            setup = self._setup(graph, stream, on_event, basis.saved.scaling)
            directory, tensors = self._own_directory(), basis.tensors()
            basis.copy_to(directory)
        learner = Learner(setup, directory)
        learner.restore(tensors, task_index=self._next, is_remembered=False)
        of_store = RunState.of(setup)
        self._note(**{name: getattr(of_store, name) for name in ("digest", "store_id", "generation", "new_from")})
        self._fill_matrices(setup.config, len(stream))
        self._learner, self.weights_, self.bank_ = learner, learner.weights, learner.bank

    def _own_directory(self) -> Path:
        directory = self._temporary_directory() if self.directory is None else Path(self.directory)
        (directory / WEIGHTS_DIRECTORY).mkdir(parents=True, exist_ok=True)
        return directory

    def _temporary_directory(self) -> Path:
        directory = Path(tempfile.mkdtemp(prefix="ecgl-"))
        self._temporary.append(weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True))
        return directory

    def _remove_temporary(self, keep: int = 0) -> None:
        """Remove our own directories, but for so many of the newest."""
        while len(self._temporary) > keep:
            self._temporary.pop(0)()

    def _setup(self, graph: GraphStore, stream: TaskStream, on_event: EventSink, scaling: Scaling | None) -> RunSetup:
        if graph.num_nodes != stream.num_nodes:
            raise UsageError(
                f"the tasks are of a graph of {stream.num_nodes:,} nodes, this one has {graph.num_nodes:,}",
                where=graph.path,
                expected="the graph that the tasks were made of",
            )
        config = self._config(graph)
        return RunSetup(config, graph, stream, resources_of(config, on_event), scaling=scaling, first_task=self._next)

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

    def _fitted(self, *, is_begun: bool = False) -> Learner:
        if self._learner is None or not (self._next or is_begun):
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

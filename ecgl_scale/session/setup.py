"""From a config to the things a run works with: the store, the stream of tasks, the settings of each room."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ecgl_scale.base.events import EventSink, Note, ignore_events
from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.cluster.settings import ClusterSettings
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import UsageError
from ecgl_scale.infer.settings import InferSettings
from ecgl_scale.learn.loss import LossSettings
from ecgl_scale.learn.method.table import method_of
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.context import unlabelled_nodes
from ecgl_scale.tasks.context_sizes import ContextSizes
from ecgl_scale.tasks.scaling import Scaling, fit_standard
from ecgl_scale.tasks.stream import Task, TaskStream
from ecgl_scale.tasks.task_nodes import at_generation


@dataclass(frozen=True, eq=False)
class RunSetup:
    """What a run works on and with: its config, the store, the stream of its tasks, and what it may use."""

    config: RunConfig
    graph: GraphStore
    stream: TaskStream
    resources: Resources
    scaling: Scaling | None = None
    """How features are scaled, where a model that goes on knows it already."""
    first_task: int = 0
    """The task to begin with: those before it are learned."""
    context_sizes: ContextSizes = field(default_factory=ContextSizes, repr=False)
    """How large the graphs of tasks are with context, as far as that has been asked; other settings share it."""

    @classmethod
    def open(cls, config: RunConfig, resources: Resources | None = None, generation: int | None = None) -> RunSetup:
        """Open the store of a config and draw its tasks; without ``resources``, find out what the run may use.

        A run that goes on has begun with a ``generation`` of the store, and stays with it.
        """
        resources = resources or resources_of(config)
        graph = open_store(config, generation)
        return cls(config, graph, task_stream(graph, config, resources.on_event), resources)

    def with_config(self, config: RunConfig) -> RunSetup:
        """This run with other settings; what they do not say stays, and no limit is looked for again."""
        budget = self.resources.budget if config.memory is None else MemoryBudget.of(config.memory)
        resources = replace(self.resources, budget=budget, threads=config.threads or self.resources.threads)
        return replace(self, config=config, resources=resources)

    def with_events(self, on_event: EventSink) -> RunSetup:
        """This run with another listener."""
        return replace(self, resources=self.resources.with_events(on_event))

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the model: its input, hidden layers, classes."""
        return method_of(self.config).shape(self.config).widths(self.graph.num_features, self.stream.num_classes)


def resources_of(config: RunConfig, on_event: EventSink = ignore_events, *, num_here: int = 1) -> Resources:
    """What a run of this config may use, found out once; ranks of one machine share the memory that is found."""
    found = Resources.of(config.memory, config.threads, on_event=on_event)
    if num_here == 1 or config.memory is not None:
        return found
    budget = MemoryBudget(found.budget.total_bytes // num_here, f"{found.budget.origin}, for {num_here} ranks")
    return replace(found, budget=budget)


def cluster_of(config: RunConfig) -> ClusterSettings:
    """Which workers a config asks for."""
    engine = config.engine
    return ClusterSettings(engine.workers, engine.scheduler, engine.worker_memory, engine.worker_threads, engine.tls)


def open_store(config: RunConfig, generation: int | None = None) -> GraphStore:
    """The store of a config, as it was at a generation where one is given; it must have what a learner needs."""
    graph = at_generation(GraphStore.open(config.store), generation)
    graph.require_features()
    if graph.num_classes is None:
        raise UsageError("the store has no labels", where=graph.path, fix="ingest it again with its labels")
    if config.infer.partitions != "auto" and config.infer.partitions > graph.num_nodes:
        raise UsageError(
            f"infer.partitions is {config.infer.partitions:,}, but the store has {graph.num_nodes:,} nodes",
            where=graph.path,
            expected="at most a part a node",
            fix="set infer.partitions=auto",
        )
    return graph


def task_stream(graph: GraphStore, config: RunConfig, on_event: EventSink = ignore_events) -> TaskStream:
    """The tasks of a config; each must have nodes to train on and nodes to score on."""
    tasks = config.tasks
    if tasks.kind == "generation":
        stream = TaskStream.of_generations(
            graph,
            seed=config.seed,
            split=tasks.split,
            fractions=tasks.fractions,
            min_class_nodes=tasks.min_class_nodes,
            on_event=on_event,
        )
    elif tasks.column is not None:  # as the config makes sure, with `kind: time` only
        stream = TaskStream.time_incremental(
            graph,
            column=tasks.column,
            seed=config.seed,
            split=tasks.split,
            fractions=tasks.fractions,
            min_class_nodes=tasks.min_class_nodes,
            on_event=on_event,
        )
    else:
        stream = TaskStream.class_incremental(
            graph,
            classes_per_task=tasks.classes_per_task,
            seed=config.seed,
            class_order=tasks.class_order,
            split=tasks.split,
            fractions=tasks.fractions,
            min_class_nodes=tasks.min_class_nodes,
            on_event=on_event,
        )
    for task in stream:
        require_scored(task, config, graph)
    if tasks.context != "none" and not len(unlabelled_nodes(graph)):
        on_event(Note(f"tasks.context is {tasks.context}, but every node has a label: graphs of tasks have no context"))
    return stream


def require_scored(task: Task, config: RunConfig, graph: GraphStore) -> None:
    """Refuse a task without nodes to train on, or without nodes to score on."""
    num_scored = task.num_test if config.tasks.score == "test" else task.num_valid
    if not task.num_train or not num_scored:
        raise UsageError(
            f"task {task.index} ({task.name}) has {task.num_train} training nodes and {num_scored} to score",
            where=graph.path,
            fix="other tasks.fractions, another split, or a larger tasks.min_class_nodes",
        )


def scaling_of(graph: GraphStore, stream: TaskStream, config: RunConfig) -> Scaling:
    """How features are scaled. Moments are those of the first task's training nodes: later ones are not known yet."""
    if config.learn.scale == "standard":
        return fit_standard(graph.require_features(), stream[0].train_ids)
    return Scaling(config.learn.scale)


def loss_settings(config: RunConfig) -> LossSettings:
    """How rows are weighed."""
    learn = config.learn
    return LossSettings(
        setting=config.setting,
        balance=learn.balance,
        reduction=learn.reduction,
        lambda_=learn.lambda_,
        replay_slice=learn.replay_slice,
    )


def infer_settings(config: RunConfig) -> InferSettings:
    """How predictions are made."""
    infer, learn = config.infer, config.learn
    return InferSettings(
        encoder=learn.encoder,
        norm=infer.norm,
        bias_place=learn.bias_place,
        backend=infer.backend,
        partitioner=infer.partitioner,
        partitions=infer.partitions,
        device=learn.device,
    )

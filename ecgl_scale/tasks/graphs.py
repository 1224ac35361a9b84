"""A task's graph: the induced subgraph of its nodes, extracted out of core into a store of its own and kept.

Row ``i`` is the i-th smallest node id; column ``node`` says which, ``label`` has the label ids. Self loops are dropped,
or every node gets exactly one; features are scaled on the way. One pass over the rows of edges, chunks of features and
batches of columns that hold a node of the subset; nothing else is read. The graphs of a run's tasks come from one pass
for all of them, see ``parting``.
Memory: 4 bytes a node of the whole graph (its new number), and what the build takes, see ``plan_extract``.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import free_bytes, storage_errors
from ecgl_scale.base.events import Note
from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.engine.plan import StagePlan, largest
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import InvalidInputError, LockedError, StoreError, StoreExistsError, UsageError
from ecgl_scale.store.build import MIN_SPARE_BYTES
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.edges.write import RESERVE_BYTES
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.publish import build_store_at
from ecgl_scale.store.remote import is_taken
from ecgl_scale.tasks.context import NO_CONTEXT, ContextFinder, ContextRule, open_kept
from ecgl_scale.tasks.extract_plan import STAGE, from_one_pass, plan_extract
from ecgl_scale.tasks.part_source import TaskPart
from ecgl_scale.tasks.parting import part_store, parted_bytes
from ecgl_scale.tasks.scaling import Scaling
from ecgl_scale.tasks.split import Ids
from ecgl_scale.tasks.stream import Task, TaskStream
from ecgl_scale.tasks.subset import NODE, Subset, graph_key
from ecgl_scale.tasks.task_nodes import at_generation

PARTING_LOCK_NAME = ".parting.lock"
WAIT_SECONDS = 0.2


def extract_graph(
    graph: GraphStore,
    node_ids: Ids,
    target: AnyPath,
    resources: Resources,
    *,
    self_loops: bool = False,
    scaling: Scaling | None = None,
    overwrite: bool = False,
    part: TaskPart | None = None,
) -> GraphStore:
    """Build the store of the subgraph that ``node_ids`` (ascending) induce, and open it.

    Edges keep their direction and repetitions; the new manifest says ``symmetrised`` where the old one does, as each
    edge then has its reverse in the subgraph too. Dense features stay dense and sparse ones sparse, unless they are
    standardised; float16 stays float16 where nothing is scaled. With ``part``, edges and rows are taken from where a
    pass for several tasks has left them.

    Raises
    ------
    UsageError
        ``node_ids`` are not ascending ids of the graph, or empty.
    DoesNotFitError
        Not even the smallest build fits the budget.

    Memory
    ------
    See ``plan_extract``.
    """
    subset = Subset(graph, node_ids, scaling or Scaling(), resources.threads, part)
    resources.require(
        subset.map_bytes + RESERVE_BYTES + MIN_SPARE_BYTES,
        stage=STAGE,
        formula=f"{subset.nodes.map_dtype.itemsize} bytes a node of the whole graph + 88 MiB",
    )
    edges = graph.manifest.edges
    options = BuildOptions(
        keep_duplicates=edges.keeps_duplicates,
        self_loops="add" if self_loops else "drop",
        is_symmetric=edges.symmetrised,
    )
    features = subset.features()
    key = graph_key(graph, node_ids, self_loops=self_loops, scaling=subset.scaling)
    build_store_at(
        subset.source(features, {"key": key, "scaling": subset.scaling.kind}),
        target,
        resources,
        options=options,
        features_as="auto" if features is None else features.kind,
        feature_dtype="float32" if features is None else features.dtype.name,
        overwrite=overwrite,
    )
    return GraphStore.open(target)


def positions_of(graph_nodes: Ids, ids: Ids) -> Ids:
    """Rows of the nodes ``ids`` in a graph whose column ``node`` is ``graph_nodes``."""
    local = np.searchsorted(graph_nodes, ids)
    inside = local < graph_nodes.size
    found = np.zeros(local.shape, np.bool_)
    found[inside] = graph_nodes[local[inside]] == ids[inside]
    if not found.all():
        raise UsageError(f"node {ids[int(np.argmin(found))]} is not in this task graph")
    return local.astype(np.int64, copy=False)


class TaskGraphs:
    """The graphs of a stream's tasks, extracted when first asked for and kept in ``directory`` for the next run too.

    A graph's name there is made of all that it depends on: the store's files, the nodes, self loops and scaling. Where
    ``are_kept``, they belong to a model and outlive the store's nodes: then a task's own graph has the task's number.
    """

    def __init__(
        self,
        graph: GraphStore,
        tasks: TaskStream,
        directory: AnyPath,
        resources: Resources,
        *,
        self_loops: bool = False,
        scaling: Scaling | None = None,
        context: ContextRule = NO_CONTEXT,
        are_kept: bool = False,
    ) -> None:
        self.graph = graph
        self.tasks = tasks
        self.directory = directory
        self.self_loops = self_loops
        self.scaling = scaling or Scaling()
        self.context = context
        self._finder = ContextFinder(graph, resources.threads)
        self._resources = resources
        self._are_kept = are_kept
        self._open: dict[tuple[str, int], GraphStore] = {}
        self._removed: set[int] = set()
        self._older: tuple[int, GraphStore] | None = None

    def own(self, task: Task) -> GraphStore:
        """The task's nodes, their context, and the edges among them."""
        return self._get("own", task)

    def seen(self, task: Task) -> GraphStore:
        """All nodes of the tasks up to this one and their context, with the edges between tasks."""
        return self._get("seen", task)

    def is_all_seen(self, task: Task) -> bool:
        """Whether tasks up to this one, and context, have all nodes of the store, then ``seen`` but for the scaling.

        A task of an older generation, or graphs that get self loops, have other edges.
        """
        num_seen = sum(earlier.num_nodes for earlier in self.tasks.seen(task))
        if self.context.hops is None:
            num_seen += len(self._finder.unlabelled(task.generation))
        is_newest = task.generation in (None, self.graph.generation)
        return num_seen == self.graph.num_nodes and is_newest and not self.self_loops

    def node_ids(self, task: Task, *, scope: str = "own") -> Ids:
        """Ids of the nodes of ``own`` or ``seen``, ascending: the graph's column ``node``."""
        if self.context.is_none:
            return self.labelled_ids(task, scope)
        found = self._open.get((scope, task.index)) or self._kept_graph(task, scope)
        if found is not None and self.tasks[task.index] is task:
            return found.column(NODE)
        return self._finder.nodes(self.labelled_ids(task, scope), self.context, task.generation)

    def labelled_ids(self, task: Task, scope: str) -> Ids:
        """Ids of the nodes of ``own`` or ``seen`` that are in a task, without their context."""
        if scope == "own":
            return task.node_ids
        return np.sort(np.concatenate([earlier.node_ids for earlier in self.tasks.seen(task)]))

    def _kept_graph(self, task: Task, scope: str) -> GraphStore | None:
        """A graph that belongs to the model: it has the context that there was, which may have gone from the store."""
        path = self._kept_path(task)
        return open_kept(path, task) if self._are_kept and scope == "own" and is_taken(path) else None

    def plan(self, room_bytes: int, *, seen: Sequence[Task] = (), in_degrees: NDArray[Any] | None = None) -> StagePlan:
        """What extracting the graphs of all tasks, and of all up to those of ``seen``, needs, as if none were there.

        A pass over the store leaves the parts of all tasks, where they are of its newest generation; each graph of
        ``seen`` takes one of its own.
        """

        def planned(task: Task, scope: str) -> StagePlan:
            return plan_extract(
                self.graph,
                self.node_ids(task, scope=scope),
                self_loops=self.self_loops,
                scaling=self.scaling,
                room_bytes=room_bytes,
                threads=self._resources.threads,
                in_degrees=in_degrees,
            )

        there = [task for task in self.tasks if task.num_nodes]  # else all of its nodes are forgotten
        own = [(self._at(task.generation) is self.graph, planned(task, "own")) for task in there]
        together = from_one_pass(self.graph, [plan for is_newest, plan in own if is_newest])
        alone = [plan for is_newest, plan in own if not is_newest]
        return largest(STAGE, [*together, *alone, *(planned(task, "seen") for task in seen if task.num_nodes)])

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Extract the graphs of these tasks that are missing: where there are several, in one pass over the store.

        Its files are below the working directory until the graphs are built; a kill costs that pass. One run at a time
        makes it, and the others wait for its graphs. Where there is no room on the disk for the files, and for tasks of
        an older generation of the store, every graph is extracted by itself when it is asked for; and so is it with
        context, as such a node is in the graphs of many tasks, and the pass knows one task for each node.
        """
        work = self._resources.work
        if work is None or not isinstance(self.directory, Path) or not self.context.is_none:
            return
        while len(missing := self._missing(tasks)) > 1:
            try:
                with self._parting_alone():
                    self._extract_together(self._missing(missing), work / "parts")
                break
            except LockedError:
                time.sleep(WAIT_SECONDS)

    @contextmanager
    def _parting_alone(self) -> Iterator[None]:
        path = Path(str(self.directory)) / PARTING_LOCK_NAME
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = take_lock(path, target=path.parent)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)

    def _missing(self, tasks: Sequence[Task]) -> list[Task]:
        here = [task for task in tasks if task.num_nodes and self._at(task.generation) is self.graph]
        return [task for task in here if not is_taken(self._path(task, task.node_ids))]

    def _extract_together(self, tasks: Sequence[Task], scratch: Path) -> None:
        num_nodes = sum(task.num_nodes for task in tasks)
        if len(tasks) < 2 or parted_bytes(self.graph, num_nodes) > free_bytes(scratch):
            return
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            parts = part_store(self.graph, tasks, scratch, self._resources)
            for index, task in enumerate(tasks):
                self._get("own", task, TaskPart(parts, index))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _get(self, scope: str, task: Task, part: TaskPart | None = None) -> GraphStore:
        found = self._open.get((scope, task.index))
        if found is None or self.tasks[task.index] is not task:
            ids = self.node_ids(self.tasks.seen(task)[-1], scope=scope)
            found = self._open[scope, task.index] = self._wait_for_others(task, ids, part)
            self._removed.discard(task.index)
            if found.files.hold is not None:
                found.files.hold.close()  # nobody compacts it, and a stream may have more tasks than we may hold files
        return found

    def _wait_for_others(self, task: Task, ids: Ids, part: TaskPart | None) -> GraphStore:
        """Another run may be extracting the same graph; where it is killed, it lets go of its lock and we extract."""
        is_told = False
        while True:
            try:
                return self._open_or_extract(task, ids, part)
            except LockedError as error:
                if not is_told:
                    self._resources.on_event(
                        Note(f"waiting for another run to extract the same task graph ({error.where})")
                    )
                is_told = True
                time.sleep(WAIT_SECONDS)

    def _open_or_extract(self, task: Task, ids: Ids, part: TaskPart | None) -> GraphStore:
        path = self._path(task, ids)
        try:
            return self._opened(path, ids)
        except StoreError as error:
            is_there = is_taken(path)
            if is_there:
                self._resources.on_event(Note(f"a kept task graph is extracted anew: {error.what} ({path})"))
        try:
            return extract_graph(
                self._at(task.generation),
                ids,
                path,
                self._resources,
                self_loops=self.self_loops,
                scaling=self.scaling,
                overwrite=is_there,
                part=part,
            )
        except StoreExistsError:
            # Another run was quicker; or somebody's directory is in our way, which this then says.
            return GraphStore.open(path)

    def _kept_path(self, task: Task) -> AnyPath:
        return self.directory / f"task-{task.index:04d}.ecgl"

    def _path(self, task: Task, ids: Ids) -> AnyPath:
        """Where the graph of these nodes is, or will be."""
        if self._are_kept:
            return self._kept_path(task)
        graph = self._at(task.generation)
        return self.directory / f"{graph_key(graph, ids, self_loops=self.self_loops, scaling=self.scaling)}.ecgl"

    def remove_seen(self, task: Task) -> None:
        """Remove the graph of all tasks up to this one, if it is there: one that nobody asks for any more is large."""
        if task.index in self._removed:
            return
        self._removed.add(task.index)
        path = self._path(task, self.node_ids(task, scope="seen"))
        if isinstance(path, Path) and path != self._path(task, self.node_ids(task)):
            self._open.pop(("seen", task.index), None)
            shutil.rmtree(path, ignore_errors=True)

    def _at(self, generation: int | None) -> GraphStore:
        """The store as it was at a generation. The last older one stays open: neighbouring tasks are often of one."""
        if generation is None or generation == self.graph.generation:
            return self.graph
        if self._older is None or self._older[0] != generation:
            self._older = generation, at_generation(self.graph, generation)
        return self._older[1]

    def _opened(self, path: AnyPath, ids: Ids) -> GraphStore:
        found = GraphStore.open(path)
        if self._are_kept and not np.array_equal(found.column(NODE), ids):
            raise InvalidInputError(
                "a kept task graph is of another task", where=path, fix="restore the model from a copy"
            )
        return found

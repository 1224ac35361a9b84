"""What a method whose state is a sum over rows is given to forget: the rows of forgotten nodes, as they were learned.

The model keeps neither rows nor ids, so the rows are made again from the store: the same features along the same edges,
and so the same numbers that were added. The rows of other nodes that have followed edges to a forgotten one are made
both ways, with it and without it: afterwards the sums are those of a graph that never had it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import EcglError, InvalidInputError
from ecgl_scale.infer.input_rows import StackedRows
from ecgl_scale.infer.random_features import PRODUCT_ROWS
from ecgl_scale.learn.method.forgetting import RowChange
from ecgl_scale.learn.method.table import method_of
from ecgl_scale.session.basis import Basis
from ecgl_scale.session.checkpoint import WEIGHTS_DIRECTORY
from ecgl_scale.session.predict import Predictor
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.context import ContextRule
from ecgl_scale.tasks.forgotten import Forgotten
from ecgl_scale.tasks.graphs import TaskGraphs, positions_of
from ecgl_scale.tasks.stream import Task, TaskStream


@dataclass(frozen=True, eq=False)
class ForgettingSums:
    """What ``learn.method.base.Forgetting`` asks for."""

    basis: Basis
    gone: Forgotten
    target: Path
    """The directory of the new model."""
    store: AnyPath
    resources: Resources

    @property
    def config(self) -> RunConfig:
        """The settings of the model."""
        return self.basis.saved.config

    @property
    def before(self) -> Path:
        """Where the model keeps its sums."""
        return self.basis.directory / WEIGHTS_DIRECTORY

    @property
    def after(self) -> Path:
        """Where the new model keeps its own."""
        return self.target / WEIGHTS_DIRECTORY

    def changes(self) -> Iterator[RowChange]:
        """Rows of the tasks that had forgotten nodes, and are others without them; not those of a forgotten class."""
        graph = self._graph()
        known = self.basis.known_tasks(graph)
        left = known.without(graph, self.gone.node_ids)  # of a forgotten class these are all nodes
        with TemporaryDirectory(prefix=".forget-", dir=self.target) as work:
            before = self._predictor(graph, known, Path(work) / "before")
            after = self._predictor(graph, left, Path(work) / "after")
            for task in self._touched(known):
                yield from self._changes_of(task, left[task.index], before, after, known)

    def _touched(self, stream: TaskStream) -> list[Task]:
        """Tasks that have forgotten nodes; where tasks share edges, all since the first of them."""
        touched = [task for task in stream if np.isin(task.node_ids, self.gone.node_ids).any()]
        if touched and self.config.tasks.inter_task_edges:
            return list(stream)[touched[0].index :]
        return touched

    def _changes_of(
        self, task: Task, left: Task, before: Predictor, after: Predictor, stream: TaskStream
    ) -> Iterator[RowChange]:
        """Chunk by chunk, so that a few rows are held at a time."""
        before.prepare(task)
        old = _rows_of(before, task)
        if left.num_nodes:
            after.prepare(left)
        new = _rows_of(after, left) if left.num_nodes else None
        for part, ids in (("train", task.train_ids), ("valid", task.valid_ids)):
            positions = stream.labels_of(ids)
            for position in np.setdiff1d(positions, self.gone.positions).tolist():
                of_class = ids[positions == position]
                for start in range(0, of_class.size, PRODUCT_ROWS):
                    here = of_class[start : start + PRODUCT_ROWS]
                    stays = ~np.isin(here, self.gone.node_ids)
                    was = old[positions_of(task.node_ids, here)]
                    now = was[:0] if new is None else new[positions_of(left.node_ids, here[stays])]
                    is_other = (was[stays] != now).any(axis=1)
                    removed = np.concatenate([was[~stays], was[stays][is_other]])
                    if len(removed):
                        yield RowChange(position, part, removed, now[is_other])

    def _graph(self) -> GraphStore:
        try:
            return GraphStore.open(self.store)
        except EcglError as error:
            raise InvalidInputError(
                f"the rows to be forgotten cannot be read: {error}",
                where=self.store,
                expected=f"the store that the model has learned from: the method {self.config.method} keeps sums over "
                "rows, from which the forgotten ones are subtracted",
                fix="name it where it is now: --store PATH",
            ) from error

    def _predictor(self, graph: GraphStore, stream: TaskStream, work: Path) -> Predictor:
        config = self.config
        graphs = TaskGraphs(
            graph,
            stream,
            work / "tasks",
            self.resources,
            self_loops=config.rank.self_loops,
            scaling=self.basis.saved.scaling,
            context=ContextRule.parse(config.tasks.context),
        )
        made = method_of(config).shape(config).made
        return Predictor(config, made, graphs, work, self.resources.with_work(work / "engine"))


def _rows_of(predictor: Predictor, task: Task) -> StackedRows:
    found = predictor.features_of(task)
    if not isinstance(found, StackedRows):
        raise EcglError("rows are subtracted from sums over rows of stacked hops, and the model is given others")
    return found

"""Which graph, and which features of it, a task is trained, ranked and tested on; and the predictions themselves.

                      trained and ranked on      tested on
eval_scope: task      the task's own subgraph    each task's own subgraph, as the papers do
inter_task_edges      all tasks so far           all tasks up to the tested one
eval_scope: seen                                 all tasks so far: one graph, gone through once for all of them;
                                                 the store itself where they have all of its nodes
eval_scope: both                                 the one, then the other
rows made beforehand  (the same, k hops)         the same: the layers alone, on rows made along these graphs' edges
context               unlabelled nodes come into all of these graphs; rows are made of the tasks' own nodes alone
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.resources import Resources
from ecgl_scale.infer.asked import AskedRows
from ecgl_scale.infer.hop_rows import draw_map
from ecgl_scale.infer.input_rows import InputRows, make_input_rows
from ecgl_scale.infer.layerwise import infer_logits
from ecgl_scale.infer.model_input import ModelInput
from ecgl_scale.infer.random_features import RandomFeatures
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.session.scoring import rows_in_blocks, scoring_bytes
from ecgl_scale.session.setup import infer_settings
from ecgl_scale.store.features.files import AnyFeatures
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.graphs import TaskGraphs, positions_of
from ecgl_scale.tasks.scaling import Scaling
from ecgl_scale.tasks.stream import Task
from ecgl_scale.tasks.subset import NODE

Ids = NDArray[np.int64]
Matrix = NDArray[np.float32]
PREDICT_ROWS, PREDICT_STACKED_ROWS = 1 << 14, 1 << 12


def rows_at_once(made: ModelInput) -> int:
    """Rows that go through the layers together: fewer where they are wide."""
    return PREDICT_STACKED_ROWS if made.is_stacked else PREDICT_ROWS


def needs_seen(config: RunConfig, task: int, num_tasks: int) -> bool:
    """Whether the graph of all tasks up to this one, of so many, is trained or tested on."""
    tasks = config.tasks
    return tasks.inter_task_edges or ("seen" in tasks.scopes and tasks.tests_after(task, num_tasks))


def tests_on_store(config: RunConfig, graphs: TaskGraphs, task: Task) -> bool:
    """Whether the store itself is the graph of all tasks up to this one that is tested on, and needs no copy.

    Sparse features that scaling makes dense are scaled once, in a copy.
    """
    becomes_dense = graphs.graph.has_sparse_features and config.learn.scale == "standard"
    return graphs.is_all_seen(task) and not config.tasks.inter_task_edges and not becomes_dense


@dataclass(frozen=True, eq=False)
class GraphToTest:
    """A graph that tests are made on."""

    graph: GraphStore
    scaling: Scaling | None = None
    """How the features of the store itself are scaled as they are read; None of a task graph, which has them scaled."""

    def rows_of(self, ids: Ids) -> Ids:
        """Rows of some nodes. The column ``node`` of a task graph is gone through as it is mapped."""
        if self.scaling is not None:
            return ids
        rows, found = np.empty(ids.size, np.int64), 0
        for start, nodes in self.graph.nodes.blocks(NODE) if self.graph.nodes is not None else ():
            stop = int(np.searchsorted(ids, nodes[-1], side="right")) if nodes.size else found
            rows[found:stop] = start + positions_of(nodes, ids[found:stop])
            found = stop
        return rows[:found]


class Predictor:
    """Graphs, features and logits of tasks."""

    def __init__(
        self, config: RunConfig, made: ModelInput, graphs: TaskGraphs, work: Path, resources: Resources
    ) -> None:
        """``made`` is how the model's input is made of features."""
        self._config = config
        self._made = made.on(graphs.graph, keeps_zeros=config.learn.scale != "standard")
        self._graphs = graphs
        self._work = work
        self._resources = resources
        self._propagated: dict[int, InputRows] = {}
        self._of_all_seen: tuple[int, InputRows] | None = None

    @cached_property
    def _mapping(self) -> RandomFeatures | None:
        return draw_map(self._made, self._graphs.graph.num_features, self._resources)

    @property
    def about_input(self) -> dict[str, int]:
        """What a model's file says of its input: a checksum of the random numbers, where there are any."""
        return {} if self._mapping is None else {"input_crc32c": self._mapping.crc32c}

    def prepare(self, task: Task) -> None:
        """Extract the graphs of a task, unless an earlier run has."""
        self._graphs.own(task)
        if needs_seen(self._config, task.index, len(self._graphs.tasks)):
            self._seen(task)

    def finish(self, task: Task) -> None:
        """Remove the graph of all tasks up to one that has been tested, unless it is trained on or other runs ask.

        With every task it is larger, and it is needed once.
        """
        tasks = self._config.tasks
        if "seen" in tasks.scopes and not tasks.inter_task_edges and self._config.cache is None:
            self._graphs.remove_seen(task)

    def training_graph(self, task: Task) -> tuple[GraphStore, Ids]:
        """The graph a task is trained and ranked on, and the ids of its nodes."""
        if self._config.tasks.inter_task_edges:
            return self._graphs.seen(task), self._graphs.node_ids(task, scope="seen")
        return self._graphs.own(task), self._graphs.node_ids(task)

    def num_trained_on(self, task: Task) -> int:
        """How many nodes that graph has; without context it need not be there."""
        is_seen = self._config.tasks.inter_task_edges
        if not self._graphs.context.is_none:
            return (self._graphs.seen(task) if is_seen else self._graphs.own(task)).num_nodes
        return sum(one.num_nodes for one in (self._graphs.tasks.seen(task) if is_seen else [task]))

    def own_name(self, task: Task) -> str:
        """Tells the task's own graph, with its features, from all others."""
        return self._graphs.own(task).path.name

    def features_of(self, task: Task) -> AnyFeatures | InputRows:
        """The model's input for the task's nodes; ``rows_of`` says where a node's is."""
        if self._made.is_made:
            return self._propagated_features(task)
        return self._graphs.own(task).require_features()

    def rows_of(self, task: Task, ids: Ids) -> Ids:
        """Rows of some of the task's own nodes in ``features_of``."""
        has_all = self._made.is_made or self._graphs.context.is_none
        return positions_of(task.node_ids, ids) if has_all else GraphToTest(self._graphs.own(task)).rows_of(ids)

    def _propagated_features(self, task: Task) -> InputRows:
        if task.index not in self._propagated:
            graph, nodes = self.training_graph(task)
            own = None
            if nodes.size > task.num_nodes:
                alone = self._graphs.own(task) if self._graphs.context.is_none else None
                own = alone, positions_of(nodes, task.node_ids)
            self._propagated[task.index] = self._propagate(GraphToTest(graph), own, f"propagated-{task.index}")
        return self._propagated[task.index]

    def _features_of_all_seen(self, after: Task) -> InputRows:
        """Propagated features of all tasks' own nodes seen so far, along all edges among them and their context.

        Only those of the last task asked for are kept: with every task there are more nodes and more edges.
        """
        if self._of_all_seen is None or self._of_all_seen[0] != after.index:
            self._of_all_seen = None
            shutil.rmtree(self._work / f"propagated-seen-{after.index - 1}", ignore_errors=True)
            seen, part = self._seen(after), None
            if not self._graphs.context.is_none:
                part = None, seen.rows_of(self._graphs.labelled_ids(after, "seen"))
            self._of_all_seen = after.index, self._propagate(seen, part, f"propagated-seen-{after.index}")
        return self._of_all_seen[1]

    def _seen(self, after: Task) -> GraphToTest:
        """The graph of all tasks up to one: where they have all nodes of the store, that, scaled as it is read."""
        if tests_on_store(self._config, self._graphs, after):
            return GraphToTest(self._graphs.graph, self._graphs.scaling)
        return GraphToTest(self._graphs.seen(after))

    def _propagate(self, on: GraphToTest, own: tuple[GraphStore | None, Ids] | None, name: str) -> InputRows:
        """Rows from files: those of all tasks are needed to the end, and memory is for the task at work."""
        directory = self._work / name
        directory.mkdir(parents=True, exist_ok=True)
        return make_input_rows(
            on.graph,
            self._made,
            self._mapping,
            self._resources,
            norm=self._config.infer.norm,
            scaling=on.scaling,
            part=own,
            directory=directory,
        )

    def logits(self, weights: SharedWeights, on: Task, ids: Ids) -> Iterator[Matrix]:
        """Outputs for some nodes of a task, on the graph that it is trained on, in blocks."""
        if self._made.is_made:
            yield from self._mlp(weights, self._propagated_features(on), positions_of(on.node_ids, ids))
        else:
            for blocks in self._infer(weights, GraphToTest(self.training_graph(on)[0]), [ids]):
                yield from blocks

    def seen_logits(self, weights: SharedWeights, after: Task, asked: Sequence[Ids]) -> Iterator[Iterator[Matrix]]:
        """Outputs for each of these sets of nodes, on the graph of all tasks so far, which is gone through once.

        Those of a set come in blocks, before the next set is asked for.
        """
        for earlier in self._graphs.tasks.seen(after)[-2:-1]:
            self.finish(earlier)
        seen = self._seen(after)
        if self._made.is_made:
            features = self._features_of_all_seen(after)
            nodes = None if self._graphs.context.is_none else self._graphs.labelled_ids(after, "seen")
            for ids in asked:
                rows = seen.rows_of(ids) if nodes is None else positions_of(nodes, ids)
                yield self._mlp(weights, features, rows)
        else:
            yield from self._infer(weights, seen, asked)

    def _infer(self, weights: SharedWeights, on: GraphToTest, asked: Sequence[Ids]) -> Iterator[Iterator[Matrix]]:
        """Outputs for each of these sets of nodes of a graph, from one inference."""
        directory = self._work / "infer"
        directory.mkdir(parents=True, exist_ok=True)
        kept = self._graphs.directory
        result = infer_logits(
            on.graph,
            weights.arrays(),
            self._resources,
            settings=infer_settings(self._config),
            scaling=on.scaling,
            work_directory=directory,
            cuts_directory=kept if isinstance(kept, Path) else None,
            beside_result_bytes=max(scoring_bytes(ids.size, weights.num_classes) for ids in asked),
            asked=AskedRows.of(*map(on.rows_of, asked)),
        )
        try:
            for ids in asked:
                yield rows_in_blocks(result.logits, on.rows_of(ids))
        finally:
            del result
            shutil.rmtree(directory, ignore_errors=True)

    def _mlp(self, weights: SharedWeights, features: InputRows, local: Ids) -> Iterator[Matrix]:
        step = rows_at_once(self._made)
        for start in range(0, local.size, step):
            rows = torch.from_numpy(np.asarray(features[local[start : start + step]], np.float32))
            with torch.no_grad():
                yield weights.mlp(rows.to(weights.device)).cpu().numpy()

"""CaT: condense every task into a few synthetic nodes, and train on those alone (Liu, Qiu and Huang, ICDM 2023).

    for each random encoder e:   X' <- Adam step on  sum over classes c of |mean_c e(P X) - mean_c e(X')|^2
    e(x) = relu(W x + b) / |.|   layer by layer (``hidden``), new weights in every step; P X once, symmetric norm

X' starts as random training rows of each class, and has as many of it as its share of the training nodes (at least
one); labels are fixed, edges are self loops only, so the synthetic side needs no P, and neither does training: all
condensed graphs so far, the current one included, go through the model as rows, with either backbone.
The public code leaves out the last layer of its 512, 256 encoder, so ``hidden`` is [512].

Not as the public code: it takes 3,000 to 5,000 steps and 500 epochs without balance, here ``steps`` is 1,000, and
``learn.epochs`` and ``learn.balance`` are those of all methods; ``nodes`` is 60 for tasks of any size, where it keeps 4
to 318 and the E-CGL paper's table has 100 to 5,000. task-IL has a node compete in its own task.

The task graph is read twice (features and edges, more often where few columns fit) for P X; that stays in memory
where it fits and else in a file, and is then read block by block, once for 16 encoders. ``real_nodes`` draws so many
nodes of each class for those instead of all. Memory: ``plan_one_hop``; then P X, the encoders and 48 MiB.
Condensing is repeatable and kept in the run's work directory, so a run that goes on does it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from ecgl_scale.base.events import BlockFinished, StageStarted
from ecgl_scale.config.kinds import Size
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.config.sections import Section
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.graph.propagate import one_hop_features, plan_one_hop
from ecgl_scale.learn.adam import Adam
from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.learn.method.base import ROW_BYTES, Arrays, Context, Method, MethodPlan, TaskSizes
from ecgl_scale.learn.method.kept import bank_of_state, bank_state, draw_per_class, labelled, without_nodes
from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.learn.rows import RowCache
from ecgl_scale.learn.tensors import load_tensors, save_tensors
from ecgl_scale.learn.train import AnySegment
from ecgl_scale.tasks.forgotten import Forgotten
from ecgl_scale.tasks.graphs import positions_of
from ecgl_scale.units import MIB

ENCODERS_AT_ONCE = 16
BLOCK_BYTES = 16 * MIB
STAGE = "condense"

Ids = NDArray[np.int64]


class CatConfig(Section):
    """Condense and train."""

    nodes: int = Field(default=60, ge=1, description="Synthetic nodes of each task. The paper's table: 100 to 5,000.")
    steps: int = Field(
        default=1000,
        ge=1,
        description="Random encoders that real and synthetic nodes are matched by. The public code: 3,000 to 5,000.",
    )
    lr: float = Field(default=0.001, gt=0, description="Step size of the synthetic features.")
    hidden: tuple[Size, ...] = Field(
        default=(512,), strict=False, min_length=1, description="Widths of the encoders, each followed by a ReLU."
    )
    real_nodes: Size | None = Field(
        default=None, description="Nodes of each class drawn for every 16 encoders. `null`: all of them, as the paper."
    )


class Cat(Method):
    """Keeps a condensed graph of each task and learns from nothing else."""

    name: ClassVar[str] = "cat"
    choose_when: ClassVar[str] = "where a few made-up nodes are all that may be kept"
    place: ClassVar[int] = 100
    category: ClassVar[str] = "replay"
    stores: ClassVar[str] = "cat.nodes synthetic nodes a task, features and label"
    cost: ClassVar[str] = "one pass over the condensed graphs; before that, one over the task for cat.steps encoders"
    reference: ClassVar[str] = "CaT: Balanced Continual Graph Learning with Graph Condensation (Liu, Qiu and Huang)"
    settings: ClassVar[type[Section]] = CatConfig

    def __init__(self) -> None:
        self._condensed = MemoryBank.empty(1)

    def segments(self, context: Context) -> list[AnySegment]:
        """All condensed graphs, the task's own too."""
        everything = labelled(self._with_task(context))
        return context.attach([], [], everything, context.targets([everything], None))

    def end_task(self, context: Context) -> None:
        """Keep the task's condensed graph."""
        self._condensed = self._with_task(context)

    def _with_task(self, context: Context) -> MemoryBank:
        task = context.task
        path = context.work / f"condensed-{task.index}.safetensors"
        about = {"config": context.config.digest(), "split": context.stream.split_hash, "task": str(task.index)}
        try:
            arrays, found = load_tensors(path)
        except InvalidInputError:
            found = {}
        if any(found.get(name) != value for name, value in about.items()):
            rows, labels = self._condense(context)
            arrays = {"rows": rows, "labels": labels}
            path.parent.mkdir(parents=True, exist_ok=True)
            save_tensors(path, arrays, about=about)
        before = self._condensed if len(self._condensed) else MemoryBank.empty(arrays["rows"].shape[1])
        _, chosen, _ = self._first_nodes(context)
        return before.add(task.index, task.train_ids[chosen], arrays["labels"], arrays["rows"])

    @staticmethod
    def _first_nodes(context: Context) -> tuple[Ids, Ids, np.random.Generator]:
        """Labels of the training nodes, places of those that synthetic ones begin as, and what else is drawn with."""
        task = context.task
        labels = context.stream.labels_of(task.train_ids)
        rng = np.random.default_rng((context.config.seed, task.index))
        shares = share_nodes(labels, context.config.section(CatConfig).nodes)
        return labels, draw_per_class(labels, shares, rng), rng

    def _condense(self, context: Context) -> tuple[NDArray[np.float32], Ids]:
        task, config, settings = context.task, context.config, context.config.section(CatConfig)
        labels, chosen, rng = self._first_nodes(context)
        first = context.rows(task, task.train_ids[chosen], f"condensed-{task.index}")
        beside = ROW_BYTES * task.num_train
        matching = _matching_bytes(settings, first.num_features)
        if config.learn.num_hops:  # the model's input has passed the edges already
            real = context.rows(task, task.train_ids, f"real-{task.index}", beside_bytes=beside + matching)
        else:
            graph, nodes = context.graph(task)
            local = positions_of(nodes, task.train_ids)
            path = context.work / "rows" / f"propagated-{task.index}.f32"
            passed = one_hop_features(
                graph, local, context.resources, path=path, besides_bytes=beside, beside_result_bytes=matching
            )
            real = RowCache.from_array(passed)
        condenser = Condenser(real, labels, config, device=context.trainer.weights.device)
        context.resources.on_event(StageStarted(STAGE, settings.steps, "encoders"))
        rows = torch.from_numpy(np.array(first.read(0, first.num_rows))).to(context.trainer.weights.device)
        adam = Adam([rows], lr=settings.lr, weight_decay=0.0)
        for start in range(0, settings.steps, ENCODERS_AT_ONCE):
            stop = min(start + ENCODERS_AT_ONCE, settings.steps)
            condenser.match(rows, labels[chosen], adam, [(task.index, step) for step in range(start, stop)], rng)
            context.resources.on_event(BlockFinished(STAGE, stop))
        return rows.cpu().numpy(), labels[chosen]

    def state(self) -> Arrays:
        """All condensed graphs."""
        return bank_state(self._condensed)

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from ``state()``."""
        self._condensed = bank_of_state(state, 1)

    def forget(self, gone: Forgotten, head: Sequence[int]) -> int:
        """Synthetic nodes leave that began as a forgotten node, or are of a forgotten class."""
        del head
        before = len(self._condensed)
        self._condensed = without_nodes(self._condensed, gone)
        return before - len(self._condensed)

    def plan(self, config: RunConfig, sizes: TaskSizes) -> MethodPlan:
        """Dense rows and 40 bytes a node; P X being made, or held beside encoders and blocks of embeddings."""
        settings, num_features = config.section(CatConfig), sizes.num_features
        matching, held = _matching_bytes(settings, num_features), ROW_BYTES * sizes.num_rows
        layout = plan_one_hop(
            sizes.num_nodes,
            sizes.num_rows,
            num_features,
            room_bytes=sizes.room_bytes - held,
            beside_result_bytes=matching,
        )
        working = max(layout.peak_bytes, layout.held_bytes + matching)
        if sizes.made.is_made:
            working = matching + sizes.rows_bytes(sizes.num_rows, beside_bytes=held + matching)
        return replace(
            super().plan(config, sizes),
            state_bytes=max(settings.nodes * sizes.num_tasks, sizes.num_classes) * (4 * num_features + 40),
            work_bytes=working + held,
        )


def _matching_bytes(settings: CatConfig, num_features: int) -> int:
    """Encoders and blocks of embeddings."""
    encoders = 4 * ENCODERS_AT_ONCE * sum(a * b + b for a, b in pairwise((num_features, *settings.hidden)))
    return encoders + 3 * BLOCK_BYTES


class Condenser:
    """The real side of the matching, and its loss."""

    def __init__(self, real: RowCache, labels: Ids, config: RunConfig, *, device: torch.device) -> None:
        self._real = real
        self._labels = labels
        self._classes, self._places = np.unique(labels, return_inverse=True)
        self._seed, self._settings = config.seed, config.section(CatConfig)
        self._device = device
        self._block_rows = max(BLOCK_BYTES // (4 * (real.num_features + 2 * sum(self._settings.hidden))), 1)

    def encoder(self, seeds: tuple[int, ...]) -> SharedWeights:
        """Random layers, torch's own first weights."""
        *inner, last = self._settings.hidden
        (seed,) = np.random.SeedSequence((self._seed, *seeds)).generate_state(1)
        return SharedWeights.create(self._real.num_features, inner, last, seed=int(seed)).to(self._device)

    def match(
        self,
        rows: torch.Tensor,
        labels: Ids,
        adam: Adam,
        seeds: Sequence[tuple[int, ...]],
        rng: np.random.Generator,
    ) -> None:
        """A step of ``rows`` for each new encoder; the encoders are gone before the next ones are drawn."""
        encoders = [self.encoder(seed) for seed in seeds]
        for encoder, means in zip(encoders, self.real_means(encoders, rng), strict=True):
            rows.requires_grad_(True)
            (rows.grad,) = torch.autograd.grad(self.loss(encoder, means, rows, labels), rows)
            rows.requires_grad_(False)
            adam.step()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def real_means(self, encoders: Sequence[SharedWeights], rng: np.random.Generator) -> list[torch.Tensor]:
        """[classes, width] for each encoder: one pass over the real rows, or over as many of them as are drawn."""
        width = self._settings.hidden[-1]
        sums = [torch.zeros(self._classes.size, width, device=self._device) for _ in encoders]
        limit = self._settings.real_nodes
        drawn = np.arange(self._labels.size) if limit is None else draw_per_class(self._labels, limit, rng)
        is_all = drawn.size == self._labels.size
        for start in range(0, drawn.size, self._block_rows):
            here = drawn[start : start + self._block_rows]
            x = self._real.read(start, start + here.size) if is_all else self._real.take(here)
            rows = torch.from_numpy(np.asarray(x)).to(self._device)
            places = torch.from_numpy(self._places[here]).to(self._device)
            for encoder, total in zip(encoders, sums, strict=True):
                total.index_add_(0, places, embed(encoder, rows))
        counts = torch.from_numpy(np.bincount(self._places[drawn])).to(self._device)
        return [total / counts[:, None] for total in sums]

    def loss(self, encoder: SharedWeights, means: torch.Tensor, rows: torch.Tensor, labels: Ids) -> torch.Tensor:
        """Squared distances of the class means, summed."""
        embedded = embed(encoder, rows)
        places = torch.from_numpy(np.searchsorted(self._classes, labels)).to(self._device)
        sums = torch.zeros_like(means).index_add(0, places, embedded)
        return (sums / torch.bincount(places, minlength=len(means))[:, None] - means).square().sum()


def embed(encoder: SharedWeights, rows: torch.Tensor) -> torch.Tensor:
    """Outputs of the layers, relu after each, brought to length one."""
    return torch.nn.functional.normalize(torch.relu(encoder.mlp(rows)))


def share_nodes(labels: Ids, num_nodes: int) -> dict[int, int]:
    """How many synthetic nodes each class gets: its share, at least one; what rounding leaves goes to the largest."""
    classes, counts = np.unique(labels, return_counts=True)
    shares = np.maximum(num_nodes * counts // labels.size, 1)
    rest = num_nodes - int(shares.sum())
    for place in np.argsort(-counts, kind="stable")[: max(rest, 0)]:
        shares[place] += 1
    return dict(zip(classes.tolist(), shares.tolist(), strict=True))

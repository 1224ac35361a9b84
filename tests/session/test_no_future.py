"""What is learned of a task does not depend on tasks that come later: the first of many are learned as if alone.

A stream is ended early, by its classes or by labels that are not there yet, and its tasks are compared with the first
ones of the whole stream: losses, weights, moments, bank, the method's state and accuracies, to the last bit.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from ecgl_scale.learn.method.table import built_in_methods
from ecgl_scale.session.learner import BANK_NAME, Learner, learn_task
from ecgl_scale.session.setup import RunSetup
from tests.session.streams import Drawn, config_of, draw_graph, write_store

METHODS = tuple(built_in_methods())
SMALL = ("learn.epochs=2", "learn.hidden=[6]", "threads=1", "bank.budget=12", "cat.nodes=8", "cat.steps=20",
         "cat.hidden=[8]", "gem.memory_nodes=9", "ssm.centre_nodes=4", "ssm.neighbours=[2]",
         "continualgnn.memory_nodes=14", "analytic.width=16")  # fmt: skip
BY_CLASS = ("tasks.classes_per_task=2",)
BY_TIME = ("tasks.kind=time", "tasks.column=year")
AS_GCN = "learn.train_as=gcn"
STREAMS = {
    "dense": BY_CLASS,
    "task-il sparse": (*BY_CLASS, "setting=task-il"),
    "task-il gcn": (*BY_CLASS, "setting=task-il", AS_GCN),
    "sparse gcn": (*BY_CLASS, AS_GCN, "learn.optimizer=reset"),
    "time": BY_TIME,
    "time task-il sparse gcn": (*BY_TIME, "setting=task-il", AS_GCN, "tasks.inter_task_edges=true"),
}
VARIANTS: dict[str, tuple[str, ...]] = {
    "ranked by outputs": ("rank.features=logits",),
    "kaiming, no hidden layer": ("learn.init=kaiming", "learn.hidden=[]"),
    "no bias": ("learn.bias=false", "learn.scale=standard"),
    "propagated": ("learn.features=propagated:1", "tasks.eval_scope=both"),
    "mini-batches": ("learn.batching=minibatch", "learn.batch_rows=24", "learn.dropout=0.3"),
    "paper": ("preset=paper",),
    "dygrain, all edges": ("method=dygrain", "tasks.inter_task_edges=true", "dygrain.nodes=12"),
    "continualgnn, all edges": ("method=continualgnn", "tasks.inter_task_edges=true"),
}


@pytest.fixture(scope="module")
def growing() -> Drawn:
    """Classes 0 and 1 come in the first year, 2 and 3 in the next, 4 and 5 in the last, and some more of all old ones.

    Of class 4 one node comes too early: a class begins when it has two.
    """
    drawn = draw_graph(360, num_features=8, noise=1.0)
    rng = np.random.default_rng(3)
    year = 2000 + np.maximum(drawn.y // 2, rng.integers(0, 3, drawn.y.size))
    year[np.flatnonzero(drawn.y == 4)[0]] = 2000
    return replace(drawn, year=year)


@pytest.fixture(scope="module")
def stores(growing: Drawn, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The whole graph, and as it is known in 2001; dense and sparse.

    Streams of two tasks and of three have task graphs of their own, which all methods share.
    """
    directory = tmp_path_factory.mktemp("stores")
    known = np.where(growing.year < 2002, growing.y, -1)
    sparse = csr_matrix(np.where(np.abs(growing.x) > 1, growing.x, 0))
    return {
        "whole dense": write_store(directory / "a", growing),
        "early dense": write_store(directory / "b", growing, y=known),
        "whole sparse": write_store(directory / "c", growing, x=sparse),
        "early sparse": write_store(directory / "d", growing, x=sparse, y=known),
        "graphs of two": directory / "two",
        "graphs of three": directory / "three",
    }


def learned(store: Path, cache: Path, directory: Path, num_tasks: int, *overrides: str) -> list[dict[str, Any]]:
    """What there is after each of the first two tasks of a stream of so many."""
    (directory / "weights").mkdir(parents=True)
    learner = Learner(RunSetup.open(config_of(store, cache, *SMALL, *overrides)), directory)
    assert len(learner.stream) == num_tasks
    found = []
    for task in learner.stream[:2]:
        learner.predictor.prepare(task)
        losses = [epoch.loss for _, epoch in learn_task(learner, task)]
        learner.remember(task)
        seen, scopes = learner.stream.seen(task), learner.config.tasks.scopes
        rows = [[astuple(one) for one in learner.evaluate(after=task, on=seen, scope=scope)] for scope in scopes]
        bank = directory / BANK_NAME
        arrays = {**learner.tensors(), **{f"method.{name}": one for name, one in learner.method.state().items()}}
        kept = {name: (one.dtype, one.shape, one.tobytes()) for name, one in arrays.items()}
        found.append({"losses": losses, "rows": rows, "bank": bank.exists() and bank.read_bytes(), **kept})
    return found


def check_is_a_beginning(stores: dict[str, Path], tmp_path: Path, kind: str, *overrides: str) -> None:
    """The first two of three tasks are as a stream of two has them."""
    is_by_time = BY_TIME[0] in overrides
    ended = () if is_by_time else ("tasks.class_order=[0, 1, 2, 3]",)
    early = stores[f"early {kind}" if is_by_time else f"whole {kind}"]
    alone = learned(early, stores["graphs of two"], tmp_path / "alone", 2, *overrides, *ended)
    first = learned(stores[f"whole {kind}"], stores["graphs of three"], tmp_path / "whole", 3, *overrides)
    for task, (one, other) in enumerate(zip(alone, first, strict=True)):
        assert [name for name in {**one, **other} if one.get(name) != other.get(name)] == [], f"after task {task}"


@pytest.mark.parametrize(
    ("method", "stream"),
    [
        (method, stream)
        for method in METHODS
        for stream, keys in STREAMS.items()
        if AS_GCN not in keys or "gcn" in built_in_methods()[method].backbones
    ],
)
def test_the_first_tasks_of_a_stream_are_learned_as_if_there_were_no_others(
    stores: dict[str, Path], tmp_path: Path, method: str, stream: str
) -> None:
    kind = "sparse" if "sparse" in stream else "dense"
    check_is_a_beginning(stores, tmp_path, kind, f"method={method}", *STREAMS[stream])


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_settings_do_not_look_ahead_either(stores: dict[str, Path], tmp_path: Path, variant: str, kind: str) -> None:
    check_is_a_beginning(stores, tmp_path, kind, *BY_CLASS, *VARIANTS[variant])


def test_a_whole_head_knows_how_many_classes_will_come(stores: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="after task 0"):
        check_is_a_beginning(stores, tmp_path, "dense", *BY_CLASS, "learn.head=whole")

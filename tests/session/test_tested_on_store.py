"""Where the tasks so far have all nodes of the store, tests are made on the store: the same bits as on a copy of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from ecgl_scale.learn.model import SharedWeights
from ecgl_scale.session import predict
from ecgl_scale.session.predict import Predictor
from ecgl_scale.session.run import run
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.graphs import TaskGraphs
from ecgl_scale.tasks.stream import Task
from tests.session.growing import grow_store
from tests.session.streams import FEW_EPOCHS, Drawn, config_of, plan_config, without_clocks, write_store

SEEN = "tasks.eval_scope=seen"
Asked = list[list[np.ndarray]]


def _plain(path: Path, drawn: Drawn) -> Path:
    return write_store(path, drawn)


def _half(path: Path, drawn: Drawn) -> Path:
    return write_store(path, drawn, x=drawn.x.astype(np.float16))


def _sparse(path: Path, drawn: Drawn) -> Path:
    return write_store(path, drawn, x=scipy.sparse.csr_matrix(np.where(drawn.x > 5, drawn.x, 0)))


def _with_loops(path: Path, drawn: Drawn) -> Path:
    """Self loops and repeated edges are in the store; task graphs drop the one and keep the other."""
    loops = np.tile(np.arange(0, 900, 7), (2, 1))
    edges = np.concatenate([drawn.edge_index, loops, drawn.edge_index[:, ::5]], axis=1)
    return write_store(path, replace(drawn, edge_index=edges))


CASES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "scaled rows": (_plain, ("learn.scale=row_l2",)),
    "standardised": (_plain, ("learn.scale=standard",)),
    "two passes": (_plain, ("learn.hidden=[24, 12]", "infer.norm=mean")),
    "partitions": (_plain, ("infer.partitions=3", "infer.partitioner=ldg")),
    "float16": (_half, ("learn.scale=row_sum",)),
    "sparse": (_sparse, ("learn.scale=row_l2",)),
    "sparse standardised": (_sparse, ("learn.scale=standard",)),
    "loops and repetitions": (_with_loops, ("learn.scale=row_l2",)),
    "grown": (grow_store, ("learn.scale=row_l2",)),
    "generations": (grow_store, ("tasks.kind=generation",)),
    "both scopes": (_plain, ("tasks.eval_scope=both",)),
    "propagated": (_plain, ("learn.features=propagated:2", "learn.scale=row_l2")),
    "closed form": (_plain, ("method=analytic", "analytic.width=16", "learn.scale=row_l2")),
    "closed form, sparse": (_sparse, ("method=analytic", "analytic.width=16", "learn.scale=row_l2")),
}


def _run_and_listen(
    store: Path, target: Path, keys: Sequence[str], monkeypatch: pytest.MonkeyPatch, *, copies: bool
) -> tuple[dict[str, Any], Asked, list[int]]:
    """Results, the logits of all nodes asked for after each task, and the tasks whose graphs were copied."""
    heard: Asked = []
    copied: list[int] = []
    seen_logits, seen = Predictor.seen_logits, TaskGraphs.seen

    def listening(
        predictor: Predictor, weights: SharedWeights, after: Task, asked: Sequence[np.ndarray]
    ) -> Iterator[Iterator[np.ndarray]]:
        heard.append([])
        for blocks in seen_logits(predictor, weights, after, asked):
            heard[-1].append(np.concatenate(list(blocks)))
            yield iter([heard[-1][-1]])

    def copying(graphs: TaskGraphs, task: Task) -> GraphStore:
        copied.append(task.index)
        return seen(graphs, task)

    with monkeypatch.context() as patch:
        patch.setattr(Predictor, "seen_logits", listening)
        patch.setattr(TaskGraphs, "seen", copying)
        if copies:
            patch.setattr(predict, "tests_on_store", lambda *_: False)
        results = run(config_of(store, None, FEW_EPOCHS, SEEN, *keys), target)
    return without_clocks(results), heard, sorted(set(copied))


@pytest.mark.parametrize("case", CASES)
def test_the_store_gives_the_bits_of_its_copy(
    drawn: Drawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    make, keys = CASES[case]
    store = make(tmp_path / "graph.ecgl", drawn)
    results, heard, copied = _run_and_listen(store, tmp_path / "store", keys, monkeypatch, copies=False)
    wanted, wanted_heard, all_copied = _run_and_listen(store, tmp_path / "copy", keys, monkeypatch, copies=True)
    assert all_copied == [0, 1, 2]
    assert copied == ([0, 1, 2] if case == "sparse standardised" else [0, 1])
    assert results == wanted
    assert len(heard) == len(wanted_heard) == 3
    for after, wanted_after in zip(heard, wanted_heard, strict=True):
        assert [values.tobytes() for values in after] == [values.tobytes() for values in wanted_after]


def test_a_store_with_nodes_of_no_task_is_copied_without_them(
    drawn: Drawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes without a label are in no task; they and their edges may not take part in a test."""
    y = np.where(np.arange(900) % 90 == 0, -1, drawn.y)
    store = write_store(tmp_path / "graph.ecgl", drawn, y=y)
    assert _run_and_listen(store, tmp_path / "run", (), monkeypatch, copies=False)[2] == [0, 1, 2]


def test_edges_between_tasks_in_training_need_the_copy(
    drawn: Drawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(tmp_path / "graph.ecgl", drawn)
    keys = ("tasks.inter_task_edges=true",)
    assert _run_and_listen(store, tmp_path / "run", keys, monkeypatch, copies=False)[2] == [0, 1, 2]


def test_a_plan_does_not_count_the_copy(drawn: Drawn, tmp_path: Path) -> None:
    whole = write_store(tmp_path / "whole.ecgl", drawn)
    partly = write_store(tmp_path / "partly.ecgl", drawn, y=np.where(np.arange(900) == 0, -1, drawn.y))
    written = {
        (path.stem, scope): plan_config(config_of(path, None, scope, "tasks.evaluate=last")).stages[0].written_bytes
        for path in (whole, partly)
        for scope in (SEEN, "tasks.eval_scope=task")
    }
    assert written["whole", SEEN] == written["whole", "tasks.eval_scope=task"]
    assert written["partly", SEEN] > written["partly", "tasks.eval_scope=task"]

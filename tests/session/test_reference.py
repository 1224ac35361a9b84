"""The preset ``reference`` against a naive port of the public code, as protocol.md has it, from the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.learn.bank import MemoryBank
from ecgl_scale.session.run import run
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.tasks.stream import TaskStream
from tests.session.naive_reference import NaiveReference, NaiveTask
from tests.session.streams import Drawn, config_of


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("setting", ["class-il", "task-il"])
def test_reference_chooses_and_scores_as_the_public_code(
    drawn: Drawn, store: Path, cache: Path, tmp_path: Path, setting: str, seed: int
) -> None:
    found = run(
        config_of(store, cache, "preset=reference", f"setting={setting}", f"seed={seed}", "bank.diversity_ratio=0.25"),
        tmp_path / "run",
    )
    stream = TaskStream.load(tmp_path / "run" / "split.parquet", GraphStore.open(store))
    adjacency = np.zeros((len(drawn.y), len(drawn.y)))
    adjacency[drawn.edge_index[1], drawn.edge_index[0]] = 1
    naive = NaiveReference(adjacency, drawn.x, drawn.y, is_class_il=setting == "class-il", seed=seed)
    tasks = [
        # copies, as torch warns of arrays that cannot be written
        NaiveTask(
            range(task.classes[0], task.classes[-1] + 1),
            task.node_ids.copy(),
            task.train_ids.copy(),
            task.test_ids.copy(),
        )
        for task in stream
    ]
    wanted = naive.run(tasks, hidden=24, epochs=12, lr=0.02, budget=40, ratio=0.25)
    bank = MemoryBank.load(tmp_path / "run" / "bank.arrow")
    for index, ids in enumerate(wanted.banks):
        assert np.array_equal(np.sort(bank.for_tasks([index]).node_ids), ids), f"task {index}"
    for row, naive_row in zip(found["matrix"], wanted.matrix, strict=True):
        assert row[: len(naive_row)] == pytest.approx(naive_row, abs=0.01)

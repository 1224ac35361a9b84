"""Nodes of a task come back as they were, whatever form takes least memory."""

from __future__ import annotations

import numpy as np
import pytest

from ecgl_scale.tasks import members
from ecgl_scale.tasks.members import Members

MANY = 3 * members.KEPT_IDS
IDS = {
    "none": np.empty(0, np.int64),
    "few": np.array([3, 9, 2**40]),
    "a run": np.arange(77, 77 + MANY),
    "every third": 5 + 3 * np.arange(MANY),
    "far apart": 2**33 + 60 * np.arange(MANY),
    "very far apart": 2**20 * np.arange(MANY),
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_ids_come_back(ids: np.ndarray) -> None:
    found = Members.of(ids)
    assert found.size == ids.size
    assert found.ids.dtype == np.int64
    np.testing.assert_array_equal(found.ids, ids)


def test_they_take_the_least_memory() -> None:
    held = {name: 0 if (kept := Members.of(ids).kept) is None else kept.nbytes for name, ids in IDS.items()}
    assert held["a run"] == 0
    assert held["every third"] <= 3 * MANY / 8 + 1
    assert held["far apart"] == 4 * MANY
    assert held["very far apart"] == 8 * MANY

"""A store of three tasks, small enough that a method learns them in a fraction of a second.

Classes and tasks differ in size: where all are alike, weights of classes, means over rows and means over tasks are too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.session.store_fixtures import cache, one_thread, store
from tests.session.streams import Drawn, draw_graph

__all__ = ["cache", "drawn", "one_thread", "store"]

WITHOUT_LABEL = (0, 8, 16, 4, 12, 20)
"""Of the 40 nodes of each class: so the tasks have 72, 60 and 48."""


@pytest.fixture(scope="session")
def drawn() -> Drawn:
    even = draw_graph(240, num_features=8, noise=1.0)
    y = even.y.copy()
    for label, count in enumerate(WITHOUT_LABEL):
        y[np.flatnonzero(even.y == label)[:count]] = -1
    return replace(even, y=y)

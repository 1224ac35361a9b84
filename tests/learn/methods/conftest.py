"""A store of three tasks, small enough that a method learns them in a fraction of a second."""

from __future__ import annotations

import pytest

from tests.pipeline.store_fixtures import cache, one_thread, store
from tests.pipeline.streams import Drawn, draw_graph

__all__ = ["cache", "drawn", "one_thread", "store"]


@pytest.fixture(scope="session")
def drawn() -> Drawn:
    return draw_graph(240, num_features=8, noise=1.0)

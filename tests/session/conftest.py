"""A store of three tasks that all tests of this folder share."""

from __future__ import annotations

import pytest

from tests.session.store_fixtures import cache, one_thread, store
from tests.session.streams import Drawn, draw_graph

__all__ = ["cache", "drawn", "one_thread", "store"]


@pytest.fixture(scope="session")
def drawn() -> Drawn:
    return draw_graph()

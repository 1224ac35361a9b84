"""A store of three tasks, small enough that a method learns them in a fraction of a second."""

from __future__ import annotations

import pytest

from tests.learn.methods.record_plans import draw_uneven
from tests.session.store_fixtures import cache, one_thread, store
from tests.session.streams import Drawn

__all__ = ["cache", "drawn", "one_thread", "store"]


@pytest.fixture(scope="session")
def drawn() -> Drawn:
    return draw_uneven()

"""A store of the graph that a folder's own ``drawn`` gives, and a cache of its task graphs, as runs share one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.session.streams import Drawn, write_store


@pytest.fixture(scope="session")
def store(drawn: Drawn, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("store") / "graph.ecgl", drawn)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models of a few thousand weights are quicker with one thread than with two that wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

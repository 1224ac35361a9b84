"""Propagated features equal powers of the dense matrix, in memory, in files, sliced and resumed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ecgl_scale.errors import UsageError
from ecgl_scale.infer.hops import k_hop_features
from ecgl_scale.infer.layout import PassLayout, Planner
from ecgl_scale.tasks.scaling import Scaling
from tests.infer.networks import BACKENDS, assert_close, matrix, propagation, random_graph
from tests.resources import at


@pytest.mark.parametrize("features", ["dense", "sparse"])
@pytest.mark.parametrize("norm", ["sym", "sum", "mean"])
@pytest.mark.parametrize("hops", [1, 3])
def test_hops_are_powers(tmp_path, features, norm, hops):
    graph = random_graph(tmp_path / "g", num_features=11, density=0.5, features=features)
    found = k_hop_features(graph, hops, at(), norm=norm, backend="numba", work_directory=tmp_path / "w")
    wanted = np.linalg.matrix_power(propagation(graph, norm), hops) @ matrix(60, 11, density=0.5)
    assert found.dtype == np.float32
    assert_close(found, wanted)
    assert not list((tmp_path / "w").glob("*"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_them(tmp_path, backend):
    graph = random_graph(tmp_path / "g", num_features=11)
    found = k_hop_features(graph, 2, at(), backend=backend, work_directory=tmp_path / "w")
    assert_close(found, np.linalg.matrix_power(propagation(graph, "sym"), 2) @ matrix(60, 11))


@pytest.mark.parametrize("features", ["dense", "sparse"])
def test_slices_in_files_give_the_same_bits(tmp_path, monkeypatch, features):
    graph = random_graph(tmp_path / "g", 3000, 20_000, 11, density=0.5, features=features)
    whole = k_hop_features(graph, 2, at(), backend="numba", scaling=Scaling("row_sum"), work_directory=tmp_path / "w")
    find = Planner.find
    passes = (PassLayout((0, 4, 8, 11), True), PassLayout((0, 8, 11), True))
    monkeypatch.setattr(Planner, "find", lambda self, room: replace(find(self, room), passes=passes))
    sliced = k_hop_features(graph, 2, at(), backend="numba", scaling=Scaling("row_sum"), work_directory=tmp_path / "w")
    np.testing.assert_array_equal(whole, sliced)
    assert isinstance(sliced, np.memmap)


def test_no_hop_at_all_is_refused(tmp_path):
    graph = random_graph(tmp_path / "g")
    with pytest.raises(UsageError, match="0 times"):
        k_hop_features(graph, 0, at(), work_directory=tmp_path / "w")

"""What is in memory under which budget: the same logits, within the plan, refused where nothing fits."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ecgl_scale.base.memory import PeakSampler, own_memory_bytes
from ecgl_scale.errors import DoesNotFitError, StorageError
from ecgl_scale.infer import matrix
from ecgl_scale.infer.layerwise import infer_logits, plan_inference
from ecgl_scale.infer.layout import Layout, PassLayout, Planner
from ecgl_scale.infer.program import shape_layers, write_program
from ecgl_scale.infer.settings import InferSettings
from ecgl_scale.infer.sizes import Sizes
from ecgl_scale.units import GIB, MIB, parse_bytes
from tests.infer.networks import BACKENDS, assert_close, layers_of, random_graph
from tests.resources import at

WIDTHS = (20, 33, 7)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return random_graph(tmp_path_factory.mktemp("graph") / "g", 5000, 30_000, 20)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """40 MB of features."""
    return random_graph(tmp_path_factory.mktemp("large") / "g", 100_000, 400_000, 100)


def lay_out(monkeypatch, **changes):
    find = Planner.find
    monkeypatch.setattr(Planner, "find", lambda self, room: replace(find(self, room), **changes))


@pytest.mark.parametrize("features", ["dense", "sparse", "float16"])
@pytest.mark.parametrize("columns", [(0, 4, 20), (0, 16, 20), (0, 8, 12, 16, 20)])
def test_slices_of_columns_give_the_same_bits(tmp_path, monkeypatch, features, columns):
    kinds = {"features": "sparse"} if features == "sparse" else {"dtype": features.replace("dense", "float32")}
    graph = random_graph(tmp_path / "g", 3000, 20_000, 20, density=0.4, **kinds)
    width = 33 if features == "sparse" else 20
    layers = layers_of(*WIDTHS)
    settings = InferSettings(backend="numba", partitions=3)
    whole = infer_logits(graph, layers, at(), settings=settings, work_directory=tmp_path / "w")
    cut = (*columns[:-1], width)
    lay_out(
        monkeypatch,
        passes=(PassLayout(cut, True), PassLayout((0, 4, 7), False)),
        prepares_file=features == "sparse",
    )
    sliced = infer_logits(graph, layers, at(), settings=settings, work_directory=tmp_path / "w")
    np.testing.assert_array_equal(whole.logits, sliced.logits)
    assert sliced.read_bytes > whole.read_bytes
    assert not list((tmp_path / "w").iterdir())


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_backends_take_slices_too(graph, tmp_path, monkeypatch, backend):
    settings = InferSettings(backend=backend, partitions=3)
    whole = infer_logits(graph, layers_of(*WIDTHS), at(), settings=settings, work_directory=tmp_path).logits
    lay_out(monkeypatch, passes=(PassLayout((0, 12, 20), True), PassLayout((0, 4, 7), True)))
    sliced = infer_logits(graph, layers_of(*WIDTHS), at(), settings=settings, work_directory=tmp_path).logits
    assert_close(sliced, whole)
    assert isinstance(sliced, np.memmap)
    assert [path.name for path in tmp_path.iterdir()] == ["matrix-5.rows"]


def test_logits_that_do_not_fit_stay_in_a_file_which_the_next_call_leaves_alone(graph, tmp_path, monkeypatch):
    lay_out(monkeypatch, passes=(PassLayout((0, 20), True), PassLayout((0, 7), True)))
    settings = InferSettings(backend="numba")
    first = infer_logits(graph, layers_of(*WIDTHS), at(), settings=settings, work_directory=tmp_path).logits
    kept = np.array(first)
    second = infer_logits(graph, layers_of(*WIDTHS, seed=1), at(), settings=settings, work_directory=tmp_path).logits
    np.testing.assert_array_equal(first, kept)
    assert not np.array_equal(first, second)


def planner(graph, *widths, **chosen):
    settings = InferSettings(**{"backend": "numba", **chosen})
    program = write_program(shape_layers(widths), settings, sparse=False)
    return Planner(Sizes.of(graph), program, settings, backend=settings.backend, threads=2)


def test_with_less_room_first_results_and_then_columns_leave_memory(large):
    one = planner(large, 100, 256, 48)
    layouts = [one.find(room * MIB) for room in range(60, 160, 2)]
    fitting = [layout for layout in layouts if layout.host_bytes <= 160 * MIB]
    slices = [[len(p.columns) - 1 for p in layout.passes] for layout in fitting]
    files = [[p.writes_file for p in layout.passes] for layout in fitting]
    assert slices[-1] == [1, 1]
    assert files[-1] == [False, False]
    assert slices == sorted(slices, reverse=True)
    assert max(slices)[0] > 2
    assert [True, False] in files  # columns are worth more than results
    for layout in layouts:
        for p in layout.passes:
            assert all(a % 4 == 0 for a in p.columns[:-1])
            assert all(b > a for a, b in pairwise(p.columns))


def test_a_layout_survives_the_journal(large):
    layout = planner(large, 100, 256, 48).find(60 * MIB)
    assert Layout.from_json(layout.to_json()) == layout


@pytest.mark.parametrize("chosen", [{}, {"backend": "torch"}, {"backend": "dgl"}, {"sources": "halo"}])
def test_a_small_budget_is_refused_with_one_that_works(graph, tmp_path, chosen):
    settings = InferSettings(**{"backend": "numba", **chosen})
    layers = layers_of(*WIDTHS)
    wanted = infer_logits(graph, layers, at(), settings=settings, work_directory=tmp_path).logits
    with pytest.raises(DoesNotFitError, match="at least --memory") as refused:
        infer_logits(graph, layers, at(memory="1MiB"), settings=settings, work_directory=tmp_path)
    enough = re.search(r"--memory (\S+)", str(refused.value))[1]
    found = infer_logits(
        graph, layers, at(memory=parse_bytes(enough) + MIB), settings=settings, work_directory=tmp_path
    )
    assert_close(found.logits, wanted)


@pytest.mark.parametrize(
    ("chosen", "room_mib"),
    [
        ({"backend": "numba"}, 400),
        ({"backend": "numba"}, 100),
        ({"backend": "numba"}, 75),
        ({"backend": "numba", "sources": "halo"}, 80),
        ({"backend": "torch"}, 400),
        ({"backend": "torch"}, 160),
        ({"backend": "dgl"}, 170),
    ],
)
def test_memory_stays_within_the_plan_and_the_plan_within_the_budget(large, tmp_path, chosen, room_mib):
    layers = layers_of(100, 256, 48)
    settings = InferSettings(**chosen)
    infer_logits(large, layers, at(), settings=settings, work_directory=tmp_path)  # loads and compiles
    held = own_memory_bytes()
    budget = held + room_mib * MIB
    plan = plan_inference(large, (100, 256, 48), settings=settings, room_bytes=room_mib * MIB, threads=2)
    with PeakSampler(0.001) as sampler:
        found = infer_logits(large, layers, at(memory=budget), settings=settings, work_directory=tmp_path)
    used = sampler.peak_bytes - held
    assert plan.host_bytes <= room_mib * MIB
    assert used <= 1.1 * found.planned_bytes
    assert found.planned_bytes <= 1.02 * room_mib * MIB
    assert found.planned_bytes <= 1.02 * plan.host_bytes


def test_the_plan_of_a_subgraph_is_smaller(large):
    whole = plan_inference(large, (100, 256, 48), settings=InferSettings(backend="numba"), room_bytes=GIB, threads=2)
    part = plan_inference(
        large,
        (100, 256, 48),
        settings=InferSettings(backend="numba"),
        room_bytes=GIB,
        threads=2,
        num_nodes=10_000,
        num_edges=40_000,
    )
    assert part.host_bytes < whole.host_bytes
    assert part.read_bytes < whole.read_bytes
    assert "columns held" in whole.formula
    assert whole.passes == 2


def test_columns_are_cut_to_what_another_device_holds(large):
    settings = InferSettings(backend="torch", device="cuda")
    program = write_program(shape_layers((100, 256, 48)), settings, sparse=False)
    room = 200 * MIB

    def find(device_room):
        one = Planner(Sizes.of(large), program, settings, backend="torch", threads=2, device_room=device_room)
        layout = one.find(1 << 34)
        return layout, one.device_bytes(layout)

    layout, needed = find(10 * room)
    assert [len(p.columns) for p in layout.passes] == [2, 2]
    assert needed < 10 * room
    layout, needed = find(70 * MIB)
    assert len(layout.passes[0].columns) > 2
    assert needed <= 70 * MIB


def test_a_full_disk_is_told_before_anything_is_mapped(graph, tmp_path, monkeypatch):
    def full(descriptor, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(matrix.os, "posix_fallocate", full)
    lay_out(monkeypatch, passes=(PassLayout((0, 20), True), PassLayout((0, 7), False)))
    with pytest.raises(StorageError, match="disk refused"):
        infer_logits(
            graph, layers_of(*WIDTHS), at(), settings=InferSettings(backend="numba"), work_directory=tmp_path / "w"
        )
    assert not list((tmp_path / "w").iterdir())


def test_our_own_kernels_need_no_torch(graph, tmp_path):
    program = (
        "import sys, numpy as np; from pathlib import Path\n"
        "from ecgl_scale.infer.layerwise import infer_logits\n"
        "from ecgl_scale.infer.settings import InferSettings\n"
        "from ecgl_scale.store.graph import GraphStore\n"
        "graph, work = GraphStore.open(sys.argv[1]), Path(sys.argv[2])\n"
        "from ecgl_scale.engine.resources import Resources\n"
        "layers, settings = [(np.zeros((3, 20)), None)], InferSettings(device='cpu')\n"
        "infer_logits(graph, layers, Resources.of(), settings=settings, work_directory=work)\n"
        "assert not {'torch', 'dgl'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(graph.path), str(tmp_path)], check=True, timeout=120)

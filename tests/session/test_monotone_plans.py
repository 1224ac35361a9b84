"""More memory never makes a plan fit less: a stage needs its least, or no more than the room that it is given.

If that holds for a stage, whatever fits a budget fits every larger one, and the least is what a refusal has to name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_scale.config.schema import config_from_mapping
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.graph.propagate import plan_hops
from ecgl_scale.infer.layout import Planner
from ecgl_scale.infer.program import shape_layers, write_program
from ecgl_scale.infer.settings import InferSettings
from ecgl_scale.infer.sizes import Sizes, StoredFeatures
from ecgl_scale.learn.method.table import built_in_methods
from ecgl_scale.learn.rows import plan_rows
from ecgl_scale.rank.choose import ChooseSettings, plan_choose
from ecgl_scale.session.plan.run_plan import plan_run
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.store.build import MIN_SPARE_BYTES, MemoryShares
from ecgl_scale.store.edges.write import RESERVE_BYTES
from ecgl_scale.store.keys.write import plan_keys
from ecgl_scale.units import GIB, MIB
from tests.session.streams import config_of, draw_graph, write_store

NODES = st.one_of(st.integers(1, 5000), st.integers(1, 40_000_000))
WIDTH = st.one_of(st.integers(1, 20), st.integers(1, 3000))
ROOMS = [share * 10**step * MIB for step in range(5) for share in (1, 2, 3, 5, 7)]
EXAMPLES = settings(max_examples=60, deadline=None)


def assert_fits_more_with_more(need_in: Callable[[int], int], extra_rooms: tuple[int, ...] = ()) -> None:
    """The least is that of no room; and rooms around it are looked at more closely."""
    least = need_in(0)
    near = [least + step for step in (-MIB, -1, 0, 1, MIB, least // 16, least // 4, least // 2)]
    for room in sorted({*ROOMS, *near, *extra_rooms}):
        if room >= 0:
            need = need_in(room)
            assert least <= need <= max(room, least), (room, need, least)


def features_of(num_rows: int, width: int, kind: str) -> StoredFeatures:
    row_bytes = {"float32": 4 * width, "float16": 2 * width, "sparse": 8 * min(width, 50)}[kind]
    block = 0 if kind == "sparse" else min(32 * MIB, num_rows * row_bytes)
    return StoredFeatures(width, kind == "sparse", num_rows * row_bytes, block, kind == "float32")


@EXAMPLES
@given(
    num_nodes=NODES,
    degree=st.floats(0, 100),
    widths=st.lists(WIDTH, min_size=2, max_size=4),
    kind=st.sampled_from(["float32", "float16", "sparse"]),
    backend=st.sampled_from(["numba", "torch"]),
    sources=st.sampled_from(["held", "halo"]),
    encoder=st.sampled_from(["gcn", "sgc"]),
    threads=st.integers(1, 8),
    partitions=st.sampled_from(["auto", 1, 7]),
    device_room=st.one_of(st.none(), st.integers(MIB, 8 * GIB)),
    shares_memory=st.booleans(),
    beside=st.integers(0, GIB),
)
def test_inference(
    num_nodes: int,
    degree: float,
    widths: list[int],
    kind: str,
    backend: str,
    sources: Any,
    encoder: Any,
    threads: int,
    partitions: Any,
    device_room: int | None,
    shares_memory: bool,
    beside: int,
) -> None:
    chosen = InferSettings(encoder=encoder, sources=sources, partitions=partitions)
    num_edges = int(degree * num_nodes)
    stored = features_of(num_nodes, widths[0], kind)
    sizes = Sizes(num_nodes, num_edges, 4 * num_edges + 8 * num_nodes, stored, stored.read_bytes)
    planner = Planner(
        sizes,
        write_program(shape_layers(widths), chosen, sparse=stored.is_sparse),
        chosen,
        backend=backend,
        threads=threads,
        device_room=device_room if backend == "torch" else None,
        shares_memory=shares_memory,
        beside_result_bytes=beside,
    )
    assert_fits_more_with_more(lambda room: planner.find(room).host_bytes)


@EXAMPLES
@given(
    num_rows=NODES,
    num_features=WIDTH,
    values=st.one_of(st.none(), st.floats(0, 100)),
)
def test_training_rows(num_rows: int, num_features: int, values: float | None) -> None:
    num_values = None if values is None else int(values * num_rows)
    assert_fits_more_with_more(
        lambda room: plan_rows(num_rows, num_features, memory_bytes=room, num_values=num_values).host_bytes
    )


@EXAMPLES
@given(num_nodes=NODES, share=st.floats(0, 1), num_features=WIDTH, hops=st.integers(1, 3), beside=st.integers(0, GIB))
def test_features_that_pass_edges(num_nodes: int, share: float, num_features: int, hops: int, beside: int) -> None:
    def need(room: int) -> int:
        found = plan_hops(
            num_nodes,
            int(share * num_nodes),
            num_features,
            hops=hops,
            room_bytes=room,
            beside_result_bytes=beside,
        )
        return max(found.peak_bytes, found.held_bytes + beside)

    assert_fits_more_with_more(need)


@EXAMPLES
@given(
    num_nodes=NODES,
    num_features=WIDTH,
    values=st.one_of(st.none(), st.floats(0, 100)),
    rank_columns=st.one_of(st.none(), WIDTH),
    select=st.sampled_from(["ecgl", "herding", "kmeans", "random"]),
    budget=st.integers(0, 100_000),
    threads=st.integers(1, 8),
)
def test_choosing_nodes(
    num_nodes: int,
    num_features: int,
    values: float | None,
    rank_columns: int | None,
    select: Any,
    budget: int,
    threads: int,
) -> None:
    num_values = None if values is None else int(values * num_nodes)
    assert_fits_more_with_more(
        lambda room: (
            plan_choose(
                num_nodes,
                num_features,
                num_candidates=num_nodes // 2,
                settings=ChooseSettings(budget, select=select),
                num_values=num_values,
                rank_columns=rank_columns,
                num_classes=10,
                room_bytes=room,
                threads=threads,
            ).host_bytes
        )
    )


@EXAMPLES
@given(num_nodes=NODES, degree=st.floats(0, 100), threads=st.integers(1, 16))
def test_builds(num_nodes: int, degree: float, threads: int) -> None:
    """Ingest, append and extract share a build; with keys there is their index."""
    num_keys = int(degree * num_nodes)
    assert_fits_more_with_more(lambda room: plan_keys(num_nodes, room_bytes=room).host_bytes)
    for room in ROOMS:
        given_room = max(room, RESERVE_BYTES + MIN_SPARE_BYTES)
        shares = MemoryShares.of(given_room, threads=threads, num_keys_hint=num_keys)
        assert RESERVE_BYTES + shares.kept_bytes + shares.threads * shares.share_bytes <= given_room


# --- whole runs

METHODS = [(name, train_as) for name, kind in built_in_methods().items() for train_as in kind.backbones]
SETTINGS = [
    ("tasks.eval_scope=seen",),
    ("bank.select=ecgl", "rank.features=logits", "tasks.eval_scope=task", "learn.hidden=[3000]"),
    ("bank.select=herding", "bank.budget=3000"),
    ("bank.select=kmeans", "bank.budget=3000"),
    ("learn.features=propagated:2", "tasks.eval_scope=both"),
    ("infer.backend=torch", "tasks.inter_task_edges=true"),
    ("tasks.inter_task_edges=true", "learn.features=propagated:1"),
]
OTHERS = [
    ("ecgl", "gcn", "learn.hidden=[600]", "tasks.inter_task_edges=true"),
    ("joint", "gcn", "learn.hidden=[600]"),
    ("gem", "gcn", "learn.hidden=[600]", "tasks.inter_task_edges=true"),
    ("ewc", "gcn", "learn.hidden=[600]"),
    ("continualgnn", "mlp", "tasks.inter_task_edges=true"),
    ("continualgnn", "gcn", "tasks.inter_task_edges=true"),
    ("dygrain", "mlp", "tasks.inter_task_edges=true"),
    ("ergnn", "mlp", "ergnn.select=cm"),
    ("cat", "mlp", "learn.features=propagated:1"),
]
CASES = [
    *[(method, train_as, "learn.hidden=[256]") for method, train_as in METHODS],
    *[("ecgl", "mlp", *overrides) for overrides in SETTINGS],
    *OTHERS,
]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("large") / "graph.ecgl", draw_graph(60_000, num_features=256))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_runs(case: tuple[str, ...], large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = 200 * MIB
    monkeypatch.setattr("ecgl_scale.session.plan.run_plan.own_memory_bytes", lambda: held)
    method, train_as, *overrides = case
    config = config_of(large, None, f"method={method}", f"learn.train_as={train_as}", *overrides)
    setup = RunSetup.open(config)

    def planned(memory: int) -> MemoryPlan:
        return plan_run(setup.with_config(config_from_mapping(config.to_mapping(), overrides=[f"memory={memory}"])))

    small = planned(MIB)
    least = {stage.stage: stage.host_bytes for stage in small.stages}
    for memory in {int(small.peak_bytes * factor) for factor in (0.9, 1.0, 1.02, 1.05, 1.1, 1.2, 1.4, 1.8, 3.0)}:
        plan = planned(memory)
        assert plan.fits == (memory >= small.peak_bytes), (memory, plan)
        for stage in plan.stages:
            assert least[stage.stage] <= stage.host_bytes <= max(memory - plan.held_bytes, least[stage.stage]), stage

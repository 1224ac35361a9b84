"""What a plan says of a method's own state covers the state it has at the end; and it says so for every method."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ecgl_scale.infer.model_input import ModelInput
from ecgl_scale.learn.method.base import TaskSizes
from ecgl_scale.learn.method.table import built_in_methods, create_method
from ecgl_scale.units import format_bytes
from tests.learn.methods.learning import learn, new_learner, small_config
from tests.learn.methods.record_plans import RECORDED, planned
from tests.session.streams import plan_config

OVERRIDES = {
    "gem": ("gem.memory_nodes=9",),
    "ssm": ("ssm.centre_nodes=5", "ssm.neighbours=[2]"),
    "cat": ("cat.nodes=8", "cat.steps=2"),
    "continualgnn": ("continualgnn.memory_nodes=20",),
}
KEEPS_NOTHING = ("finetune", "joint")
LARGE = TaskSizes(
    num_nodes=1_000_000,
    num_edges=20_000_000,
    edge_bytes=88_000_000,
    num_rows=600_000,
    num_old_rows=400_000,
    num_tasks=3,
    widths=(100, 256, 10),
    stored_features=100,
    values_a_row=None,
    made=ModelInput(),
    epoch_bytes=70 << 20,
    training_bytes=400 << 20,
    least_training_bytes=100 << 20,
    threads=2,
    room_bytes=4 << 30,
)


@pytest.mark.parametrize("method", built_in_methods())
def test_the_state_is_in_the_plan_and_not_larger_than_planned(
    method: str, store: Path, cache: Path, tmp_path: Path
) -> None:
    config = small_config(store, cache, method, *OVERRIDES.get(method, ()), "learn.epochs=1")
    learner = new_learner(config, tmp_path)
    learn(learner, 0, 1, 2)
    size = sum(array.nbytes for array in learner.method.state().values())
    sizes = replace(
        LARGE,
        widths=tuple(learner.weights.widths),
        stored_features=learner.graphs.graph.num_features,
        made=learner.shape.made,
    )
    planned = learner.method.plan(config, sizes).state_bytes
    assert size <= 1.1 * planned + 64
    keeps_bank = learner.method.keeps_bank
    assert (planned > 0 or keeps_bank) == (method not in KEEPS_NOTHING)
    for stage in plan_config(config).stages:
        assert (f"the method's state {format_bytes(planned)}" in stage.formula) == (planned > 0), stage.stage
        assert ("bank " in stage.formula) == keeps_bank, stage.stage


@pytest.mark.parametrize(
    ("method", "train_as"),
    [(method, train_as) for method, kind in built_in_methods().items() for train_as in kind.backbones],
)
def test_a_plan_is_what_it_was_when_it_was_recorded(method: str, train_as: str, store: Path, cache: Path) -> None:
    """Where a stage really needs another amount, ``record_plans`` records it, and the commit says why."""
    found = planned(store, cache, method, train_as)
    assert found == json.loads(RECORDED.read_text())[f"{method} {train_as}"]


@pytest.mark.parametrize("method", built_in_methods())
def test_every_method_says_what_the_end_of_a_task_takes(method: str, store: Path, cache: Path) -> None:
    config = small_config(store, cache, method)
    stages = {stage.stage: stage for stage in plan_config(config).stages}
    assert list(stages) == ["extract", "train", "remember", "evaluate"]
    assert create_method(method).plan(config, LARGE).end.host_bytes > 0
    assert stages["remember"].formula


def test_weights_held_fast_need_the_task_once_more_at_its_end(store: Path, cache: Path) -> None:
    for method in ("ewc", "mas", "twp"):
        config = small_config(store, cache, method)
        assert create_method(method).plan(config, LARGE).end.host_bytes >= LARGE.training_bytes


def test_attention_holds_the_first_layer_and_its_gradient_for_all_nodes(store: Path, cache: Path) -> None:
    needed = create_method("twp").plan(small_config(store, cache, "twp"), LARGE).end.host_bytes
    assert needed >= LARGE.training_bytes + 4 * 100 * LARGE.num_nodes + 8 * 256 * LARGE.num_nodes


def test_detection_is_planned_where_the_graph_keeps_its_nodes(store: Path, cache: Path) -> None:
    method = create_method("continualgnn")
    assert method.plan(small_config(store, cache, "continualgnn"), LARGE).work_bytes == 0
    growing = small_config(store, cache, "continualgnn", "tasks.inter_task_edges=true")
    rows_and_messages = LARGE.edge_bytes + 2 * 4 * 100 * LARGE.num_nodes
    assert method.plan(growing, LARGE).work_bytes >= rows_and_messages + 4 * 256 * LARGE.num_nodes
    busy = replace(LARGE, room_bytes=64 << 30, training_bytes=8 << 30)  # then rows of old nodes come on top
    assert method.plan(growing, busy).work_bytes >= busy.training_bytes + 4 * 100 * LARGE.num_old_rows


def test_outputs_of_all_nodes_are_planned_where_nodes_are_ranked_by_them(store: Path, cache: Path) -> None:
    by_features, by_outputs = (
        create_method("ecgl")
        .plan(small_config(store, cache, "ecgl", "bank.select=ecgl", f"rank.features={kind}"), LARGE)
        .end
        for kind in ("raw", "logits")
    )
    assert by_outputs.host_bytes >= (4 * 100 + 4 * 10) * LARGE.num_nodes
    assert by_outputs.formula != by_features.formula or by_outputs.host_bytes != by_features.host_bytes

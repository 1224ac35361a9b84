"""Configs: where a value comes from, that a resolved one loads as itself, and which files hold none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecgl_scale.config.docs import configuration_table, update_page
from ecgl_scale.config.messages import keys_of
from ecgl_scale.config.presets import BEFORE, PRESETS
from ecgl_scale.config.schema import (
    NOT_IN_DIGEST,
    RunConfig,
    changed_keys,
    config_class,
    config_from_mapping,
    load_config,
)
from ecgl_scale.config.text import dump_yaml, parse_yaml
from ecgl_scale.errors import UsageError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "configuration.md"
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
MINIMAL = {"store": "graph.ecgl"}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def every_key() -> list[str]:
    sections = keys_of(config_class().model_json_schema())
    return [f"{section}.{key}" if section else key for section, keys in sections.items() for key in keys]


def value_of(config: RunConfig, key: str) -> Any:
    section, _, name = key.rpartition(".")
    mapping = config.to_mapping()
    return (mapping[section] if section else mapping)[name]


# Where a value comes from


def test_the_contract_of_the_interface_loads(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
store: arxiv.ecgl
method: ecgl
preset: plus
setting: class-il
seed: 0
memory: 8GiB
tasks:  {kind: class, classes_per_task: 4, column: null, split: seeded, fractions: [0.6, 0.2, 0.2],
         inter_task_edges: false, eval_scope: task}
learn:  {hidden: [256], encoder: gcn, train_as: mlp, features: raw, epochs: 200, lr: 0.005, weight_decay: 0.0005,
         lambda: 1.0, balance: unified, batching: full, batch_rows: 8000, device: auto}
bank:   {budget: 3000, diversity_ratio: 0.25, importance: true, diversity: true, quota: class, select: herding}
rank:   {damping: 0.85, gamma: null, tol: 1.0e-8, max_iter: 100, dangling: uniform, features: raw}
infer:  {backend: auto, norm: sym, partitioner: contiguous, partitions: auto}
""",
    )
    config = load_config(path)
    assert (config.store, config.memory, config.tasks.classes_per_task) == (Path("arxiv.ecgl"), "8GiB", 4)
    assert (config.learn.hidden, config.learn.lambda_, config.rank.tol) == ((256,), 1.0, 1e-8)
    plain = config_from_mapping({**MINIMAL, "store": "arxiv.ecgl", "memory": "8GiB"}, overrides=["bank.budget=3000"])
    assert config.learn == plain.learn
    assert config.bank == plain.bank


def test_the_defaults_are_those_of_the_preset_plus() -> None:
    given = config_from_mapping(MINIMAL)
    assert given.preset == "plus"
    for section, values in PRESETS["plus"].items():
        model = type(getattr(given, section))
        assert getattr(given, section) == model()
        assert values.keys() <= model.model_fields.keys()
    assert config_class()(store=Path("graph.ecgl")) == given


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_fills_in_what_is_not_given(name: str) -> None:
    config = config_from_mapping({**MINIMAL, "preset": name})
    for section, values in PRESETS[name].items():
        for key, value in values.items():
            assert value_of(config, f"{section}.{key}") == value
    assert PRESETS[name].keys() == PRESETS["plus"].keys()
    assert all(PRESETS[name][section].keys() == PRESETS["plus"][section].keys() for section in PRESETS[name])


def test_the_presets_differ_as_the_protocol_says() -> None:
    paper, reference = (config_from_mapping({**MINIMAL, "preset": name}) for name in ("paper", "reference"))
    assert (paper.learn.balance, paper.learn.reduction, paper.bank.quota) == ("none", "sum", "none")
    assert (paper.infer.norm, paper.rank.features, paper.rank.dangling) == ("sym", "raw", "uniform")
    assert (reference.learn.balance, reference.learn.replay_slice, reference.learn.init) == (
        "reference",
        "seen",
        "kaiming",
    )
    assert (reference.infer.norm, reference.rank.features, reference.rank.dangling) == ("sum", "logits", "reset")
    assert (reference.rank.norm, reference.rank.tol, reference.rank.max_iter) == ("l2", 1e-10, 1000)


def test_a_given_key_wins_over_the_preset_wherever_the_preset_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "learn: {balance: task, reduction: mean}\nstore: a\nrank: {tol: 1e-3}\npreset: paper\n")
    config = load_config(path)
    assert (config.learn.balance, config.rank.tol, config.bank.quota) == ("task", 1e-3, "none")
    other = load_config(path, ["preset=reference", "rank.norm=l1"])
    assert (other.learn.balance, other.rank.norm, other.rank.features) == ("task", "l1", "logits")


def test_overrides_win_over_the_file_and_the_last_one_over_the_others(tmp_path: Path) -> None:
    path = write(tmp_path, "store: a.ecgl\nlearn:\n  epochs: 5\n  lr: 0.1\n")
    config = load_config(
        path,
        [
            "learn.epochs=6",
            "learn.epochs=7",
            "learn.lambda=1e-1",
            "learn.hidden=[8, 4]",
            "learn.features=propagated:2",
            "bank.select=ecgl",
            "bank.importance=false",
            "memory=2GiB",
            "tasks={kind: time, column: year}",
            "store=b.ecgl",
            "infer.partitions=3",
            "rank.gamma=",
        ],
    )
    assert (config.learn.epochs, config.learn.lr, config.learn.lambda_) == (7, 0.1, 0.1)
    assert (config.learn.hidden, config.learn.num_hops, config.bank.importance) == ((8, 4), 2, False)
    assert (config.memory, config.tasks.column, config.store) == ("2GiB", "year", Path("b.ecgl"))
    assert (config.infer.partitions, config.rank.gamma) == (3, None)


def test_an_override_leaves_the_given_mapping_alone() -> None:
    mapping = {**MINIMAL, "learn": {"epochs": 5}}
    config_from_mapping(mapping, overrides=["learn.epochs=6", "learn.lr=1"])
    assert mapping == {**MINIMAL, "learn": {"epochs": 5}}


def test_an_empty_section_is_like_a_missing_one(tmp_path: Path) -> None:
    path = write(tmp_path, "store: graph.ecgl\nlearn:\n#  epochs: 5\ntasks:\n")
    assert load_config(path) == config_from_mapping(MINIMAL)
    assert load_config(path, ["learn.epochs=3"]).learn.epochs == 3


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "+1e-3", "1.e-3", ".1e-2", "0.001", "10e-4", "1_0e-4"])
def test_a_number_with_an_exponent_is_a_number(text: str, tmp_path: Path) -> None:
    assert load_config(write(tmp_path, f"store: a\nlearn: {{lr: {text}}}")).learn.lr == pytest.approx(1e-3)
    assert config_from_mapping(MINIMAL, overrides=[f"learn.lr={text}"]).learn.lr == pytest.approx(1e-3)


def test_memory_may_be_a_plain_number_of_bytes() -> None:
    assert config_from_mapping({**MINIMAL, "memory": 1 << 30}).memory == str(1 << 30)


def test_a_config_cannot_be_changed() -> None:
    config = config_from_mapping(MINIMAL)
    with pytest.raises(ValueError, match="frozen"):
        config.learn.epochs = 3  # type: ignore[misc]
    assert hash(config) == hash(config_from_mapping(MINIMAL))


# The resolved config


@pytest.mark.parametrize("preset", PRESETS)
def test_a_resolved_config_has_every_key_and_loads_as_itself(preset: str, tmp_path: Path) -> None:
    config = config_from_mapping(
        {**MINIMAL, "preset": preset, "threads": 2, "cache": "a b/c", "tasks": {"class_order": [2, 0, 1]}}
    )
    text = config.to_yaml()
    resolved = parse_yaml(text, where="text")
    assert load_config(write(tmp_path, text)) == config
    found = {f"{top}.{key}" for top, inner in resolved.items() if isinstance(inner, dict) for key in inner}
    assert found | {top for top, inner in resolved.items() if not isinstance(inner, dict)} == set(every_key())


@given(
    store=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1).filter(str.strip),
    column=st.one_of(
        st.text(min_size=1), st.sampled_from(["1e3", "null", "no", "12", "2020-01-01", "-.5E+7", "<<", "~"])
    ),
    tol=st.floats(0, 1e300),
    lr=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    seed=st.integers(0, 2**63 - 1),
    hidden=st.lists(st.integers(1, 2**40), max_size=4),
)
def test_any_value_survives_yaml(store: str, column: str, tol: float, lr: float, seed: int, hidden: list[int]) -> None:
    config = config_from_mapping(
        {
            "store": store,
            "seed": seed,
            "tasks": {"kind": "time", "column": column},
            "rank": {"tol": tol},
            "learn": {"lr": lr, "hidden": hidden},
        }
    )
    assert config_from_mapping(parse_yaml(config.to_yaml(), where="text")) == config


def test_the_digest_is_of_what_changes_results() -> None:
    plain = config_from_mapping(MINIMAL, overrides=["tasks.eval_scope=task"])  # as `keep_tests` has it
    same = ["memory=3GiB", "threads=7", "cache=there", "learn.block_rows=9", "learn.device=cpu", "infer.backend=torch"]
    same += ["infer.partitioner=ldg", "infer.partitions=5", "engine.ranks=4", "engine.workers=3"]
    same += ["engine.scheduler=there.json", "engine.worker_memory=1GiB", "engine.worker_threads=2", "engine.tls=keys"]
    same += ["tasks.keep_tests=true"]
    assert {text.partition("=")[0] for text in same} == set(NOT_IN_DIGEST)
    assert config_from_mapping(MINIMAL, overrides=same).digest() == plain.digest()
    assert len(plain.digest()) == 64
    others = ["store=b", "method=joint", "preset=paper", "setting=task-il", "seed=1", "learn.lambda=0.5", "rank.tol=0"]
    others += ["tasks.classes_per_task=3", "bank.refill=false", "infer.norm=mean", "learn.hidden=[256, 256]"]
    digests = {config_from_mapping(MINIMAL, overrides=[text]).digest() for text in others}
    assert len(digests | {plain.digest()}) == len(others) + 1


@pytest.mark.parametrize(
    ("overrides", "digest"),
    [
        (("learn.head=whole",), "d21cebee3b2b9ac030f45db652441e7b18fe464ecbb086058a64f210f14bccfb"),
        (
            ("method=finetune", "preset=paper", "learn.head=whole"),
            "07bb1da9c32280359baa8cbc493ec64e491daf3468197f8afca1f8b799271e07",
        ),
        (
            ("method=dygrain", "preset=reference", "setting=task-il"),
            "f116fe6c0028612462e0ba3e89308cdf165ee0da44ddaccc5fb1fd7b29ee5ed6",
        ),
        (
            ("method=ewc", "ewc.lambda=3", "learn.epochs=7", "learn.head=whole"),
            "76fe08d6f5c47786666fecfb3856e3bfb69b0f12594319c567784da073efd729",
        ),
        (
            ("method=ecgl_scale.learn.methods.ewc:Ewc", "learn.head=whole"),
            "97a4b8813c07d6131a69c413336cf48c83979f7f2fbc04863acac828e3cab220",
        ),
        (
            ("cat.hidden=[4, 5]", "cat.real_nodes=7", "method=cat", "gem.reference=true", "learn.head=whole"),
            "52f512423b418888b56a995f8e6b38b3970388ee5d940f1872d546bb9823e20b",
        ),
    ],
)
def test_digests_are_what_they_were_so_that_runs_begun_before_go_on(overrides: tuple[str, ...], digest: str) -> None:
    then = ("tasks.eval_scope=task", "bank.select=ecgl", "learn.last_layer=trained", *overrides)
    assert config_from_mapping({"store": "a.ecgl"}, overrides=then).digest() == digest


def test_a_run_that_was_begun_with_a_whole_head_does_not_go_on_with_one_that_grows() -> None:
    grow, whole = (config_from_mapping(MINIMAL, overrides=[f"learn.head={head}"]) for head in ("grow", "whole"))
    assert grow.digest() != whole.digest()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("missing", [("last_layer",), ("head", "last_layer")])
def test_a_run_that_was_begun_before_there_were_keys_goes_on_without_them(
    preset: str, missing: tuple[str, ...]
) -> None:
    then = [f"preset={preset}", "learn.epochs=7", "bank.select=ecgl"]
    then += [f"learn.{key}={BEFORE['learn'][key]}" for key in missing]
    began = config_from_mapping(MINIMAL, overrides=then)
    written = began.to_mapping()
    for key in missing:
        del written["learn"][key]
    assert config_from_mapping(written) == began
    del written["learn"]["lr"]  # no run has written this, so what is not in it is the preset's
    assert config_from_mapping(written).learn.last_layer == PRESETS[preset]["learn"]["last_layer"]


def test_the_digest_does_not_depend_on_how_a_value_was_written() -> None:
    one = config_from_mapping({**MINIMAL, "learn": {"lambda": 1, "lr": 0.005}})
    other = config_from_mapping({"learn": {"lr": 5e-3}, "preset": "plus", **MINIMAL})
    assert one.digest() == other.digest()


@pytest.mark.parametrize("preset", PRESETS)
def test_changed_keys_are_those_that_neither_the_preset_nor_the_defaults_explain(preset: str) -> None:
    elsewhere = ["store=b", "method=gem", f"preset={preset}", "setting=task-il", "seed=3", "memory=3GiB", "threads=7"]
    elsewhere += ["cache=there", "learn.device=cpu", "learn.lambda=1"]
    assert changed_keys(config_from_mapping(MINIMAL, overrides=elsewhere)) == []
    changes = ["gem.memory_nodes=3", "learn.lambda=0", "bank.refill=" + ("true" if preset == "paper" else "false")]
    found = changed_keys(config_from_mapping(MINIMAL, overrides=[*elsewhere, *changes]))
    refill = [] if preset == "reference" else ["bank.refill"]
    assert sorted(found) == sorted(["gem.memory_nodes", "learn.lambda", *refill])


# Files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("store: a\nlearn: {epochs: 5\n", ["not valid YAML", "line 3"]),
        ("store: a\n\tseed: 1\n", ["not valid YAML", "line 2"]),
        ("store: a\nseed: 1\nseed: 2\n", ["'seed' stands here twice", "line 3, column 1"]),
        ("store: a\nlearn: {lr: 1, lr: 2}\n", ["'lr' stands here twice", "line 2"]),
        ("store: !!python/object/apply:os.getcwd []\n", ["not valid YAML", "line 1"]),
        ("store: a\n---\nstore: b\n", ["not valid YAML", "line 2"]),
        ("? [a]\n: b\n", ["not valid YAML"]),
        ("store: 2020-13-45\n", ["not valid YAML"]),
        ("store: a\x01b\n", ["not valid YAML"]),
        (f"store: a\nseed: {'9' * 5000}\n", ["not valid YAML"]),
        (f"store: {'[' * 5000}\n", ["not valid YAML"]),
        (f"store: {'[' * 500}{']' * 500}\n", ["store is [", "expected: path"]),
        (f"store: {'[' * 1050}{']' * 1050}\n", ["store is nested too deep", "expected: path"]),
        ("store: &a [*a]\n", ["store is [", "expected: path"]),
        ("", ["is empty"]),
        ("# nothing\n", ["is empty"]),
        ("- store\n", ["holds a list"]),
        ("store\n", ["holds a str"]),
    ],
)
def test_a_file_that_holds_no_config_is_refused_with_the_place(text: str, words: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_config(path)
    message = str(caught.value)
    assert all(word in message for word in [*words, str(path)]), message


def test_a_missing_file_a_folder_and_a_file_of_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such config") as caught:
        load_config(tmp_path / "none.yaml")
    assert str(tmp_path / "none.yaml") in str(caught.value)
    with pytest.raises(UsageError, match="directory"):
        load_config(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"store: \xff\xfe")
    with pytest.raises(UsageError, match="not text"):
        load_config(tmp_path / "bytes.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (1 << 21))
    with pytest.raises(UsageError, match="the config has 2 MiB"):
        load_config(tmp_path / "large.yaml")


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(b"\xef\xbb\xbfstore: graph.ecgl\r\nseed: 3\r\n")
    assert load_config(tmp_path / "run.yaml").seed == 3


def test_text_that_looks_like_a_number_is_quoted() -> None:
    assert parse_yaml(dump_yaml({"a": "1e3", "b": 1e3, "c": "x"}), where="text") == {"a": "1e3", "b": 1e3, "c": "x"}


def test_loading_a_config_loads_nothing_heavy() -> None:
    code = "import sys, json, ecgl_scale.config.schema; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert {"torch", "dgl", "zarr", "dask", "numba", "numpy", "pyarrow"} & set(json.loads(done.stdout)) == set()


# The configs and the page that come with the project


def test_there_is_a_config_for_each_known_graph() -> None:
    assert {"demo", "corafull", "arxiv", "reddit", "products", "papers100m"} <= {path.stem for path in CONFIGS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_each_config_of_the_project_loads(path: Path) -> None:
    config = load_config(path)
    assert (config.store, config.method, config.preset) == (Path(f"{path.stem}.ecgl"), "ecgl", "plus")
    for preset in PRESETS:
        load_config(path, [f"preset={preset}", "setting=task-il"])


@pytest.mark.parametrize(
    ("name", "classes_per_task", "budget"),
    [("corafull", 5, 1000), ("arxiv", 4, 3000), ("reddit", 4, 5000), ("products", 2, 5000), ("papers100m", 10, 5000)],
)
def test_the_configs_have_the_papers_hyper_parameters(name: str, classes_per_task: int, budget: int) -> None:
    config = load_config(ROOT / "configs" / f"{name}.yaml")
    assert (config.tasks.classes_per_task, config.bank.budget) == (classes_per_task, budget)
    learn = config.learn
    assert (learn.hidden, learn.epochs, learn.lr, learn.weight_decay, learn.lambda_) == ((256,), 200, 5e-3, 5e-4, 1.0)
    assert (learn.batch_rows, config.bank.diversity_ratio, config.rank.damping) == (8000, 0.25, 0.85)


def test_the_page_about_configs_is_up_to_date() -> None:
    update = "from pathlib import Path; from ecgl_scale.config.docs import update_page; update_page(Path('{}'))"
    assert configuration_table() in PAGE.read_text(encoding="utf-8"), f'run python -c "{update.format(PAGE)}"'


def test_the_page_calls_a_reconstruction_so_where_methods_are_named() -> None:
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `method` |"))
    assert "`dygrain` as a reconstruction" in row


def test_each_key_has_a_row_with_its_meaning() -> None:
    rows = [line for line in configuration_table().splitlines() if line.startswith("| `")]
    for key in every_key():
        row = next(row for row in rows if row.startswith(f"| `{key}` |"))
        assert len(row.split(" | ")) == 4
        assert row.rstrip(" |").endswith(".")
    assert all(f"`{key}`" in PAGE.read_text(encoding="utf-8") for key in NOT_IN_DIGEST)


def test_the_page_is_updated_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text(encoding="utf-8").replace("learn.epochs", "learn.rounds"), encoding="utf-8")
    update_page(page)
    text = page.read_text(encoding="utf-8")
    assert configuration_table() in text
    assert "did you mean learn.rounds" in text
    update_page(page)
    assert page.read_text(encoding="utf-8") == text
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(UsageError, match="where the tables go"):
        update_page(page)

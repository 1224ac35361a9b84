"""An update that is killed at any rename leaves the old model or the new one, serves, and goes on to the same end."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ecgl_scale.session.basis import Basis
from ecgl_scale.session.run import run
from tests.faults.running import RENAMES, copy_at_calls, kill_at_rename, run_cli, start_child
from tests.session.growing import append_part
from tests.session.streams import config_of, draw_graph
from tests.session.test_update import check_same

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that has grown, a model of its first generation, and that model updated by nobody disturbed."""
    folder = tmp_path_factory.mktemp("trained")
    store, drawn = folder / "graph.ecgl", draw_graph()
    append_part(store, drawn, 0)
    keys = ("tasks.kind=generation", "tasks.eval_scope=both", "learn.epochs=2", "bank.budget=20")
    run(config_of(store, None, *keys), folder / "model")
    append_part(store, drawn, 1)
    assert run_cli("--quiet", "infer", folder / "model", store, "--out", folder / "old.parquet").code == 0
    assert run_cli("--quiet", "update", folder / "model", store, "--out", folder / "updated").code == 0
    return folder


def check_serving(trained: Path, model: Path, predicted: Path) -> int:
    """How many tasks the model knows; as long as it is the old one, it predicts what it did."""
    assert run_cli("--quiet", "infer", model, trained / "graph.ecgl", "--out", predicted).code == 0
    known = Basis.open(model).num_tasks
    is_as_before = pq.read_table(predicted).equals(pq.read_table(trained / "old.parquet"))
    assert is_as_before == (known == 1)
    return known


def check_goes_on(trained: Path, model: Path, command: tuple[object, ...]) -> None:
    ran = run_cli(*command)
    assert ran.code == 0, ran.stderr
    check_same(model / "versions" / "0001", trained / "updated")
    assert [path.name for path in (model / "versions").iterdir()] == ["0001"]


def test_at_every_rename_replacement_and_link_the_old_model_serves_and_resume_ends_the_same(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the model at each of these moments is what a kill at it leaves; each is served and resumed."""
    model = Path(shutil.copytree(trained / "model", tmp_path / "model"))
    command = ("--quiet", "update", model, trained / "graph.ecgl", "--out", model, "--resume")
    with monkeypatch.context() as patch:
        taken = copy_at_calls(patch, RENAMES, model, tmp_path)
        assert run_cli(*command).code == 0
    assert len(taken) > 20
    known = []
    for copy in taken:
        shutil.rmtree(model)
        copy.rename(model)  # back to its name, which the update knows it by
        known.append(check_serving(trained, model, tmp_path / "found.parquet"))
        check_goes_on(trained, model, command)
    assert known == sorted(known)
    assert known[0] == 1


@pytest.mark.parametrize("number", [1, 9, 17, 25])
def test_a_killed_process_leaves_what_such_a_copy_has(trained: Path, tmp_path: Path, number: int) -> None:
    model = Path(shutil.copytree(trained / "model", tmp_path / "model"))
    command = ("--quiet", "update", model, trained / "graph.ecgl", "--out", model, "--resume")
    child = start_child(kill_at_rename, (number,), *command)
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert check_serving(trained, model, tmp_path / "found.parquet") == 1
    check_goes_on(trained, model, command)

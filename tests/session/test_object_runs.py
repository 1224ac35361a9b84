"""Runs whose store, cache and directory are on an object store give what local ones give, also on another machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from ecgl_scale.base.events import EpochFinished, Event, TaskFinished, TaskStarted
from ecgl_scale.config.schema import RunConfig, load_config
from ecgl_scale.errors import EcglError, ExitCode, InvalidInputError, StopRequestedError, StoreExistsError
from ecgl_scale.session import remote_run
from ecgl_scale.session.remote_run import run_at
from ecgl_scale.session.run import run
from tests.cli_runner import run_cli
from tests.object_server import Bucket
from tests.session.streams import config_of, read_json, without_clocks, write_config
from tests.store.graphs import bytes_of

SETTINGS = ("learn.epochs=3", "learn.hidden=[24]", "learn.device=cpu")


@pytest.fixture(scope="module")
def finished(store: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed run on a disk."""
    path = tmp_path_factory.mktemp("finished") / "run"
    run(config_of(store, cache, *SETTINGS), path)
    return path


@pytest.fixture
def config(bucket: Bucket, store: Path) -> RunConfig:
    """The same run of the same store at a URL, which keeps its task graphs at a URL too."""
    for name, data in bytes_of(store).items():
        bucket.put(f"graph.ecgl/{name}", data)
    return config_of(Path(f"s3://{bucket.name}/graph.ecgl"), Path(f"s3://{bucket.name}/cache"), *SETTINGS)


def on_another_machine(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the local disk is there any more."""
    monkeypatch.setenv("ECGL_CACHE_DIR", str(bucket.cache.with_name("another-machine")))
    bucket.server.requests.clear()


def stop_at(kind: type[Event], number: int) -> Callable[[Event], None]:
    """Stops a run at the n-th event of a kind, as a signal would."""
    seen: list[Event] = []

    def listen(event: Event) -> None:
        seen.extend([event] if isinstance(event, kind) else [])
        if len(seen) == number and isinstance(event, kind):
            raise StopRequestedError("stopped by the test")

    return listen


def same(there: dict[str, Any], here: Path) -> bool:
    """Whether results are those of a run of the same store under another name."""
    names = {"store": "", "config_digest": ""}
    return {**without_clocks(there), **names} == {**without_clocks(read_json(here / "results.json")), **names}


def weights(content: bytes) -> dict[str, bytes]:
    """Tensors of a file; what it says about them comes in any order."""
    return {name: tensor.tobytes() for name, tensor in safetensors.numpy.load(content).items()}


def test_the_config_keeps_the_urls_as_they_were_given(config: RunConfig, bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "config.yaml") == config
    assert config.to_mapping()["store"] == f"s3://{bucket.name}/graph.ecgl"
    assert config.to_mapping()["cache"] == f"s3://{bucket.name}/cache"


def test_store_cache_and_run_may_all_be_at_urls(
    bucket: Bucket, config: RunConfig, store: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    out = f"s3://{bucket.name}/runs/first"
    ran = run_cli("run", tmp_path / "config.yaml", "--out", out, "--json")
    assert ran.code == 0, ran.stderr
    assert same(json.loads(ran.stdout), finished)
    found = bucket.objects("runs/first/")
    kept = bytes_of(finished)
    assert {name for name in kept if not name.startswith(".")} == found.keys()
    assert weights(found["weights/model.safetensors"]) == weights(kept["weights/model.safetensors"])
    assert found["bank.arrow"] == kept["bank.arrow"]
    assert not list((bucket.cache / "runs").rglob("results.json"))
    task_graphs = {key.split("/")[0] for key in bucket.objects("cache/")}
    assert len(task_graphs) == 3  # of three tasks, each tested on its own

    on_another_machine(bucket, monkeypatch)
    again = run_cli("run", tmp_path / "config.yaml", "--out", f"s3://{bucket.name}/runs/second", "--json")
    assert same(json.loads(again.stdout), finished)
    assert not [name for name in bucket.asked_for("PUT") if name.startswith("cache/")]
    assert [name for name in bucket.asked_for() if name.startswith("cache/") and name.endswith(".arrow")]

    for model, graph, name in ((out, config.store, "there"), (finished, store, "here")):
        inferred = run_cli("infer", model, graph, "--out", tmp_path / name)
        assert inferred.code == 0, inferred.stderr
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()


@pytest.mark.parametrize(("kind", "number"), [(EpochFinished, 2), (TaskFinished, 1), (TaskStarted, 3)])
def test_a_run_that_was_stopped_goes_on_on_another_machine(
    bucket: Bucket, config: RunConfig, finished: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, number: int
) -> None:
    monkeypatch.setattr("ecgl_scale.session.checkpoint.SECONDS_BETWEEN", 0.0)
    out = bucket.url("runs/stopped")
    with pytest.raises(StopRequestedError):
        run_at(config, out, on_event=stop_at(kind, number))
    assert ".saved/index.json" in bucket.objects("runs/stopped/")
    with pytest.raises(StoreExistsError, match="--resume"):
        run_at(config, out)
    on_another_machine(bucket, monkeypatch)
    tasks: list[Event] = []
    results = run_at(config, out, resume=True, on_event=tasks.append)
    assert same(results, finished)
    begun = [event.task for event in tasks if isinstance(event, TaskStarted)]
    assert begun == list(range(2 if kind is TaskStarted else 0, 3))
    found = bucket.objects("runs/stopped/")
    assert not [name for name in found if name.startswith(".saved")]
    wanted = (finished / "weights" / "model.safetensors").read_bytes()
    assert weights(found["weights/model.safetensors"]) == weights(wanted)
    assert run_at(config, out, resume=True) == results  # it is finished, and says so again


def test_a_machine_that_was_overtaken_takes_what_is_at_the_url(
    bucket: Bucket, config: RunConfig, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, slow = bucket.url("runs/two"), bucket.cache
    with pytest.raises(StopRequestedError):
        run_at(config, out, on_event=stop_at(TaskFinished, 1))
    on_another_machine(bucket, monkeypatch)
    with pytest.raises(StopRequestedError):
        run_at(config, out, resume=True, on_event=stop_at(TaskStarted, 3))
    monkeypatch.setenv("ECGL_CACHE_DIR", str(slow))
    begun: list[Event] = []
    assert same(run_at(config, out, resume=True, on_event=begun.append), finished)
    assert [event.task for event in begun if isinstance(event, TaskStarted)] == [2]


def test_a_run_is_saved_while_it_goes_on(
    bucket: Bucket, config: RunConfig, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_run, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(remote_run, "LOOK_SECONDS", 0.01)
    saved: list[str] = []

    def wait_until_saved(event: Event) -> None:
        if isinstance(event, TaskStarted) and event.task > 0:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and len(saved) < event.task:
                index = bucket.read("runs/going/.saved/index.json").decode()
                saved.extend([index] if index and index not in saved else [])
                time.sleep(0.01)

    assert same(run_at(config, bucket.url("runs/going"), on_event=wait_until_saved), finished)
    assert len(saved) >= 2
    assert "state.json" in json.loads(saved[0])["files"]


def test_a_run_that_cannot_be_saved_meanwhile_still_ends_well(
    bucket: Bucket, config: RunConfig, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ecgl_scale.base.objects.client.MAX_RETRIES", 0)
    monkeypatch.setattr(remote_run, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(remote_run, "LOOK_SECONDS", 0.01)
    bucket.server.answer = lambda method, path: 500 if method == "PUT" and "/.saved/" in path else None
    warned: list[str] = []
    monkeypatch.setattr(remote_run._log, "warning", lambda text, *about: warned.append(text % about))

    def wait(event: Event) -> None:
        deadline = time.monotonic() + 30
        while isinstance(event, TaskFinished) and not warned and time.monotonic() < deadline:
            time.sleep(0.01)

    assert same(run_at(config, bucket.url("runs/unsaved"), on_event=wait), finished)
    assert len(warned) == 1
    assert warned[0].startswith(f"the run is not saved at s3://{bucket.name}/runs/unsaved for now: ")


def test_a_run_that_was_never_saved_leaves_nothing_in_the_way(bucket: Bucket, config: RunConfig) -> None:
    out = bucket.url("runs/early")
    bucket.server.answer = lambda method, path: 403 if method == "PUT" else None
    with pytest.raises(EcglError):
        run_at(config, out)
    bucket.server.answer = lambda *_: None
    assert run_at(config, out)["num_tasks"] == 3


def test_a_damaged_index_or_object_is_refused(
    bucket: Bucket, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = bucket.url("runs/damaged")
    with pytest.raises(StopRequestedError):
        run_at(config, out, on_event=stop_at(TaskFinished, 1))
    on_another_machine(bucket, monkeypatch)
    index = json.loads(bucket.get("runs/damaged/.saved/index.json"))
    state = f"runs/damaged/.saved/{index['files']['state.json'][0]}"
    content = bucket.get(state)
    bucket.put(state, content.replace(b"1", b"2"))
    with pytest.raises(EcglError, match="does not have the bytes") as refused:
        run_at(config, out, resume=True)
    assert refused.value.exit_code == 3
    bucket.put(state, content)
    index["files"]["../../outside"] = index["files"]["state.json"]
    for broken in (json.dumps(index), "[]", "{"):
        bucket.put("runs/damaged/.saved/index.json", broken.encode())
        with pytest.raises(InvalidInputError, match="index of a saved run"):
            run_at(config, out, resume=True)


def test_what_somebody_else_keeps_there_is_no_run(bucket: Bucket, config: RunConfig) -> None:
    bucket.put("runs/photos/summer.jpg", b"us")
    for resume in (False, True):
        with pytest.raises(StoreExistsError):
            run_at(config, bucket.url("runs/photos"), resume=resume)
    assert bucket.objects("runs/photos/") == {"summer.jpg": b"us"}


def test_a_cached_task_graph_that_is_damaged_is_made_again(
    bucket: Bucket, config: RunConfig, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(config, tmp_path / "first")
    key = next(key for key in bucket.objects("cache/") if key.endswith("edges/00000.arrow"))
    whole = bucket.get(f"cache/{key}")
    bucket.delete(f"cache/{key}")
    on_another_machine(bucket, monkeypatch)
    assert same(run(config, tmp_path / "second"), finished)
    assert bucket.get(f"cache/{key}") == whole


def test_where_a_file_system_is_needed_that_is_said_first(
    bucket: Bucket, config: RunConfig, finished: Path, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "run.yaml").write_text(config.to_yaml())
    sweep = write_config(tmp_path / "sweep.yaml", store, sweep={"seeds": [0]})
    url = f"s3://{bucket.name}/elsewhere"
    commands: list[tuple[object, ...]] = [
        ("rank", store, "--out", f"{url}/scores.parquet", "--ignore-features"),
        ("infer", finished, store, "--out", f"{url}/predictions.parquet"),
        ("run", tmp_path / "run.yaml", "--out", url, "--memray"),
        ("sweep", sweep, "--out", url),
        ("run", tmp_path / "run.yaml", "--out", url, "--ranks", 2),
        ("slurm", tmp_path / "run.yaml", "--out", url, "--engine", "dask", "--nodes", 2),
        ("slurm", tmp_path / "run.yaml", "--out", url, "--engine", "ranks", "--nodes", 2),
        ("update", url, store, "--out", tmp_path / "updated"),
        ("update", finished, store, "--out", url),
        ("forget", url, "--out", tmp_path / "forgotten", "--class", 1),
        ("forget", finished, "--out", url, "--class", 1),
        ("drop", url, "--nodes", tmp_path / "nodes.csv"),
        ("compact", url),
        ("report", url),
        ("report", finished, "--html", f"{url}/page.html"),
        ("status", url),
    ]
    bucket.server.requests.clear()
    for command in commands:
        ran = run_cli(*command)
        assert (ran.code, "needs a file system" in ran.stderr, url in ran.stderr) == (ExitCode.USAGE, True, True), (
            command
        )
    assert bucket.server.requests == []
    assert not Path("s3:").exists()

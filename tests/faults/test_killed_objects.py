"""Processes that are killed while they put to, or fetch from, an object store; and two that fetch the same at once."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from ecgl_scale import GraphStore
from ecgl_scale.errors import IncompleteStoreError
from tests.faults.running import run_cli, start_child, write_graph
from tests.object_server import Bucket
from tests.session.streams import draw_graph, read_json, without_clocks, write_config, write_store

pytestmark = pytest.mark.faults


def with_environment(values: dict[str, str]) -> None:
    """In a child: the server and the mirror of the test."""
    os.environ.update(values)


def saves_often(values: dict[str, str]) -> None:
    """In a child: as above, and a run is saved at every change of its state."""
    from ecgl_scale.session import checkpoint, remote_run

    os.environ.update(values)
    checkpoint.SECONDS_BETWEEN = remote_run.SECONDS_BETWEEN = 0.0
    remote_run.LOOK_SECONDS = 0.001


def start(prepare: Callable[[dict[str, str]], None], *arguments: object) -> ForkServerProcess:
    own = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "ECGL_"))}
    return start_child(prepare, (own,), *arguments)


def kill_at(bucket: Bucket, child: list[ForkServerProcess], method: str, pattern: str, number: int) -> list[str]:
    """Have the server kill the child at the n-th request of a kind, before it is answered; gives those requests."""
    seen: list[str] = []

    def answer(asked: str, path: str) -> int | None:
        if asked == method and re.search(pattern, path):
            seen.append(path)
            if len(seen) == number:
                pid = child[0].pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                return 500
        return None

    bucket.server.answer = answer
    return seen


def end_of(child: ForkServerProcess) -> int | None:
    child.join(60)
    return child.exitcode


@pytest.fixture(scope="module")
def graph_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("graph") / "graph.npz")


@pytest.mark.parametrize(
    ("method", "pattern", "number"),
    [("PUT", "uploading", 1), ("PUT", "ecgl/", 3), ("PUT", "manifest", 1), ("POST", "", 2)],
)
def test_a_build_that_is_killed_leaves_no_half_store_and_its_rerun_finishes(
    bucket: Bucket, graph_file: Path, method: str, pattern: str, number: int
) -> None:
    assert run_cli("--quiet", "ingest", "npz", graph_file, f"s3://{bucket.name}/clean.ecgl").code == 0
    url = f"s3://{bucket.name}/graph.ecgl"
    child: list[ForkServerProcess] = []
    seen = kill_at(bucket, child, method, pattern, number)
    child.append(start(with_environment, "--quiet", "ingest", "npz", graph_file, url))
    assert end_of(child[0]) == -signal.SIGKILL
    assert len(seen) >= number  # others were on their way
    bucket.server.answer = lambda *_: None
    if bucket.read("graph.ecgl/manifest.json"):
        assert GraphStore.open(url).num_nodes == 3000
        assert run_cli("--quiet", "ingest", "npz", graph_file, url).code == 3
        assert run_cli("--quiet", "ingest", "npz", graph_file, url, "--overwrite").code == 0
    else:
        with pytest.raises(IncompleteStoreError):
            GraphStore.open(url)
        again = run_cli("--quiet", "ingest", "npz", graph_file, url)
        assert again.code == 0, again.stderr
    assert bucket.objects("graph.ecgl/") == bucket.objects("clean.ecgl/")


def test_a_fetch_that_is_killed_is_made_up_for(bucket: Bucket, graph_file: Path, tmp_path: Path) -> None:
    url = f"s3://{bucket.name}/graph.ecgl"
    assert run_cli("--quiet", "ingest", "npz", graph_file, url).code == 0
    os.environ["ECGL_CACHE_DIR"] = str(bucket.cache.with_name("empty"))  # the fixture puts it back
    child: list[ForkServerProcess] = []
    kill_at(bucket, child, "GET", "tiles/", 1)
    child.append(start(with_environment, "--quiet", "rank", url, "--out", tmp_path / "scores.parquet"))
    assert end_of(child[0]) == -signal.SIGKILL
    bucket.server.answer = lambda *_: None
    ran = run_cli("--quiet", "rank", url, "--out", tmp_path / "scores.parquet")
    assert ran.code == 0, ran.stderr
    assert not list(bucket.cache.with_name("empty").rglob("*.partial"))


def test_two_processes_that_want_the_same_files_fetch_each_once(
    bucket: Bucket, graph_file: Path, tmp_path: Path
) -> None:
    url = f"s3://{bucket.name}/graph.ecgl"
    assert run_cli("--quiet", "ingest", "npz", graph_file, url).code == 0
    os.environ["ECGL_CACHE_DIR"] = str(bucket.cache.with_name("empty"))
    bucket.server.requests.clear()
    children = [start(with_environment, "--quiet", "rank", url, "--out", tmp_path / name) for name in ("one", "two")]
    assert [end_of(child) for child in children] == [0, 0]
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    asked = Counter(bucket.asked_for())
    assert asked.pop("graph.ecgl/manifest.json") == 2
    assert set(asked.values()) == {1}
    assert {"graph.ecgl/tiles/00000.arrow", "graph.ecgl/features.zarr/c.0.0"} <= asked.keys()


@pytest.mark.parametrize("number", [2, 4])
def test_a_run_that_is_killed_goes_on_on_another_machine(bucket: Bucket, tmp_path: Path, number: int) -> None:
    store = write_store(tmp_path / "graph.ecgl", draw_graph())
    config = write_config(tmp_path / "run.yaml", store, learn={"hidden": [24], "epochs": 5, "device": "cpu"})
    assert run_cli("--quiet", "run", config, "--out", tmp_path / "clean").code == 0
    out = f"s3://{bucket.name}/runs/killed"
    child: list[ForkServerProcess] = []
    kill_at(bucket, child, "PUT", r"\.saved/index", number)
    child.append(start(saves_often, "--quiet", "run", config, "--out", out))
    assert end_of(child[0]) == -signal.SIGKILL
    bucket.server.answer = lambda *_: None
    os.environ["ECGL_CACHE_DIR"] = str(bucket.cache.with_name("another-machine"))
    ran = run_cli("--quiet", "run", config, "--out", out, "--resume")
    assert ran.code == 0, ran.stderr
    (tmp_path / "results.json").write_bytes(bucket.get("runs/killed/results.json"))
    assert without_clocks(read_json(tmp_path / "results.json")) == without_clocks(
        read_json(tmp_path / "clean" / "results.json")
    )

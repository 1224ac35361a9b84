"""The examples in ``configs/slurm`` are what ``ecgl slurm`` writes today; those in ``configs/k8s`` are well formed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from ecgl_scale.cli.main import app
from ecgl_scale.units import MIB
from tests.cli_runner import run_cli

CONFIGS = Path(__file__).parents[2] / "configs"
SCRIPTS = sorted((CONFIGS / "slurm").iterdir())
MANIFESTS = sorted((CONFIGS / "k8s").iterdir())
HELD_BYTES = 220 * MIB
"""What a new process holds; this one holds whatever the tests before have left."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the graph of the demo's config."""
    folder = tmp_path_factory.mktemp("demo")
    (folder / "configs").symlink_to(CONFIGS)
    shape = ("--nodes", 20000, "--classes", 10, "--features", 64, "--signal", 2, "--homophily", 0.6, "--seed", 0)
    assert run_cli("--quiet", "generate", "sbm", folder / "demo.ecgl", *shape).code == 0
    return folder


def without_peak(script: str) -> str:
    """Two processes never hold quite the same."""
    return re.sub(r"peak of [\d.]+ MiB", "peak of ... MiB", script)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_an_example_is_what_its_first_line_writes(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("ecgl_scale.session.plan.run_plan.own_memory_bytes", lambda: HELD_BYTES)
    shebang, command = path.read_text().splitlines()[:2]
    name, *arguments = shlex.split(command.removeprefix("# "))
    assert (shebang, name) == ("#!/bin/bash", "ecgl")
    written = run_cli(*arguments)
    assert written.code == 0, written.stderr
    assert without_peak(written.stdout) == without_peak(path.read_text())


def test_there_is_an_example_of_every_engine_and_system() -> None:
    assert {path.name for path in SCRIPTS} == {
        *("local.sbatch", "ranks.sbatch", "dask.sbatch"),
        *("local.pbs", "local.lsf", "local.sh"),
    }


def documents_of(path: Path) -> list[dict[str, Any]]:
    return [*yaml.safe_load_all(path.read_text())]


def pods_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    spec = document["spec"]
    if document["kind"] == "Job":
        return [spec["template"]["spec"]]
    return [spec["scheduler"]["spec"], spec["worker"]["spec"]]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_container_has_an_image_memory_and_the_volume_that_its_pod_names(path: Path) -> None:
    for document in documents_of(path):
        assert document["apiVersion"] == {"Job": "batch/v1", "DaskCluster": "kubernetes.dask.org/v1"}[document["kind"]]
        assert re.fullmatch(r"[a-z0-9-]+", document["metadata"]["name"])
        for pod in pods_of(document):
            claims = {volume["name"] for volume in pod["volumes"] if volume["persistentVolumeClaim"]["claimName"]}
            for container in pod["containers"]:
                assert container["image"]
                resources = container["resources"]
                assert resources["limits"]["memory"] == resources["requests"]["memory"]
                assert {mount["name"] for mount in container["volumeMounts"]} <= claims


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_command_in_a_manifest_is_one_of_ours_with_its_own_options(path: Path) -> None:
    commands: Any = typer.main.get_command(app)
    seen = set()
    for document in documents_of(path):
        for pod in pods_of(document):
            for container in pod["containers"]:
                words = container.get("command") or container["args"]
                assert all(isinstance(word, str) for word in words)
                known = {name for parameter in commands.commands[words[1]].params for name in parameter.opts}
                assert words[0] == "ecgl"
                assert {word for word in words[2:] if word.startswith("--")} <= known
                seen.add(words[1])
    assert "run" in seen


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_job_of_a_run_is_started_again_and_resumes(path: Path) -> None:
    jobs = [document for document in documents_of(path) if document["kind"] == "Job"]
    assert len(jobs) == 1
    pod = jobs[0]["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure"
    assert pod["terminationGracePeriodSeconds"] >= 60
    assert "--resume" in pod["containers"][0]["command"]


def test_the_service_of_the_scheduler_leads_to_its_port() -> None:
    cluster = documents_of(CONFIGS / "k8s" / "dask.yaml")[0]
    scheduler, worker = cluster["spec"]["scheduler"], cluster["spec"]["worker"]
    ports = {port["name"]: port["containerPort"] for port in scheduler["spec"]["containers"][0]["ports"]}
    name = cluster["metadata"]["name"]
    assert scheduler["service"]["selector"] == {"dask.org/cluster-name": name, "dask.org/component": "scheduler"}
    assert [ports[port["targetPort"]] for port in scheduler["service"]["ports"]] == [8786]
    listens, calls = scheduler["spec"]["containers"][0]["args"], worker["spec"]["containers"][0]["args"]
    assert listens[listens.index("--port") + 1] == "8786"
    assert f"tls://{name}-scheduler:8786" in calls
    assert listens[listens.index("--tls") + 1] == calls[calls.index("--tls") + 1]

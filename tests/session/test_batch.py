"""Scripts of jobs: what they ask for, by the plan; that a shell reads them; and what is refused."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from ecgl_scale.config.schema import load_config
from ecgl_scale.errors import UsageError
from ecgl_scale.session.batch.needs import JobNeeds, find_needs
from ecgl_scale.session.batch.script import JobRequest, format_time, parse_time, write_script
from ecgl_scale.session.plan.worker_plan import least_worker_memory
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.units import GIB, MIB
from tests.cli_runner import run_cli
from tests.session.streams import draw_graph, write_config, write_store

SYSTEMS, ENGINES = ("slurm", "pbs", "lsf", "shell"), ("local", "dask", "ranks")
VARIANTS = [*product(SYSTEMS, ENGINES)]
NEEDS = JobNeeds(
    peak_bytes=5 * GIB, process_gib=7, node_gib=7, cores=6, seconds=14400, estimated_seconds=None, has_gpu=False
)


def script_of(
    system: str, engine: str, *, needs: JobNeeds = NEEDS, out: str = "runs/one", options: tuple[str, ...] = ()
) -> str:
    nodes = 1 if engine == "local" or system == "shell" else 3
    request = JobRequest(["slurm", "a b.yaml"], Path("a b.yaml"), Path(out), options, nodes, engine, system)  # type: ignore[arg-type]
    return write_script(request, needs)


@pytest.fixture
def config(store: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "run.yaml", store)


@pytest.mark.parametrize(("system", "engine"), VARIANTS)
def test_a_shell_reads_every_script(system: str, engine: str, tmp_path: Path) -> None:
    path = tmp_path / "job"
    path.write_text(script_of(system, engine, options=("--set", "learn.epochs=5; rm -rf x")))
    checked = subprocess.run(["bash", "-n", path], capture_output=True, text=True, timeout=10, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert max(map(len, path.read_text().splitlines())) <= 125
    beside = Path(sys.executable).with_name("shellcheck")
    found = str(beside) if beside.exists() else shutil.which("shellcheck")
    if found is not None:
        linted = subprocess.run([found, "-s", "bash", path], capture_output=True, text=True, timeout=30, check=False)
        assert linted.stdout == ""


@pytest.mark.parametrize(("system", "engine"), VARIANTS)
def test_every_script_resumes_and_says_what_it_runs(system: str, engine: str) -> None:
    joined = script_of(system, engine, options=("--set", "seed=1")).replace("\\\n", " ")
    runs = [shlex.split(line.rstrip("&")) for line in joined.splitlines() if " ecgl run " in f" {line}"]
    assert len(runs) == 1
    words = runs[0][runs[0].index("ecgl") :]
    assert words[:8] == ["ecgl", "run", "a b.yaml", "--out", "$run", "--resume", "--set", "seed=1"]
    nodes = "1" if system == "shell" else "3"
    assert (
        words[8:]
        == {
            "local": [],
            "ranks": ["--ranks", nodes],
            "dask": ["--scheduler", "$scheduler", "--tls", "$cluster/tls", "--memory", "5734MiB"],
        }[engine]
    )
    assert ("ecgl worker" in joined) == ("ecgl scheduler" in joined) == (engine == "dask")
    assert ("export MASTER_ADDR" in joined) == (engine == "ranks")


def test_a_slurm_job_asks_for_what_the_plan_needs_and_is_warned_in_its_steps() -> None:
    script = script_of("slurm", "ranks")
    asked = re.findall(r"^#SBATCH --(.+)$", script, re.MULTILINE)
    assert asked == [
        "job-name=one",
        "nodes=3",
        "ntasks-per-node=1",
        "cpus-per-task=6",
        "mem=7G",
        "time=04:00:00",
        "signal=USR2@120",
        "requeue",
        "open-mode=append",
        "output=%x-%j.log",
    ]
    assert "--kill-on-bad-exit=0" in script
    assert script.index("#SBATCH --output") < script.index("set -u")


def test_pbs_and_lsf_are_asked_in_their_own_words() -> None:
    pbs, lsf = script_of("pbs", "ranks"), script_of("lsf", "ranks")
    assert "#PBS -l select=3:ncpus=6:mpiprocs=1:mem=7gb\n" in pbs
    assert "#PBS -l walltime=04:00:00\n" in pbs
    assert "--signal=USR2 14280" in pbs
    assert "#BSUB -n 18\n" in lsf
    assert '#BSUB -R "span[ptile=6] rusage[mem=7GB]"\n' in lsf
    assert "#BSUB -W 4:00\n" in lsf
    assert '#BSUB -Q "75"\n' in lsf


@pytest.mark.parametrize(
    ("system", "line"),
    [("slurm", "#SBATCH --gpus-per-node=1"), ("pbs", ":ngpus=1"), ("lsf", '#BSUB -gpu "num=1"')],
)
def test_a_run_on_a_gpu_asks_for_one(system: str, line: str) -> None:
    assert line in script_of(system, "local", needs=replace(NEEDS, has_gpu=True))
    assert line not in script_of(system, "local")


def test_names_with_spaces_and_quotes_are_quoted_and_line_breaks_refused() -> None:
    script = script_of("slurm", "local", out="runs/it's; new")
    assert "run='runs/it'\"'\"'s; new'\n" in script
    assert "#SBATCH --job-name=it-s-new\n" in script
    for bad in ("runs/a\nrm", "runs/\x1b"):
        with pytest.raises(UsageError, match="cannot stand in a script"):
            script_of("slurm", "local", out=bad)
    with pytest.raises(UsageError, match="cannot stand in a script"):
        script_of("slurm", "local", options=("--set", "a=1\nb"))


@pytest.mark.parametrize("text", ["4", "4:00", "04:60:00", "1-00:00:00", "", "04:00:00 ", "-1:00:00", "٠٤:00:00"])
def test_a_time_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HH:MM:SS"):
        parse_time(text)


def test_times_are_read_and_written() -> None:
    assert [parse_time(text) for text in ("00:05:00", "4:00:00", "100:00:01")] == [300, 14400, 360001]
    assert format_time(360001) == "100:00:01"
    with pytest.raises(UsageError, match="too short"):
        parse_time("00:04:59")


def test_memory_is_the_peak_and_a_third_and_the_budget_of_the_job_is_enough(config: Path) -> None:
    loaded = load_config(config)
    needs = find_needs(loaded, "local", cores=2, seconds=600)
    assert needs.process_gib * GIB >= needs.peak_bytes * 4 / 3
    assert needs.process_gib * GIB < needs.peak_bytes * 4 / 3 + GIB
    assert (needs.cores, needs.seconds, needs.node_gib) == (2, 600, needs.process_gib)
    assert needs.budget_mib << 20 >= needs.peak_bytes
    assert find_needs(loaded, "dask", cores=2, seconds=600).node_gib == 2 * needs.process_gib + 1
    given = find_needs(loaded.model_copy(update={"threads": 3, "memory": "3GiB"}), "dask", cores=None, seconds=600)
    assert (given.cores, given.process_gib) == (3, 4)
    ranks = loaded.model_copy(update={"engine": loaded.engine.model_copy(update={"ranks": 4})})
    assert find_needs(ranks, "local", cores=2, seconds=600).node_gib == 4 * needs.process_gib
    assert find_needs(ranks, "ranks", cores=2, seconds=600).node_gib == needs.process_gib


def test_a_job_of_ranks_asks_for_what_they_exchange_besides(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ecgl_scale.session.plan.run_plan.own_memory_bytes", lambda: 220 * MIB)  # a new process
    wide = ("--set", "learn.hidden=[2048,2048]", "--set", "threads=2")
    written = run_cli("slurm", config, *wide, "--nodes", 2, "--engine", "ranks", "--time", "01:00:00")
    (asked,) = re.findall(r"^#SBATCH --mem=(\d+)G$", written.stdout, re.MULTILINE)
    job = ("--memory", f"{int(asked) * 1024 * 4 // 5}MiB")  # 80 % of what the job is given, as in the job
    assert run_cli("plan", config, *wide, "--set", "engine.ranks=2", *job).code == 0


def test_a_job_of_workers_asks_for_what_one_of_them_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions of a wide network's test take more of a worker than training takes of the run itself."""
    monkeypatch.setattr("ecgl_scale.session.plan.run_plan.own_memory_bytes", lambda: 220 * MIB)  # a new process
    config = write_config(tmp_path / "run.yaml", write_store(tmp_path / "graph.ecgl", draw_graph(18_000)))
    loaded = load_config(config, ["learn.hidden=[2048,2048]", "tasks.eval_scope=both", "threads=8"])
    needed = least_worker_memory(RunSetup.open(loaded), 8)
    assert find_needs(loaded, "local", cores=8, seconds=600).budget_mib * MIB < needed
    assert find_needs(loaded, "dask", cores=8, seconds=600).budget_mib * MIB >= needed


def test_time_is_twice_the_estimate_in_quarters_of_an_hour(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for estimated, seconds in ((1.0, 1800), (900.0, 1800), (901.0, 2700), (5000.0, 10800)):
        monkeypatch.setattr(
            "ecgl_scale.session.batch.needs.with_times",
            lambda plan, _, each=estimated / 4: replace(
                plan, stages=tuple(replace(stage, seconds=each) for stage in plan.stages)
            ),
        )
        needs = find_needs(load_config(config), "local", cores=None, seconds=None)
        assert (needs.seconds, needs.estimated_seconds) == (seconds, pytest.approx(estimated))


def test_what_makes_no_job_exits_with_2_and_prints_nothing(config: Path) -> None:
    for options, said in (
        (("--nodes", "2"), "give --engine dask or --engine ranks"),
        (("--nodes", "2", "--engine", "dask", "--system", "shell"), "1 with --system shell"),
        (("--nodes", "0"), "--nodes"),
        (("--nodes", "17", "--engine", "ranks"), "17 ranks"),
        (("--nodes", "2", "--engine", "ranks", "--set", "learn.batching=minibatch"), "learn.batching=full"),
        (("--time", "12h"), "HH:MM:SS"),
        (("--set", "learn.epochs=many"), "learn.epochs"),
    ):
        refused = run_cli("slurm", config, *options)
        assert (refused.code, refused.stdout) == (2, ""), options
        assert said in refused.stderr


def test_a_config_that_does_not_fit_its_own_memory_exits_with_4_and_a_run_inside_a_store_with_3(
    config: Path, store: Path
) -> None:
    small = run_cli("slurm", config, "--memory", "16MiB", "--time", "01:00:00")
    assert (small.code, small.stdout) == (4, "")
    assert "give at least --memory" in small.stderr
    inside = run_cli("slurm", config, "--out", store / "run", "--time", "01:00:00")
    assert (inside.code, inside.stdout) == (3, "")


def test_a_run_at_a_url_keeps_it_in_the_script(config: Path) -> None:
    written = run_cli("slurm", config, "--out", "s3://bucket/runs/one", "--time", "01:00:00")
    assert written.code == 0, written.stderr
    assert "\nrun=s3://bucket/runs/one\n" in written.stdout
    assert "--job-name=one\n" in written.stdout


def test_without_batch_system_a_script_has_no_end_unless_it_is_given(config: Path) -> None:
    free = run_cli("slurm", config, "--system", "shell")
    timed = run_cli("slurm", config, "--system", "shell", "--time", "01:00:00")
    assert (free.code, timed.code) == (0, 0)
    assert "timeout" not in free.stdout
    assert "timeout --foreground --preserve-status --signal=USR2 3480" in timed.stdout

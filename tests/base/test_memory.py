"""Which limits are found around a process, what a budget makes of them, and what counts as our memory."""

from __future__ import annotations

import mmap
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ecgl_scale.base import memory
from ecgl_scale.base.memory import MemoryBudget, MemoryLimit, PeakSampler, find_limits, own_memory_bytes
from ecgl_scale.errors import DoesNotFitError, UsageError
from ecgl_scale.units import GIB, KIB, MIB, parse_bytes

V1_UNLIMITED = "9223372036854771712\n"


@pytest.fixture(autouse=True)
def _no_rlimits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Machine:
    """A made-up /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "sys"
        self.write(self.proc / "meminfo", "MemTotal: 33554432 kB\nMemAvailable:   16777216 kB\n")

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def membership(self, text: str) -> None:
        self.write(self.proc / "self" / "cgroup", text)

    def limit(self, place: str, text: str) -> None:
        self.write(self.cgroups / place, text)

    def limits(self, **environment: str) -> list[MemoryLimit]:
        return find_limits(proc=self.proc, cgroups=self.cgroups, environment=environment)

    def tightest(self, **environment: str) -> MemoryLimit:
        return min(self.limits(**environment), key=lambda limit: limit.limit_bytes)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_cgroups_the_available_memory_is_the_limit(machine: Machine) -> None:
    assert machine.limits() == [MemoryLimit(16 * GIB, "the machine's available memory")]


def test_a_v1_limit_on_an_ancestor_is_found(machine: Machine) -> None:
    machine.membership("5:cpu,cpuacct:/user/job\n4:memory:/slurm/job_7/step_0\n1:name=systemd:/init\n")
    machine.limit("memory/slurm/job_7/step_0/memory.limit_in_bytes", V1_UNLIMITED)
    machine.limit("memory/slurm/job_7/memory.limit_in_bytes", f"{2 * GIB}\n")
    machine.limit("memory/slurm/memory.limit_in_bytes", f"{8 * GIB}\n")
    machine.limit("memory/memory.limit_in_bytes", V1_UNLIMITED)
    assert machine.tightest().limit_bytes == 2 * GIB
    assert "job_7" in machine.tightest().origin
    assert "step_0" not in machine.tightest().origin


def test_the_v1_controller_may_share_its_hierarchy(machine: Machine) -> None:
    machine.membership("4:cpuset,memory,pids:/box\n")
    machine.limit("memory/box/memory.limit_in_bytes", f"{GIB}\n")
    assert machine.tightest().limit_bytes == GIB


def test_a_v2_limit_on_an_ancestor_is_found(machine: Machine) -> None:
    machine.membership("0::/user.slice/user-0.slice/run-1.scope\n")
    machine.limit("user.slice/user-0.slice/run-1.scope/memory.max", "max\n")
    machine.limit("user.slice/user-0.slice/memory.max", f"{3 * GIB}\n")
    machine.limit("user.slice/memory.max", f"{5 * GIB}\n")
    assert machine.tightest().limit_bytes == 3 * GIB
    assert machine.tightest().origin.endswith("user-0.slice/memory.max")


def test_a_container_that_sees_only_its_own_root_finds_the_limit_there(machine: Machine) -> None:
    machine.membership("0::/\n")
    machine.limit("memory.max", f"{GIB}\n")
    assert machine.tightest().limit_bytes == GIB


def test_max_and_v1s_huge_number_are_no_limits(machine: Machine) -> None:
    machine.membership("4:memory:/a\n0::/b\n")
    machine.limit("memory/a/memory.limit_in_bytes", V1_UNLIMITED)
    machine.limit("b/memory.max", "max\n")
    assert machine.limits() == [MemoryLimit(16 * GIB, "the machine's available memory")]


def test_missing_and_unreadable_files_are_passed_over(machine: Machine, tmp_path: Path) -> None:
    machine.membership("4:memory:/gone\n0::/gone\nnonsense\n")
    machine.limit("memory/gone/memory.limit_in_bytes/is-a-directory", "")
    assert machine.tightest().limit_bytes == 16 * GIB
    nowhere = find_limits(proc=tmp_path / "no", cgroups=tmp_path / "no", environment={})
    assert [limit.origin for limit in nowhere] == ["no limit found"]


def test_slurm_says_megabytes_a_node_or_a_cpu(machine: Machine) -> None:
    assert machine.tightest(SLURM_MEM_PER_NODE="2048") == MemoryLimit(2 * GIB, "SLURM_MEM_PER_NODE")
    per_cpu = machine.tightest(SLURM_MEM_PER_CPU="512", SLURM_CPUS_ON_NODE="3")
    assert per_cpu == MemoryLimit(1536 * MIB, "SLURM_MEM_PER_CPU")
    assert machine.tightest(SLURM_MEM_PER_CPU="512").limit_bytes == 512 * MIB


@pytest.mark.parametrize("value", ["0", "", "lots", "-1"])
def test_slurm_variables_that_set_no_limit_are_ignored(machine: Machine, value: str) -> None:
    assert machine.tightest(SLURM_MEM_PER_NODE=value, SLURM_MEM_PER_CPU=value).limit_bytes == 16 * GIB


def test_rlimits_count(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {resource.RLIMIT_DATA: 3 * GIB, resource.RLIMIT_AS: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (given[kind], resource.RLIM_INFINITY))
    assert machine.tightest() == MemoryLimit(3 * GIB, "RLIMIT_DATA")


def test_an_explicit_size_is_the_budget() -> None:
    assert MemoryBudget.of("2GiB") == MemoryBudget(2 * GIB, "--memory")
    assert MemoryBudget.of(123 * MIB) == MemoryBudget(123 * MIB, "--memory")
    with pytest.raises(UsageError):
        MemoryBudget.of("plenty")


def test_without_a_size_the_budget_is_four_fifths_of_the_tightest_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [MemoryLimit(8 * GIB, "the machine"), MemoryLimit(5 * GIB, "cgroup x")]
    monkeypatch.setattr(memory, "find_limits", lambda: limits)
    assert MemoryBudget.of(None) == MemoryBudget(4 * GIB, "80% of cgroup x")


def test_what_does_not_fit_is_refused_with_the_size_that_would() -> None:
    needed = 300 * MIB + 1
    with pytest.raises(DoesNotFitError, match="the sort needs 300 MiB, the budget is 256 MiB") as refused:
        MemoryBudget(256 * MIB, "--memory").require(needed, stage="the sort", formula="a + b")
    assert "need = a + b" in str(refused.value.where)
    size = str(refused.value.fix).split("--memory ")[1]
    assert parse_bytes(size) >= needed
    MemoryBudget.of(size).require(needed, stage="the sort", formula="a + b")


def test_the_sampler_sees_an_allocation_even_after_it_is_gone() -> None:
    before = own_memory_bytes()
    with PeakSampler() as sampler:
        block = np.ones(64 * MIB, np.uint8)
        time.sleep(0.05)
        del block
    assert 60 * MIB < sampler.peak_bytes - before < 100 * MIB


def test_restart_gives_the_peak_so_far_and_begins_a_new_one() -> None:
    before = own_memory_bytes()
    with PeakSampler() as sampler:
        block = np.ones(64 * MIB, np.uint8)
        until = time.monotonic() + 30
        while sampler.peak_bytes < before + 48 * MIB and time.monotonic() < until:
            time.sleep(0.01)  # a busy machine may let the sampler wait
        del block
        first = sampler.restart()
        time.sleep(0.02)
    assert first - sampler.peak_bytes > 48 * MIB


def test_a_read_only_map_of_a_file_is_not_our_memory(tmp_path: Path) -> None:
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True)
    if kind.stdout.strip() == "tmpfs":
        pytest.skip("files of a tmpfs are memory")
    path = tmp_path / "file"
    path.write_bytes(bytes(64 * MIB))
    before = own_memory_bytes()
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        PeakSampler() as sampler,
    ):
        assert sum(mapped[:: 4 * KIB]) == 0
        time.sleep(0.05)
    assert sampler.peak_bytes - before < 16 * MIB


FREED_BY_A_THREAD = """
import threading
from ecgl_scale.base.memory import give_back_freed, own_memory_bytes, share_one_arena

share_one_arena()
bytearray(30 << 20)  # once it has been freed, arrays up to that size are no mappings of their own any more
before = own_memory_bytes()
is_freed, may_end = threading.Event(), threading.Event()

def work():
    arrays = [bytearray(b"x") * (2 << 20) for _ in range(20)]
    arrays.clear()
    is_freed.set()
    may_end.wait()

thread = threading.Thread(target=work)
thread.start()
is_freed.wait()
give_back_freed()
print(own_memory_bytes() - before)
may_end.set()
thread.join()
"""


def test_what_a_thread_has_freed_is_given_back() -> None:
    """40 MiB stay without ``share_one_arena``; in a process of its own, as arenas last as long as a process."""
    done = subprocess.run([sys.executable, "-c", FREED_BY_A_THREAD], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 10 * MIB

"""What is compared before anything is written, and what each worker may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ecgl_scale.base.memory import MemoryBudget
from ecgl_scale.engine.cluster.handshake import (
    PACKAGES,
    WorkerFacts,
    check_workers,
    describe_process,
    require_memory,
    share_memory,
    smallest_budget,
)
from ecgl_scale.engine.cluster.source_code import source_digest
from ecgl_scale.engine.cluster.unit_runner import MEMORY_VARIABLE, THREADS_VARIABLE
from ecgl_scale.errors import DoesNotFitError, InvalidInputError, UsageError
from ecgl_scale.units import GIB
from tests.engine.cluster.fake_cluster import facts_of

DRIVER = facts_of("driver", code={"ecgl_scale": "1", "numpy": "2"})
SAME = facts_of("a", code=DRIVER.code)


def test_a_process_describes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, "3GiB")
    monkeypatch.setenv(THREADS_VARIABLE, "5")
    facts = WorkerFacts(**describe_process("me", {}))
    assert (facts.pid, facts.threads, facts.memory_bytes, facts.memory_origin) == (os.getpid(), 5, 3 * GIB, "--memory")
    assert set(facts.code) == {"ecgl_scale", "python", *PACKAGES}
    assert facts.code["ecgl_scale"] == source_digest()


def test_a_file_is_unseen_where_it_is_missing_or_has_another_size(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"1234")
    asked = {str(tmp_path / "token"): 4, str(tmp_path / "none"): 4, str(tmp_path): -1}
    assert describe_process("me", asked)["unseen"] == (str(tmp_path / "none"), str(tmp_path))


def test_equal_workers_are_fine() -> None:
    assert check_workers(DRIVER, [SAME, SAME]) is None


@pytest.mark.parametrize("name", ["ecgl_scale", "numpy"])
def test_a_worker_with_other_code_is_refused_by_name(name: str) -> None:
    other = facts_of("node7-12", host="node7", code={**DRIVER.code, name: "0"})
    with pytest.raises(UsageError, match=f"worker node7-12 has another {name}: 0") as caught:
        check_workers(DRIVER, [SAME, other])
    assert caught.value.where == "host node7, process 1"


def test_a_worker_that_does_not_see_a_file_is_refused_by_name() -> None:
    blind = facts_of("node7-12", code=DRIVER.code, unseen=("/shared/x",))
    with pytest.raises(InvalidInputError, match="worker node7-12 does not see /shared/x"):
        check_workers(DRIVER, [SAME, blind])


def test_another_processor_is_a_warning_that_names_worker_and_remedy() -> None:
    other = facts_of("node7-12", code=DRIVER.code, processor="x86_64 avx512f")
    warning = check_workers(DRIVER, [SAME, other])
    assert warning is not None
    assert "node7-12" in warning
    assert "OPENBLAS_CORETYPE" in warning


def test_workers_of_one_machine_share_what_it_allows_unless_they_were_given_a_size() -> None:
    found = [
        facts_of("a", host="x", memory_bytes=8 * GIB, memory_origin="80% of the machine"),
        facts_of("b", host="x", memory_bytes=8 * GIB, memory_origin="80% of the machine"),
        facts_of("c", host="x", memory_bytes=3 * GIB),
        facts_of("d", host="y", memory_bytes=8 * GIB, memory_origin="80% of the machine"),
    ]
    shared = share_memory(found)
    assert [facts.memory_bytes // GIB for facts in shared] == [4, 4, 3, 8]
    assert shared[0].memory_origin == "a share of one in 2 of 80% of the machine"
    assert shared[3].memory_origin == "80% of the machine"


def test_the_smallest_budget_is_that_of_all_and_says_whose_it_is() -> None:
    own = MemoryBudget(4 * GIB, "--memory")
    assert smallest_budget(own, [facts_of("a", memory_bytes=5 * GIB)]) == own
    least = smallest_budget(own, [facts_of("a", memory_bytes=5 * GIB), facts_of("b", memory_bytes=2 * GIB)])
    assert least == MemoryBudget(2 * GIB, "worker b on here (--memory)", option="--worker-memory")


def test_a_worker_with_too_little_memory_is_refused_by_name() -> None:
    workers = [facts_of("a", memory_bytes=5 * GIB), facts_of("b", memory_bytes=2 * GIB)]
    require_memory(workers, 2 * GIB, stage="the ranking")
    with pytest.raises(DoesNotFitError, match="the ranking needs 3 GiB of each worker, worker b has 2 GiB"):
        require_memory(workers, 3 * GIB, stage="the ranking")

"""Two workers in network namespaces of their own, each behind a cable: the same bytes as by one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import cluster as cluster_case
from bench.netns import reason_without


@pytest.mark.usefixtures("warm_bench")
@pytest.mark.slow
def test_two_machines_of_a_network_give_the_same_bytes_and_rows_stay_off_the_cable(tmp_path: Path) -> None:
    reason = reason_without()
    if reason is not None:
        pytest.skip(reason)
    (found,) = cluster_case.run(tmp_path, [], 1, 1, network_scales=[10])["network"]
    assert {row["command"]: row["same_bytes"] for row in found["rows"]} == dict.fromkeys(
        ("rank", "run", "infer", "ingest"), True
    )
    for row in found["rows"]:
        assert 0 < row["cable_bytes_workers"] < 2_000_000, row
    assert list(tmp_path.iterdir()) == []

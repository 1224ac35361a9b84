"""What a user may say of workers, and what a scheduler says of itself."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ecgl_scale.engine.cluster.settings import (
    ClusterSettings,
    is_open_to_others,
    scheduler_address,
    wait_for_scheduler,
    write_scheduler_file,
)
from ecgl_scale.errors import InvalidInputError, UsageError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": 2, "scheduler": "tcp://a:1"}, "exclude each other"),
        ({"workers": 0}, "0 workers"),
        ({"workers": 1, "worker_threads": 0}, "0 threads"),
        ({"worker_memory": "1GiB"}, "for workers that this command starts"),
        ({"scheduler": "tcp://a:1", "worker_threads": 2}, "for workers that this command starts"),
    ],
)
def test_options_that_exclude_each_other_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ClusterSettings(**given)


def test_nothing_given_means_alone() -> None:
    assert ClusterSettings().is_alone
    assert not ClusterSettings(workers=1).is_alone
    assert not ClusterSettings(scheduler="tcp://a:1").is_alone


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:8786", "tls://node7:8786", "tcp://[::1]:8786"])
def test_addresses_are_taken_as_they_are(address: str) -> None:
    assert scheduler_address(address) == address


@pytest.mark.parametrize("address", ["http://a:1", "tcp://a", "tcp://:1", "tcp://a:port", "tcp://a:99999", "://"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="no address of a scheduler"):
        scheduler_address(address)


def test_a_file_says_where_its_scheduler_listens_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "scheduler.json"
    write_scheduler_file(path, "tls://10.0.0.1:8786")
    assert scheduler_address(str(path)) == "tls://10.0.0.1:8786"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_of_dasks_own_scheduler_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.json"
    path.write_text(json.dumps({"type": "Scheduler", "address": "tcp://10.0.0.1:8786", "workers": {}}))
    assert scheduler_address(str(path)) == "tcp://10.0.0.1:8786"


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"address": 5}', "\x00", '{"address": "http://a:1"}'])
def test_other_files_are_refused_with_their_path(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "scheduler.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidInputError, match="not the file of a scheduler") as caught:
        scheduler_address(str(path))
    assert caught.value.where == str(path)


def test_a_worker_waits_for_the_file_of_its_scheduler(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.json"

    def write_later() -> None:
        time.sleep(0.1)
        write_scheduler_file(path, "tcp://127.0.0.1:1")

    thread = threading.Thread(target=write_later)
    thread.start()
    assert wait_for_scheduler(str(path), 10) == "tcp://127.0.0.1:1"
    thread.join()


def test_it_does_not_wait_for_ever(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="not the file of a scheduler"):
        wait_for_scheduler(str(tmp_path / "none"), 0.05)


@pytest.mark.parametrize(
    ("address", "is_open"),
    [
        ("tcp://127.0.0.1:1", False),
        ("tcp://127.9.9.9:1", False),
        ("tcp://localhost:1", False),
        ("tcp://[::1]:1", False),
        ("tls://10.0.0.1:1", False),
        ("tcp://10.0.0.1:1", True),
        ("tcp://0.0.0.0:1", True),
        ("tcp://[::]:1", True),
        ("tcp://node7:1", True),
    ],
)
def test_plain_tcp_beyond_this_machine_is_open_to_others(address: str, is_open: bool) -> None:
    assert is_open_to_others(address) is is_open

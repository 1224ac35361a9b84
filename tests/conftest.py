"""Settings of every test: no deadlines, as the first call of a kernel compiles it; in CI always the same examples."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.object_server import bucket, object_server
from tests.warm.commands import warm_bench, warm_commands, warm_runs

__all__ = ["bucket", "object_server", "warm_bench", "warm_commands", "warm_runs"]

settings.register_profile("ecgl", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("ecgl")

# As ``ecgl`` does: threads of torch's that wait for each other must not take the cores from others by spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A shell starts background jobs with Ctrl-C ignored, and children inherit that; tests send it to theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Let ``os.fsync`` of pytest's processes only look at its descriptor: a third of a small run is waiting for it.

    What it is for cannot be seen while the machine goes on: a kill takes nothing from the files of the system. That it
    is called, and what becomes of its errors, is tested as before, and every process that a test starts waits.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", _look_at)
        yield


def _look_at(descriptor: int) -> None:
    os.fstat(descriptor)

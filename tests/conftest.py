"""Settings of every test: no deadlines, as the first call of a kernel compiles it; in CI always the same examples."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

from tests.object_server import bucket, object_server

__all__ = ["bucket", "object_server"]

settings.register_profile("ecgl", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("ecgl")

# As ``ecgl`` does: threads of torch's that wait for each other must not take the cores from others by spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A shell starts background jobs with Ctrl-C ignored, and children inherit that; tests send it to theirs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

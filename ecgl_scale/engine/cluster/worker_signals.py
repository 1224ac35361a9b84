"""What Dask loads into every worker process that we start: signals are for the process that looks after it.

Ctrl-C in a terminal, and what a batch system sends to all processes of a job, reach the worker as well as its parent.
The parent ends the worker when its unit is done; by itself the worker would die in the middle of it.
"""

from __future__ import annotations

import signal
from typing import Any


def dask_setup(worker: Any) -> None:
    """Ignore the signals that the parent answers; Dask calls this in the worker's main thread."""
    del worker
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)

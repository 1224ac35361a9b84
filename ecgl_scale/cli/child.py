"""``ecgl`` as a sweep, or the first rank of a run, starts it: ``python -m ecgl_scale.cli.child PARENT ARGUMENTS...``.

The kernel kills this process when its parent is killed: a run that nobody waits for would hold its directory against
the sweep that goes on, and a rank against the run. Both may be killed at any moment, and the run resumed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from ecgl_scale.cli.main import main
from ecgl_scale.errors import ExitCode

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when ``parent`` ends; exit at once if it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(ExitCode.STOPPED)


if __name__ == "__main__":
    end_with_parent(int(sys.argv.pop(1)))
    main()

"""Settings of every test: no deadlines, as the first call of a kernel compiles it; in CI always the same examples."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ecgl", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("ecgl")

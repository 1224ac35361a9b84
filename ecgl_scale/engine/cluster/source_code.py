"""Which code runs in a process: versions alone do not tell two checkouts apart."""

from __future__ import annotations

import hashlib
from pathlib import Path

import ecgl_kernels
import ecgl_scale


def source_digest() -> str:
    """A short name of the code that runs here: checkouts of one version may differ."""
    digest = hashlib.sha256()
    for package in (ecgl_scale, ecgl_kernels):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return f"{ecgl_scale.__version__}-{digest.hexdigest()[:12]}"

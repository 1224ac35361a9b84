"""Sizes as people write and read them: ``4GiB``, ``512MiB``, ``2GB``, ``1073741824``."""

from __future__ import annotations

import re
from fractions import Fraction

from ecgl_scale.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_FACTORS = {
    "": 1,
    "b": 1,
    "k": KIB,
    "kib": KIB,
    "kb": 10**3,
    "m": MIB,
    "mib": MIB,
    "mb": 10**6,
    "g": GIB,
    "gib": GIB,
    "gb": 10**9,
    "t": 1 << 40,
    "tib": 1 << 40,
    "tb": 10**12,
}
_SIZE = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Turn ``"4GiB"`` into 4294967296; a plain number counts bytes, a bare K/M/G is binary as in SLURM."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(f"{text!r} is not a size", expected="a number with a unit, such as 512MiB, 4GiB or 2GB")
    return int(Fraction(match[1]) * factor)  # a float would lose the last digits of a plain number


def format_bytes(num_bytes: float) -> str:
    """Write a byte count with three significant digits and a binary unit."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 999.5:  # four digits would turn into an exponent
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB" if abs(value) < 999.5 else f"{value:.0f} TiB"


def format_count(number: int) -> str:
    """Write a count with thousands separators."""
    return f"{number:,}"


def format_seconds(seconds: float) -> str:
    """0.8 ms, 12.3 s, 4 min 05 s, 3 h 07 min."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60:02d} min"

"""What a run directory holds, read as plain values: nothing here fails for a file that is missing or torn.

Only ``results.json`` is needed for a report; settings, plan, losses and samples are shown where they are there.
Memory: one file at a time; ``memory.jsonl`` has at most 2 MB, of ``events.jsonl`` only what is asked for is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COUNTERS = ("minor_faults", "major_faults", "read_bytes", "written_bytes")


@dataclass(frozen=True)
class Sample:
    """A line of ``memory.jsonl``, with time and counters from the start of the run, over all its processes."""

    seconds: float
    """The seconds of running: the time between a kill and the resumption does not count."""
    stage: str
    part: str
    own_bytes: int
    """RssAnon + RssShmem, which plans count."""
    file_bytes: int
    device_bytes: int
    minor_faults: int
    major_faults: int
    read_bytes: int
    written_bytes: int
    process: int
    """The number of the process: 0, and one more after every resumption."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file with one a line; a line that a kill has torn is left out."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                if isinstance(entry, dict):
                    yield entry
    except OSError:
        return


def read_settings(path: Path) -> dict[str, Any]:
    """The keys of a config file by their dotted names."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return dict(_flat(found)) if isinstance(found, dict) else {}


def _flat(section: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", tuple(value) if isinstance(value, list) else value


def read_samples(path: Path) -> list[Sample]:
    """The samples of ``memory.jsonl``, with the pauses between processes taken out."""
    samples: list[Sample] = []
    process, started, elapsed_before = -1, 0.0, 0.0
    before = last = dict.fromkeys(COUNTERS, 0)
    for line in read_lines(path):
        try:
            if "version" in line:
                process, started = process + 1, float(line["started"])
                elapsed_before = samples[-1].seconds if samples else 0.0
                before = last
                continue
            last = {name: before[name] + int(line[name]) for name in COUNTERS}
            samples.append(
                Sample(
                    seconds=elapsed_before + max(float(line["time"]) - started, 0.0),
                    stage=str(line["stage"]),
                    part=str(line["part"]),
                    own_bytes=int(line["anon_bytes"]) + int(line["shmem_bytes"]),
                    file_bytes=int(line["file_bytes"]),
                    device_bytes=int(line["device_bytes"]),
                    process=max(process, 0),
                    **last,
                )
            )
        except (KeyError, TypeError, ValueError):
            continue
    return samples

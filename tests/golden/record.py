"""``python -m tests.golden.record [--only PATTERN]`` records anew and says what changed.

With ``--check`` nothing is written: what differs is printed, with ``--threads 2`` for another number of threads.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.golden.cases import CASES, Case, RunCase
from tests.golden.compare import differences, fingerprint
from tests.golden.measure import World, measure

RECORDS = Path(__file__).parent / "records"


def read_record(case: Case) -> dict[str, Any]:
    """What was recorded; nothing where it never was."""
    path = RECORDS / f"{case.name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def compare(case: Case, record: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What is not as recorded; to the bit, if this machine's arithmetic is the record's and the case promises bits."""
    is_same_machine = record.get("fingerprint") == fingerprint()
    if isinstance(case, RunCase):
        expect_bits = is_same_machine and case.promises_bits
        return differences(record, found, expect_bits=expect_bits, rounding=case.rounding)
    return differences(record, found, expect_bits=is_same_machine)


def main() -> int:
    """Record, or check, the cases whose names match."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="pattern of names, as in 'run-ecgl-*'")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    chosen = [case for case in CASES if fnmatch(case.name, given.only)]
    num_changed = 0
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory), threads=given.threads)
        for case in chosen:
            started = time.perf_counter()
            found = {**measure(case, world), "fingerprint": fingerprint()}
            before = read_record(case)
            lines = compare(case, before, found) if given.check else differences(before, found, expect_bits=True)
            lines = lines if before else ["there was no record"]
            num_changed += bool(lines)
            print(f"{case.name}: {f'{len(lines)} values changed' if lines else 'as before'},", end=" ")  # noqa: T201
            print(f"{time.perf_counter() - started:.1f} s", *lines[:8], sep="\n  ")  # noqa: T201
            if not given.check:
                text = json.dumps(found, indent=1, sort_keys=True, allow_nan=False)
                (RECORDS / f"{case.name}.json").write_text(text + "\n")
    print(f"{num_changed} of {len(chosen)} cases changed")  # noqa: T201
    return int(given.check and num_changed > 0)


if __name__ == "__main__":
    sys.exit(main())

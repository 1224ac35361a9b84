"""Every case that says something within minutes, at a size for it, in about 20 minutes: what ``make bench`` runs.

    python -m bench.quick [--minutes 20] [--cases pagerank diversity]
    python -m bench.quick --table       the tables of README.md, from the record

Ends with one table: seconds of ours, how many times as long peers took in the same case, how many times as long ours
took in the last record on such a processor, and how far each stage is from what this machine can move. Cases that the
time was too short for keep what the record has of them, and are named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.bandwidth import Rates, measure
from bench.quick_cases import CASES

Json = Any
RECORD = "quick"


def look_up(found: Json, path: str) -> float:
    """A number of a record by its keys, parted by dots; of several measurements their median."""
    for key in path.split("."):
        found = found[int(key)] if isinstance(found, list) else found[key]
    return float(found["median"] if isinstance(found, dict) else found)


def _has(found: Json, path: str) -> bool:
    """Whether a case has measured a peer: some are not there for every Python, or need more memory than there is."""
    try:
        look_up(found, path)
    except (KeyError, IndexError):
        return False
    return True


def rows_of(name: str, found: Json, rates: Rates, last: Mapping[str, Json]) -> list[Json]:
    """The figures of a case, beside peers, the last record and the limit."""
    rows = []
    for figure in CASES[name].figures:
        seconds = look_up(found, figure.seconds)
        row: Json = {"case": name, "arguments": CASES[name].arguments, "what": figure.what, "seconds": seconds}
        row["peers"] = {peer: look_up(found, path) for peer, path in figure.peers.items() if _has(found, path)}
        row["times_faster_than"] = {peer: other / seconds for peer, other in row["peers"].items()}
        before = last.get(figure.what)
        if before is not None and before["arguments"] == row["arguments"]:
            row["times_last_record"] = before["seconds"] / seconds
        if figure.limit is not None and figure.limit.rate in rates:
            amount = float(figure.limit.amount(found))
            least = amount / rates[figure.limit.rate]
            row["limit"] = {"rate": figure.limit.rate, "amount": amount, "seconds": least}
            row["times_limit"] = seconds / least
        rows.append(row)
    return rows


def run(work: Path, names: Sequence[str], minutes: float, known: Json) -> Json:
    """Run the cases while there is time; ``known`` is the last record."""
    started = time.monotonic()
    work.mkdir(parents=True, exist_ok=True)
    rates = measure(work)
    is_alike = known.get("measured", {}).get("processor") == harness.processor()
    last = {row["what"]: row for row in known.get("rows", [])} if is_alike else {}
    rows, left_out, took = [], [], {}
    for name in names:
        begun = time.monotonic()
        if begun - started > 60 * minutes:
            left_out.append(name)
            rows += [row for row in last.values() if row["case"] == name]
            continue
        print(f"== {name}", flush=True)
        rows += rows_of(name, _run_case(name, work), rates, last)
        took[name] = time.monotonic() - begun
    return {"rates": rates, "rows": rows, "left_out": left_out, "seconds_of_cases": took}


def _run_case(name: str, work: Path) -> Json:
    """Each case runs in a process of its own, so that no one's memory or caches help another."""
    results = work / "results"
    command = [sys.executable, "-m", f"bench.{name}", "--work", str(work / name), *CASES[name].arguments.split()]
    environment = {**os.environ, harness.RESULTS_VARIABLE: str(results)}
    subprocess.run(command, env=environment, cwd=Path(__file__).parent.parent, check=True)
    return json.loads((results / f"{name}.json").read_text(encoding="utf-8"))


def render(record: Json) -> str:
    """Tables in Markdown: the figures, and the rates they are compared with."""
    titles = ("what", "seconds", "peers took", "last record took", "has to move", "of that limit")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in record["rows"]:
        cells = [row["what"], f"{row['seconds']:.3f}"]
        cells.append(", ".join(f"{peer} {ratio:.2f}x" for peer, ratio in row["times_faster_than"].items()))
        cells.append(f"{row['times_last_record']:.2f}x" if "times_last_record" in row else "")
        limit = row.get("limit")
        cells.append("" if limit is None else f"{limit['amount'] / 1e9:.2f} G, `{limit['rate']}`")
        cells.append("" if limit is None else f"{row['times_limit']:.1f}x")
        lines.append(f"| {' | '.join(cells)} |")
    rates = [f"| `{name}` | {rate / 1e9:.1f} |" for name, rate in record["rates"].items()]
    parts = ["\n".join(lines), "\n".join(["| rate | G a second |", "|---|---|", *rates])]
    if record["left_out"]:
        parts.append(f"There was no time left for {', '.join(record['left_out'])}.")
    return "\n\n".join(parts)


def main() -> None:
    """Run the cases, keep the record where all were asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20, help="No case is begun after so many.")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--table", action="store_true", help="Print the record as Markdown and run nothing.")
    parser.add_argument("--work", type=Path, default=harness.DEFAULT_WORK / RECORD)
    arguments = parser.parse_args()
    path = harness.RESULTS / f"{RECORD}.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if arguments.table:
        print(render(known))
        return
    found = run(arguments.work, arguments.cases, arguments.minutes, known)
    if set(arguments.cases) == set(CASES):
        harness.save(RECORD, found)
    print(render(found))


if __name__ == "__main__":
    main()

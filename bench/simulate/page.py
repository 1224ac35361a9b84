"""The tables of docs/scale.md, from the record of ``bench.simulate``: ``python -m bench.simulate.page`` writes them.

A test compares the page with the record, so a number in it is one that was computed or measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.harness import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
STAGES = ("ingest", "attribute", "sweep", "diversity", "infer", "epoch", "append")
MARK = "<!-- from bench/results/simulate.json, {}: {} -->"


def tables(record: dict[str, Any]) -> dict[str, str]:
    """Each table by its name."""
    return {"rates": _rates(record), "check": _check(record), "predictions": _predictions(record)}


def _rates(record: dict[str, Any]) -> str:
    shown = {
        "build_edges": ("edges built into a store", 1e6, "M/s"),
        "attribute_values": ("feature values of the attribute vector", 1e6, "M/s"),
        "sweep_edges": ("edges of a sweep", 1e6, "M/s"),
        "distance_values": ("numbers gathered along edges", 1e9, "G/s"),
        "column_bytes": ("features read and checked (all cores: memory is the limit)", 1e9, "GB/s"),
        "shared_column_bytes": ("the same, each of two workers at once", 1e9, "GB/s"),
        "flops": ("products", 1e9, "GFLOP/s"),
        "place_read_bytes": ("rows in files, read with their checksum", 1e9, "GB/s"),
        "place_write_bytes": ("rows in files, written with their checksum", 1e9, "GB/s"),
        "unit_seconds": ("a unit sent, begun and answered", 1e-3, "ms"),
    }
    lines = ["| of one core | rate |", "|---|---|"]
    for name, (text, unit, suffix) in shown.items():
        lines.append(f"| {text} | {record['rates'][name] / unit:.3g} {suffix} |")
    return "\n".join(lines)


def _check(record: dict[str, Any]) -> str:
    lines = ["| who | stage | predicted, s | measured, s | ratio |", "|---|---|---|---|---|"]
    for check in record["checks"]:
        who = "one process, two threads" if check["num_workers"] == 1 else "two workers, a thread each"
        for name in ("sweep", "attribute", "diversity"):
            row = check[name]
            lines.append(f"| {who} | {name} | {row['predicted']:.3f} | {row['measured']:.3f} | {row['ratio']:.2f} |")
    return "\n".join(lines)


def _predictions(record: dict[str, Any]) -> str:
    lines = [f"| graph | machines | {' | '.join(STAGES)} |", f"|{'---|' * (len(STAGES) + 2)}"]
    names = list(dict.fromkeys(row["machines"] for row in record["tables"]))
    found = {(row["graph"], row["count"], row["machines"]): row for row in record["tables"]}
    for graph, count in dict.fromkeys((row["graph"], row["count"]) for row in record["tables"]):
        cells = (_both([found[graph, count, name][stage]["seconds"] for name in names]) for stage in STAGES)
        lines.append(f"| {graph} | {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _both(seconds: list[float]) -> str:
    """Two networks; one number where they do not differ by a twentieth."""
    first, second = seconds
    return _text(first) if abs(first - second) <= 0.05 * first else f"{_text(first)} / {_text(second)}"


def _text(seconds: float) -> str:
    for limit, unit, name in ((1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min")):
        if seconds < limit:
            return f"{seconds / unit:.2g} {name}" if seconds / unit < 10 else f"{seconds / unit:.0f} {name}"
    return f"{seconds / 3600:.0f} h"


def update(page: Path = PAGE) -> None:
    """Put the tables of the record between their marks."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables(json.loads((RESULTS / "simulate.json").read_text(encoding="utf-8"))).items():
        begin, end = MARK.format(name, "begin"), MARK.format(name, "end")
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n\n{table}\n\n{end}{tail}"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    update()

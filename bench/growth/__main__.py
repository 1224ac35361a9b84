"""A graph that grows: real arrivals, one hundredth more of a products-sized graph, and ten generations.

    python -m bench.growth --table      the tables of README.md, from the record
    python -m bench.growth [--real] [--products] [--generations] [--epochs 100] [--nodes N] [--repeats 3]

Without a choice all three parts are run; a part that is not run keeps what the record has of it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from bench import harness
from bench.accuracy import DATA
from bench.growth.generations import ten_generations
from bench.growth.products import STEPS, one_hundredth
from bench.growth.real import CASES, grow
from bench.growth.table import render

RECORD = "growth"


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="debian_packages by release, amazon_computers by classes.")
    parser.add_argument("--products", action="store_true", help="One hundredth more of a products-sized graph.")
    parser.add_argument("--generations", action="store_true", help="Ten generations against the compacted store.")
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=STEPS, help="Of --products; others are kept.")
    parser.add_argument("--keep", action="store_true", help="Keep what was prepared, and use it again.")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--nodes", type=int, help="Nodes of the generated graph; default: as ogbn-products.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="Print the record as Markdown and run nothing.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=harness.DEFAULT_WORK / "growth")
    arguments = parser.parse_args()
    if arguments.table:
        print(render(_recorded()))
        return
    names = ("real", "products", "generations")
    chosen = [name for name in names if getattr(arguments, name)] or list(names)
    found = _recorded()
    for name in chosen:
        if not arguments.keep:
            shutil.rmtree(arguments.work, ignore_errors=True)
        arguments.work.mkdir(parents=True, exist_ok=True)
        if name == "real":
            found[name] = {
                title: grow(case, arguments.data, arguments.work, arguments.epochs) for title, case in CASES.items()
            }
        elif name == "products":
            found[name] = one_hundredth(
                arguments.work,
                arguments.nodes,
                arguments.epochs,
                arguments.repeats,
                tuple(arguments.steps),
                found.get(name, {}),
            )
        else:
            found[name] = ten_generations(arguments.work, arguments.nodes, arguments.repeats)
        harness.save(RECORD, found)
    if not arguments.keep:
        shutil.rmtree(arguments.work)


def _recorded() -> dict[str, Any]:
    path = harness.RESULTS / f"{RECORD}.json"
    if not path.exists():
        return {}
    kept = json.loads(path.read_text(encoding="utf-8"))
    return {name: kept[name] for name in ("real", "products", "generations") if name in kept}


if __name__ == "__main__":
    main()

"""The steps of growth in a process that runs already, as a service that keeps a graph up to date does.

    python -m bench.growth.running STEP WORK TINY REPEATS     prints what it measured as JSON; products.py calls it

Each step is done on a tiny graph first, which loads what there is to load. Then what is new and everything take turns.
Seconds are by the clock and of all threads by the processor; bytes are those that the process gave to the disk.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.growth.pieces import Pieces, copy_by_links
from ecgl_scale.config.schema import load_config
from ecgl_scale.engine.resources import Resources
from ecgl_scale.session.infer import Asked, infer_store
from ecgl_scale.session.run import run
from ecgl_scale.session.update import update
from ecgl_scale.store.append import append_store
from ecgl_scale.store.build import build_store
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.source import GraphSource
from ecgl_scale.store.sources.edges import open_edge_files

UNTESTED = ["tasks.evaluate=none"]


@dataclass(frozen=True)
class Used:
    """What a call took of this process."""

    seconds: float
    cpu_seconds: float
    written_bytes: int


def use(call: Callable[[], object]) -> Used:
    """Call and measure."""
    before = _now()
    call()
    return Used(*(after - earlier for after, earlier in zip(_now(), before, strict=True)))  # type: ignore[arg-type]


def _now() -> tuple[float, float, int]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    written = next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))
    return time.perf_counter(), used.ru_utime + used.ru_stime, written


def source_of(piece: list[str]) -> GraphSource:
    """A piece as ``ecgl ingest edges`` and ``ecgl append edges`` open it."""
    files = dict(zip(piece[1::2], piece[2::2], strict=True))
    return open_edge_files(
        [Path(piece[0])],
        features=Path(files["--features"]),
        labels=Path(files["--labels"]),
        columns=Path(files["--columns"]),
    )


@dataclass(frozen=True)
class Place:
    """The prepared folder of a graph."""

    work: Path

    @property
    def pieces(self) -> Pieces:
        """Its raw files."""
        return Pieces.read(self.work)

    def grow(self) -> Path:
        """A store of what there was first, which may grow."""
        store = self.work / "growing.ecgl"
        shutil.rmtree(store, ignore_errors=True)
        copy_by_links(self.work / "base.ecgl", store)
        return store

    def append(self) -> Callable[[], object]:
        """To be measured: an append; the store before it is made now."""
        store = self.grow()
        return lambda: append_store(source_of(self.pieces.later[0]), store, Resources.of(None))

    def ingest(self) -> Callable[[], object]:
        """To be measured: an ingest of everything."""
        target = self.fresh("whole.ecgl")
        options = BuildOptions(symmetrise=True)
        return lambda: build_store(source_of(self.pieces.whole), target, Resources.of(None), options=options)

    def infer(self, *, new: bool) -> Callable[[], object]:
        """To be measured: predictions of the new nodes, or of all."""
        asked = Asked(nodes="new") if new else None
        model, store = self.work / "model", self.work / "growing.ecgl"
        return lambda: infer_store(model, store, self.work / f"running-{new}.parquet", asked=asked)

    def update(self, overrides: list[str]) -> Callable[[], object]:
        """To be measured: an update by the new nodes."""
        target = self.fresh("updated")
        return lambda: update(self.work / "model", self.work / "growing.ecgl", target, overrides=overrides)

    def run(self) -> Callable[[], object]:
        """To be measured: a run on everything."""
        config = load_config(self.work / "growing.yaml", [f"store={self.work / 'whole.ecgl'}"])
        target = self.fresh("run")
        return lambda: run(config, target)

    def fresh(self, name: str) -> Path:
        """A place with nothing there."""
        shutil.rmtree(self.work / name, ignore_errors=True)
        return self.work / name


def measure(step: str, place: Place, repeats: int) -> dict[str, list[Used]]:
    """What is new in turns with everything."""
    found: dict[str, list[Used]] = {}
    for turn in range(repeats):
        for name, make in _sides(step, place, turn).items():
            found.setdefault(name, []).append(use(make()))
    return found


def _sides(step: str, place: Place, turn: int) -> dict[str, Callable[[], Callable[[], object]]]:
    is_all = turn < 2  # which takes longer, and varies less
    if step == "append":
        return {"new": place.append, **({"everything": place.ingest} if is_all else {})}
    if step == "infer":
        both = {"everything": lambda: place.infer(new=False)} if is_all else {}
        return {"new": lambda: place.infer(new=True), **both}
    if step == "run":
        return {"everything": place.run}
    return {"new": lambda: place.update([]), "untested": lambda: place.update(UNTESTED)}


def main() -> None:
    """Measure one step."""
    step, work, tiny, repeats = sys.argv[1:]
    small = Place(Path(tiny))
    measure("append", small, 1)
    for name in {"append": (), "infer": ("infer",), "update": ("update",), "run": ("run",)}[step]:
        measure(name, small, 1)
    place = Place(Path(work))
    if step in ("infer", "update"):
        place.append()()
    if step == "run" and not (place.work / "whole.ecgl").exists():
        place.ingest()()
    found = measure(step, place, int(repeats))
    as_json: dict[str, Any] = {name: [vars(one) for one in uses] for name, uses in found.items()}
    print(json.dumps(as_json))


if __name__ == "__main__":
    main()

"""``python -m tests.learn.methods.record_plans``: record again what each method's run is planned to need.

Only in a commit that says which stage needs another amount, and why.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from ecgl_scale.learn.method.table import built_in_methods
from tests.learn.methods.learning import small_config
from tests.session.streams import Drawn, draw_graph, plan_config, write_store

RECORDED = Path(__file__).with_name("recorded_plans.json")
WITHOUT_LABEL = (0, 8, 16, 4, 12, 20)
"""How many of the 40 nodes of each class have no label: so the tasks have 72, 60 and 48 nodes."""


def draw_uneven() -> Drawn:
    """Classes and tasks that differ in size: where all are alike, means over rows and over tasks are too."""
    even = draw_graph(240, num_features=8, noise=1.0)
    y = even.y.copy()
    for label, count in enumerate(WITHOUT_LABEL):
        y[np.flatnonzero(even.y == label)[:count]] = -1
    return replace(even, y=y)


def planned(store: Path, cache: Path, method: str, train_as: str) -> dict[str, list[int]]:
    """Bytes of memory, read and written by each stage."""
    keys = (f"learn.train_as={train_as}", "tasks.eval_scope=both", "memory=8GiB", "threads=2")
    config = small_config(store, cache, method, *keys)
    stages = plan_config(config).stages
    return {stage.stage: [stage.host_bytes, stage.read_bytes, stage.written_bytes] for stage in stages}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = write_store(Path(directory, "store.ecgl"), draw_uneven())
        found = {
            f"{method} {train_as}": planned(store, Path(directory, "tasks"), method, train_as)
            for method in built_in_methods()
            for train_as in built_in_methods()[method].backbones
        }
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(stages)}" for name, stages in found.items())
    RECORDED.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Small stores whose classes overlap, so that accuracies are neither 0 nor 100, and runs on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.config.schema import RunConfig, config_from_mapping
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.session.plan.run_plan import plan_run
from ecgl_scale.session.setup import RunSetup
from ecgl_scale.store.graph import GraphStore

NUM_CLASSES = 6
FEW_EPOCHS = "learn.epochs=3"


@dataclass(frozen=True)
class Drawn:
    """A graph in memory."""

    edge_index: NDArray[np.int64]
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    year: NDArray[np.int64]


def draw_graph(num_nodes: int = 900, *, num_features: int = 16, noise: float = 2.0, seed: int = 0) -> Drawn:
    """Both directions of about three edges a node, of which a half are drawn inside a class; three years."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(num_nodes) % NUM_CLASSES)
    centres = rng.normal(size=(NUM_CLASSES, num_features))
    x = (centres[y] + noise * rng.normal(size=(num_nodes, num_features))).astype(np.float32)
    source = rng.integers(0, num_nodes, 3 * num_nodes)
    members = np.argsort(y, kind="stable").reshape(NUM_CLASSES, -1)
    own = members[y[source], rng.integers(0, members.shape[1], source.size)]
    target = np.where(rng.random(source.size) < 0.5, own, rng.integers(0, num_nodes, source.size))
    edges = np.stack([np.concatenate([source, target]), np.concatenate([target, source])])
    edges = np.unique(edges[:, edges[0] != edges[1]], axis=1)
    return Drawn(edges, x, y, rng.integers(2000, 2003, num_nodes))


def write_store(path: Path, drawn: Drawn, **replaced: Any) -> Path:
    """The store of a drawn graph; ``x=None`` leaves the features out, and so on."""
    arrays: dict[str, Any] = {"x": drawn.x, "y": drawn.y, "columns": {"year": drawn.year}, **replaced}
    GraphStore.from_edge_index(drawn.edge_index, arrays.pop("x"), arrays.pop("y"), path, **arrays)
    return path


def mapping_of(store: Path, **sections: Any) -> dict[str, Any]:
    """A config of three tasks that a second is enough for; it tests on the graphs of single tasks alone."""
    mapping: dict[str, Any] = {
        "store": str(store),
        "learn": {"hidden": [24], "epochs": 12, "lr": 0.02, "scale": "none", "device": "cpu"},
        "bank": {"budget": 40},
        "infer": {"backend": "numba"},
        "threads": 2,
    }
    return {**mapping, **sections, "tasks": {"eval_scope": "task", **sections.get("tasks", {})}}


def config_of(store: Path, cache: Path | None, *overrides: str) -> RunConfig:
    """The same, with keys set as on the command line."""
    return config_from_mapping(mapping_of(store, cache=None if cache is None else str(cache)), overrides=overrides)


def write_config(path: Path, store: Path, **sections: Any) -> Path:
    """The same as a file; JSON is YAML."""
    path.write_text(json.dumps(mapping_of(store, **sections)))
    return path


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def without_clocks(results: dict[str, Any]) -> dict[str, Any]:
    """All that two runs of a config have in common."""
    return {name: value for name, value in results.items() if name != "stages"}


def events_of(run: Path, kind: str) -> list[dict[str, Any]]:
    """What a run has said, of one kind of event; a line that is being written is not yet said."""
    lines = (run / "events.jsonl").read_text().split("\n")[:-1]
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def plan_config(config: RunConfig) -> MemoryPlan:
    """The plan of a config."""
    return plan_run(RunSetup.open(config))

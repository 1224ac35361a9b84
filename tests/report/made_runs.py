"""Run directories made by hand: what a finished run leaves, without running anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

STAGES = ("extract", "train", "remember", "evaluate")
NUM_TASKS = 3
MIB = 1 << 20


def make_run(
    path: Path,
    *,
    method: str = "ecgl",
    setting: str = "class-il",
    seed: int = 0,
    store: str = "data/graph.ecgl",
    gain: float = 0.0,
    is_finished: bool = True,
    changed: Sequence[str] | None = None,
    about_method: dict[str, Any] | None = None,
    **keys: Any,
) -> Path:
    """Three tasks, each forgotten by 10 percent points; ``gain`` is added to every accuracy.

    Without ``changed`` it is a run from before results named the keys that differ from preset and defaults, and
    without ``about_method`` from before they said what a report must know of it.
    """
    path.mkdir(parents=True)
    matrix = [
        [90.0 - 10 * (t - j) + gain + seed if j <= t else None for j in range(NUM_TASKS)] for t in range(NUM_TASKS)
    ]
    rows = [[value for value in row if value is not None] for row in matrix]
    config: dict[str, Any] = {"store": store, "method": method, "preset": "plus", "setting": setting, "seed": seed}
    config |= {"learn": {"epochs": 4, "lambda": 1.0, "train_as": "mlp"}}
    config |= {"bank": {"budget": 200, "diversity_ratio": 0.25, "importance": True}, "ewc": {"lambda": 1.0 + seed}}
    for key, value in keys.items():
        section, _, name = key.partition("__")
        config.setdefault(section, {})[name] = value
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    stages = {
        name: {
            "seconds": 1.5 + number,
            "peak_bytes": (200 + 10 * number) * MIB,
            "planned_bytes": 250 * MIB,
            "read_bytes": MIB,
            "written_bytes": 0,
        }
        for number, name in enumerate(STAGES)
    }
    results = {
        "aa": sum(rows[-1]) / NUM_TASKS,
        "af": -15.0,
        "matrix": matrix,
        "method": method,
        "preset": "plus",
        "setting": setting,
        "seed": seed,
        "store": store,
        "split_hash": f"{seed:064d}",
        "stages": stages,
        "tasks": [{"name": f"task {t}", "classes": [2 * t, 2 * t + 1], "num_nodes": 1000} for t in range(NUM_TASKS)],
        "versions": {"python": "3.11", "dgl": None},
    }
    if changed is not None:
        results["changed"] = list(changed)
    if about_method is not None:
        results["about_method"] = about_method
    if is_finished:
        (path / "results.json").write_text(json.dumps(results))
    losses = [[1.0 / (epoch + 1) for epoch in range(4)] for _ in range(NUM_TASKS)]
    state = {"macro": rows, "losses": losses, "task": NUM_TASKS, "stages": stages, "is_finished": is_finished}
    (path / "state.json").write_text(json.dumps(state))
    (path / "plan.json").write_text(json.dumps({"peak_bytes": 250 * MIB, "budget_bytes": 4096 * MIB}))
    write_lines(path / "events.jsonl", events())
    write_lines(path / "memory.jsonl", samples())
    return path


def events() -> list[dict[str, Any]]:
    found = []
    for task in range(NUM_TASKS):
        found.append({"time": 100.0 + task, "event": "TaskStarted", "task": task, "num_tasks": NUM_TASKS})
        for epoch in range(4):
            entry = {"event": "EpochFinished", "task": task, "epoch": epoch, "loss": 1 / (epoch + 1), "seconds": 0.02}
            found.append({"time": 100.0 + task + epoch / 10, **entry})
    return found


def samples(*, started: float = 100.0, count: int = 40) -> list[dict[str, Any]]:
    head = {"version": 1, "started": started, "host": "somewhere", "pid": 7, "line_seconds": 0.1}
    return [head, *(sample(started + number / 10, STAGES[number // 4 % 4], number) for number in range(count))]


def sample(time: float, stage: str, number: int = 0, **changed: Any) -> dict[str, Any]:
    return {
        "time": time,
        "stage": stage,
        "part": f"{stage} something",
        "anon_bytes": (200 + number) * MIB,
        "file_bytes": 90 * MIB,
        "shmem_bytes": MIB,
        "minor_faults": number,
        "major_faults": 0,
        "read_bytes": 10 * number,
        "written_bytes": number,
        "device_bytes": 0,
        **changed,
    }


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def make_comparison(folder: Path) -> list[Path]:
    """Two stores, two settings, three methods, two seeds; a sweep of the budget and an ablation."""
    paths = []
    for store, setting in (("one.ecgl", "task-il"), ("one.ecgl", "class-il"), ("two.ecgl", "class-il")):
        for method, gain in (("finetune", -40.0), ("ecgl", 0.0), ("joint", 5.0)):
            for seed in (0, 1):
                name = f"{store}-{setting}-{method}-{seed}"
                run = make_run(folder / name, method=method, setting=setting, seed=seed, store=store, gain=gain)
                paths.append(run)
    for budget, gain in ((50, -20.0), (100, -8.0)):
        paths.append(make_run(folder / f"budget-{budget}", store="one.ecgl", gain=gain, bank__budget=budget))
    paths.append(make_run(folder / "no-importance", store="one.ecgl", gain=-3.0, bank__importance=False))
    return paths

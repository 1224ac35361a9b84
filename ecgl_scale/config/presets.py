"""Named variants of the method: a value for every key in which the paper, its public code and our own advice differ.

A key that is given in a config, or on the command line, wins over its preset. They are variants of E-CGL and hold for
every method; of the other methods the public code has no biases (``learn.bias: false``) and, but for LwF, torch's first
weights. The paper's formulas have no biases either, its code has, and so have all presets. PageRank gives the ranks
after its last sweep, in the public code those before it, which differ by less than ``rank.tol``.
"""

from __future__ import annotations

DEFAULT_PRESET = "plus"

PRESETS: dict[str, dict[str, dict[str, object]]] = {
    # as the paper is written
    "paper": {
        "tasks": {"eval_scope": "task"},
        "learn": {
            "scale": "none",
            "balance": "none",
            "reduction": "sum",
            "replay_slice": "own",
            "head": "grow",
            "last_layer": "trained",
            "init": "torch",
            "optimizer": "carry",
            "bias_place": "inside",
        },
        "bank": {"quota": "none", "select": "ecgl", "refill": False},
        "rank": {
            "features": "raw",
            "dangling": "uniform",
            "norm": "l1",
            "tol": 1e-8,
            "max_iter": 100,
            "self_loops": False,
            "include_self": False,
        },
        "infer": {"norm": "sym"},
    },
    # as the paper's public code runs, but scored on test nodes
    "reference": {
        "tasks": {"eval_scope": "task"},
        "learn": {
            "scale": "none",
            "balance": "reference",
            "reduction": "mean",
            "replay_slice": "seen",
            "head": "whole",
            "last_layer": "trained",
            "init": "kaiming",
            "optimizer": "carry",
            "bias_place": "inside",
        },
        "bank": {"quota": "none", "select": "ecgl", "refill": False},
        "rank": {
            "features": "logits",
            "dangling": "reset",
            "norm": "l2",
            "tol": 1e-10,
            "max_iter": 1000,
            "self_loops": True,
            "include_self": True,
        },
        "infer": {"norm": "sum"},
    },
    # what we advise: the paper's method with a budget for each class, nodes that stand for it, and one balanced loss
    "plus": {
        "tasks": {"eval_scope": "both"},
        "learn": {
            "scale": "row_l2",
            "balance": "unified",
            "reduction": "mean",
            "replay_slice": "own",
            "head": "grow",
            "last_layer": "solved",
            "init": "torch",
            "optimizer": "carry",
            "bias_place": "inside",
        },
        "bank": {"quota": "class", "select": "herding", "refill": True},
        "rank": {
            "features": "raw",
            "dangling": "uniform",
            "norm": "l1",
            "tol": 1e-8,
            "max_iter": 100,
            "self_loops": False,
            "include_self": False,
        },
        "infer": {"norm": "sym"},
    },
}

BEFORE: dict[str, dict[str, object]] = {"learn": {"head": "whole", "last_layer": "trained"}}
"""What was done before there were these keys, whatever the preset. A section that names all its other keys was written
by a run of that time, and goes on as it began."""

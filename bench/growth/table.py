"""The tables of README.md, from the record."""

from __future__ import annotations

from typing import Any

GRAPHS = {"all_over": "Edges all over the graph", "near": "Edges to near nodes"}
STEPS = {
    "append": "append / ingest",
    "infer": "infer --nodes new / infer",
    "update": "update / run",
    "untested": "update --evaluate none / run",
}
WANTED = 20


def render(record: dict[str, Any]) -> str:
    """All parts that the record has, as Markdown."""
    parts = [_real(title, case) for title, case in record.get("real", {}).items()]
    parts += [_products(record["products"])] if "products" in record else []
    parts += [_generations(record["generations"])] if "generations" in record else []
    return "\n\n".join(parts)


def _real(title: str, case: dict[str, Any]) -> str:
    heads = ["part", "new nodes", "new edges", "append, s", "append, MB", "update, s", "update, MB", "AA / AF"]
    rows = [
        [
            str(row["part"]),
            f"{row['num_new_nodes']:,}",
            f"{row['num_new_edges']:,}",
            f"{row['append_seconds']:.1f}",
            f"{row['append_bytes'] / 1e6:.1f}",
            f"{row['update_seconds']:.1f}",
            f"{row['update_bytes'] / 1e6:.0f}",
            _accuracy(row["aa"], row["af"]),
            f"{row['joint_seconds']:.1f}",
            _accuracy(row["joint_aa"], row["joint_af"]),
        ]
        for row in case["rows"]
    ]
    whole = case["whole"]
    said = f"run on the whole {whole['run_seconds']:.1f} s, AA / AF {_accuracy(whole['aa'], whole['af'])}"
    table = _table([*heads, "joint, s", "joint AA / AF"], rows)
    return f"{title}, {case['epochs']} epochs a task; {said}:\n\n{table}"


def _products(case: dict[str, Any]) -> str:
    return "\n\n".join(_hundredth(title, case[name]) for name, title in GRAPHS.items() if name in case)


def _hundredth(title: str, graph: dict[str, Any]) -> str:
    reached = graph["num_reached"] / graph["num_nodes"]
    said = f"{graph['num_nodes']:,} nodes; the new nodes see {reached:.1%} within two hops"
    heads = ["step", "s", "times less", "processor s", "times less", "MB", "times less"]
    running = [_running_row(name, *pair) for name, pair in _pairs(graph, "running").items()]
    starts = ["step", "s", "times less", "processor s", "times less", "start, processor s", "20 times from"]
    commands = [_command_row(name, *pair, graph) for name, pair in _pairs(graph, "commands").items()]
    found = f"{title}: {said}. In a process that runs:\n\n{_table(heads, running)}"
    return found if not commands else f"{found}\n\nAs commands:\n\n{_table(starts, commands)}"


def _pairs(graph: dict[str, Any], how: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """What is new and everything, by step; a run of everything is measured in a process that runs alone."""
    steps, running = graph.get(how, {}), graph["running"]
    found = {name: (steps[name]["new"], steps[name]["everything"]) for name in ("append", "infer") if name in steps}
    if "update" in steps and "run" in running:
        for name, side in (("update", "new"), ("untested", "untested")):
            found[name] = (steps["update"][side], running["run"]["everything"])
    return found


def _running_row(name: str, new: dict[str, Any], everything: dict[str, Any]) -> list[str]:
    mega = [side["written_bytes"] / 1e6 for side in (new, everything)]
    return [STEPS[name], *_times(new, everything), f"{mega[0]:.1f} / {mega[1]:.0f}", f"{mega[1] / mega[0]:.0f}"]


def _command_row(name: str, new: dict[str, Any], everything: dict[str, Any], graph: dict[str, Any]) -> list[str]:
    start = new["fixed"]["cpu_seconds"]
    size = enough_nodes(start, *(side["cpu_seconds"] for side in _pairs(graph, "running")[name]), graph["num_nodes"])
    said = "never" if size is None else f"{size / 1e6:,.1f} M nodes"
    return [STEPS[name], *_times(new, everything), f"{start:.1f}", said]


def enough_nodes(start: float, new: float, everything: float, num_nodes: int) -> float | None:
    """Nodes of a graph from which on whole commands take ``WANTED`` times less, where both have the same start.

    (start + k everything) / (start + k new) = WANTED, where k is how many times larger the graph is; None where there
    is no such size.
    """
    gained = everything - WANTED * new
    return None if gained <= 0 else num_nodes * (WANTED - 1) * start / gained


def _times(new: dict[str, Any], everything: dict[str, Any]) -> list[str]:
    clock = [side["seconds"]["median"] for side in (new, everything)]
    processor = [side["cpu_seconds"] for side in (new, everything)]
    return [
        text
        for first, second in (clock, processor)
        for text in (f"{_seconds(first)} / {_seconds(second)}", f"{second / first:.1f}")
    ]


def _seconds(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _generations(case: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{row['grown_seconds']['median']:.2f}",
            f"{row['compacted_seconds']['median']:.2f}",
            f"{row['ratio_of_medians']:.2f}",
            f"{row['ratio_of_minima']:.2f}",
        ]
        for name, row in case["stages"].items()
    ]
    return _table(["stage", "ten generations, s", "compacted, s", "ratio of medians", "of minima"], rows)


def _accuracy(aa: float, af: float | None) -> str:
    return f"{aa:.1f} / {'-' if af is None else format(af, '.1f')}"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""The tables of README.md, from the record."""

from __future__ import annotations

from typing import Any

GRAPHS = {"all_over": "Edges all over the graph", "near": "Edges to near nodes"}
STEPS = {"append": "append / ingest", "update": "update / run", "infer": "infer --nodes new / infer"}


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
    parts = [_hundredth(title, case[name]) for name, title in GRAPHS.items() if name in case]
    return "\n\n".join(parts)


def _hundredth(title: str, graph: dict[str, Any]) -> str:
    rows = [
        [
            STEPS[name],
            f"{step['new_seconds']['median']:.1f} / {step['everything_seconds']['median']:.1f}",
            f"{step['times_faster']:.1f}",
            f"{step['new_fixed_seconds']['median']:.1f} / {step['everything_fixed_seconds']['median']:.1f}",
            f"{step['times_faster_without_fixed']:.1f}",
            f"{step['new_cpu_seconds']:.1f} / {step['everything_cpu_seconds']:.1f}",
            f"{step['times_less_cpu']:.1f}",
            f"{step['times_less_cpu_without_fixed']:.1f}",
            f"{step['new_bytes'] / 1e6:.1f} / {step['everything_bytes'] / 1e6:.1f}",
            f"{step['times_fewer_bytes']:.0f}",
        ]
        for name, step in graph["steps"].items()
    ]
    heads = [
        "step",
        "s",
        "times less",
        "fixed, s",
        "without",
        "processor s",
        "times less",
        "without",
        "MB",
        "times less",
    ]
    reached = graph["num_reached"] / graph["num_nodes"]
    said = (
        f"{graph['num_nodes']:,} nodes, {graph['num_edges']:,} edges; the new nodes see {reached:.1%} within two hops"
    )
    return f"{title}: {said}:\n\n{_table(heads, rows)}"


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

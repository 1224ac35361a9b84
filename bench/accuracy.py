"""Accuracy on the real graphs of ``../shared/data``: every preset and bound, both settings, five seeds.

    python -m bench.accuracy [--graphs ...] [--presets ...] [--settings ...] [--seeds 0-4] [--epochs 100] [--jobs 1]
    python -m bench.accuracy --choose      what ``plus`` was chosen from, scored on validation nodes
    python -m bench.accuracy --table       the tables of README.md, from the records

A graph is ingested once, symmetrised where it is not; a run is the whole pipeline, in process. Accuracies are macro, on
test nodes. The record is written after every run: what is in it is not run again, unless its config has changed or
with ``--again``. A seed draws split, weights and batches; with the fixed splits (``reference_fixed``), weights alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import harness
from bench.accuracy_record import Job, Record
from bench.accuracy_table import render
from ecgl_scale.engine.threads import available_cores

DATA = Path(__file__).parents[2] / "shared" / "data"
SETTINGS = ("task-il", "class-il")
EPOCHS = 100


@dataclass(frozen=True)
class Graph:
    """A stream of tasks on a real graph."""

    file: str
    budget: int
    tasks: tuple[str, ...]
    is_symmetric: bool = False
    has_split: bool = False
    epochs_share: float = 1.0
    """Of the epochs asked for: a long stream takes as many in all with fewer a task."""
    skipped: tuple[str, ...] = ()
    """Rows that are not run."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    preset: str
    method: str = "ecgl"
    overrides: tuple[str, ...] = ()
    is_fixed: bool = False
    """On the fixed splits, for the graphs that have one."""


# features propagated over debian are dense: 2.7 GB, and minutes an epoch
DEBIAN = {"file": "debian_packages", "budget": 500, "skipped": ("plus_propagated",), "epochs_share": 0.5}
GRAPHS: dict[str, Graph] = {
    "coauthor_cs": Graph("coauthor_cs", 500, ("tasks.classes_per_task=3",), is_symmetric=True, has_split=True),
    "amazon_computers": Graph("amazon_computers", 300, ("tasks.classes_per_task=2",), has_split=True),
    "amazon_photo": Graph("amazon_photo", 300, ("tasks.classes_per_task=2",)),
    "cora_ml": Graph("cora_ml", 100, ("tasks.classes_per_task=2",)),
    "debian_packages": Graph(tasks=("tasks.classes_per_task=4",), **DEBIAN),  # type: ignore[arg-type]
    "debian_arrival": Graph(tasks=("tasks.kind=time", "tasks.column=first_release"), **DEBIAN),  # type: ignore[arg-type]
}
RANKED = ("bank.select=ecgl", "learn.last_layer=trained")
"""As ``plus`` was when these rows were run."""
ROWS: dict[str, Row] = {
    "reference_fixed": Row("reference", is_fixed=True),
    "plus": Row("plus"),
    "plus_ecgl": Row("plus", overrides=RANKED),
    "reference": Row("reference"),
    "paper": Row("paper"),
    "joint_mlp": Row("plus", "joint"),
    "plus_random": Row("plus", overrides=("bank.select=random", "learn.last_layer=trained")),
    "plus_propagated": Row("plus", overrides=(*RANKED, "learn.features=propagated:2")),
}
UNSCALED, SCALED = "learn.scale=none", "learn.scale=row_l2"
CHOICES: dict[str, Row] = {
    "unscaled": Row(
        "plus",
        overrides=(
            *RANKED,
            UNSCALED,
        ),
    ),
    "row_l2": Row(
        "plus",
        overrides=(
            *RANKED,
            SCALED,
        ),
    ),
    "bias_outside": Row("plus", overrides=(*RANKED, UNSCALED, "learn.bias_place=outside")),
    "replay_seen": Row("plus", overrides=(*RANKED, UNSCALED, "learn.replay_slice=seen")),
    "optimizer_reset": Row("plus", overrides=(*RANKED, UNSCALED, "learn.optimizer=reset")),
    "dropout": Row("plus", overrides=(*RANKED, UNSCALED, "learn.dropout=0.5")),
    "kaiming": Row("plus", overrides=(*RANKED, UNSCALED, "learn.init=kaiming")),
    "diversity_0": Row("plus", overrides=(*RANKED, UNSCALED, "bank.diversity_ratio=0.0")),
    "diversity_50": Row("plus", overrides=(*RANKED, UNSCALED, "bank.diversity_ratio=0.5")),
    "balance_task": Row("plus", overrides=(*RANKED, UNSCALED, "learn.balance=task")),
    "epochs_200": Row("plus", overrides=(*RANKED, UNSCALED, "learn.epochs=200")),
    "kaiming_200": Row("plus", overrides=(*RANKED, UNSCALED, "learn.init=kaiming", "learn.epochs=200")),
    "row_l2_200": Row("plus", overrides=(*RANKED, SCALED, "learn.epochs=200")),
    "row_l2_seen": Row("plus", overrides=(*RANKED, SCALED, "learn.replay_slice=seen")),
    "row_l2_kaiming": Row("plus", overrides=(*RANKED, SCALED, "learn.init=kaiming")),
    "quota_none": Row("plus", overrides=(*RANKED, SCALED, "bank.quota=none")),
    "norm_sum": Row("plus", overrides=(*RANKED, SCALED, "infer.norm=sum")),
    "rank_logits": Row("plus", overrides=(*RANKED, SCALED, "rank.features=logits")),
    "row_l2_task": Row("plus", overrides=(*RANKED, SCALED, "learn.balance=task")),
    "row_l2_outside": Row("plus", overrides=(*RANKED, SCALED, "learn.bias_place=outside")),
}
"""Scale, then one key at a time, those that make ``plus`` among them; all else as in ``plus``."""


def ingest(name: str, data: Path, work: Path) -> Path:
    """The store of a graph, made once."""
    graph = GRAPHS[name]
    store = work / f"{graph.file}.ecgl"
    if not store.exists():
        columns = ["--columns", str(data / "splits" / f"{graph.file}.npz")] if graph.has_split else []
        symmetrise = [] if graph.is_symmetric else ["--symmetrise"]
        command = ("ingest", "npz", str(data / f"{graph.file}.npz"), str(store))
        harness.run_measured(harness.ecgl(*command, *columns, *symmetrise))
    return store


def make_jobs(
    graphs: Sequence[str],
    rows: dict[str, Row],
    settings: Sequence[str],
    seeds: Iterable[int],
    *,
    data: Path,
    work: Path,
    epochs: int,
    score: str = "test",
    threads: int = 1,
) -> Iterator[Job]:
    """Every run that is wanted, the rows that matter most first."""
    seeds = list(seeds)
    for row_name, row in rows.items():
        for name in graphs:
            graph = GRAPHS[name]
            if row_name in graph.skipped or (row.is_fixed and not graph.has_split):
                continue
            store = ingest(name, data, work)
            own_epochs = max(round(graph.epochs_share * epochs), 1)
            overrides = [*graph.tasks, f"bank.budget={graph.budget}", f"learn.epochs={own_epochs}"]
            overrides += [f"tasks.score={score}"]
            overrides += ["tasks.split=store"] if row.is_fixed else []
            overrides += row.overrides
            for setting in settings:
                for seed in seeds:
                    mapping = {
                        "store": str(store),
                        "method": row.method,
                        "preset": row.preset,
                        "setting": setting,
                        "seed": seed,
                        "threads": threads,
                    }
                    yield Job(name, row_name, setting, seed, mapping, tuple(overrides), work, threads)


def run_job(job: Job) -> dict[str, Any]:
    """One run of the pipeline; its directory is not kept."""
    import torch

    from ecgl_scale.session.run import run

    torch.set_num_threads(job.threads)
    out = job.work / f"run-{job.graph}-{job.row}-{job.setting}-{job.seed}"
    shutil.rmtree(out, ignore_errors=True)
    started, cpu_started = time.perf_counter(), time.process_time()
    try:
        results = run(job.config, out)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return {
        "aa": results["aa"],
        "af": results["af"],
        "aa_micro": results["aa_micro"],
        **{name: results[name] for name in ("aa_seen", "af_seen") if name in results},
        "matrix": results["matrix"],
        "split_hash": results["split_hash"],
        "peak_bytes": max(stage["peak_bytes"] for stage in results["stages"].values()),
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
        "stage_seconds": {name: stage["seconds"] for name, stage in results["stages"].items()},
    }


def run(jobs: Sequence[Job], record: Record, *, processes: int = 1, again: bool = False) -> None:
    """Run what is not in the record yet, and put it there."""
    waiting = [job for job in jobs if again or not record.has(job)]
    print(f"{len(waiting)} of {len(jobs)} runs to do", flush=True)
    if processes == 1:
        for job in waiting:
            record.read()
            if again or not record.has(job):  # another process may have done it since
                _finish(record, job, run_job(job))
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run_job, job): job for job in waiting}
        try:
            for done in as_completed(running):
                _finish(record, running[done], done.result())
        except BaseException:
            # Else the other runs would go on for hours, and nobody would take their results.
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _finish(record: Record, job: Job, result: dict[str, Any]) -> None:
    said = f"{job.graph} {job.row} {job.setting} seed {job.seed}: AA {result['aa']:.2f}, {result['seconds']:.0f} s"
    print(said, flush=True)
    record.add(job, result)


def parse_seeds(text: str) -> list[int]:
    """``0-4`` or ``0,2``."""
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(seed) for seed in text.split(",")]


def main() -> None:
    """Run the case and keep its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", choices=list(GRAPHS), default=list(GRAPHS))
    parser.add_argument("--presets", nargs="+", choices=sorted({*ROWS, *CHOICES}), help="Rows of the table.")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", type=parse_seeds, default=list(range(5)))
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--jobs", type=int, default=1, help="Processes; the cores are shared among them.")
    parser.add_argument("--choose", action="store_true", help="Variants of plus, on validation nodes.")
    parser.add_argument("--again", action="store_true", help="Also what is in the record.")
    parser.add_argument("--table", action="store_true", help="Print the record as Markdown and run nothing.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=harness.DEFAULT_WORK / "accuracy")
    arguments = parser.parse_args()
    if arguments.table:
        print(render(Record("accuracy").rows, Record("accuracy_choice").rows))
        return
    known = CHOICES if arguments.choose else ROWS
    rows = {name: row for name, row in known.items() if name in (arguments.presets or known)}
    arguments.work.mkdir(parents=True, exist_ok=True)
    jobs = make_jobs(
        arguments.graphs,
        rows,
        arguments.settings,
        arguments.seeds,
        data=arguments.data,
        work=arguments.work,
        epochs=arguments.epochs,
        score="valid" if arguments.choose else "test",
        threads=max(available_cores() // arguments.jobs, 1),
    )
    record = Record("accuracy_choice" if arguments.choose else "accuracy")
    run(list(jobs), record, processes=arguments.jobs, again=arguments.again)


if __name__ == "__main__":
    main()

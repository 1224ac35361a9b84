"""Does what a case says, by commands alone, and reads the files that they are documented to leave."""

from __future__ import annotations

import json
import shutil
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.cli_runner import run_cli
from tests.golden.cases import BOTH_SCOPES, STORES, Case, RankCase, RunCase, StoreCase
from tests.golden.inputs import write_inputs

Record = dict[str, Any]

MEMORY = "4GiB"
"""Not what this machine has: blocks are cut by it."""

SHARED = {
    "seed": 5,
    "memory": MEMORY,
    "learn": {"hidden": [16], "epochs": 4, "lr": 0.03, "device": "cpu"},
    "bank": {"budget": 16},
    "infer": {"backend": "numba"},
}
"""Of all runs; a case's own settings win."""

FROM_RESULTS = {
    "exact": ("accuracy", "changed", "dropped_classes", "method", "num_epochs", "num_tasks", "preset", "score", "seed",
              "setting", "split_hash", "store_id", "tasks"),
    "percent": ("aa", "af", "matrix", "aa_micro", "af_micro", "matrix_micro"),
}  # fmt: skip
"""Of results.json. Not in it: times, versions, paths, the digest of a config, in which a path is, and what follows from
the matrix (``aa_after_each_task``)."""


@dataclass
class World:
    """A directory with the inputs, and the stores that cases have asked for so far."""

    directory: Path
    threads: int = 1
    _made: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        write_inputs(self.directory)

    def store(self, name: str) -> str:
        """Name of a store in this directory, made when first asked for."""
        place = f"{name}.ecgl"
        if name not in self._made:
            (case,) = (case for case in STORES if case.name == f"store-{name}")
            arguments = [place if argument == "STORE" else argument for argument in case.arguments]
            self.command(*arguments, "--threads", self.threads)
            self._made.add(name)
        return place

    def command(self, *arguments: object) -> str:
        """What ``ecgl`` says on stdout; it runs in this directory, so that no path of the machine's gets in."""
        with chdir(self.directory):
            result = run_cli("--quiet", *arguments)
        assert result.code == 0, f"ecgl {' '.join(map(str, arguments))}: exit code {result.code}\n{result.stderr}"
        return result.stdout


def measure(case: Case, world: World) -> Record:
    """The parts of a record, as ``compare`` has them."""
    if isinstance(case, StoreCase):
        return {"exact": store_bytes(world.directory / world.store(case.name.removeprefix("store-")))}
    if isinstance(case, RankCase):
        return _ranking(case, world)
    return _run(case, world)


def store_bytes(store: Path) -> Record:
    """Checksum and size of every file, and what the manifest says beside where, when and by whom it was made."""
    manifest = json.loads((store / "manifest.json").read_text())
    files = {}
    for path in sorted(store.rglob("*")):
        name = str(path.relative_to(store))
        if path.is_file() and name != "manifest.json":
            content = path.read_bytes()
            files[name] = f"{crc32c(content):08x} {len(content)}"
            told = manifest["files"][name]
            assert (told["crc32c"], told["size_bytes"]) == (crc32c(content), len(content)), f"{name}: a false manifest"
    assert files.keys() == manifest["files"].keys()
    kept = ("format", "format_version", "num_nodes", "edges", "features", "columns", "num_classes")
    return {"files": files, **{name: _line(manifest[name]) for name in kept}}


def _ranking(case: RankCase, world: World) -> Record:
    out = world.directory / f"{case.name}.parquet"
    resources = ("--threads", world.threads, "--memory", MEMORY)
    told = world.command("rank", world.store(case.store), "--out", out.name, *case.arguments, *resources, "--json")
    table = pq.read_table(out)
    scores = {name: table[name].to_numpy() for name in table.column_names if name != "node"}
    nodes = table["node"].to_numpy()
    record = {
        "exact": {"columns": table.column_names, "num_rows": table.num_rows},
        "bits": {name: _crc(values) for name, values in scores.items()},
        "close": {name: _summary(values) for name, values in scores.items()},
        "chosen": {"nodes": _words(nodes) if "--topk" in case.arguments else ""},
    }
    if "importance" in scores:
        report = json.loads(told)["importance"]
        record["exact"] |= {"sweeps": report["iterations"], "converged": report["converged"]}
    if case.has_fixed_bits:
        record["exact"] |= {"scores": record["bits"]}
    return record


def _run(case: RunCase, world: World) -> Record:
    run = world.directory / case.name
    config = world.directory / f"{case.name}.yaml"
    # Of runs that have equal task graphs one extracts them, but for those whose graphs are compared themselves.
    cache = None if case.with_task_graphs else "tasks"
    own = {"store": world.store(case.store), "cache": cache, "threads": world.threads}
    config.write_text(json.dumps({**own, **SHARED}))
    world.command("run", config.name, "--out", run.name, *(word for key in case.settings for word in ("--set", key)))
    results = json.loads((run / "results.json").read_text())
    record: Record = {part: {name: results[name] for name in names} for part, names in FROM_RESULTS.items()}
    record["exact"] = {name: _line(value) for name, value in record["exact"].items()}
    if BOTH_SCOPES in case.settings:  # other records are older than the second scope
        record["percent"] |= {name: value for name, value in results.items() if name.endswith("_seen")}
    record |= {"bits": {}, "close": {}, "trained": {}, "chosen": {}, "labels": {}}
    _add_losses(record, run, results["final_losses"])
    _add_weights(record, run)
    _add_bank(record, run)
    if case.with_predictions:
        _add_predictions(record, case, world)
    if case.with_task_graphs:
        graphs = [store_bytes(path.parent)["files"] for path in (run / "tasks").rglob("manifest.json")]
        record["exact"]["task_graphs"] = sorted(graphs, key=_line)  # not by name: names are keys of the cache
    shutil.rmtree(run)
    return record


def _add_losses(record: Record, run: Path, last: list[float]) -> None:
    """Of every epoch; the last of each task are also in the results."""
    rows = [row for row in pq.read_table(run / "metrics.parquet").to_pylist() if row["kind"] == "loss"]
    tasks = sorted({row["task"] for row in rows})
    losses = [[row["value"] for row in rows if row["task"] == task] for task in tasks]
    assert [of_task[-1] for of_task in losses] == last
    record["close"]["losses"] = losses


def _add_weights(record: Record, run: Path) -> None:
    tensors = load_file(run / "weights" / "model.safetensors")
    record["exact"]["weights"] = {name: f"{one.dtype} {list(one.shape)}" for name, one in tensors.items()}
    record["bits"]["weights"] = {name: _crc(one) for name, one in tensors.items()}
    record["trained"]["weights"] = {name: _sums(one) for name, one in tensors.items()}
    about = json.loads((run / "weights" / "model.json").read_text())
    record["exact"]["classes"] = _line(about["classes"])
    record["exact"]["scaling"] = about["scaling"]["kind"]
    if about["scaling"]["mean"] is not None:
        record["close"]["scaling"] = {name: _sums(np.array(about["scaling"][name])) for name in ("mean", "deviation")}


def _add_bank(record: Record, run: Path) -> None:
    path = run / "bank.arrow"
    record["exact"]["has_bank"] = path.exists()
    if not path.exists():
        return
    table = pa.ipc.open_file(path).read_all()
    pairs = zip(table["task"].to_pylist(), table["node"].to_pylist(), strict=True)
    record["chosen"]["bank"] = " ".join(f"{task}:{node}" for task, node in pairs)
    for name in ("importance", "diversity"):
        values = table[name].to_numpy()
        record["bits"][name] = _crc(values)
        record["close"][name] = _sums(values[~np.isnan(values)])


def _add_predictions(record: Record, case: RunCase, world: World) -> None:
    out = world.directory / f"{case.name}.parquet"
    world.command("infer", case.name, world.store(case.store), "--out", out.name, "--threads", world.threads)
    table = pq.read_table(out)
    scores = table["score"].to_numpy()
    record["labels"]["predicted"] = _words(table["label"].to_numpy())
    record["bits"]["scores"] = _crc(scores)
    record["trained"]["scores"] = _summary(scores)
    record["exact"]["predicted"] = {"columns": table.column_names, "nodes": _crc(table["node"].to_numpy())}


def _summary(values: NDArray[Any]) -> Record:
    """Sums, and nine of the values, from the first to the last."""
    places = np.linspace(0, values.size - 1, 9).astype(np.int64)
    return {**_sums(values), "some": [float(values[place]) for place in places]}


def _sums(values: NDArray[Any]) -> dict[str, float]:
    """Positive and negative values apart: nothing cancels, so that a share of a sum means something.

    One value after another, as numpy's own sum takes another order with other vector instructions.
    """
    wide = values.astype(np.float64).ravel()
    squares = float(np.cumsum(wide * wide)[-1]) if wide.size else 0.0
    positive, negative = (float(np.cumsum(part)[-1]) if part.size else 0.0 for part in (wide[wide > 0], wide[wide < 0]))
    return {"positive": positive, "negative": negative, "norm": squares**0.5}


def _crc(values: NDArray[Any]) -> str:
    """Of the values as little-endian bytes, in the order of rows."""
    plain = np.ascontiguousarray(values)
    return f"{crc32c(plain.astype(plain.dtype.newbyteorder('<')).tobytes()):08x}"


def _line(value: Any) -> Any:
    """Lists and mappings as one line of text, so that records stay short."""
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value


def _words(values: NDArray[Any]) -> str:
    return " ".join(map(str, values.tolist()))

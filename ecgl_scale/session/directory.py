"""The directory of a run: whose it is, who may write to it, and what others read in it.

config.yaml  plan.json  state.json  split.parquet  weights/  bank.arrow  results.json  metrics.parquet
events.jsonl  memory.jsonl  run.log  sealed.json; workers.json where workers of a cluster took part, origin.json of an
update, forgotten.json where something was forgotten, versions/ where a model was updated in its own directory
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ecgl_scale.base.durable import storage_errors, write_atomically
from ecgl_scale.base.events import Event, EventSink, WorkersHeard, WorkerStarted
from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.output_file import refuse_inside_store
from ecgl_scale.base.versions import versions_of
from ecgl_scale.config.schema import NOT_IN_DIGEST, RunConfig, load_config
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.errors import InvalidInputError, StoreExistsError, UsageError
from ecgl_scale.session.checkpoint import WEIGHTS_DIRECTORY
from ecgl_scale.session.state import STATE_NAME, RunState

CONFIG_NAME = "config.yaml"
RESULTS_NAME = "results.json"
RESULTS_KEYS = {"aa", "af", "matrix", "num_tasks", "stages"}
"""The keys that a run or sweep reads back."""
ORIGIN_NAME = "origin.json"
"""What an update was begun from."""
FORGOTTEN_NAME = "forgotten.json"
"""What the model has forgotten on request: counts, and never which nodes."""
LOCK_NAME = ".lock"
WORK_NAME = "work"


class RunDirectory:
    """A run's directory, locked by this process from ``open`` to ``close``."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path, config: RunConfig, *, resume: bool) -> RunDirectory:
        """Make a new directory, or with ``resume`` take over one that the same config began; all others are refused."""
        refuse_inside_store(path)
        path = path.absolute()
        check = partial(refuse_other_run, path, config) if resume else partial(_refuse_any_run, path)
        with storage_errors(path):
            check()
            path.mkdir(parents=True, exist_ok=True)
            directory = cls(path, take_lock(path / LOCK_NAME, target=path))
            try:
                check()  # again, as another process may have come and gone before the lock was ours
                if not (path / CONFIG_NAME).exists():
                    write_atomically(path / CONFIG_NAME, config.to_yaml())
            except BaseException:
                directory.close()
                raise
        return directory

    def remove_work(self) -> None:
        """Remove what only a running run needs."""
        shutil.rmtree(self.path / WORK_NAME, ignore_errors=True)

    def write_plan(self, plan: MemoryPlan, about_method: dict[str, Any]) -> None:
        """Write ``plan.json``: what each stage will need, and about which method, for those who look while it runs."""
        write_atomically(
            self.path / "plan.json", json.dumps({**plan.as_json(), "about_method": about_method}, indent=1)
        )

    def write_results(self, results: dict[str, Any]) -> None:
        """Write ``results.json``, the last file of a run."""
        write_atomically(self.path / RESULTS_NAME, json.dumps(results, indent=1))

    def close(self) -> None:
        """Release the lock, so that another process may write to the directory."""
        os.close(self._lock)


def read_results(run: Path) -> dict[str, Any] | None:
    """What a finished run wrote to ``results.json``; None where it cannot be read."""
    try:
        found = json.loads((run / RESULTS_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.keys() >= RESULTS_KEYS else None


def _is_unused(path: Path) -> bool:
    """Whether nothing is there, or no more than a run leaves that was killed before its config was written."""
    own = {LOCK_NAME, f".{CONFIG_NAME}.partial"}
    return not path.exists() or (path.is_dir() and all(entry.name in own for entry in path.iterdir()))


def _refuse_any_run(path: Path) -> None:
    """Refuse a directory that holds something."""
    if not _is_unused(path):
        raise StoreExistsError(
            "the run directory already exists", where=path, fix="choose another --out, or pass --resume"
        )


def refuse_other_run(path: Path, config: RunConfig) -> None:
    """Refuse a directory that holds the run of another config, or something else; where nothing is, a run may begin."""
    if _is_unused(path):
        return
    state = RunState.read(path) if path.is_dir() else None
    if state is None and not (path / CONFIG_NAME).exists():
        raise StoreExistsError(
            "this is not the directory of a run", where=path, expected="config.yaml in it", fix="choose another --out"
        )
    is_update = (path / ORIGIN_NAME).exists()  # whose weights are there before its first state
    if state is None and (path / WEIGHTS_DIRECTORY).exists() and not is_update:
        raise InvalidInputError(
            "the state of the run is gone", where=path / STATE_NAME, fix="start the run anew in another directory"
        )
    known = load_config(path / CONFIG_NAME)
    if (known.digest() if state is None else state.digest) != config.digest():
        changed = ", ".join(sorted(differences(known.to_mapping(), config.to_mapping()) - set(NOT_IN_DIGEST)))
        raise UsageError(
            f"the run directory belongs to another config; these keys differ: {changed}",
            where=path,
            fix=f"resume with its own config, {path / CONFIG_NAME}, or choose another --out",
        )


def refuse_forgotten(path: Path) -> None:
    """Refuse to resume a run whose model has forgotten something: a run on the store would bring it back."""
    if any((found / FORGOTTEN_NAME).exists() for found in (path, *versions_of(path).values())):
        raise UsageError(
            "the model has forgotten nodes or a class on request, so it is not what a run on the store gives any more "
            "and cannot be resumed as one",
            where=path,
            fix="learn what is new on top of it: ecgl update; or run anew, with another --out",
        )


def differences(known: dict[str, Any], given: dict[str, Any], prefix: str = "") -> set[str]:
    """Dotted names of the keys in which two configs differ."""
    changed: set[str] = set()
    for name in known.keys() | given.keys():
        old, new = known.get(name), given.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            changed |= differences(old, new, f"{prefix}{name}.")
        elif old != new:
            changed.add(prefix + name)
    return changed


class EventLog:
    """Appends events to ``events.jsonl``, one JSON object a line, and passes them on.

    What only says that a worker is still there is left out: ``workers.json`` has the last of it.
    """

    def __init__(self, path: Path, then: EventSink) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._then = then
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Write an event and pass it on."""
        if not isinstance(event, WorkerStarted | WorkersHeard):
            line = json.dumps({"time": round(time.time(), 3), "event": type(event).__name__, **asdict(event)})
            with self._lock:
                self._file.write(line + "\n")
        self._then(event)

    def close(self) -> None:
        """Close the file of events."""
        self._file.close()

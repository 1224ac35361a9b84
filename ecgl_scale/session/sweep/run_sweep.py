"""``ecgl sweep``: every combination of a grid with every seed, each a run of its own in a process of its own.

DIR/<combination>/seed-<n>/   the run, as ``ecgl run`` leaves it; beside it ``seed-<n>.log``, what it said
DIR/<combination>/config.yaml what its runs are given
DIR/tasks/                    task graphs, which all runs share
DIR/sweep.json, sweep.csv     what there is so far

Nothing but the runs' own directories says how far they are: the same command again keeps those that are finished and
goes on with the others. The first seed of every combination comes first, so that a whole table is there early.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecgl_scale.base.durable import storage_errors, write_atomically
from ecgl_scale.base.events import BlockFinished, Note, StageStarted
from ecgl_scale.base.heartbeat import Heartbeat
from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.output_file import refuse_inside_store
from ecgl_scale.base.signals import told_of_signals, uninterrupted
from ecgl_scale.config.schema import EngineConfig, RunConfig
from ecgl_scale.config.sweep import Jobs, Sweep
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.cluster.entrance import with_workers
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import EcglError, ExitCode, InvalidInputError, StoreExistsError, UsageError
from ecgl_scale.session.directory import CONFIG_NAME, LOCK_NAME, read_results, refuse_other_run
from ecgl_scale.session.results import summary
from ecgl_scale.session.setup import cluster_of
from ecgl_scale.session.state import RunState
from ecgl_scale.session.sweep.run_work import HEARTBEAT_NAME, SEED_PREFIX, RunsHere, RunWork, has_finished, log_of
from ecgl_scale.session.sweep.sweep_plan import Schedule, Share, make_schedule, smallest_worker
from ecgl_scale.session.sweep.sweep_record import RECORD_NAME, SweepRun, make_record, write_record
from ecgl_scale.store.remote import manifest_files

CACHE_NAME = "tasks"
STAGE = "sweep"
STOPPED_CODES = (ExitCode.STOPPED, ExitCode.INTERRUPTED)
KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


def with_workers_of(sweep: Sweep, resources: Resources, out: Path) -> AbstractContextManager[Resources]:
    """These resources with the workers that the sweep's config asks for: each of them does whole runs."""
    configs = [combination.config for combination in sweep.combinations]
    manifests = {path for config in configs for path in manifest_files(config.store)}
    inputs = [path for path in sorted(manifests) if path.is_file()]  # a run without a store fails by itself
    return with_workers(cluster_of(configs[0]), resources, shared=[out], inputs=inputs)


def run_sweep(sweep: Sweep, out: Path, *, config: Path, resources: Resources, jobs: Jobs = "auto") -> dict[str, Any]:
    """Run what is not finished; returns what ``sweep.json`` holds. Runs that fail are in it, and stop no others.

    Runs here go ``jobs`` at a time, within the limits of their config; an executor elsewhere gives each of its workers
    one at a time, with all that the worker has. To be called in the main thread.

    Raises
    ------
    UsageError
        A run in ``out`` is of another config or store, or none of the runs is possible; nothing has been started.
    """
    refuse_inside_store(out)
    out = out.absolute()
    runs = [
        SweepRun(combination, seed, out / combination.name / f"{SEED_PREFIX}{seed}")
        for seed in sweep.seeds
        for combination in sweep.combinations
    ]
    _refuse_ranks(sweep)
    _refuse_other_directory(out)
    for run in runs:
        if _is_finished(run, _config_of(run, out)):
            run.status, run.exit_code = "finished", 0
    pending = [run for run in runs if run.status != "finished"]
    schedule = _schedule(runs, pending, jobs, resources)
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = take_lock(out / LOCK_NAME, target=out)
        try:
            record = _Record(sweep, runs, out, config, schedule.jobs)
            record.write()
            _Runner(out, record, resources).run_all(schedule)
            return record.write()
        finally:
            os.close(lock)


@dataclass(frozen=True)
class _Record:
    sweep: Sweep
    runs: list[SweepRun]
    out: Path
    config: Path
    jobs: int

    def write(self) -> dict[str, Any]:
        record = make_record(self.sweep, self.runs, config=self.config, jobs=self.jobs)
        write_record(self.out, record)
        return record


def _refuse_ranks(sweep: Sweep) -> None:
    """Refuse runs of several ranks: a sweep gives each run its share of this machine, and knows of one process each."""
    if any(combination.config.engine.ranks > 1 for combination in sweep.combinations):
        raise UsageError(
            "engine.ranks is more than 1, but runs of a sweep share this machine already",
            fix="set engine.ranks=1: --jobs says how many runs go on at once",
        )


def _refuse_other_directory(out: Path) -> None:
    """Refuse any directory but a new or empty one, or that of a sweep."""
    own = {LOCK_NAME, f".{RECORD_NAME}.partial", RECORD_NAME}
    names = {entry.name for entry in out.iterdir()} if out.is_dir() else set()
    if (out.exists() and not out.is_dir()) or (names - own and RECORD_NAME not in names):
        raise StoreExistsError("this is not the directory of a sweep", where=out, fix="choose another --out")


def _config_of(run: SweepRun, out: Path) -> RunConfig:
    """The config of a run, which starts no workers of its own: it is done by one."""
    config = run.combination.config
    alone = EngineConfig(ranks=config.engine.ranks)
    return config.model_copy(update={"seed": run.seed, "cache": config.cache or out / CACHE_NAME, "engine": alone})


def _is_finished(run: SweepRun, config: RunConfig) -> bool:
    """Whether a run has its results; refuses one of another config. Damage is left for the run itself to report."""
    if not (run.path / CONFIG_NAME).exists():
        return False
    try:
        refuse_other_run(run.path, config)
    except InvalidInputError:
        return False
    return has_finished(run.path)


def _schedule(runs: list[SweepRun], pending: list[SweepRun], jobs: Jobs, resources: Resources) -> Schedule:
    first = {run.combination.name: run.combination.config for run in pending}
    if not first:
        return Schedule(1, Share(None, None))
    here = jobs if resources.executor.shares_memory else None
    schedule = make_schedule(first, jobs=here, num_runs=len(pending), worker=smallest_worker(resources))
    _refuse_other_stores(runs, schedule)
    if len(schedule.refused) == len(first) and len(pending) == len(runs):
        raise next(iter(schedule.refused.values()))  # nothing can be run at all
    for run in pending:
        error = schedule.refused.get(run.combination.name)
        if error is not None:
            run.status, run.exit_code, run.message = "failed", error.exit_code, str(error)
    return schedule


def _refuse_other_stores(runs: list[SweepRun], schedule: Schedule) -> None:
    """Refuse finished runs of a store that has changed since: they must not stand in one table with new ones."""
    for run in runs:
        known = schedule.store_ids.get(run.combination.config.store)
        if run.status == "finished" and known is not None:
            state = RunState.read(run.path)
            if state is not None and state.store_id != known:
                raise UsageError(
                    "a finished run of this sweep is of another store: the one that the config names has changed since",
                    where=run.path,
                    fix="choose another --out for the new one",
                )


class _Runner:
    """Hands out runs to whoever is free, and notes how they begin and end."""

    def __init__(self, out: Path, record: _Record, resources: Resources) -> None:
        self._out = out
        self._record = record
        self._resources = resources
        self._log_starts: dict[int, int] = {}
        """Where the log of a run ended before we began it."""
        self._done = sum(run.status != "waiting" for run in record.runs)

    def run_all(self, schedule: Schedule) -> None:
        """Run what is waiting: so many at a time here, or one on each worker of an executor elsewhere."""
        self._resources.on_event(StageStarted(STAGE, len(self._record.runs), "runs"))
        self._say_beginning()
        names = [run.name for run in self._record.runs]
        stop = threading.Event()
        try:
            with told_of_signals(stop.set):
                if self._resources.executor.shares_memory:
                    here = RunsHere(self._out, names, stop, share=schedule.share)
                    self._run(here, self._resources.with_threads(schedule.jobs), stop)
                else:
                    with Heartbeat(self._out / HEARTBEAT_NAME, stop) as heartbeat:
                        self._run(RunWork(self._out, names, stop, token=heartbeat.token), self._resources, stop)
        except BaseException:
            with uninterrupted():
                self._note_stopped()
            raise

    def _run(self, work: RunWork, resources: Resources, stop: threading.Event) -> None:
        with resources.executor.open(work, resources) as workers:
            try:
                for block, ended in workers.run(self._begin()):
                    with uninterrupted():
                        self._finish(block.index, ended.exit_code)
            except BaseException:
                stop.set()  # or closing the workers would wait for runs that nobody wants
                raise

    def _say_beginning(self) -> None:
        waiting = sum(run.status == "waiting" for run in self._record.runs)
        kept = sum(run.status == "finished" for run in self._record.runs)
        at_a_time = f", {self._record.jobs} at a time" if self._record.jobs > 1 else ""
        runs = "1 run" if waiting == 1 else f"{waiting} runs"
        self._resources.on_event(Note(f"{runs}{at_a_time}" + (f"; {kept} are finished already" if kept else "")))
        for run in self._record.runs:
            if run.status == "failed":
                self._resources.on_event(Note(f"{run.name}: {first_line(run.message)}"))
        self._resources.on_event(BlockFinished(STAGE, self._done))

    def _begin(self) -> Iterator[Block]:
        """A block for each run that waits, when somebody asks for it."""
        for index, run in enumerate(self._record.runs):
            if run.status != "waiting":
                continue
            folder = run.path.parent
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / CONFIG_NAME, _config_of(run, self._out).to_yaml())
            log = log_of(run.path)
            self._log_starts[index] = log.stat().st_size if log.exists() else 0
            run.status = "running"
            self._record.write()  # for `ecgl status`: it takes a while until the run's own files say that it goes
            yield Block(index, index, index + 1)

    def _finish(self, index: int, code: int) -> None:
        run = self._record.runs[index]
        self._done += 1
        record_end(run, code, self._log_starts[index])
        results = read_results(run.path) if run.status == "finished" else None
        if results is not None:
            self._resources.on_event(Note(f"{run.name}: {summary(results)}"))
        else:
            self._resources.on_event(Note(f"{run.name}: {run.status}: {first_line(run.message)}"))
        self._resources.on_event(BlockFinished(STAGE, self._done))
        self._record.write()

    def _note_stopped(self) -> None:
        """Note how those ended, as far as it can be seen, whose records will not arrive any more."""
        for index, run in enumerate(self._record.runs):
            if run.status == "running":
                record_end(run, 0 if has_finished(run.path) else ExitCode.STOPPED, self._log_starts[index])
        self._record.write()


def record_end(run: SweepRun, code: int, log_start: int) -> None:
    """Write into ``run`` how it ended, from its exit code and the last that its log says."""
    log = log_of(run.path)
    if code == 0 and read_results(run.path) is not None:
        run.status, run.exit_code, run.message = "finished", 0, None
        return
    if code < 0:
        number = signal.Signals(-code)
        message = f"killed by {number.name}" + (
            "; the kernel does that where memory runs out" if number is signal.SIGKILL else ""
        )
        is_stopped = number in KILLS
        run.exit_code = ExitCode.STOPPED if is_stopped else EcglError.exit_code
    else:
        said = log.read_bytes()[log_start:].decode(errors="replace") if log.exists() else ""
        message = error_in(said) or f"exit code {code}; see {log}"
        is_stopped, run.exit_code = code in STOPPED_CODES, code or EcglError.exit_code
    run.status, run.message = "stopped" if is_stopped else "failed", message


def error_in(said: str) -> str | None:
    """The last error message of a log, all of its lines."""
    found = re.findall(r"^ecgl: error: (.*(?:\n  .*)*)", said, re.MULTILINE)
    return found[-1].strip() if found else None


def first_line(message: str | None) -> str:
    """The first line of a message; empty where there is none."""
    return (message or "").partition("\n")[0]

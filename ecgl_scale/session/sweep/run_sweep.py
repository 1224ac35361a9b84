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
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ecgl_scale.base.durable import storage_errors, write_atomically
from ecgl_scale.base.events import BlockFinished, EventSink, Note, StageStarted, ignore_events
from ecgl_scale.base.lock import take_lock
from ecgl_scale.base.output_file import refuse_inside_store
from ecgl_scale.base.signals import uninterrupted
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.config.sweep import Jobs, Sweep
from ecgl_scale.errors import EcglError, ExitCode, InvalidInputError, StoreExistsError, UsageError
from ecgl_scale.session.directory import CONFIG_NAME, LOCK_NAME, read_results, refuse_other_run
from ecgl_scale.session.state import RunState
from ecgl_scale.session.sweep.sweep_plan import Schedule, Share, make_schedule
from ecgl_scale.session.sweep.sweep_record import RECORD_NAME, SweepRun, make_record, write_record

CACHE_NAME = "tasks"
STAGE = "sweep"
POLL_SECONDS = 0.05
STOP_SECONDS = 15.0
"""A run that has not ended so long after SIGTERM is killed; SLURM waits 30 s before it kills us."""
STOPPED_CODES = (ExitCode.STOPPED, ExitCode.INTERRUPTED)
KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)


@dataclass(frozen=True)
class _Child:
    run: SweepRun
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int


def run_sweep(
    sweep: Sweep,
    out: Path,
    *,
    config: Path,
    command: Sequence[str],
    jobs: Jobs = "auto",
    on_event: EventSink = ignore_events,
) -> dict[str, Any]:
    """Run what is not finished; returns what ``sweep.json`` holds. Runs that fail are in it, and stop no others.

    ``command`` starts ``ecgl``. To be called in the main thread.

    Raises
    ------
    UsageError
        A run in ``out`` is of another config or store, or none of the runs is possible; nothing has been started.
    """
    refuse_inside_store(out)
    out = out.absolute()
    runs = [
        SweepRun(combination, seed, out / combination.name / f"seed-{seed}")
        for seed in sweep.seeds
        for combination in sweep.combinations
    ]
    _refuse_other_directory(out)
    for run in runs:
        if _is_finished(run, _config_of(run, out)):
            run.status, run.exit_code = "finished", 0
    pending = [run for run in runs if run.status != "finished"]
    schedule = _schedule(runs, pending, jobs)
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = take_lock(out / LOCK_NAME, target=out)
        try:
            record = _Record(sweep, runs, out, config, schedule.jobs)
            record.write()
            _Runner(pending, out, command, schedule, record, on_event).run_all()
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


def _refuse_other_directory(out: Path) -> None:
    """Refuse any directory but a new or empty one, or that of a sweep."""
    own = {LOCK_NAME, f".{RECORD_NAME}.partial", RECORD_NAME}
    names = {entry.name for entry in out.iterdir()} if out.is_dir() else set()
    if (out.exists() and not out.is_dir()) or (names - own and RECORD_NAME not in names):
        raise StoreExistsError("this is not the directory of a sweep", where=out, fix="choose another --out")


def _config_of(run: SweepRun, out: Path) -> RunConfig:
    config = run.combination.config
    return config.model_copy(update={"seed": run.seed, "cache": config.cache or out / CACHE_NAME})


def _is_finished(run: SweepRun, config: RunConfig) -> bool:
    """Whether a run has its results; refuses one of another config. Damage is left for the run itself to report."""
    if not (run.path / CONFIG_NAME).exists():
        return False
    try:
        refuse_other_run(run.path, config)
        state = RunState.read(run.path)
    except InvalidInputError:
        return False
    return state is not None and state.is_finished and read_results(run.path) is not None


def _schedule(runs: list[SweepRun], pending: list[SweepRun], jobs: Jobs) -> Schedule:
    first = {run.combination.name: run.combination.config for run in pending}
    if not first:
        return Schedule(1, Share(None, None))
    schedule = make_schedule(first, jobs=jobs, num_runs=len(pending))
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
    """Starts runs, waits for them, and stops them where the sweep is stopped."""

    def __init__(
        self,
        pending: list[SweepRun],
        out: Path,
        command: Sequence[str],
        schedule: Schedule,
        record: _Record,
        on_event: EventSink,
    ) -> None:
        self._queue = deque(run for run in pending if run.status == "waiting")
        self._out = out
        self._command = command
        self._schedule = schedule
        self._record = record
        self._on_event = on_event
        self._running: list[_Child] = []
        self._done = len(record.runs) - len(self._queue)

    def run_all(self) -> None:
        self._on_event(StageStarted(STAGE, len(self._record.runs), "runs"))
        self._say_beginning()
        try:
            while self._queue or self._running:
                while self._queue and len(self._running) < self._schedule.jobs:
                    with uninterrupted():  # or nobody would know of the process
                        self._running.append(self._start(self._queue.popleft()))
                for child in [child for child in self._running if child.process.poll() is not None]:
                    with uninterrupted():
                        self._finish(child)
                time.sleep(POLL_SECONDS)
        except BaseException:
            with uninterrupted():
                self._stop_all()
            raise

    def _say_beginning(self) -> None:
        kept = sum(run.status == "finished" for run in self._record.runs)
        at_a_time = f", {self._schedule.jobs} at a time" if self._schedule.jobs > 1 else ""
        runs = "1 run" if len(self._queue) == 1 else f"{len(self._queue)} runs"
        self._on_event(Note(f"{runs}{at_a_time}" + (f"; {kept} are finished already" if kept else "")))
        for run in self._record.runs:
            if run.status == "failed":
                self._on_event(Note(f"{run.name}: {first_line(run.message)}"))
        self._on_event(BlockFinished(STAGE, self._done))

    def _start(self, run: SweepRun) -> _Child:
        folder = run.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / CONFIG_NAME, _config_of(run, self._out).to_yaml())
        arguments = ["run", str(folder / CONFIG_NAME), "--out", str(run.path)]
        arguments += ["--resume"] if (run.path / CONFIG_NAME).exists() else []
        for override in (f"seed={run.seed}", *self._schedule.share.overrides()):
            arguments += ["--set", override]
        log = run.path.with_suffix(".log")
        with log.open("ab") as output:
            start = output.tell()
            # A session of its own: Ctrl-C reaches us alone, and we stop the run.
            process = subprocess.Popen(
                [*self._command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        run.status = "running"
        self._record.write()  # for `ecgl status`: it takes a while until the run's own files say that it goes
        return _Child(run, process, log, start)

    def _finish(self, child: _Child) -> None:
        run, code = child.run, child.process.wait()
        self._running.remove(child)
        self._done += 1
        record_end(run, code, child.log, child.log_start)
        results = read_results(run.path) if run.status == "finished" else None
        if results is not None:
            forgetting = "" if results["af"] is None else f", AF {results['af']:.1f}"
            self._on_event(Note(f"{run.name}: AA {results['aa']:.1f}{forgetting}"))
        else:
            self._on_event(Note(f"{run.name}: {run.status}: {first_line(run.message)}"))
        self._on_event(BlockFinished(STAGE, self._done))
        self._record.write()

    def _stop_all(self) -> None:
        for child in self._running:
            child.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for child in self._running:
            try:
                child.process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                child.process.kill()
            record_end(child.run, child.process.wait(), child.log, child.log_start)
        self._running.clear()
        self._record.write()


def record_end(run: SweepRun, code: int, log: Path, log_start: int) -> None:
    """Write into ``run`` how it ended, from its exit code and the last that its log says."""
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
        with log.open("rb") as file:
            file.seek(log_start)
            said = file.read().decode(errors="replace")
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

"""``ecgl run``: take a store through a whole stream of tasks.

    for each task:  train on its rows and the bank  ->  rank its nodes and remember some  ->  test on every task so far

Every step ends with a state on disk, and training, ranking and inference keep their own place within a step, so a run
that is killed goes on where it was, and ends with the same results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from ecgl_scale.base.events import (
    EpochFinished,
    Event,
    EventSink,
    RunStopped,
    StageStarted,
    TaskFinished,
    TaskStarted,
    WorkerJoined,
    ignore_events,
)
from ecgl_scale.base.memory import PeakSampler
from ecgl_scale.base.timeline import TIMELINE_NAME, MemoryTimeline
from ecgl_scale.base.versions import SEAL_NAME
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.engine.clock import StageClock
from ecgl_scale.engine.cluster.entrance import with_workers
from ecgl_scale.engine.cluster.worker_memory import require_workers
from ecgl_scale.engine.plan import MemoryPlan
from ecgl_scale.engine.resources import Resources
from ecgl_scale.errors import StopRequestedError, UsageError
from ecgl_scale.session.basis import Basis
from ecgl_scale.session.checkpoint import Checkpoints
from ecgl_scale.session.directory import EventLog, RunDirectory, read_results, refuse_forgotten
from ecgl_scale.session.learner import Learner, learn_task
from ecgl_scale.session.methods import about_method
from ecgl_scale.session.plan.remedy import require_fit
from ecgl_scale.session.plan.run_plan import plan_run, plan_run_workers
from ecgl_scale.session.profile import draw_profile, require_memray, tracked
from ecgl_scale.session.ranks.team import Team
from ecgl_scale.session.results import make_results, summary, write_metrics
from ecgl_scale.session.run_log import LOG_NAME, RunLog
from ecgl_scale.session.seal import Seal
from ecgl_scale.session.setup import RunSetup, cluster_of, resources_of
from ecgl_scale.session.state import RunState
from ecgl_scale.session.time.estimate import is_long, with_times
from ecgl_scale.session.worker_table import WORKERS_NAME, WorkerTable
from ecgl_scale.store.remote import manifest_files
from ecgl_scale.tasks.stream import Task


def run(
    config: RunConfig,
    out: Path,
    *,
    resume: bool = False,
    memray: bool = False,
    on_event: EventSink = ignore_events,
    team: Team | None = None,
    basis: Basis | None = None,
) -> dict[str, Any]:
    """Run a config into the directory ``out``; returns what ``results.json`` holds.

    With ``memray``, native allocations are recorded there too. The first rank of several has a ``team`` of them. With
    a ``basis`` it is an update: a model is there already, and the stream has one task more than it has learned.

    Raises
    ------
    UsageError
        The config does not go with the store, or ``out`` with the config or the store; nothing has been written.
    DoesNotFitError
        A stage needs more than the budget; nothing has been written.
    """
    if memray:
        require_memray()
    if resume and basis is None:
        refuse_forgotten(out)
    early: list[Event] = []
    team = team or Team()
    own = resources_of(config, _both(early.append, on_event), num_here=team.num_here)
    setup = open_setup(config, own, out, basis, resume=resume)
    files = [out, *([config.cache] if isinstance(config.cache, Path) else [])]
    with with_workers(
        cluster_of(config), setup.resources, shared=files, inputs=manifest_files(setup.graph.path)
    ) as resources:
        setup = replace(setup, resources=resources)
        return _run_into(out, setup, early, on_event, team, basis, resume=resume, memray=memray)


def open_setup(config: RunConfig, own: Resources, out: Path, basis: Basis | None, *, resume: bool) -> RunSetup:
    """Open store and tasks; what was begun in ``out`` goes on with the generation of the store that it began with."""
    begun = RunState.read(out) if resume and out.is_dir() else None
    generation = None if begun is None else begun.generation
    return RunSetup.open(config, own, generation) if basis is None else basis.setup(config, own, generation)


def _run_into(
    out: Path,
    setup: RunSetup,
    early: list[Event],
    on_event: EventSink,
    team: Team,
    basis: Basis | None,
    *,
    resume: bool,
    memray: bool,
) -> dict[str, Any]:
    """Plan, take the directory, and do what is still to do there; ``early`` are events from before there was a log."""
    config, plan = setup.config, plan_run(setup)
    require_workers(
        setup.resources,
        lambda room, threads: plan_run_workers(setup, room_bytes=room, threads=threads),
        with_torch=True,
    )
    require_fit(plan, setup)
    if setup.first_task == 0 and is_long(plan, setup):  # the estimate is of all tasks
        plan = with_times(plan, setup)
    team.wait_until_ready(setup, setup.resources.on_event)
    if basis is not None and resume and out.is_dir():
        basis.refuse_other(out)
    directory = RunDirectory.open(out, config, resume=resume)
    try:
        begun = RunState.of(setup) if basis is None else basis.begun(setup)
        state = RunState.read(directory.path)
        if state is None and basis is not None:
            basis.begin(directory.path)
        state = state or begun
        _refuse_other_store(state, begun, directory.path)
        results = read_results(directory.path) if state.is_finished else None
        if results is None:
            with RunLog(directory.path / LOG_NAME, on_event) as log:
                log.begin(config, state, plan)
                for event in early:
                    log.write_event(event)
                with tracked(directory.path) if memray else nullcontext():
                    joined = [event for event in early if isinstance(event, WorkerJoined)]
                    results = _run_from(state, setup.with_events(log), plan, directory, team, joined)
                if memray:
                    draw_profile(directory.path, log)
                log.say(f"finished: {summary(results)}")
        if not (directory.path / SEAL_NAME).exists():
            Seal.write(directory.path, config, setup.graph, setup.stream)
        directory.remove_work()
        return results
    finally:
        directory.close()


def _both(first: EventSink, second: EventSink) -> EventSink:
    def tell(event: Event) -> None:
        first(event)
        second(event)

    return tell


def _refuse_other_store(state: RunState, begun: RunState, path: Path) -> None:
    """A store that was ingested anew under its old name has other nodes, or others in the same places."""
    if (state.store_id, state.split_hash) != (begun.store_id, begun.split_hash):
        what = "store" if state.store_id != begun.store_id else "split"
        raise UsageError(
            f"the run was begun with another {what}: the one that the config names has changed since",
            where=path,
            expected=f"store {state.store_id}, split {state.split_hash[:12]}",
            fix="choose another --out for the new one",
        )


def _run_from(
    state: RunState,
    setup: RunSetup,
    plan: MemoryPlan,
    directory: RunDirectory,
    team: Team,
    joined: Sequence[WorkerJoined],
) -> dict[str, Any]:
    """All that is still to do, up to the results."""
    sampler = PeakSampler()
    workers = WorkerTable(directory.path / WORKERS_NAME, setup.resources.on_event)
    timeline = MemoryTimeline(directory.path / TIMELINE_NAME, sampler, workers)
    log = EventLog(directory.path / "events.jsonl", timeline)
    reason = "finished"
    try:
        (directory.path / SEAL_NAME).unlink(missing_ok=True)
        for event in joined:
            log(event)
        directory.write_plan(plan, about_method(setup.config.method))
        setup.stream.save(directory.path / "split.parquet")
        state = replace(state, stopped="")
        state.write(directory.path)
        with sampler, timeline:
            clock = StageClock(sampler, log, records=state.stages)
            learner = Learner(setup.with_events(log), directory.path, team)
            state = _learn_tasks(learner, state, clock, plan.planned_bytes, log)
        results = make_results(setup.config, setup.stream, replace(state, stages=clock.records), plan)
        results |= workers.results()
        write_metrics(directory.path / "metrics.parquet", state)
        learner.save_model()
        directory.write_results(results)
        replace(state, is_finished=True).write(directory.path)
        return results
    except StopRequestedError as stopped:  # what a signal's handler advises is for commands without --resume
        reason = stopped.what
        RunState.note_stop(directory.path, reason)
        fix = "go on with the same command and --resume"
        raise type(stopped)(stopped.what, where=directory.path, fix=fix) from None
    except BaseException as error:
        reason = "stopped by Ctrl-C" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        raise
    finally:
        log(RunStopped(reason))
        log.close()
        workers.close()


def _learn_tasks(
    learner: Learner, state: RunState, clock: StageClock, planned_bytes: Mapping[str, int], log: EventSink
) -> RunState:
    stream, checkpoints = learner.stream, Checkpoints(learner.directory)

    def step(name: str) -> AbstractContextManager[None]:
        return clock.step(name, planned_bytes.get(name, 0))

    try:
        learner.restore(checkpoints.load(state), task_index=state.task, is_remembered=state.step == "evaluate")
        tasks = list(stream)[state.task :]
        for task in tasks:
            log(TaskStarted(task.index, len(stream)))
            with step("extract"):
                if task is tasks[0]:
                    learner.graphs.prepare(tasks)
                learner.predictor.prepare(task)
            if state.step == "train":
                learner.team.call(state)
                with step("train"):
                    state = _train(learner, task, state, checkpoints, log)
                state = replace(state, step="remember", stages=clock.records)
                state = checkpoints.save(state, learner.tensors())
            if state.step == "remember":
                if learner.method.shares_end:
                    learner.team.call(state)
                with step("remember"):
                    learner.remember(task)
                state = replace(state, step="evaluate", stages=clock.records)
                state.write(learner.directory)
            with step("evaluate"):
                state = _evaluate(learner, task, state)
                learner.predictor.finish(task)
            rows = (matrix[task.index :] for matrix in state.macro_rows)
            log(TaskFinished(task.index, len(stream), *(sum(row, ()) for row in rows)))
            state = replace(state, task=task.index + 1, step="train", epoch=0, stages=clock.records)
            state.write(learner.directory)
    finally:
        checkpoints.close()
    return state


def _train(learner: Learner, task: Task, state: RunState, checkpoints: Checkpoints, log: EventSink) -> RunState:
    """The epochs of a task that are still to do, each with a chance to be saved."""
    losses = list(state.losses[task.index]) if len(state.losses) > task.index else []
    log(StageStarted(f"train task {task.index}", learner.num_epochs, "epochs"))
    for epoch, finished in learn_task(learner, task, from_epoch=state.epoch):
        losses = [*losses[:epoch], finished.loss]
        log(EpochFinished(task.index, epoch, finished.loss, finished.seconds))
        state = replace(state, epoch=epoch + 1, losses=(*state.losses[: task.index], tuple(losses)))
        checkpoints.offer(state, learner.tensors)
        if learner.team.is_stopping:
            checkpoints.save(state, learner.tensors())
            learner.team.stop()
    checkpoints.wait()
    return state


def _evaluate(learner: Learner, task: Task, state: RunState) -> RunState:
    """Fill a row of each scope's performance matrix, where it is time; what a killed run had filled in is kept."""
    tasks, stream = learner.config.tasks, learner.stream
    for number, scope in enumerate(tasks.scopes if tasks.tests_after(task.index, len(stream)) else ()):
        row = state.row(task.index, is_seen=number == 1)
        for accuracy in learner.evaluate(after=task, on=stream.seen(task)[len(row) :], scope=scope):
            row = (*row, accuracy)
            state = state.with_row(task.index, row, is_seen=number == 1)
            state.write(learner.directory)
    return state

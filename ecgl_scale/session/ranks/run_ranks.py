"""``ecgl run --ranks N``: the first rank runs, the others follow it, and all end together."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ecgl_scale.base.durable import as_storage_error
from ecgl_scale.base.events import EventSink, ignore_events
from ecgl_scale.base.memory import give_back_freed
from ecgl_scale.config.schema import RunConfig
from ecgl_scale.errors import EcglError, ExitCode, InvalidInputError, RankLostError, StopRequestedError
from ecgl_scale.session.basis import Basis
from ecgl_scale.session.checkpoint import load_checkpoint
from ecgl_scale.session.learner import Learner, device_of, learn_task
from ecgl_scale.session.plan.remedy import require_fit
from ecgl_scale.session.plan.run_plan import plan_run
from ecgl_scale.session.ranks.board import Board, Word
from ecgl_scale.session.ranks.children import Children
from ecgl_scale.session.ranks.launch import find_launch, refuse_unshared
from ecgl_scale.session.ranks.team import RankTeam, describe
from ecgl_scale.session.run import open_setup, run
from ecgl_scale.session.setup import resources_of
from ecgl_scale.session.state import RunState

SEE_SECONDS = 60.0
"""So long may a file that the first rank has replaced look old on another machine."""


def run_ranks(
    config: RunConfig,
    out: Path,
    *,
    command: Sequence[str],
    resume: bool = False,
    memray: bool = False,
    on_event: EventSink = ignore_events,
    basis: Basis | None = None,
) -> dict[str, Any] | int:
    """Run a config as one of its ranks: the results on the first, the exit code on another.

    A launcher that has started as many processes says which rank this is; else the others are started here, each by
    ``command``, on this machine.

    Raises
    ------
    UsageError
        The config cannot be shared, or the launcher has started another number of processes; nothing was written.
    RankLostError
        Another rank has ended, or was asked to stop. The last checkpoint stands.
    """
    refuse_unshared(config)
    launch = find_launch(config.engine.ranks, os.environ)
    if launch is None:
        board = Board.listen()
        team = RankTeam(board, 0, config.engine.ranks, Children.start(command, config.engine.ranks, board.port))
    else:
        team = RankTeam(Board.join(launch), launch.rank, launch.size)
    if team.rank:
        return _follow_to_the_end(team, config, out.absolute(), basis)
    exit_code = ExitCode.DONE
    try:
        team.meet(device_of(config.learn.device))
        return run(config, out, resume=resume, memray=memray, on_event=on_event, team=team, basis=basis)
    except BaseException as error:
        exit_code, lost = _exit_code_of(error), team.lost_child()
        if isinstance(error, StopRequestedError) and not isinstance(error, RankLostError) and lost is not None:
            raise RankLostError(lost, where=error.where, fix=error.fix) from None  # the watcher's signal
        raise
    finally:
        team.end(exit_code)


def _exit_code_of(error: BaseException) -> ExitCode:
    """How ``ecgl`` ends with an error."""
    if isinstance(error, EcglError | StopRequestedError):
        return error.exit_code
    if isinstance(error, OSError):
        return as_storage_error(error, Path(error.filename or ".")).exit_code
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    return ExitCode.DOES_NOT_FIT if isinstance(error, MemoryError) else ExitCode.BUG


def _follow_to_the_end(team: RankTeam, config: RunConfig, out: Path, basis: Basis | None) -> int:
    """Follow; what went wrong is the first rank's to tell, as long as it can be told."""
    try:
        return _follow(team, config, out, basis)
    except RankLostError as error:
        return _end_of_the_first(team, error)
    except BaseException as error:
        if isinstance(error, StopRequestedError):
            what = error.what  # what its handler advises is for commands without --resume
        else:
            what = str(error) if isinstance(error, EcglError) else traceback.format_exc()
        is_told = team.leave(what, _exit_code_of(error))
        if is_told and isinstance(error, EcglError | StopRequestedError):
            return _exit_code_of(error)
        raise


def _end_of_the_first(team: RankTeam, error: RankLostError) -> int:
    """The exit code of the first rank, if it still tells; else that of a lost rank."""
    try:
        word = team.board.wait("end", seconds=5.0)
        team.board.put(f"bye/{team.rank}", {})
    except (RankLostError, TimeoutError):
        raise error from None
    return int(word["exit_code"]) or error.exit_code


def _follow(team: RankTeam, config: RunConfig, out: Path, basis: Basis | None) -> int:
    """Compute what the first rank calls for, from the run's directory as it is then, as a resumed run would."""
    team.meet(device_of(config.learn.device))
    own = resources_of(config, num_here=team.num_here)
    setup = open_setup(config, own, out, basis, resume=True)  # where nothing was begun, there is no state yet
    try:
        require_fit(plan_run(setup), setup)
    except EcglError as error:
        team.board.put(f"ready/{team.rank}", {"refused": str(error), "exit_code": error.exit_code})
    else:
        team.board.put(f"ready/{team.rank}", describe(setup))
    learner: Learner | None = None
    while "exit_code" not in (word := team.wait_for_call()):
        learner = learner or Learner(setup, out, team=team)
        team.connect()
        state = _see_state(out, word)
        learner.restore(load_checkpoint(out, state), task_index=state.task, is_remembered=False)
        task = learner.stream[state.task]
        if state.step == "train":
            for _ in learn_task(learner, task, from_epoch=state.epoch):
                if team.is_stopping:
                    team.stop()
        else:
            learner.end_method(task)
            learner.forget_rows()
        give_back_freed()
    team.board.put(f"bye/{team.rank}", {})
    return int(word["exit_code"])


def _see_state(out: Path, word: Word) -> RunState:
    """The state that the first rank has called for; other machines may see it a little later."""
    deadline = time.monotonic() + SEE_SECONDS
    while True:
        state = RunState.read(out)
        if state is not None and all(getattr(state, name) == value for name, value in word.items()):
            return state
        if time.monotonic() > deadline:
            raise InvalidInputError(
                f"the run's directory is not the first rank's: its state is not of {word}",
                where=out,
                fix="give an --out that all ranks see under the same name",
            )
        time.sleep(0.1)

"""The script of a job, from a template a batch system.

Scripts hold names that people gave, so every one of them is quoted for the shell, and none may have a line of its own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.errors import UsageError
from ecgl_scale.session.batch.needs import Engine, JobNeeds
from ecgl_scale.units import format_bytes, format_seconds

System = Literal["slurm", "pbs", "lsf", "shell"]

TEMPLATES = Path(__file__).parent / "templates"
STOP_SECONDS = 120
"""The time to stop in: twice a block of ten seconds, the minute by which SLURM may miss, and some for a slow disk."""
LEAST_JOB_SECONDS = 300
MAX_NAME_LETTERS = 15
"""What the oldest PBS takes as the name of a job."""
_TIME = re.compile(r"([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])")


@dataclass(frozen=True)
class JobRequest:
    """What a user wants to have a script for."""

    arguments: Sequence[str]
    """What was typed after ``ecgl``, for the first line."""
    config: Path
    out: AnyPath
    run_options: Sequence[str] = ()
    """What is passed on to ``ecgl run``."""
    nodes: int = 1
    engine: Engine = "local"
    system: System = "slurm"

    def check(self) -> None:
        """Refuse what makes no job.

        Raises
        ------
        UsageError
            Several nodes for one process, a machine without a batch system as several, or a name with a line break.
        """
        if self.engine == "local" and self.nodes > 1:
            raise UsageError(
                f"{self.nodes} nodes for a run in one process",
                where="--nodes",
                expected="1 with --engine local",
                fix="give --engine dask or --engine ranks",
            )
        if self.system == "shell" and self.nodes > 1:
            raise UsageError(
                f"{self.nodes} nodes without a batch system", where="--nodes", expected="1 with --system shell"
            )
        for text in (*self.arguments, str(self.config), str(self.out), *self.run_options):
            if not text.isprintable():
                raise UsageError(f"{text!r} cannot stand in a script", expected="no line breaks or control characters")


def parse_time(text: str) -> int:
    """The seconds of ``HH:MM:SS``."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a time", where="--time", expected="HH:MM:SS, such as 12:00:00")
    hours, minutes, seconds = map(int, found.groups())
    total = 3600 * hours + 60 * minutes + seconds
    if total < LEAST_JOB_SECONDS:
        raise UsageError(
            f"{text} is too short for a job: its run is asked to stop {STOP_SECONDS} seconds before the end",
            where="--time",
            expected=f"at least {format_time(LEAST_JOB_SECONDS)}",
        )
    return total


def format_time(seconds: int) -> str:
    """``HH:MM:SS``; hours may be more than a day's."""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def write_script(request: JobRequest, needs: JobNeeds, *, is_timed: bool = True) -> str:
    """The text of the script. Without ``is_timed`` nobody has asked for an end: a machine of one's own needs none."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    request.check()
    # A script is no page: what people gave is quoted for the shell, below.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    options = [shlex.quote(option) for option in request.run_options]
    minutes = -(-needs.seconds // 60)
    text = environment.get_template("job.sh.j2").render(
        system=request.system,
        engine=request.engine,
        nodes=request.nodes,
        needs=needs,
        arguments=shlex.join(request.arguments),
        name=_job_name(request.out),
        out=shlex.quote(str(request.out)),
        run=" ".join(["ecgl run", shlex.quote(str(request.config)), '--out "$run" --resume', *options]),
        budget=f"{needs.budget_mib}MiB",
        memory_note=_memory_note(needs, request.engine),
        time_note=_time_note(needs),
        time=format_time(needs.seconds),
        lsf_time=f"{minutes // 60}:{minutes % 60:02d}",
        stop_seconds=STOP_SECONDS,
        is_timed=is_timed,
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _job_name(out: AnyPath) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", out.name)[:MAX_NAME_LETTERS].strip("-")
    return name if name[:1].isalpha() else f"ecgl-{name}"[:MAX_NAME_LETTERS].rstrip("-")


def _memory_note(needs: JobNeeds, engine: Engine) -> str:
    peak = f"the plan's peak of {format_bytes(needs.peak_bytes)} and a third, in whole GiB"
    if engine != "dask":
        return f"{peak}."
    return f"{peak}; the same for a worker, and one for the scheduler."


def _time_note(needs: JobNeeds) -> str:
    if needs.estimated_seconds is None:
        return ""
    return f"At least twice the plan's estimate, which is {format_seconds(needs.estimated_seconds)}."

"""Entry point of ``ecgl``: puts the commands together and turns errors into the codes of ``errors.ExitCode``."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

import typer

from ecgl_scale._version import __version__
from ecgl_scale.base.memory import share_one_arena
from ecgl_scale.cli import (
    append,
    cluster,
    compact,
    doctor,
    drop,
    forget,
    generate,
    ingest,
    inspect,
    methods,
    rank,
    report,
    run,
    slurm,
    status,
    sweep,
    update,
)
from ecgl_scale.cli.output import LogFormat, LogLevel, Output, fail
from ecgl_scale.errors import EcglError, ExitCode, StopRequestedError

app = typer.Typer(
    name="ecgl",
    help="Keep graph models up to date on graphs that do not fit in memory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(generate.app, name="generate")
app.add_typer(ingest.app, name="ingest")
app.add_typer(append.app, name="append")
app.command("compact")(compact.compact)
app.command("drop")(drop.drop)
app.command("doctor")(doctor.doctor)
app.command("info")(inspect.info)
app.command("verify")(inspect.verify)
app.command("rank")(rank.rank)
app.command("methods")(methods.methods)
app.command("plan")(run.plan)
app.command("run")(run.run)
app.command("update")(update.update)
app.command("forget")(forget.forget)
app.command("sweep")(sweep.sweep)
app.command("slurm")(slurm.slurm)
app.command("infer")(run.infer)
app.command("scheduler")(cluster.scheduler)
app.command("worker")(cluster.worker)
app.command("report")(report.report)
app.command("status")(status.status)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ecgl {__version__}")
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Say nothing but errors."),
    log_level: LogLevel = typer.Option(LogLevel.INFO, "--log-level", help="The least that is logged."),
    log_format: LogFormat = typer.Option(
        LogFormat.TEXT, "--log-format", help="Log lines as text, or one JSON object a line with time, level, message."
    ),
    progress: bool = typer.Option(
        True,
        "--progress/--no-progress",
        help="Bars with rate, time left and memory against the plan; elsewhere a plain line a stage, and every 30 s.",
    ),
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Show the version."),
) -> None:
    """Options of every command; they stand before its name."""
    del version
    level = logging.ERROR if quiet else getattr(logging, log_level.value.upper())
    context.obj = Output(quiet=quiet, show_progress=progress and not quiet, log_format=log_format, level=level)
    context.obj.set_up_logging()


def _stop(number: int, frame: FrameType | None) -> None:
    del frame
    raise StopRequestedError(
        f"stopped by {signal.Signals(number).name}", fix="run the same command again; nothing half-written was left"
    )


def main() -> None:
    """Run ``ecgl`` and exit with the documented code."""
    # Threads that wait by spinning take the cores from those they wait for wherever a machine is shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # A rank that is lost is told of by us, in a line; torch would add pages.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    share_one_arena()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGUSR2, _stop)
    try:
        app(prog_name="ecgl")
    except (EcglError, StopRequestedError) as error:
        fail(str(error), error.exit_code)
    except MemoryError:
        fail("out of memory\n  fix: give a larger --memory, or free some memory on this machine", ExitCode.DOES_NOT_FIT)
    except OSError as error:
        from ecgl_scale.base.durable import as_storage_error

        known = as_storage_error(error, Path(error.filename or "."))
        fail(str(known), known.exit_code)
    except Exception:
        traceback.print_exc()
        fail("this is a bug in ecgl_scale; please report it with the lines above", ExitCode.BUG)


if __name__ == "__main__":
    main()
    sys.exit(0)

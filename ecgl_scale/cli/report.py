"""``ecgl report``: finished runs side by side."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ecgl_scale.cli.options import Json
from ecgl_scale.cli.output import print_json
from ecgl_scale.units import format_bytes


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of finished runs.")],
    as_json: Json = False,
) -> None:
    """Compare finished runs: AA and AF with their spread over seeds, time and memory."""
    from ecgl_scale.report.runs import FinishedRun, summarise

    groups = summarise([FinishedRun.read(path) for path in runs])
    if as_json:
        print_json({"groups": [asdict(group) for group in groups]})
        return
    print(f"{'method':<14}{'preset':<11}{'setting':<10}{'AA %':>13}{'AF %':>14}{'runs':>6}{'seconds':>9}{'peak':>11}")
    for group in groups:
        forgetting = "-" if group.forgetting is None or group.method == "joint" else str(group.forgetting)
        print(
            f"{group.method:<14}{group.preset:<11}{group.setting:<10}{group.accuracy!s:>13}{forgetting:>14}"
            f"{group.num_runs:>6}{group.seconds:>9.1f}{format_bytes(group.peak_bytes):>11}"
        )

"""Stands in for ``ecgl run`` where only the sweep around it is tested: it does not train, and starts in no time.

``lambda`` of the config says what it does: 5 fails, 6 is killed, 7 waits until it is stopped unless it goes on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

from ecgl_scale.config.schema import load_config
from ecgl_scale.session.state import RunState


def main(arguments: list[str]) -> None:
    config_path, out = Path(arguments[1]), Path(arguments[arguments.index("--out") + 1])
    config = load_config(config_path, [text for option, text in pairwise(arguments) if option == "--set"])
    assert "--resume" in arguments
    goes_on = (out / "config.yaml").exists()
    out.mkdir(exist_ok=True)
    (out / "config.yaml").write_text(config.to_yaml())
    given = {"goes_on": goes_on, "memory": config.memory, "threads": config.threads, "cache": str(config.cache)}
    with (out / "given.jsonl").open("a") as file:  # for the tests to look at
        file.write(json.dumps(given) + "\n")
    if config.learn.lambda_ == 5:
        sys.stderr.write("ecgl: error: the disk is on fire\n  where: here\n  fix: pour water\n")
        sys.exit(5)
    if config.learn.lambda_ == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.learn.lambda_ == 7 and not goes_on:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        (out / "waits").touch()
        time.sleep(600)  # longer than a test may take: a sweep that does not stop it does not end in time
    stage = {"seconds": 1.0, "peak_bytes": 1000 + config.seed}
    stages = {"train": stage, "evaluate": stage}
    aa = 10 * config.learn.lambda_ + config.seed
    results = {
        "aa": aa,
        "af": -1.0,
        "matrix": [[aa] * t + [None] * (3 - t) for t in (1, 2, 3)],
        "num_tasks": 3,
        "stages": stages,
    }
    (out / "results.json").write_text(json.dumps(results))
    RunState(config.digest(), os.environ.get("FAKE_STORE_ID", "0"), "0", is_finished=True).write(out)


if __name__ == "__main__":
    main(sys.argv[2:])  # as cli.child: the first is the parent

"""``ecgl doctor``: what this machine and this installation can do."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ecgl_scale._version import __version__
from ecgl_scale.base.objects.url import location_of
from ecgl_scale.cli.cluster import ClusterOptions, require_dask
from ecgl_scale.cli.options import Json, takes_settings
from ecgl_scale.cli.output import print_json, print_table
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.units import MIB, format_bytes

if TYPE_CHECKING:
    from ecgl_scale.base.objects.speed import ObjectSpeed
    from ecgl_scale.engine.cluster.try_root import RootReport

PACKAGES = ("numpy", "numba", "pyarrow", "zarr", "torch", "dgl", "ogb")
DISK_TEST_BYTES = 256 * MIB
OBJECT_TEST_BYTES = 32 * MIB

# Runs in a process of its own, as a broken DGL may take the interpreter with it. Five nodes in a ring.
_DGL_CHECK = """
import os
os.environ["DGLBACKEND"] = "pytorch"
import dgl, torch
ring = torch.arange(5)
graph = dgl.add_self_loop(dgl.graph((ring, (ring + 1) % 5)))
layer = dgl.nn.GraphConv(3, 2)
x = torch.randn(5, 3)
source, target = graph.edges()
adjacency = torch.zeros(5, 5).index_put((target, source), torch.ones(10))
degrees = adjacency.sum(1)
normalised = adjacency / torch.sqrt(degrees[:, None] * degrees[None, :])
assert torch.allclose(layer(graph, x), normalised @ x @ layer.weight + layer.bias, atol=1e-5)
"""


Objects = Annotated[
    str | None,
    typer.Option(
        "--objects",
        metavar="URL",
        help="Also put, read and remove an object below this URL, to see whether it can be used and how fast it is.",
    ),
]


@takes_settings
def doctor(
    settings: ClusterOptions,
    root: Annotated[
        Path | None,
        typer.Option(
            "--root",
            metavar="DIR",
            help="Try what this directory can do, on all workers where there are any: rename, locks, maps, speed.",
        ),
    ] = None,
    objects: Objects = None,
    as_json: Json = False,
) -> None:
    """Show versions, threads, memory limits, whether DGL works, and the disk's speed."""
    from ecgl_scale.base.disk_speed import measure_disk
    from ecgl_scale.base.memory import MemoryBudget, find_limits
    from ecgl_scale.engine.threads import available_cores

    there = None if objects is None else _try_objects(objects)
    speed = measure_disk(Path.cwd(), DISK_TEST_BYTES)
    budget = MemoryBudget.of(None)
    found: dict[str, Any] = {
        "ecgl_scale": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: _version(name) for name in PACKAGES},
        "cores": available_cores(),
        "memory_limits": {limit.origin: limit.limit_bytes for limit in find_limits()},
        "memory_budget_bytes": budget.total_bytes,
        "memory_budget_from": budget.origin,
        "dgl": check_dgl(),
        "disk": {"path": str(Path.cwd()), "write_bytes_per_second": speed.write, "read_bytes_per_second": speed.read},
        **({} if there is None else {"objects": {"url": objects, **asdict(there)}}),
    }
    roots = [] if root is None else _try_root(root, settings)
    if as_json:
        tried = None if root is None else {"path": str(root), "tried": [asdict(one) for one in roots]}
        print_json({**found, "root": tried})
    else:
        at_url = {} if there is None else {"objects": _readable(there)}
        _show(found, {**at_url, **{one.worker: _root_line(one) for one in roots}})
    bad = next((one for one in roots if one.problem), None)
    if bad is not None:
        raise InvalidInputError(
            f"{bad.worker} on {bad.host} cannot use this directory: {bad.problem}",
            where=root,
            expected="one file system for all, with rename in one step, locks, and files that others see when closed",
        )


def _try_root(root: Path, settings: ClusterOptions) -> list[RootReport]:
    """What a directory can do here, and on each worker."""
    from ecgl_scale.base.try_directory import try_directory
    from ecgl_scale.engine.cluster.try_root import RootReport, missing_of, try_root

    here = try_directory(root, DISK_TEST_BYTES)
    reports = [RootReport("this process", platform.node(), missing_of(here), here)]
    cluster = settings.cluster()
    if not cluster.is_alone:
        require_dask()
        from ecgl_scale.engine.cluster.dask_cluster import connect

        with connect(cluster) as workers:
            found = try_root(root, workers.run_on_all, DISK_TEST_BYTES)
        reports += [replace(one, worker=f"worker {one.worker}") for one in found]
    return reports


def _root_line(one: RootReport) -> str:
    if one.report is None:
        return f"{one.host}: {one.problem}"
    can = [f"{'' if getattr(one.report, name) else 'no '}{name}" for name in ("rename", "flock", "map", "direct")]
    rates = f"writes {format_bytes(one.report.write_bytes_per_second)}/s"
    rates += f", reads {format_bytes(one.report.read_bytes_per_second)}/s, {format_bytes(one.report.free_bytes)} free"
    return ", ".join([f"{one.host}: {', '.join(can)}", rates, *([one.problem] if one.problem else [])])


def _show(found: dict[str, Any], more: dict[str, str]) -> None:
    disk = found["disk"]
    limits = [f"{format_bytes(size)} ({origin})" for origin, size in found["memory_limits"].items()]
    print_table(
        {
            "ecgl_scale": found["ecgl_scale"],
            "python": f"{found['python']} on {found['system']}",
            "packages": ", ".join(f"{name} {number}" for name, number in found["packages"].items()),
            "cores": found["cores"],
            "memory limits": ", ".join(limits),
            "default budget": f"{format_bytes(found['memory_budget_bytes'])} ({found['memory_budget_from']})",
            "dgl": found["dgl"],
            "disk here": f"writes {format_bytes(disk['write_bytes_per_second'])}/s, reads "
            f"{format_bytes(disk['read_bytes_per_second'])}/s, past the page cache",
            **more,
        }
    )


def _try_objects(url: str) -> ObjectSpeed:
    from ecgl_scale.base.objects.speed import measure_objects

    location = location_of(url)
    if isinstance(location, Path):
        raise UsageError("--objects takes a URL", where=url, expected="s3://BUCKET/NAME")
    return measure_objects(location, OBJECT_TEST_BYTES)


def _readable(speed: ObjectSpeed) -> str:
    rates = f"writes {format_bytes(speed.write)}/s, reads {format_bytes(speed.read)}/s"
    once = "" if speed.creates_once else "; two writers of one store are NOT kept apart"
    return f"{rates}, {speed.request_seconds * 1000:.0f} ms a request{once}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def check_dgl() -> str:
    """Whether DGL's graph convolution gives what five lines of torch give."""
    if _version("dgl") == "not installed":
        return "not installed; everything works without it"
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _DGL_CHECK], capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return "broken: no answer within 120 s; everything works without it"
    if done.returncode == 0:
        return "works: GraphConv equals torch on a five-node graph"
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"broken: {reason}; everything works without it"

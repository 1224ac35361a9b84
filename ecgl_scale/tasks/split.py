"""Which nodes of a task train, validate and test; and the file in which a stream of tasks keeps that.

Seeded split: for every class of a task on its own, numpy's default generator with the seed sequence (seed, label id),
for a period of time (seed, label id, 1 + period), permutes the class's nodes in order of their ids; the first go to
train, the next to valid, the rest to test. So it depends on nothing but the seed and the class's own nodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ecgl_scale.base.arrow import as_numpy
from ecgl_scale.base.parquet import ROWS_AT_ONCE, read_parquet, write_parquet
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.graph import GraphStore

TRAIN, VALID, TEST, NO_PART = 0, 1, 2, -1
"""As in the ``split`` column of a store."""
PARTS = ("train", "valid", "test")
FILE_VERSION = 1
_HEAD = b"ecgl.tasks"

Ids = NDArray[np.int64]
Parts = NDArray[np.int8]
Fractions = tuple[float, float, float]


def checked_fractions(fractions: Sequence[float]) -> Fractions:
    """Three shares of a class that add up to one, some of it to train on."""
    given = tuple(float(share) for share in fractions)
    if len(given) != 3 or not all(0 <= share <= 1 for share in given) or abs(sum(given) - 1) > 1e-6 or given[0] == 0:
        raise UsageError(
            f"the fractions are {list(fractions)}",
            expected="three shares (train, valid, test) from 0 to 1 that add up to 1, train above 0",
        )
    return given


def part_counts(num_nodes: int, fractions: Fractions) -> tuple[int, int, int]:
    """How many nodes of a class go to train, valid and test.

    Largest remainder: whole shares first, then one each to the parts that were cut most (of equal ones train, then
    test). A part with a share above 0 gets a node of the largest part where the class has nodes enough for all of
    them; where it has not, train comes first and test second, so that a class of two can be learned and scored.
    """
    wanted = [part for part in (TRAIN, TEST, VALID) if fractions[part] > 0]
    if num_nodes < len(wanted):
        scarce = [0, 0, 0]
        for part in wanted[:num_nodes]:
            scarce[part] = 1
        return scarce[0], scarce[1], scarce[2]
    shares = [fraction * num_nodes for fraction in fractions]
    counts = [int(share) for share in shares]
    by_remainder = sorted(wanted, key=lambda part: -round(shares[part] - counts[part], 9))
    for index in range(num_nodes - sum(counts)):
        counts[by_remainder[index % len(by_remainder)]] += 1
    for part in wanted:
        if counts[part] == 0:
            counts[counts.index(max(counts))] -= 1
            counts[part] = 1
    return counts[0], counts[1], counts[2]


def split_seeded(labels: NDArray[Any], fractions: Fractions, *, seed: int, period: int | None = None) -> Parts:
    """The part of every node of a task, given in order of their ids. Memory: 17 bytes a node of the task."""
    parts = np.empty(labels.size, np.int8)
    order = np.argsort(labels, kind="stable")
    classes, starts = np.unique(labels[order], return_index=True)
    for label, members in zip(classes.tolist(), np.split(order, starts[1:]), strict=True):
        entropy = [seed, label] if period is None else [seed, label, 1 + period]
        shuffled = members[np.random.default_rng(entropy).permutation(members.size)]
        counts = part_counts(members.size, fractions)
        parts[shuffled] = np.repeat(np.array([TRAIN, VALID, TEST], np.int8), counts)
    return parts


def read_column(graph: GraphStore, name: str, ids: Ids) -> NDArray[Any]:
    """Values of a node column for ascending ``ids``. Memory: the result and a batch of the column."""
    if graph.nodes is None or name not in graph.nodes.names:
        raise missing_column(graph, name)
    parts: list[NDArray[Any]] = []
    for start, values in graph.nodes.blocks(name):
        first, last = np.searchsorted(ids, [start, start + values.size])
        if first < last:
            parts.append(values[ids[first:last] - start])
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def missing_column(graph: GraphStore, name: str) -> UsageError:
    """The error for a store without a node column that is needed."""
    names = [] if graph.nodes is None else graph.nodes.names
    return UsageError(
        f"the store has no node column {name!r}",
        where=graph.path,
        expected=f"one of {names}" if names else "a store with node columns",
        fix="ingest the graph again with that column (--columns)",
    )


def hash_split(parts_of_tasks: Iterable[tuple[Ids, Parts]]) -> str:
    """sha256 over the tasks in order: number of nodes, ids, parts, all little-endian."""
    digest = hashlib.sha256()
    for ids, parts in parts_of_tasks:
        digest.update(np.array([ids.size], "<i8").data)
        digest.update(np.ascontiguousarray(ids, "<i8").data)
        digest.update(np.ascontiguousarray(parts, "<i1").data)
    return digest.hexdigest()


@dataclass(frozen=True)
class SplitFile:
    """Tasks as a file holds them."""

    head: dict[str, Any]
    tasks: list[tuple[Ids, Parts]]
    """Ids and parts of each task."""
    positions: list[Ids] | None
    """Head positions of each task's nodes; None in a file of an earlier version, which has none."""


def write_split(
    path: Path, head: dict[str, Any], tasks: Iterable[tuple[Ids, Parts]], positions: Sequence[NDArray[Any]] = ()
) -> None:
    """Write a Parquet file of (node, task, part, position), its head as JSON in the metadata; whole or not at all.

    Memory: ``ROWS_AT_ONCE`` rows, a few times.
    """
    described = json.dumps({"version": FILE_VERSION, **head}, sort_keys=True).encode()

    def batches() -> Iterator[list[NDArray[Any]]]:
        for index, (ids, parts) in enumerate(tasks):
            for start in range(0, ids.size, ROWS_AT_ONCE):
                rows = slice(start, start + ROWS_AT_ONCE)
                more = [positions[index][rows].astype(np.int32)] if positions else []
                yield [ids[rows], np.full(ids[rows].size, index, np.int32), parts[rows], *more]

    columns: dict[str, Any] = {"node": np.int64, "task": np.int32, "part": np.int8}
    columns |= {"position": np.int32} if positions else {}
    write_parquet(path, columns, batches(), repeated=("task", "part"), metadata={_HEAD: described})


def read_split(path: Path) -> SplitFile:
    """Read what ``write_split`` wrote. Memory: 17 bytes a node of the tasks, twice."""
    try:
        table = read_parquet(path)
        head = json.loads((table.schema.metadata or {})[_HEAD])
        node, task, part = (as_numpy(table[name].combine_chunks()) for name in ("node", "task", "part"))
        position = (
            as_numpy(table["position"].combine_chunks()).astype(np.int64) if "position" in table.column_names else None
        )
        version, num_tasks = head["version"], len(head["tasks"])
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"this is no file of tasks: {error}", where=path) from error
    if version != FILE_VERSION:
        raise InvalidInputError(f"the file has version {version}", where=path, expected=f"version {FILE_VERSION}")
    in_order = task.size == 0 or (np.all(np.diff(task) >= 0) and task[0] >= 0 and task[-1] < num_tasks)
    is_typed = node.dtype == np.int64 and task.dtype == np.int32 and part.dtype == np.int8
    if not in_order or not is_typed:
        raise InvalidInputError("this is no file of tasks: its rows are not in the order of tasks", where=path)
    cuts = np.searchsorted(task, np.arange(num_tasks + 1))
    spans = [slice(cuts[index], cuts[index + 1]) for index in range(num_tasks)]
    positions = None if position is None else [position[span] for span in spans]
    return SplitFile(head, [(node[span], part[span]) for span in spans], positions)

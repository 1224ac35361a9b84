"""Names of keys and sections that others than the config ask for; as light as names are, so a report may read them."""

from __future__ import annotations

NOT_IN_DIGEST = (
    "memory",
    "threads",
    "cache",
    "tasks.keep_tests",
    "learn.block_rows",
    "learn.device",
    "infer.backend",
    "infer.partitioner",
    "infer.partitions",
    "engine.workers",
    "engine.scheduler",
    "engine.worker_memory",
    "engine.worker_threads",
    "engine.tls",
    "engine.ranks",
)
"""Keys that say where and how to compute, not what: a result changes by rounding at most."""

NOT_CHANGES = (*NOT_IN_DIGEST, "store", "method", "preset", "setting", "seed")
"""Keys that results name by themselves, or that change none: they are no departure from a preset."""

SECTIONS = ("tasks", "learn", "bank", "rank", "infer", "engine")
"""The sections that hold for every method; any other is of the method it is named after."""

"""What a build by workers that share no memory has finished, in its staging directory, so that a killed one goes on.

Segments, blocks and shards are files there under names that follow from the source alone; their records are in
journals. The build of another source, or of one that has changed since, has a staging directory of its own.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ecgl_scale.base.durable import WrittenFile
from ecgl_scale.engine.journal import Journal, RecordJournal
from ecgl_scale.engine.work import Json
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.edges.write import has_files
from ecgl_scale.store.format import EdgeSection
from ecgl_scale.store.source import GraphSource

VERSION = 1
Files = dict[str, WrittenFile]
Record = TypeVar("Record")


def job_of(source: GraphSource, options: BuildOptions, features: Json) -> str | None:
    """A name for a build: sha256 of all that its files depend on, 16 digits; None where that cannot be told."""
    edges = source.edges.identity()
    if edges is None:
        return None
    rows = None if source.features is None or source.features.rows is None else source.features.rows.identity()
    identity = {
        "version": VERSION,
        "num_nodes": source.num_nodes,
        "edges": edges,
        "rows": rows,
        "options": asdict(options),
        "features": features,
        "provenance": dict(source.provenance),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:16]


class BuildJournal:
    """Journals of the stages of one build."""

    def __init__(self, staging: Path, job: str) -> None:
        self.directory = staging / "journal"
        self._job = job

    def block_edges(self, wanted: int) -> int:
        """Edges of a piece: as many as the call took that began, whatever memory there is now; else as ``wanted``."""
        journal = Journal(self.directory, self._job)
        noted = (journal.load() or {}).get("block_edges")
        if isinstance(noted, int) and 0 < noted <= wanted + wanted // 8:  # a little more is within the reserve
            return noted
        shutil.rmtree(self.directory, ignore_errors=True)
        journal.save({"block_edges": wanted})
        return wanted

    def records(
        self, stage: str, kind: type[Any], is_there: Callable[[Record], bool] = lambda _: True
    ) -> RecordJournal[Record]:
        """The records of a stage, but those of whose files ``is_there`` says that they are not."""
        journal: RecordJournal[Record] = RecordJournal(self.directory / stage, self._job, kind)
        for index, record in journal.load().items():
            if not is_there(record):
                journal.forget(index)
        journal.save()
        return journal

    def edges(self) -> tuple[EdgeSection, Files] | None:
        """All edges, where an earlier call has written them: blocks need no segments any more, and those are gone."""
        noted = Journal(self.directory / "edges", self._job).load()
        if noted is None or not has_files(self.directory.parent, noted["files"]):
            return None
        return EdgeSection(**noted["section"]), {name: WrittenFile(*file) for name, file in noted["files"].items()}

    def save_edges(self, section: EdgeSection, files: Files) -> None:
        """Note that all edges are written."""
        sizes = {name: [file.size_bytes, file.crc32c] for name, file in files.items()}
        Journal(self.directory / "edges", self._job).save({"section": asdict(section), "files": sizes})

    def remove(self) -> None:
        """The build is done."""
        shutil.rmtree(self.directory, ignore_errors=True)

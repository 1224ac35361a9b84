"""What is finished, on disk and sealed, so that a killed job goes on where it was: one journal for every stage.

A note is a small JSON file, replaced atomically, with an identity (which store, which settings, which version) and a
crc32c over all of it: a flipped digit would end a ranking too early. What is too large for a note goes to a file of
its own first, which the note then names with its crc32c: two such files take turns, so that a kill at any moment leaves
one that is whole. Notes come at most once in ``every_seconds``: a kill costs that much time, and a job that is
shorter writes nothing. A note of another identity, or a damaged one, counts as none.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import DurableWriter, crc32c_of, storage_errors, write_atomically
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.place import FilePlace, open_place
from ecgl_scale.engine.record import PackedRecord, pack_record, unpack_record
from ecgl_scale.engine.work import Json
from ecgl_scale.errors import EcglError

EVERY_SECONDS = 1.0
MOST_OF_THE_TIME = 20.0
"""So many times as long as a note of records took is spent before the next."""
NOTE_NAME = "journal.json"
Record = TypeVar("Record")


def check_of(entry: dict[str, Any]) -> str:
    """The seal of an entry: crc32c of its JSON with sorted keys, as eight digits."""
    return f"{crc32c_of(json.dumps(entry, sort_keys=True).encode()):08x}"


def write_sealed(path: Path, entry: dict[str, Any]) -> None:
    """Write an entry with its seal, whole or not at all."""
    entry = json.loads(json.dumps(entry))  # as it will be read: keys are text, tuples are lists
    write_atomically(path, json.dumps(entry | {"check": check_of(entry)}, indent=1) + "\n")


def read_sealed(path: Path) -> dict[str, Any]:
    """An entry as it was written.

    Raises
    ------
    OSError
        It is not there, or cannot be read.
    ValueError
        It is not as it was written.
    """
    entry = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(entry, dict) or entry.pop("check", None) != check_of(entry):
        raise ValueError("it differs from what was written")
    return entry


class Journal:
    """Notes of one job in ``directory``; ``identity`` says which."""

    def __init__(self, directory: Path, identity: Json, *, patience: float = 1.0) -> None:
        """Notes are so many times rarer than usual where they are large: ``patience``."""
        self.directory = directory
        self._identity = json.loads(json.dumps(identity))
        self.every_seconds = patience * EVERY_SECONDS
        self._saved_at = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """The last note of this very job; None where there is none, or it is damaged."""
        try:
            entry = read_sealed(self.directory / NOTE_NAME)
        except (OSError, ValueError):
            return None
        if entry.pop("identity", None) != self._identity:
            return None
        return entry

    @property
    def digest(self) -> str:
        """A short name of the job."""
        return hashlib.sha256(json.dumps(self._identity, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the last note."""
        return time.monotonic() - self._saved_at >= self.every_seconds

    def postpone(self) -> None:
        """Begin the time until the next note is due anew."""
        self._saved_at = time.monotonic()

    def save(self, entry: dict[str, Any]) -> None:
        """Replace the note. The directory is made with the first one: a job that is refused leaves nothing behind."""
        self.postpone()
        with storage_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        write_sealed(self.directory / NOTE_NAME, {**entry, "identity": self._identity})

    def clear(self) -> None:
        """Remove the note, where there is one."""
        with storage_errors(self.directory):
            (self.directory / NOTE_NAME).unlink(missing_ok=True)


class VectorJournal:
    """A journal of rounds, each of which ends with a vector: sweeps of PageRank, columns of diversity.

    The vector is an array, which is written here, or a place in files, which the blocks of the round have filled and
    which only has to reach the disk. Either way that runs beside the next round.
    """

    def __init__(self, directory: Path, identity: Json) -> None:
        self._journal = Journal(directory, identity)
        self._background = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._pending: Future[None] | None = None
        self._turn = 0

    @property
    def digest(self) -> str:
        """A short name of the job, for directories of its own."""
        return self._journal.digest

    @property
    def is_due(self) -> bool:
        """Whether the next round is to be kept."""
        return self._journal.is_due

    def load(self, num_values: int) -> tuple[NDArray[np.float64], dict[str, Any]] | None:
        """The vector and what was noted with it; None where there is none, or one of them is damaged."""
        entry = self._journal.load()
        if entry is None:
            return None
        try:
            name = Path(entry["file"] if "file" in entry else entry["place"]["directory"]).name
            vector = self._read_file(entry) if "file" in entry else _read_place(open_place(entry["place"]))
        except (OSError, LookupError, TypeError, ValueError, EcglError):
            return None
        if vector is None or vector.shape != (num_values,) or vector.dtype != np.float64:
            return None
        self._turn = int(name == _turn_name(1))  # the next one goes to the other file
        return vector, entry

    def _read_file(self, entry: dict[str, Any]) -> NDArray[np.float64] | None:
        content = (self._journal.directory / entry["file"]).read_bytes()
        return np.frombuffer(content, np.float64) if crc32c_of(content) == entry["crc32c"] else None

    def place(self, cuts: Sequence[int]) -> FilePlace:
        """Files for the next vector, for blocks to fill and then to be ``save``d."""
        self.wait()  # or what is being saved would be written over
        path = self._next_path()
        _remove(path)
        return FilePlace(path, tuple(cuts), "float64", is_durable=False)

    def save(self, vector: NDArray[np.float64] | FilePlace, entry: dict[str, Any]) -> None:
        """Begin to keep a round; ``vector`` may not change until ``wait``."""
        self.wait()
        self._journal.postpone()
        self._pending = self._background.submit(self._write, vector, entry)

    def _write(self, vector: NDArray[np.float64] | FilePlace, entry: dict[str, Any]) -> None:
        path = self._next_path()
        if isinstance(vector, FilePlace):
            vector.sync()
            self._journal.save({**entry, "place": vector.describe()})
        else:
            with storage_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                _remove(path)
            with DurableWriter(path) as writer:
                writer.write(vector)
                written = writer.finish()
            self._journal.save({**entry, "file": path.name, "crc32c": written.crc32c})
        self._turn = 1 - self._turn

    def _next_path(self) -> Path:
        return self._journal.directory / _turn_name(1 - self._turn)

    def wait(self) -> None:
        """Wait until what was begun is durable; raises what went wrong there."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """End the background thread; what is being saved is finished first."""
        self._background.shutdown(wait=True)


def _read_place(place: FilePlace) -> NDArray[Any]:
    return place.read(0, place.cuts[-1])


def _turn_name(turn: int) -> str:
    return f"vector-{turn}"


def _remove(path: Path) -> None:
    """Remove what an earlier round has left there: a file, or a directory of them."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class RecordJournal(Generic[Record]):
    """Records of finished blocks, so that ``run_blocks`` runs none of them again."""

    def __init__(self, directory: Path, identity: Json, kind: type[Any]) -> None:
        self._journal = Journal(directory, identity)
        self._kind = kind
        self._texts: dict[int, str] = {}
        self._is_saved = True

    def load(self) -> dict[int, Record]:
        """Records by the index of their block."""
        entry = self._journal.load()
        try:
            found = {} if entry is None else {int(index): text for index, text in entry["records"].items()}
            records = {index: unpack_record(self._kind, PackedRecord(text, {})) for index, text in found.items()}
        except (LookupError, ValueError, TypeError, AttributeError):
            return {}
        self._texts = found
        return records

    def add(self, block: Block, record: Record) -> None:
        """Note a finished block; records with arrays keep those in files of their own, and cannot be noted."""
        packed = pack_record(record)
        if packed.arrays:
            raise TypeError(f"a record of block {block.index} holds arrays: {sorted(packed.arrays)}")
        self._texts[block.index] = packed.text
        self._is_saved = False
        if self._journal.is_due:
            self.save()

    def forget(self, index: int) -> None:
        """A block is to be done again: what it left is not as its record says."""
        del self._texts[index]
        self._is_saved = False

    def save(self) -> None:
        """Write all that is noted so far; the more there is, the less often, so that it takes little of the time."""
        if self._is_saved:
            return
        started = time.monotonic()
        self._journal.save({"records": self._texts})
        self._is_saved = True
        self._journal.every_seconds = max(EVERY_SECONDS, MOST_OF_THE_TIME * (time.monotonic() - started))

    def clear(self) -> None:
        """The stage is done: forget its records."""
        self._journal.clear()

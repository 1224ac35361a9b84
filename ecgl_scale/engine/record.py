"""Records on their way between processes: JSON, and arrays as the bytes of ``.npy`` files; nothing that runs.

A record is a flat frozen dataclass. Floats keep their bits: JSON has the shortest text that reads back as the same.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, fields
from typing import Any

import numpy as np


@dataclass(frozen=True)
class PackedRecord:
    """A record as bytes."""

    text: str
    """Its plain fields, as JSON."""
    arrays: dict[str, bytes]
    """Its arrays, each as an ``.npy`` file."""

    @property
    def num_bytes(self) -> int:
        """The bytes that travel."""
        return len(self.text) + sum(map(len, self.arrays.values()))


def pack_record(record: Any) -> PackedRecord:
    """The bytes of a record."""
    plain: dict[str, Any] = {}
    arrays: dict[str, bytes] = {}
    for entry in fields(record):
        value = getattr(record, entry.name)
        if isinstance(value, np.ndarray):
            file = io.BytesIO()
            np.save(file, value, allow_pickle=False)
            arrays[entry.name] = file.getvalue()
        else:
            plain[entry.name] = value
    return PackedRecord(json.dumps(plain), arrays)


def unpack_record(kind: type[Any], packed: PackedRecord) -> Any:
    """The record of these bytes."""
    arrays = {name: np.load(io.BytesIO(content), allow_pickle=False) for name, content in packed.arrays.items()}
    return kind(**json.loads(packed.text), **arrays)

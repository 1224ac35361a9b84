"""Named tensors in one file: safetensors, written durably and whole, with a crc32c that is checked when it is read.

safetensors holds numbers and nothing that runs; it has no checksum of its own, so one is kept in its metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.base.durable import DurableWriter, atomic_file, crc32c_of, storage_errors
from ecgl_scale.errors import InvalidInputError

FORMAT = "ecgl_scale.tensors"
FORMAT_VERSION = "1"
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04", b"\x80\x05")
"""A torch.save archive is a zip; older ones begin with pickle's protocol."""


def save_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], *, about: Mapping[str, str]) -> None:
    """Write arrays and a few words about them; ``path`` appears whole or not at all.

    Memory: the file's bytes once more.
    """
    from safetensors.numpy import save

    arrays = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    own = {"format": FORMAT, "version": FORMAT_VERSION, "crc32c": str(_crc_of(arrays))}
    content = save(arrays, metadata={**about, **own})
    with atomic_file(path, needed_bytes=len(content)) as partial, DurableWriter(partial) as writer:
        writer.write(content)
        writer.finish()


def load_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Read what ``save_tensors`` wrote: the arrays, and the words about them.

    Raises
    ------
    InvalidInputError
        There is no such file, or it is something else, or it is damaged.
    """
    from safetensors import SafetensorError, safe_open

    with storage_errors(path):
        with path.open("rb") as file:
            start = file.read(4)
        if start.startswith(_PICKLE_STARTS):
            raise InvalidInputError(
                "this is a pickle, which can run code when it is read, and is never opened",
                where=path,
                expected="a .safetensors file written by this program",
            )
        try:
            with safe_open(str(path), framework="numpy") as opened:
                about = dict(opened.metadata() or {})
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise InvalidInputError(f"not a whole safetensors file: {error}", where=path) from error
    if (about.get("format"), about.get("version")) != (FORMAT, FORMAT_VERSION):
        found = f"{about.get('format')} version {about.get('version')}"
        raise InvalidInputError(
            "tensors of another program or version", where=f"{path}: {found}", expected=f"{FORMAT} {FORMAT_VERSION}"
        )
    if about.get("crc32c") != str(_crc_of(tensors)):
        raise InvalidInputError("a file of tensors is damaged", where=path, expected="the bytes that were written")
    return tensors, about


def _crc_of(arrays: Mapping[str, NDArray[Any]]) -> int:
    crc = 0
    for name in sorted(arrays):
        crc = crc32c_of(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode(), crc)
        if arrays[name].size:
            crc = crc32c_of(np.ascontiguousarray(arrays[name]).reshape(-1), crc)
    return crc

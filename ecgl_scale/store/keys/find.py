"""Names in files -> rows of a store, or an error that says which name, in which file and row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ecgl_scale.base.arrow import as_numpy
from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.keys.read import StoreKeys

Where = Callable[[int], str]
"""From a name's place in its block to its place in a file, for messages."""


UNKNOWN = "correct it, or append the node first; nodes of the same append count as there"


def find_rows(keys: StoreKeys, names: pa.Array, where: Where) -> NDArray[np.int64]:
    """Rows of the nodes with these keys; each must be there."""
    refuse_missing(names, where)
    if keys.type == "int64":
        names = whole_numbers(names, where)
    elif names.type != pa.string():
        raise InvalidInputError(
            f"nodes are named by {names.type}",
            where=where(0),
            expected=f"keys as those of {keys.name!r}, which are text",
        )
    rows = keys.rows_of(names)
    refuse(rows < 0, names, where, f"is not a key of the store (column {keys.name!r})", fix=UNKNOWN)
    return rows


def refuse_missing(names: pa.Array, where: Where) -> None:
    """Refuse a null."""
    if names.null_count:
        row = int(np.argmax(as_numpy(names.is_null())))
        raise InvalidInputError("this row names no node", where=where(row), expected="a node in every row")


def whole_numbers(names: pa.Array, where: Where) -> pa.Array:
    """Names as int64; text is read as numbers, which must be written as such: 007 is not 7."""
    try:
        found = names.cast(pa.int64())
        if not pa.types.is_string(names.type) or found.cast(pa.string()).equals(names):
            return found
    except pa.ArrowInvalid:
        pass
    is_bad = np.array([not _is_number(text) for text in names.to_pylist()])
    refuse(is_bad, names, where, "is not a whole number below 2^63")
    raise InvalidInputError("the numbers cannot be read", where=where(0))


def _is_number(text: object) -> bool:
    try:
        return -(1 << 63) <= int(str(text)) < 1 << 63 and str(int(str(text))) == str(text)
    except ValueError:
        return False


def refuse(is_bad: NDArray[np.bool_], names: pa.Array, where: Where, how: str, fix: str | None = None) -> None:
    """Refuse the first name that is bad."""
    if is_bad.any():
        row = int(np.argmax(is_bad))
        raise InvalidInputError(f"{names[row].as_py()!r:.200} {how}", where=where(row), fix=fix)

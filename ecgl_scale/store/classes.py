"""Labels as users have them -> class numbers 0, 1, 2, ..., and the names that go with them.

Numbers without gaps from 0 on are class numbers already, and have no names. Other numbers become classes in ascending
order, words in the order in which they first appear; the names are kept. A class that is known keeps its number, and
new ones follow: what an append needs. A label may be missing: -1, NaN, null, or a text that says so.

Costs a pass over the labels, to see which there are. Memory: a batch of labels, and the distinct ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ecgl_scale.errors import InvalidInputError
from ecgl_scale.store.nodes import BATCH_ROWS, LABEL, MAX_CLASSES
from ecgl_scale.store.source import AnyArray, AnyColumn, ColumnSource, GraphSource, NameSource

MISSING_TEXTS = ("", "-1", "nan", "NaN")
Names = tuple[str, ...]


def name_classes(source: GraphSource, known: Sequence[str] | None = None) -> tuple[GraphSource, Names | None]:
    """The source with labels that are class numbers, and the names of all classes; None where they need none.

    ``known`` are the classes that there are before: their names, or their numbers as text. A source that knows its
    number of classes has class numbers, and is left as it is.
    """
    label = next((column for column in source.columns if column.name == LABEL), None)
    if label is None or (isinstance(label, ColumnSource) and source.num_classes is not None):
        return source, source.class_names
    before = [] if known is None else list(known)
    if isinstance(label, NameSource):
        found = _texts(label)
    else:
        numbers = _numbers(label)
        together = np.union1d(numbers, _as_numbers(before))
        if np.array_equal(together, np.arange(together.size)):
            return (source if known is None else replace(source, num_classes=together.size, is_part=True)), None
        found = [str(number) for number in numbers.tolist()]
    names = (*before, *(name for name in found if name not in set(before)))
    if len(names) > MAX_CLASSES:
        raise _too_many(label)
    columns = tuple(_numbered(column, names) if column is label else column for column in source.columns)
    return replace(source, columns=columns, num_classes=len(names), is_part=known is not None), names


def _as_numbers(names: list[str]) -> NDArray[np.int64]:
    """The classes before, where they have no names of their own; something that no number goes with, where they do."""
    is_plain = names == [str(number) for number in range(len(names))]
    return np.arange(len(names)) if is_plain else np.array([-2])


def _texts(label: NameSource) -> list[str]:
    """The classes there are, in the order in which they first appear."""
    found: dict[str, None] = {}
    for block in label.blocks(BATCH_ROWS):
        found.update(dict.fromkeys(text for text in pc.unique(block).to_pylist() if text is not None))
        if len(found) > MAX_CLASSES + len(MISSING_TEXTS):
            raise _too_many(label)
    return [text for text in found if text not in MISSING_TEXTS]


def _numbers(label: ColumnSource) -> NDArray[np.int64]:
    """The classes there are, ascending."""
    found, first_row = np.empty(0, np.int64), 0
    for block in label.blocks(BATCH_ROWS):
        is_outside = (block < -1) | (block > np.iinfo(np.int64).max)
        if is_outside.any():
            row = int(np.argmax(is_outside))
            raise InvalidInputError(
                f"label {block[row]} is not a class",
                where=f"{label.origin}, row {first_row + row}",
                expected="-1 for no label, or a whole number from 0 on, below 2^63",
            )
        found = np.union1d(found, block.astype(np.int64))
        first_row += block.size
        if found.size > MAX_CLASSES + 1:
            raise _too_many(label)
    return found[found >= 0]


def _too_many(label: AnyColumn) -> InvalidInputError:
    return InvalidInputError(
        f"there are more than {MAX_CLASSES:,} different labels",
        where=label.origin,
        expected="the class of each node",
        fix="these look like values or keys: label a node by its class",
    )


def _numbered(label: AnyColumn, names: Names) -> ColumnSource:
    number_of = {name: number for number, name in enumerate(names)}

    def blocks(max_rows: int) -> Iterator[AnyArray]:
        for block in label.blocks(max_rows):
            if isinstance(block, pa.Array):
                encoded = block.dictionary_encode()
                distinct, places = encoded.dictionary.to_pylist(), encoded.indices.fill_null(len(encoded.dictionary))
            else:
                values, places = np.unique(block, return_inverse=True)
                distinct = [str(value) for value in values.tolist()]
            numbers: NDArray[Any] = np.array([*(number_of.get(text, -1) for text in distinct), -1], np.int32)
            yield numbers[np.asarray(places)]

    return ColumnSource(LABEL, np.dtype(np.int32), label.origin, blocks)

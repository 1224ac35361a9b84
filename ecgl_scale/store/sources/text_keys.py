"""Keys of nodes in a table in text, as they are written: 007 is not 7.

They are numbers where every one of them is a whole number as numbers are written, without a sign of plus or zeros
before it, and text otherwise. What is appended to a store whose keys are text is text, whatever it looks like.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from ecgl_scale.store.source import NameSource
from ecgl_scale.store.sources.tables import Table

ROWS_AT_ONCE = 1 << 16
NUMBER = "^(0|-?[1-9][0-9]*)$"


def csv_keys(name: str, table: Table, *, is_by_node: bool) -> NameSource:
    """The keys in a column of a table in text, which is read once to see what they are."""
    table.type_of(name)
    as_written = partial(_texts, name, table, is_by_node)
    origin = f"{table.path}, column {name}"
    if all(map(are_numbers, as_written(ROWS_AT_ONCE))):
        return NameSource(name, "int64", origin, partial(_numbers, as_written), as_written=as_written)
    return NameSource(name, "string", origin, as_written)


def are_numbers(texts: pa.Array) -> bool:
    """Whether every text is what its number would be written as, and there is none missing."""
    if texts.null_count or not pc.all(pc.match_substring_regex(texts, NUMBER), min_count=0).as_py():
        return False
    try:
        texts.cast(pa.int64())
    except pa.ArrowInvalid:  # too large a number
        return False
    return True


def _texts(name: str, table: Table, is_by_node: bool, max_rows: int) -> Iterator[pa.Array]:
    first_row = 0
    for batch in table.batches(table.with_node(name) if is_by_node else [name], max_rows, as_text=name):
        if is_by_node:
            table.check_order(batch, first_row)
        yield batch.column(name)
        first_row += batch.num_rows


def _numbers(as_written: partial[Iterator[pa.Array]], max_rows: int) -> Iterator[pa.Array]:
    return (texts.cast(pa.int64()) for texts in as_written(max_rows))

"""Do the keys of a store and their index belong together? Every key must lead to its own row, and the index be sorted.

The index has as many entries as there are rows, so where each row is found by its key, no entry is left over, and no
two nodes have one key, of the same generation or of others. Memory: a batch of keys, a few times.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ecgl_scale.base.events import BlockFinished, EventSink, StageStarted
from ecgl_scale.store.checked import corrupt
from ecgl_scale.store.keys.read import BATCH_ROWS, KeyPart, StoreKeys

STAGE = "check keys"


def check_keys(keys: StoreKeys, on_event: EventSink) -> None:
    """Look up every key of a store, whose bytes are known to be good."""
    num_rows = sum(part.num_rows for part in keys.parts)
    on_event(StageStarted(STAGE, num_rows, "rows"))
    done = 0
    for part in keys.parts:
        _check_order(part)
        for index in range(-(-part.num_rows // BATCH_ROWS)):
            done += _check_batch(keys, part, index)
            on_event(BlockFinished(STAGE, done))
        if done != part.first_row + part.num_rows:
            raise corrupt(part.keys.path, f"has {done - part.first_row:,} keys, not {part.num_rows:,}")


def _check_order(part: KeyPart) -> None:
    codes, _ = part.codes_and_rows
    for first in range(0, codes.size, BATCH_ROWS):
        own = codes[first : first + BATCH_ROWS + 1]
        if np.any(own[1:] < own[:-1]):
            raise corrupt(part.index.path, "is not sorted")


def _check_batch(keys: StoreKeys, part: KeyPart, index: int) -> int:
    first_row = part.first_row + index * BATCH_ROWS
    try:
        batch = part.batch(index)
        rows = keys.rows_of(batch)
    except (pa.ArrowException, IndexError, ValueError) as error:
        raise corrupt(part.keys.path, f"does not hold keys in its batch {index}: {error}") from error
    own_rows = np.arange(first_row, first_row + len(batch))
    is_wrong = rows != own_rows
    if keys.dropped is not None:
        is_wrong &= ~keys.dropped.among(own_rows)  # their keys are unknown, or another node has them now
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise corrupt(part.index.path, f"does not lead from the key of row {first_row + row} to that row")
    return len(batch)

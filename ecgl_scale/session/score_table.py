"""Tables of predictions: node, label and score, and in the metadata of the file what they were made with.

A table is of a store up to a generation, of a model by the checksum of its weights, and of the settings that change
numbers. ``ecgl infer --update`` goes on from a table only where all of that is as it was.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.session.saved_model import SavedModel
from ecgl_scale.store.dropped import Dropped
from ecgl_scale.store.graph import GraphStore
from ecgl_scale.store.keys.read import StoreKeys

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_KEY = b"ecgl_scale.predictions"
WRITE_ROWS = 1 << 16
WRITE_COPIES, WRITTEN_ROW_BYTES = 3, 100
"""Copies in float64 of the outputs that are written at once; and the bytes of a row on its way through Arrow."""
COLUMNS = {"node": np.int64, "label": np.int64, "score": np.float32}

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Scores:
    """Label and score of each of some nodes; ``score`` is the softmax of the label's output."""

    nodes: Ints
    label: Ints
    score: NDArray[np.float32]

    def batches(self) -> Iterator[Scores]:
        """The scores as they are written, some at a time."""
        for start in range(0, self.nodes.size, WRITE_ROWS):
            yield self.part(start, start + WRITE_ROWS)

    def part(self, start: int, stop: int) -> Scores:
        """Entries ``start`` up to ``stop``, as views."""
        return Scores(self.nodes[start:stop], self.label[start:stop], self.score[start:stop])


@dataclass(frozen=True)
class TableInfo:
    """What the predictions in a file belong to."""

    store: str
    """The identity of the store up to ``generation``."""
    generation: int
    num_nodes: int
    """Nodes of the store up to there."""
    model: str
    """The sha256 of weights, classes and scaling."""
    settings: dict[str, Any]
    """The settings that change numbers."""
    nodes: str
    """``all``, or ``some`` where only nodes were predicted that someone asked for."""

    @classmethod
    def of(cls, model: SavedModel, graph: GraphStore, *, nodes: str = "all") -> TableInfo:
        """What predictions of these nodes would say of themselves."""
        return cls(graph.identity, graph.generation, graph.num_nodes, digest_of(model), settings_of(model), nodes)

    def metadata(self) -> dict[bytes, bytes]:
        """The information as a Parquet file carries it."""
        return {METADATA_KEY: json.dumps(asdict(self), sort_keys=True).encode()}


def digest_of(model: SavedModel) -> str:
    """Tells a trained model from all others: the sha256 of its weights, classes and scaling."""
    found = hashlib.sha256(json.dumps([model.classes, model.weights.widths]).encode())
    found.update(model.scaling.to_json().encode())
    for tensor in model.weights.parameters():
        found.update(np.ascontiguousarray(tensor.detach().cpu().numpy(), "<f4").tobytes())
    return found.hexdigest()


def settings_of(model: SavedModel) -> dict[str, Any]:
    """The settings of a model that change what it predicts, be it in the last bits."""
    learn, infer = model.config.learn, model.config.infer
    return {
        "encoder": learn.encoder,
        "bias_place": learn.bias_place,
        "features": learn.features,
        "norm": infer.norm,
        "backend": infer.backend,
    }


def scores_of(logits: Any, nodes: Ints, classes: Ints) -> Scores:
    """Label and score of rows of outputs."""
    rows = np.asarray(logits, np.float64)
    rows = np.where(classes >= 0, rows, -np.inf)  # others are forgotten
    score = 1.0 / np.exp(rows - rows.max(axis=1, keepdims=True)).sum(axis=1)
    if not math.isfinite(float(score.sum())):
        raise InvalidInputError("an output is not finite", where=f"nodes {nodes[0]} to {nodes[-1]}")
    return Scores(nodes, classes[rows.argmax(axis=1)], score.astype(np.float32))


def scores_of_all(logits: Any, classes: Ints) -> Iterator[Scores]:
    """Scores of every node, some at a time."""
    for start in range(0, len(logits), WRITE_ROWS):
        rows = logits[start : start + WRITE_ROWS]
        yield scores_of(rows, np.arange(start, start + len(rows)), classes)


@dataclass(frozen=True, eq=False)
class Naming:
    """What a table calls nodes and classes, besides their numbers."""

    classes: dict[int, str] | None = None
    """The name of each label, where classes have names."""
    keys: StoreKeys | None = None
    """The keys of the nodes, where they are wanted."""
    dropped: Dropped | None = None
    """Nodes that are no longer in the graph: they are not predicted."""

    @classmethod
    def of(cls, model: SavedModel, graph: GraphStore, *, by_key: bool) -> Naming:
        """The names of classes where they have any, and keys where someone asks for them."""
        if by_key and graph.keys is None:
            raise UsageError("the store has no keys", where=graph.path, fix="leave out --id")
        return cls(model.names_in(graph), graph.keys if by_key else None, graph.dropped)

    def columns(self, batch: Scores) -> dict[str, pa.Array]:
        """The columns of a batch, in their order; dropped nodes have label -1 and score 0."""
        from ecgl_scale.base.arrow import as_arrow, texts_as_arrow

        if self.dropped is not None:
            gone = self.dropped.among(batch.nodes)
            label, score = batch.label.copy(), batch.score.copy()
            label[gone], score[gone] = -1, 0
            batch = Scores(batch.nodes, label, score)
        numbers: dict[str, NDArray[Any]] = {"node": batch.nodes, "label": batch.label, "score": batch.score}
        found = {name: as_arrow(numbers[name], dtype) for name, dtype in COLUMNS.items()}
        if self.classes is not None:
            labels, places = np.unique(batch.label, return_inverse=True)
            names = texts_as_arrow([self.classes.get(label) for label in labels.tolist()])
            found = {"node": found["node"], "label": found["label"], "class": names.take(as_arrow(places)), **found}
        if self.keys is not None:
            name = self.keys.name if self.keys.name not in (*COLUMNS, "class") else "key"
            found = {"node": found["node"], name: self.keys.keys_of(batch.nodes), **found}
        return found


def write_scores(out: Path, batches: Iterable[Scores], info: TableInfo, naming: Naming, *, num_rows: int) -> None:
    """Write a table, whole or not at all. Memory: a batch, a few times."""
    import pyarrow as pa

    from ecgl_scale.base.parquet import write_tables

    nobody = Scores(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))
    schema = pa.table(naming.columns(nobody)).schema.with_metadata(info.metadata())
    tables = (pa.table(naming.columns(batch), schema=schema) for batch in batches)
    repeated = [name for name in ("label", "class") if name in schema.names]
    write_tables(out, schema, tables, repeated=repeated, needed_bytes=max(20 * num_rows, 1))


def read_info(path: Path) -> TableInfo:
    """What a table says of itself.

    Raises
    ------
    InvalidInputError
        It cannot be read, or it is no table of ours.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    expected = "what `ecgl infer` has written"
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInputError("the predictions cannot be read", where=path, expected=expected) from error
    fix = "write them anew, without --update"
    try:
        info = TableInfo(**json.loads((schema.metadata or {})[METADATA_KEY]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(
            "the predictions do not say which model and store they are of", where=path, expected=expected, fix=fix
        ) from error
    if not set(COLUMNS) <= set(schema.names):
        raise InvalidInputError("a column is missing from the predictions", where=path, expected=expected, fix=fix)
    return info


def read_scores(path: Path, num_rows: int) -> Iterator[Scores]:
    """The rows of a table of all nodes, in order, some at a time. Memory: a batch, a few times.

    Raises
    ------
    InvalidInputError
        It has other rows than one for each of ``num_rows`` nodes, in order.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ecgl_scale.base.arrow import as_numpy

    start = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(WRITE_ROWS, columns=list(COLUMNS)):
                nodes, label, score = (np.array(as_numpy(column)) for column in batch.columns)
                if not np.array_equal(nodes, np.arange(start, start + nodes.size)):
                    raise InvalidInputError(
                        "the predictions are not those of all nodes in order",
                        where=f"{path}, from row {start}",
                        fix="write them anew, without --update",
                    )
                start += nodes.size
                yield Scores(nodes, label, score)
    except (OSError, pa.ArrowException) as error:
        raise InvalidInputError("the predictions cannot be read", where=path) from error
    if start != num_rows:
        raise InvalidInputError(
            f"there are predictions of {start:,} nodes", where=path, expected=f"{num_rows:,}, as the file itself says"
        )

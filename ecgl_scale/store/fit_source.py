"""What an append brings, made to fit the store it goes to: the same features and columns, the store's own options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

from ecgl_scale.base.objects.url import AnyPath
from ecgl_scale.errors import InvalidInputError, UsageError
from ecgl_scale.store.classes import name_classes
from ecgl_scale.store.edges.plan import BuildOptions
from ecgl_scale.store.format import Manifest
from ecgl_scale.store.nodes import LABEL, SPLIT
from ecgl_scale.store.source import (
    AnyArray,
    AnyColumn,
    ColumnSource,
    DenseSource,
    GraphSource,
    NameSource,
    SparseSource,
)

_LOOPS = {"dropped": "drop", "kept": "keep", "added": "add"}


class GivenOptions(TypedDict, total=False):
    """Options of the first ingest that an append may repeat, and may not contradict."""

    symmetrise: bool
    keep_duplicates: bool
    self_loops: str
    features_as: str
    feature_dtype: str


def store_options(manifest: Manifest) -> BuildOptions:
    """What happens to edges on their way into this store."""
    edges = manifest.edges
    return BuildOptions(edges.symmetrised, edges.keeps_duplicates, _LOOPS[edges.self_loops])


def refuse_contradiction(given: GivenOptions, manifest: Manifest, store: AnyPath) -> None:
    """Refuse an option that the store was not built with."""
    options, features = store_options(manifest), manifest.features
    own: GivenOptions = {
        "symmetrise": options.symmetrise,
        "keep_duplicates": options.keep_duplicates,
        "self_loops": options.self_loops,
    }
    if features is not None:
        own |= {"features_as": features.kind, "feature_dtype": features.dtype}
    for name, value in given.items():
        if name in own and value not in ("auto", own[name]):  # type: ignore[literal-required]
            raise UsageError(
                f"{name} is {value} here, but the store was built with {own[name]}",  # type: ignore[literal-required]
                where=store,
                fix="leave the option out: an append follows the store",
            )


def fit_source(source: GraphSource, manifest: Manifest, store: AnyPath) -> GraphSource:
    """The source as the store takes it, or an error that says what does not fit."""
    features = _fitting_features(source, manifest, store)
    columns = _fitting_columns(source, manifest, store)
    keys = _fitting_keys(source, manifest, store)
    if source.num_nodes == 0:
        features, columns = None, ()
    known = [str(label) for label in range(manifest.num_classes or 0)]
    fitted = replace(source, features=features, columns=(*columns, *keys), num_classes=None)
    named, names = name_classes(fitted, manifest.class_names or known)
    return replace(named, class_names=names)


def _fitting_features(source: GraphSource, manifest: Manifest, store: AnyPath) -> DenseSource | SparseSource | None:
    section, features = manifest.features, source.features
    if features is None:
        if section is not None and source.num_nodes:
            raise InvalidInputError(
                "the new nodes have no features",
                where=source.name,
                expected=f"{section.num_features} a node, as {store} has",
            )
        return None
    if section is None:
        raise InvalidInputError("the new nodes have features, the store has none", where=f"{features.origin}, {store}")
    if features.num_features != section.num_features:
        raise InvalidInputError(
            f"the new nodes have {features.num_features} features each",
            where=features.origin,
            expected=f"{section.num_features}, as {store} has",
        )
    return features


def _fitting_keys(source: GraphSource, manifest: Manifest, store: AnyPath) -> list[NameSource]:
    """The keys of new nodes, where the nodes of the store have keys."""
    section, keys = manifest.keys, source.keys
    if section is None and source.id_column is not None:
        raise InvalidInputError("nodes of the store have no keys", where=store, fix="leave out --id-column")
    if section is None or not source.num_nodes:
        return []
    if keys is not None and keys.as_written is not None and section.type == "string":
        keys = replace(keys, type="string", blocks=keys.as_written, as_written=None)
    if keys is None or keys.name != section.name or keys.type != section.type:
        found = "none" if keys is None else f"{keys.name!r} of {keys.type}"
        raise InvalidInputError(
            f"the new nodes have other keys than the store: {found}",
            where=source.name if keys is None else keys.origin,
            expected=f"a column {section.name!r} of {section.type}, as {store} has",
            fix=f"--id-column {section.name}"
            if keys is None or keys.name != section.name
            else "write the keys as those of the store; a store with keys of another type is an ingest of its own",
        )
    return [keys]


def _fitting_columns(source: GraphSource, manifest: Manifest, store: AnyPath) -> tuple[AnyColumn, ...]:
    """A column of each name that the store has, in its order; labels and splits may be missing, and are -1 then."""
    given = {column.name: column for column in source.columns if column.name != source.id_column}
    for name, column in given.items():
        if name not in manifest.columns:
            raise InvalidInputError(
                f"the store has no node column {name!r}",
                where=f"{column.origin}, {store}",
                expected=f"its columns: {', '.join(manifest.columns) or 'none'}",
                fix="leave the column out, or ingest everything again with it",
            )
    fitting: list[AnyColumn] = []
    for name, kind in manifest.columns.items():
        dtype = np.dtype(pa.type_for_alias(kind).to_pandas_dtype())
        if name in given:
            fitting.append(_as_stored(given[name], dtype))
        elif name in (LABEL, SPLIT):
            fitting.append(ColumnSource(name, dtype, source.name, partial(_missing, source.num_nodes, dtype)))
        elif source.num_nodes:
            raise InvalidInputError(
                f"the new nodes have no column {name!r}",
                where=source.name,
                expected=f"the columns of {store}: {', '.join(manifest.columns)}",
            )
    return tuple(fitting)


def _missing(num_nodes: int, dtype: np.dtype[Any], max_rows: int) -> Iterator[AnyArray]:
    for start in range(0, num_nodes, max(max_rows, 1)):
        yield np.full(min(max(max_rows, 1), num_nodes - start), -1, dtype)


def _as_stored(column: AnyColumn, dtype: np.dtype[Any]) -> AnyColumn:
    """The column in the store's type; a value that would become another one is refused."""
    if isinstance(column, NameSource) or column.name in (LABEL, SPLIT) or column.dtype == dtype:
        return column

    def blocks(max_rows: int) -> Iterator[AnyArray]:
        row = 0
        for values in column.blocks(max_rows):
            with np.errstate(invalid="ignore", over="ignore"):
                cast = values.astype(dtype)
            wrong = cast != values
            if dtype.kind == values.dtype.kind == "f":
                wrong &= ~np.isnan(values)
            if wrong.any():
                at = int(np.argmax(wrong))
                raise InvalidInputError(
                    f"{column.name} {values[at]} cannot be stored as {dtype}, the type of the store's column",
                    where=f"{column.origin}, row {row + at}",
                )
            yield cast
            row += len(cast)

    return replace(column, dtype=dtype, blocks=blocks)

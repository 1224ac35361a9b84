"""One manifest of all generations of a store: what a reader sees, as if the graph had been built at once.

New rows take the numbers after the old ones. Blocks begin at multiples of 2**16 rows, so new rows up to the next
multiple belong to the last older block, which becomes longer, and the rest are blocks of their own. Edges into rows of
older blocks lie in files of their own beside them; ``stored_blocks`` says of every block where all its edges are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from ecgl_scale.base.objects.url import AnyPath, absolute_text
from ecgl_scale.engine.block import Block
from ecgl_scale.errors import CorruptStoreError, EcglError
from ecgl_scale.store.edges.plan import MAX_NODES, RANGE_ROWS, id_dtype_of
from ecgl_scale.store.format import MANIFEST_NAME, EdgeSection, FeatureSection, Manifest, block_name
from ecgl_scale.store.generation import (
    BASE_NAME,
    GENERATIONS_DIRECTORY,
    OLDER_DIRECTORY,
    GenerationManifest,
    is_generation,
    manifest_name,
)

ERASED = "dropped_nodes"
"""What the origin of a compacted store says: how many dropped nodes compactions have erased from it."""


@dataclass(frozen=True, kw_only=True)
class GrownManifest(Manifest):
    """The graph up to a generation; ``files`` are named as seen from the store, without the manifests."""

    base: Manifest
    appended: tuple[GenerationManifest, ...]

    @property
    def num_dropped(self) -> int:
        """Nodes that have a row and are no longer in the graph."""
        return sum(generation.dropped.num_nodes for generation in self.appended if generation.dropped is not None)


@dataclass(frozen=True)
class OlderPiece:
    """Edges into one block that a later generation has brought: entries ``first`` to ``stop`` of a file."""

    file: str
    first: int
    stop: int
    num_nodes: int
    """The graph with that generation has so many: no id reaches it."""

    @property
    def num_edges(self) -> int:
        """Edges of the piece."""
        return self.stop - self.first


@dataclass(frozen=True)
class StoredBlock:
    """Where the edges into a block of rows are: in the files of its generation, and what came later."""

    block: Block
    folder: str
    """Its generation lies here below the store: empty, or with a slash at its end."""
    index: int
    """Its number in its generation."""
    num_rows: int
    """Rows that its own files have; the block may have more."""
    num_edges: int
    """Edges in its own files."""
    num_nodes: int
    """The graph had so many when they were written: no id in them reaches it."""
    older: tuple[OlderPiece, ...]

    @property
    def num_older(self) -> int:
        """Edges that came later."""
        return sum(piece.num_edges for piece in self.older)


@dataclass(frozen=True)
class GenerationInfo:
    """One generation of a store, and the graph up to it."""

    number: int
    num_nodes: int
    num_edges: int
    first_node: int
    """The first node that this generation has brought; ``num_nodes`` where it has brought none."""


def grow(before: Manifest, generation: GenerationManifest, where: AnyPath | None = None) -> GrownManifest:
    """The manifest of the graph after one more append, which must fit what was there before; it was read ``where``."""
    try:
        _check_fit(before, generation)
    except ValueError as error:
        if isinstance(error, EcglError):
            raise
        raise CorruptStoreError(
            f"a generation does not fit the one before it: {error}", where=where or generation.folder
        ) from error
    base, appended = generations_of(before)
    names = {f"{generation.folder}/{name}": record for name, record in generation.files.items()}
    return GrownManifest(
        num_nodes=before.num_nodes + generation.num_new_nodes,
        edges=_joined_edges(before, generation),
        features=_joined_features(before.features, generation.features),
        columns=before.columns,
        num_classes=generation.num_classes,
        provenance=before.provenance,
        files={**before.files, **names},
        written_by=generation.written_by,
        keys=before.keys,
        class_names=generation.class_names if generation.class_names is not None else before.class_names,
        source_order=before.source_order,
        base=base,
        appended=(*appended, generation),
    )


def generations_of(manifest: Manifest) -> tuple[Manifest, tuple[GenerationManifest, ...]]:
    """What a manifest is composed of: that of the first ingest, and those of the appends."""
    return (manifest.base, manifest.appended) if isinstance(manifest, GrownManifest) else (manifest, ())


def num_dropped_of(manifest: Manifest) -> int:
    """Nodes that have a row and are no longer in the graph."""
    return manifest.num_dropped if isinstance(manifest, GrownManifest) else 0


def num_erased_of(manifest: Manifest) -> int:
    """Nodes that compactions have erased so far: with each of them the rows after it got other numbers."""
    found = generations_of(manifest)[0].provenance.get(ERASED, 0)
    return found if isinstance(found, int) else 0


def num_edges_change(generation: GenerationManifest) -> int:
    """How many edges more a graph has after a generation; fewer after one that drops nodes."""
    lost = 0 if generation.dropped is None else sum(generation.dropped.block_edges)
    return generation.edges.num_edges - lost


def generation_infos(manifest: Manifest) -> tuple[GenerationInfo, ...]:
    """Every generation, and the graph up to it."""
    base, appended = generations_of(manifest)
    found = [GenerationInfo(0, base.num_nodes, base.edges.num_edges, 0)]
    for generation in appended:
        first, num_edges = found[-1].num_nodes, found[-1].num_edges + num_edges_change(generation)
        found.append(GenerationInfo(generation.number, first + generation.num_new_nodes, num_edges, first))
    return tuple(found)


def manifest_names(manifest: Manifest) -> set[str]:
    """The manifests that a reader of the graph has read, by their names below the store."""
    appended = generations_of(manifest)[1]
    return {MANIFEST_NAME, *(manifest_name(number) for number in range(len(appended) + 1) if appended)}


def is_beside(name: str, manifest: Manifest) -> bool:
    """Whether something in the store is none of this graph's, but may be there.

    It is of a later generation, or of an append that has not ended, or was left over by one.
    """
    folder, _, rest = name.partition("/")
    entry = rest.partition("/")[0]
    if folder != GENERATIONS_DIRECTORY or not rest:
        return False
    number = int(entry) if is_generation(entry) else 0
    is_later = number > len(generations_of(manifest)[1])
    return entry.startswith(".") or is_later or name == BASE_NAME


def folders_with_rows(manifest: Manifest) -> list[str]:
    """Where generations lie that brought rows, below the store, in row order; empty, or with a slash at the end."""
    appended = generations_of(manifest)[1]
    return ["", *(f"{generation.folder}/" for generation in appended if generation.num_new_nodes)]


def address_of(location: AnyPath, manifest: Manifest) -> str:
    """What another process, in another working directory, and at any later time, opens the same graph by."""
    return f"{absolute_text(location)}#generation={len(generations_of(manifest)[1])}"


def own_rows_start(num_nodes: int) -> int:
    """The first row that may begin a block of a generation, after a graph of so many nodes."""
    return -(-num_nodes // RANGE_ROWS) * RANGE_ROWS


def _check_fit(before: Manifest, generation: GenerationManifest) -> None:
    edges, older, new = generation.edges, generation.older, generation.num_new_nodes
    after, start = before.num_nodes + new, own_rows_start(before.num_nodes)
    number = len(generations_of(before)[1]) + 1
    if generation.number != number:
        raise ValueError(f"it says that it is generation {generation.number}, not {number}")
    if after > MAX_NODES:
        raise ValueError(f"there would be {after} nodes")
    starts = edges.block_starts
    if after <= start and starts:
        raise ValueError("it has blocks, but no rows for them")
    if after > start and (len(starts) < 2 or starts[0] != start or starts[-1] != after):
        raise ValueError("its blocks do not cover its rows")
    if any(first >= last or first % RANGE_ROWS for first, last in pairwise(starts)):
        raise ValueError("its blocks are not whole ranges in order")
    if older.blocks and (older.blocks[0] < 0 or older.blocks[-1] >= len(before.edges.block_edges)):
        raise ValueError("it has edges into blocks that are not there")
    if edges.id_dtype != id_dtype_of(after).name:
        raise ValueError(f"its ids are {edges.id_dtype!r:.100}")
    if before.columns != generation.columns and (new or generation.columns):
        raise ValueError(f"its node columns are {generation.columns}, before they were {before.columns}")
    if (before.num_classes is None) != (generation.num_classes is None):
        raise ValueError(f"it has {generation.num_classes} classes, before there were {before.num_classes}")
    if before.num_classes is not None and (generation.num_classes or 0) < before.num_classes:
        raise ValueError(f"it has {generation.num_classes} classes, before there were {before.num_classes}")
    _check_same_names(before, generation)
    _check_same_features(before.features, generation)
    _check_dropped(before, generation)


def _check_same_names(before: Manifest, generation: GenerationManifest) -> None:
    if before.keys != generation.keys and (generation.num_new_nodes or generation.keys is not None):
        raise ValueError("its nodes are named by another column")
    names = before.class_names or []
    if generation.class_names is not None and generation.class_names[: len(names)] != names:
        raise ValueError("it has other names for the classes")
    if names and generation.class_names is None and generation.num_classes != len(names):
        raise ValueError("it has classes without names")


def _check_dropped(before: Manifest, generation: GenerationManifest) -> None:
    dropped = generation.dropped
    if dropped is None:
        return
    if dropped.num_nodes + num_dropped_of(before) >= before.num_nodes:
        raise ValueError("it drops more nodes than there are, or all of them")
    for block, num_edges in zip(dropped.blocks, dropped.block_edges, strict=True):
        if not 0 <= block < len(before.edges.block_edges) or num_edges > before.edges.block_edges[block]:
            raise ValueError("it drops edges that are not there")


def _check_same_features(features: FeatureSection | None, generation: GenerationManifest) -> None:
    new = generation.features
    if new is None or features is None:
        if (new is None) != (features is None or generation.num_new_nodes == 0):
            raise ValueError("its nodes have features and those before have none, or the other way round")
        return
    kinds = [(section.kind, section.num_features, section.dtype) for section in (features, new)]
    if kinds[0] != kinds[1]:
        raise ValueError(f"its features are {kinds[1]}, before they were {kinds[0]}")


def _joined_edges(before: Manifest, generation: GenerationManifest) -> EdgeSection:
    section, added, older = before.edges, generation.edges, generation.older
    block_edges = list(section.block_edges)
    for block, num_edges in zip(older.blocks, older.block_edges, strict=True):
        block_edges[block] += num_edges
    if generation.dropped is not None:
        for block, num_edges in zip(generation.dropped.blocks, generation.dropped.block_edges, strict=True):
            block_edges[block] -= num_edges
    stops = added.block_starts or [before.num_nodes + generation.num_new_nodes]
    return replace(
        section,
        num_edges=section.num_edges + num_edges_change(generation),
        id_dtype=added.id_dtype,
        input_edges=section.input_edges + added.input_edges,
        dropped_self_loops=section.dropped_self_loops + added.dropped_self_loops,
        dropped_duplicates=section.dropped_duplicates + added.dropped_duplicates,
        block_starts=[*section.block_starts[:-1], *stops],
        block_edges=[*block_edges, *added.block_edges],
    )


def _joined_features(before: FeatureSection | None, added: FeatureSection | None) -> FeatureSection | None:
    if before is None or added is None:
        return before
    return replace(
        before,
        rows_per_block=max(before.rows_per_block, added.rows_per_block),
        rows_per_chunk=max(before.rows_per_chunk, added.rows_per_chunk),
        num_values=before.num_values + added.num_values,
    )


def stored_blocks(manifest: Manifest) -> list[StoredBlock]:
    """Every block of the graph, in row order, with the places of its edges."""
    base, appended = generations_of(manifest)
    blocks = _own_blocks("", 0, base.edges.block_starts, base.edges.block_edges, base.num_nodes)
    num_nodes = base.num_nodes
    for generation in appended:
        num_nodes += generation.num_new_nodes
        _add_older(blocks, generation, num_nodes)
        starts = generation.edges.block_starts
        last = blocks[-1].block
        longer = Block(last.index, last.start, starts[0] if starts else num_nodes)
        blocks[-1] = replace(blocks[-1], block=longer)
        blocks += _own_blocks(f"{generation.folder}/", len(blocks), starts, generation.edges.block_edges, num_nodes)
    return blocks


def _own_blocks(
    folder: str, first_index: int, starts: list[int], block_edges: list[int], num_nodes: int
) -> list[StoredBlock]:
    bounds = list(pairwise(starts))
    return [
        StoredBlock(Block(first_index + index, start, stop), folder, index, stop - start, num_edges, num_nodes, ())
        for index, ((start, stop), num_edges) in enumerate(zip(bounds, block_edges, strict=True))
    ]


def _add_older(blocks: list[StoredBlock], generation: GenerationManifest, num_nodes: int) -> None:
    older = generation.older
    file_stops = list(accumulate(older.file_blocks))
    file = position = 0
    for place, (index, num_edges) in enumerate(zip(older.blocks, older.block_edges, strict=True)):
        if place == file_stops[file]:
            file, position = file + 1, 0
        name = f"{generation.folder}/{block_name(OLDER_DIRECTORY, file)}"
        piece = OlderPiece(name, position, position + num_edges, num_nodes)
        blocks[index] = replace(blocks[index], older=(*blocks[index].older, piece))
        position += num_edges

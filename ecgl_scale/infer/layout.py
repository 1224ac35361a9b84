"""How the work is laid out under a budget: which matrices stay in memory, how many columns are held at once.

A step needs, on top of what the process holds:

    reserve + scales (up to 12 bytes a node) + weights
    + matrix it reads, where that is in memory          4 * nodes * columns
    + matrix it writes, where that is in memory         4 * nodes * columns
    + columns it holds of features or of a file         4 * nodes * held columns
    + the larger of: work of the backend, and before that a block for each reader
    + in halo mode instead: 5 bytes a node and, for a partition, 4 bytes an edge and 4 * columns + 32 a source
    + where workers share no memory: rows of a partition on their way to and from files
and after the last step: the logits, where they are in memory, and what the caller needs beside them

All ways to put matrices in memory or in files are compared: fewest re-readings first, then fewest bytes in files. The
smallest need is that of four columns (16 bytes a node) with every matrix in a file. Whatever room there is, a layout
needs no more than that, or than the room.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from typing import Any

from ecgl_scale.graph.partition import CHUNK_ROWS, ROW_WEIGHT
from ecgl_scale.infer.program import UNIT_COLUMNS, Pass, Program, padded
from ecgl_scale.infer.settings import InferSettings
from ecgl_scale.infer.sizes import Sizes
from ecgl_scale.units import MIB, format_bytes

RESERVE_BYTES = 24 * MIB
"""For threads, buffers and small objects."""
TORCH_RESERVE_BYTES = 96 * MIB
"""What torch's and DGL's own threads and packing buffers take."""
SCALE_BYTES = 12
HALO_NODE_BYTES = 5
SOURCE_BYTES = 32
WORK_BYTES = 64 * MIB
"""Torch and DGL work on a whole partition at once: so much of it, or with little room a share of that."""
WORK_SHARE, MIN_WORK_BYTES = 8, 4 * MIB
EDGE_BYTES = 12
"""Edges of a partition as a block: int32 ids, and a value (torch) or a sorted copy (DGL)."""
LINE_COLUMNS = 16
"""Columns of a cache line: slices are as wide as that, where there is a choice."""
MAX_CHOSEN = 6
PARTITION_EDGES = 4 << 20
"""Our own kernels take rows as they come; partitions are what a kill may cost."""
UNEVEN = 2
"""A partition may have so many times the average of rows or edges."""
GATHER_BYTES = 24 * MIB


@dataclass(frozen=True)
class PassLayout:
    """How one pass is laid out."""

    columns: tuple[int, ...]
    """Where held slices of the columns begin, and the end; a single slice is read in place or loaded once."""
    writes_file: bool
    readers: int = 1
    """Threads that read features."""


@dataclass(frozen=True)
class Layout:
    """Everything that follows from the budget. Results do not depend on it, resumptions do."""

    backend: str
    halo: bool
    partitions: int
    prepares_file: bool
    prepare_readers: int
    passes: tuple[PassLayout, ...]
    host_bytes: int
    halo_need: int
    """The part of ``host_bytes`` that the largest halo takes; an estimate until halos are measured."""
    halo_room: int
    """What it may take."""

    def to_json(self) -> dict[str, Any]:
        """A layout as the journal and a described job have it."""
        return asdict(self)

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Layout:
        """Read what ``to_json`` gave; raises ``KeyError`` or ``TypeError`` where it is not a layout."""
        passes = tuple(PassLayout(**{**found, "columns": tuple(found["columns"])}) for found in entry["passes"])
        return cls(**{**entry, "passes": passes})


@dataclass(frozen=True)
class Traffic:
    """What goes through the disk, or the page cache."""

    read_bytes: int
    written_bytes: int
    passes: int
    """Times the edges are read."""


class Planner:
    """Finds the layout of a program on a graph."""

    def __init__(
        self,
        sizes: Sizes,
        program: Program,
        settings: InferSettings,
        *,
        backend: str,
        threads: int,
        device_room: int | None = None,
        shares_memory: bool = True,
        beside_result_bytes: int = 0,
    ) -> None:
        """``beside_result_bytes`` are the caller's while it has the logits."""
        self._program = program
        self._settings = settings
        self._backend = backend
        self._threads = threads
        self._device_room = device_room
        self._shares_memory = shares_memory
        self._beside_result = beside_result_bytes
        self._num_nodes = sizes.num_nodes
        self._num_edges = sizes.num_edges
        self._edge_bytes = sizes.edge_bytes
        self._feature_bytes = sizes.feature_bytes
        self._reader = {in_place: sizes.features.reader_bytes(in_place=in_place) for in_place in (True, False)}
        weights = [step.weight_t for layer_pass in program.passes for step in layer_pass.dense]
        weights += [] if program.before is None else [program.before.weight_t]
        self._fixed = RESERVE_BYTES if backend == "numba" else TORCH_RESERVE_BYTES
        self._fixed += 2 * sum(weight.nbytes for weight in weights if weight is not None)
        self._fixed += SCALE_BYTES * self._num_nodes
        self._fixed += 0 if sizes.edges is None else sizes.edges.reading_bytes(threads)

    def find(self, room_bytes: int) -> Layout:
        """The best layout within ``room_bytes``; the smallest one where none fits."""
        sizes = self._matrix_bytes()
        # Past a few layers only all or nothing: every further one would double the choices.
        some = [*product((False, True), repeat=len(sizes))] if len(sizes) <= MAX_CHOSEN else []
        choices = some or [(False,) * len(sizes), (True,) * len(sizes)]
        found: list[tuple[Layout, tuple[bool, ...]]] = []
        fitting: list[tuple[Layout, tuple[bool, ...]]] = []
        for partitions in self._partition_counts(room_bytes):
            cut = [(self._lay_out(in_file, partitions, room_bytes), in_file) for in_file in choices]
            found += cut
            fitting = [choice for choice in cut if choice[0].host_bytes <= room_bytes]
            if fitting:
                break
        else:
            return min((layout for layout, _ in found), key=lambda layout: layout.host_bytes)

        def cost(choice: tuple[Layout, tuple[bool, ...]]) -> tuple[int, int]:
            layout, in_file = choice
            rereads = sum(len(pass_layout.columns) - 2 for pass_layout in layout.passes)
            return rereads, sum(size for size, flag in zip(sizes, in_file, strict=True) if flag)

        return min(fitting, key=cost)[0]

    def _matrix_bytes(self) -> list[int]:
        """Sizes of the prepared matrix, where there is one, and of the matrix that each pass writes."""
        passes = self._program.passes
        widths = [] if self._program.before is None else [padded(self._program.source_width)]
        widths += [padded(layer_pass.widths[-1]) for layer_pass in passes[:-1]] + [passes[-1].widths[-1]]
        return [4 * self._num_nodes * width for width in widths]

    def _lay_out(self, in_file: tuple[bool, ...], partitions: int, room_bytes: int) -> Layout:
        sizes, halo = self._matrix_bytes(), self._settings.uses_halos
        fixed = self._fixed + (0 if self._shares_memory else self.block_bytes(partitions))
        needs: list[int] = []
        at = readers = preparing = 0
        if self._program.before is not None:
            at = 1
            need = fixed + (0 if in_file[0] else sizes[0])
            readers = min(max((room_bytes - need) // self._reader[False], 1), self._threads)
            preparing = need + readers * self._reader[False]
        passes: list[PassLayout] = []
        halo_need, halo_room = 0, room_bytes
        for number, layer_pass in enumerate(self._program.passes, at):
            need = fixed + (0 if in_file[number] else sizes[number])
            work = self._work(layer_pass, partitions)
            laid = PassLayout((0, layer_pass.width), in_file[number], self._threads)
            if number > 0 and not in_file[number - 1]:
                need += sizes[number - 1] + work
            elif halo:
                need += work + (GATHER_BYTES if number == 0 else 0)
            else:
                laid, held = self._hold(layer_pass, room_bytes - need, work, laid, from_features=number == 0)
                need += held
            if halo:
                need += HALO_NODE_BYTES * self._num_nodes
                halo_need = max(halo_need, self._expected_halo(layer_pass, partitions))
                rooms = [room_bytes - need] + ([] if self._device_room is None else [self._device_room - work])
                halo_room = min(halo_room, max(min(rooms), 0))
            elif len(self._device_columns(layer_pass, work)) > len(laid.columns):
                laid = replace(laid, columns=self._device_columns(layer_pass, work))
                need += 4 * self._num_nodes * laid.columns[1]  # cut out of what is held already
            needs.append(need)
            passes.append(laid)
        if halo and self._settings.partitions == "auto":
            halo_need = min(halo_need, max(halo_room, self._smallest_halo()))
        afterwards = (0 if in_file[-1] else sizes[-1]) + self._beside_result
        return Layout(
            self._backend, halo, partitions, bool(at and in_file[0]), readers, tuple(passes),
            max(preparing, max(needs) + halo_need, afterwards), halo_need, halo_room,
        )  # fmt: skip

    def _hold(
        self, layer_pass: Pass, room_bytes: int, work: int, laid: PassLayout, *, from_features: bool
    ) -> tuple[PassLayout, int]:
        """Columns of features or of a file that fit beside the work, or beside the readers before it starts."""
        whole = 4 * self._num_nodes * (layer_pass.width if from_features else padded(layer_pass.width))
        found: list[tuple[PassLayout, int]] = []
        on_device = self._device_columns(layer_pass, work)
        for readers in range(self._threads, 0, -1):
            beside = max(work, readers * self._reader[True] if from_features else 0)
            if len(on_device) == 2:
                found.append((replace(laid, readers=readers), whole + beside))
            beside = max(work, readers * self._reader[False] if from_features else 0)
            columns = max(self._slices(layer_pass.width, room_bytes - beside), on_device, key=len)
            widest = max(b - a for a, b in pairwise(columns))
            held = (whole if len(columns) == 2 else 4 * self._num_nodes * widest) + beside
            found.append((replace(laid, columns=columns, readers=readers), held))
        # More readers, but not at the cost of more passes.

        def cost(choice: tuple[PassLayout, int]) -> tuple[int, int, int]:
            pass_layout, held = choice
            return max(held - max(room_bytes, 0), 0), len(pass_layout.columns), -pass_layout.readers

        return min(found, key=cost)

    def _device_columns(self, layer_pass: Pass, work: int) -> tuple[int, ...]:
        """Slices that fit another device; all columns at once without one."""
        if self._device_room is None:
            return (0, layer_pass.width)
        return self._slices(layer_pass.width, self._device_room - work)

    def _partition_counts(self, room_bytes: int) -> list[int]:
        """How many partitions to try: first so many that their work is a share of the room, then more, then fewer."""
        if self._settings.partitions != "auto":
            return [min(self._settings.partitions, self._num_nodes)]
        if self._backend == "numba":
            return [max(-(-(self._num_edges + self._num_nodes) // PARTITION_EDGES), 1)]
        whole = max(map(self._whole_work, self._program.passes))
        wanted = min(max(room_bytes // WORK_SHARE, MIN_WORK_BYTES), WORK_BYTES)
        sizes = [WORK_BYTES >> halvings for halvings in range((WORK_BYTES // MIN_WORK_BYTES).bit_length())]
        smaller = [size for size in sizes if size < wanted]
        counts = [min(max(-(-whole // size), 1), self._num_nodes) for size in [wanted, *smaller, *reversed(sizes)]]
        return list(dict.fromkeys(counts))

    @property
    def row_weight(self) -> float:
        """What a row weighs against an edge when partitions are cut."""
        if self._backend == "numba":
            return ROW_WEIGHT
        return max(map(self._row_work, self._program.passes)) / EDGE_BYTES

    def _row_work(self, layer_pass: Pass) -> int:
        return 4 * (sum(layer_pass.widths) + layer_pass.width + 4)

    def _whole_work(self, layer_pass: Pass) -> int:
        """What torch or DGL would need with all rows in one partition."""
        return EDGE_BYTES * self._num_edges + self._row_work(layer_pass) * self._num_nodes

    def _work(self, layer_pass: Pass, partitions: int) -> int:
        if self._backend == "numba":
            return self._threads * CHUNK_ROWS * 4 * (2 * sum(map(padded, layer_pass.widths)) + 8)
        uneven = self._row_work(layer_pass) * min(CHUNK_ROWS, self._num_nodes)  # cuts are rounded to whole chunks
        return self._whole_work(layer_pass) // partitions + (uneven if partitions > 1 else 0)

    def _slices(self, width: int, room_bytes: int) -> tuple[int, ...]:
        """Whole cache lines of columns where that fits, else groups of four."""
        fitting = max(room_bytes, 0) // (4 * self._num_nodes)
        unit = LINE_COLUMNS if fitting >= LINE_COLUMNS else UNIT_COLUMNS
        step = max(fitting // unit * unit, UNIT_COLUMNS)
        return (*range(0, width, step), width)

    def _expected_halo(self, layer_pass: Pass, partitions: int) -> int:
        """What the largest of so many partitions reaches, at worst."""
        edges = self._num_edges * min(UNEVEN, partitions) // partitions
        sources = min(self._num_nodes, edges + self._num_nodes * min(UNEVEN, partitions) // partitions)
        return halo_bytes(layer_pass.width, sources, edges)

    def _smallest_halo(self) -> int:
        finest = max(self._num_nodes // CHUNK_ROWS, 1)
        return max(self._expected_halo(layer_pass, finest) for layer_pass in self._program.passes)

    def block_bytes(self, partitions: int) -> int:
        """Rows of a partition that a worker holds which shares no memory: those it writes, and a file that it reads."""
        rows = self._num_nodes * min(UNEVEN, partitions) // partitions
        widest = max(padded(width) for layer_pass in self._program.passes for width in layer_pass.widths)
        return 2 * 4 * rows * max(widest, padded(self._program.source_width))

    def device_bytes(self, layout: Layout) -> int:
        """What the largest pass needs on another device; 0 without one."""
        if self._device_room is None:
            return 0
        needs = []
        for layer_pass, laid in zip(self._program.passes, layout.passes, strict=True):
            held = 4 * self._num_nodes * max(b - a for a, b in pairwise(laid.columns))
            needs.append(self._work(layer_pass, layout.partitions) + (layout.halo_need if layout.halo else held))
        return max(needs)

    def traffic(self, layout: Layout) -> Traffic:
        """Reads and writes of all steps."""
        sizes, feature_bytes = self._matrix_bytes(), self._feature_bytes
        at = 0 if self._program.before is None else 1
        read = feature_bytes * at
        written = sum(sizes)  # the journal's, where they are in memory
        slices = [len(pass_layout.columns) - 1 for pass_layout in layout.passes]
        for number, (layer_pass, count) in enumerate(zip(self._program.passes, slices, strict=True), at):
            read += count * (self._edge_bytes + (feature_bytes if number == 0 else sizes[number - 1]))
            if count > 1:
                read += 4 * self._num_nodes * layer_pass.width
                written += 4 * self._num_nodes * layer_pass.width
        return Traffic(read, written, sum(slices))

    def formula(self, layout: Layout) -> str:
        """The need in words and numbers, for plans and refusals."""
        held = max(b - a for pass_layout in layout.passes for a, b in pairwise(pass_layout.columns))
        source = f"{format_bytes(layout.halo_need)} for a halo" if layout.halo else f"{held} columns held"
        sizes = self._matrix_bytes()[-len(layout.passes) :]
        kept = sum(size for size, pass_layout in zip(sizes, layout.passes, strict=True) if not pass_layout.writes_file)
        return (
            f"{format_bytes(self._fixed)} for scales, weights and threads, {source} of {self._num_nodes:,} nodes, "
            f"up to {format_bytes(kept)} of results in memory, buffers of the {layout.backend} backend"
        )


def halo_bytes(width: int, num_sources: int, num_edges: int) -> int:
    """Memory of one partition's sources and edges."""
    return num_sources * (4 * width + SOURCE_BYTES) + 8 * num_edges

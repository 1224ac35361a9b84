"""The rows that one step writes and later ones read: a matrix a step, in memory or in files.

Where workers share memory a matrix has a row for every node, in memory or mapped from ``matrix-<step>.rows``, as the
layout says. A mapped file's pages are the page cache's, not ours. Where they do not, it is a ``FilePlace``: a file for
each block, with the block's rows in order, below ``matrix-<step>``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import numpy as np

from ecgl_scale.base.durable import crc32c_of, storage_errors
from ecgl_scale.engine.block import Block
from ecgl_scale.engine.place import FilePlace
from ecgl_scale.errors import EcglError
from ecgl_scale.graph.adjacency import Ints
from ecgl_scale.graph.partition import Where
from ecgl_scale.infer.job import Job
from ecgl_scale.infer.matrix import make_matrix, map_matrix
from ecgl_scale.infer.settings import Matrix

Crcs = dict[int, int]
"""The crc32c of a block's rows, by the index of the block."""


class Matrices(Protocol):
    """Matrices by the number of the step that writes them."""

    def begin(self, step: int) -> None:
        """Make room for the rows of a step."""
        ...

    def target(self, step: int, block: Block) -> AbstractContextManager[tuple[Matrix, Where]]:
        """Where a block's rows are written meanwhile: a matrix of zeros, and the index of the rows in it."""
        ...

    def rows(self, step: int, block: Block) -> Matrix:
        """The rows of a block."""
        ...

    def whole(self, step: int, columns: slice) -> Matrix:
        """Some columns of all nodes, in memory; a copy, but where all columns are in memory already."""
        ...

    def gather(self, step: int, ids: Ints) -> Matrix:
        """The rows of some nodes."""
        ...

    def result(self, step: int) -> Matrix:
        """The rows of all nodes, in memory or mapped as the layout says; zeros where nobody has asked for them."""
        ...

    def finish(self) -> None:
        """Remove all files but that of a result that is mapped."""
        ...

    def save(self, step: int, blocks: list[Block]) -> Crcs:
        """Bring finished blocks into files; returns what ``restore`` is to be told of them."""
        ...

    def restore(self, step: int, crcs: Crcs) -> Crcs:
        """Take over the blocks that an earlier call has saved; returns those that are as they were written."""
        ...

    def forget(self, *, but: set[int]) -> None:
        """Let go of the memory of all other matrices."""
        ...

    def remove_files(self, *, but: set[int]) -> None:
        """Remove the files of all other matrices; whoever has one mapped keeps it."""
        ...


class HeldMatrices:
    """Matrices of this process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._held: dict[int, Matrix] = {}

    def _path(self, step: int) -> Path:
        return self._job.directory / f"matrix-{step}.rows"

    def begin(self, step: int) -> None:
        """Make a matrix of zeros."""
        about = self._job.steps[step]
        path = self._path(step) if about.writes_file else None
        self._held[step] = make_matrix(self._job.adjacency.num_nodes, about.width, path)

    @contextmanager
    def target(self, step: int, block: Block) -> Iterator[tuple[Matrix, Where]]:
        """Rows are written where they belong."""
        yield self._held[step], self._job.parts_of(step).where(block)

    def rows(self, step: int, block: Block) -> Matrix:
        """The rows are a view where they are a run."""
        return self._held[step][self._job.parts_of(step).where(block)]

    def whole(self, step: int, columns: slice) -> Matrix:
        """The matrix is not copied where it is in memory and wanted whole."""
        matrix = self._held[step]
        wanted = matrix[:, columns]
        if wanted.shape == matrix.shape and not isinstance(matrix, np.memmap):
            return matrix
        held = make_matrix(*wanted.shape)
        held[:] = wanted
        return held

    def gather(self, step: int, ids: Ints) -> Matrix:
        """The rows are copied."""
        return np.ascontiguousarray(self._held[step][ids])

    def result(self, step: int) -> Matrix:
        """The matrix is handed out as it is."""
        return self._held[step]

    def finish(self) -> None:
        """The last step's matrix is the result."""
        last = len(self._job.steps) - 1
        self.remove_files(but={last} if self._job.steps[last].writes_file else set())

    def save(self, step: int, blocks: list[Block]) -> Crcs:
        """Write what is only in memory; not fsynced, as the checksums tell after a power cut what is missing.

        Memory: a block's rows where blocks are not runs of rows.
        """
        matrix, path, parts = self._held[step], self._path(step), self._job.parts_of(step)
        stored = matrix
        if not isinstance(matrix, np.memmap):
            try:
                stored = map_matrix(len(matrix), matrix.shape[1], path)
            except (OSError, ValueError):
                stored = make_matrix(len(matrix), matrix.shape[1], path)
        found: Crcs = {}
        for block in blocks:
            rows = matrix[parts.where(block)]
            if stored is not matrix:
                stored[parts.where(block)] = rows
            found[block.index] = crc32c_of(np.ascontiguousarray(rows))
        return found

    def restore(self, step: int, crcs: Crcs) -> Crcs:
        """Map the file of a step, and copy its rows where the layout has them in memory."""
        about, parts, num_nodes = self._job.steps[step], self._job.parts_of(step), self._job.adjacency.num_nodes
        try:
            stored = map_matrix(num_nodes, about.width, self._path(step))
        except (OSError, ValueError):
            self.begin(step)
            return {}
        if about.writes_file:
            self._held[step] = stored
        else:
            self.begin(step)
        whole: Crcs = {}
        for block in parts.blocks:
            rows = stored[parts.where(block)]
            if block.index in crcs and crc32c_of(np.ascontiguousarray(rows)) == crcs[block.index]:
                whole[block.index] = crcs[block.index]
                if not about.writes_file:
                    self._held[step][parts.where(block)] = rows
        return whole

    def forget(self, *, but: set[int]) -> None:
        """Files stay, as a note may name them."""
        self._held = {step: matrix for step, matrix in self._held.items() if step in but}

    def remove_files(self, *, but: set[int]) -> None:
        """Remove files, mapped ones too."""
        _remove(self._job.directory, keep={self._path(step) for step in but})


class FileMatrices:
    """Matrices in files that every worker sees."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def _place(self, step: int) -> FilePlace:
        cuts = tuple(self._job.parts_of(step).cuts)
        return FilePlace(self._job.directory / f"matrix-{step}", cuts, "<f4", self._job.steps[step].width)

    def begin(self, step: int) -> None:
        """Files come with their blocks."""

    @contextmanager
    def target(self, step: int, block: Block) -> Iterator[tuple[Matrix, Where]]:
        """Memory of the block's own, written to its file at the end."""
        rows = make_matrix(block.num_rows, self._job.steps[step].width)
        yield rows, slice(0, block.num_rows)
        self._place(step).write(block.start, rows)

    def rows(self, step: int, block: Block) -> Matrix:
        """The rows are read from their file."""
        return self._place(step).read(block.start, block.stop)

    def whole(self, step: int, columns: slice) -> Matrix:
        """The columns are copied block by block."""
        about, num_nodes = self._job.steps[step], self._job.adjacency.num_nodes
        return self._fill(step, make_matrix(num_nodes, len(range(about.width)[columns])), columns)

    def _fill(self, step: int, matrix: Matrix, columns: slice) -> Matrix:
        parts = self._job.parts_of(step)
        for block in self._job.blocks_of(step):
            matrix[parts.where(block)] = self.rows(step, block)[:, columns]
        return matrix

    def gather(self, step: int, ids: Ints) -> Matrix:
        """Every file that has one of the rows is read whole, one after the other."""
        parts = self._job.parts_of(step)
        found = np.empty((ids.size, self._job.steps[step].width), np.float32)
        for block in parts.blocks:
            own = parts.ids(block)
            places = np.minimum(np.searchsorted(own, ids), own.size - 1)
            is_here = own[places] == ids
            if is_here.any():
                found[is_here] = self.rows(step, block)[places[is_here]]
        return found

    def result(self, step: int) -> Matrix:
        """All rows as one matrix, as it would be where workers share memory."""
        about = self._job.steps[step]
        path = self._result_path(step) if about.writes_file else None
        return self._fill(step, make_matrix(self._job.adjacency.num_nodes, about.width, path), slice(None))

    def _result_path(self, step: int) -> Path:
        return self._job.directory / f"matrix-{step}.rows"

    def finish(self) -> None:
        """The result is a copy, so no block's file is needed any more; nor are those of the job."""
        last = len(self._job.steps) - 1
        _remove(self._job.directory, keep={self._result_path(last)} if self._job.steps[last].writes_file else set())
        self._job.forget_description()

    def save(self, step: int, blocks: list[Block]) -> Crcs:
        """Their files are whole and durable already, and have their own checksums."""
        del step
        return {block.index: 0 for block in blocks}

    def restore(self, step: int, crcs: Crcs) -> Crcs:
        """Read the files again, each of which knows its checksum."""
        whole: Crcs = {}
        for block in self._job.parts_of(step).blocks:
            if block.index in crcs:
                with suppress(EcglError):
                    self.rows(step, block)
                    whole[block.index] = 0
        return whole

    def forget(self, *, but: set[int]) -> None:
        """Nothing is held in memory."""

    def remove_files(self, *, but: set[int]) -> None:
        """Remove the files of all blocks of a step."""
        _remove(self._job.directory, keep={self._job.directory / f"matrix-{step}" for step in but})


def _remove(directory: Path, *, keep: set[Path]) -> None:
    with storage_errors(directory):
        for path in set(directory.glob("matrix-*")) - keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

"""What an inference of some nodes needs; known from the sizes of their neighbourhood before its rows are read.

reserve + weights + a bit and a half for each node of the graph (12 bytes more where its scales need all edges)
+ neighbourhood       40 bytes a node, 2 ids and 4 bytes an edge
+ rows of a pass      4 bytes for each column of the nodes it reads and of those it writes
+ work of the backend, and before that what a gather of features takes
+ the rows that were asked for, twice
+ what is held of edges that came later, in a store that has grown
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ecgl_scale.graph.partition import CHUNK_ROWS
from ecgl_scale.infer.feature_reader import PIECE_BYTES, PIECES_AT_ONCE
from ecgl_scale.infer.layout import EDGE_BYTES, GATHER_BYTES, RESERVE_BYTES, TORCH_RESERVE_BYTES
from ecgl_scale.infer.program import Program, padded
from ecgl_scale.units import format_bytes

NODE_BYTES = 40
SCALES_BYTES = 12


@dataclass(frozen=True)
class SomeSizes:
    """What does not change from neighbourhood to neighbourhood."""

    program: Program
    backend: str
    threads: int
    num_nodes: int
    """The whole graph has so many."""
    id_bytes: int
    reads_all_edges: bool
    later_bytes: int = 0
    """What is held of edges that came later, at most."""

    @property
    def fixed_bytes(self) -> int:
        """What is needed for any nodes at all."""
        program = self.program
        weights = [step.weight_t for layer_pass in program.passes for step in layer_pass.dense]
        weights += [] if program.before is None else [program.before.weight_t]
        reserve = RESERVE_BYTES if self.backend == "numba" else TORCH_RESERVE_BYTES
        sets = self.num_nodes // 8 * 2 + self.num_nodes // 16 + (SCALES_BYTES * self.num_nodes) * self.reads_all_edges
        return reserve + sets + self.later_bytes + 2 * sum(weight.nbytes for weight in weights if weight is not None)

    def found_bytes(self, num_nodes: int, num_edges: int) -> int:
        """What it takes to find a neighbourhood."""
        return NODE_BYTES * num_nodes + (2 * self.id_bytes + 4) * num_edges

    def need_bytes(self, sizes: Sequence[int], num_edges: int) -> int:
        """What it takes to find a neighbourhood and to compute with it; ``sizes`` are nodes within 0, 1, ... hops."""
        program, needs = self.program, [self.found_bytes(sizes[-1], num_edges)]
        kept = NODE_BYTES * sizes[-1] + 4 * num_edges
        before = GATHER_BYTES + (0 if program.before is None else 2 * PIECES_AT_ONCE * PIECE_BYTES)
        needs.append(kept + before + 4 * sizes[-1] * padded(program.source_width))
        for number, layer_pass in enumerate(program.passes):
            reads, writes = sizes[-1 - number], sizes[-2 - number]
            widths = [padded(width) for width in layer_pass.widths]
            rows = 4 * (reads * widths[0] + writes * widths[-1])
            if self.backend == "numba":
                work = self.threads * CHUNK_ROWS * 4 * (3 * sum(widths) + 8)
            else:
                work = EDGE_BYTES * num_edges + 4 * (sum(widths) + widths[0] + 4) * writes
            needs.append(kept + rows + work)
        found = 2 * 4 * sizes[0] * program.passes[-1].widths[-1]  # once more in order, and with whoever asked
        return self.fixed_bytes + max(needs) + found

    def formula(self, sizes: Sequence[int], num_edges: int) -> str:
        """The need in words and numbers."""
        return (
            f"{format_bytes(self.fixed_bytes)} for sets of nodes, weights and threads, {sizes[-1]:,} nodes and "
            f"{num_edges:,} edges around {sizes[0]:,} nodes, rows of up to "
            f"{max(width for layer_pass in self.program.passes for width in layer_pass.widths):,} columns"
        )

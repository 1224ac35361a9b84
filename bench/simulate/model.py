"""Seconds and bytes of every stage, for a graph, a machine and a number of them; docs/scale.md explains each line.

A stage takes the larger of its arithmetic and of its reading where the two run beside each other, then what is
exchanged, then what it costs to hand out its units. Files are on a file system that all machines share, and each
machine reaches it with the slower of its network and its share of it. What was read before is in the page cache
where it fits: of ``E`` edges a machine owns ``E / W``.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

UNITS_PER_WORKER = 4
LANES = 16
EXACT_NODES = 1 << 21


@dataclass(frozen=True)
class Rates:
    """What one core does in a second, and what messages cost; measured by ``measure``."""

    build_edges: float
    attribute_values: float
    sweep_edges: float
    distance_values: float
    """Numbers that are gathered along edges, for diversity and for the layers of inference."""
    column_bytes: float
    """Bytes of features that a machine reads, checks and cuts into columns, for diversity: memory is the limit, and one
    core reaches it."""
    shared_column_bytes: float
    """The same for each of two workers on one machine that do it at once: both fill fresh memory, each its own."""
    flops: float
    place_read_bytes: float
    """Rows in files that others wrote, from the page cache, with their checksum."""
    place_write_bytes: float
    unit_seconds: float
    """To send a unit, have it begun, and get its record."""
    begin: dict[str, float]
    """Seconds of a stage on a graph of next to nothing, by one process: what does not grow with the graph."""
    begin_elsewhere: dict[str, float]
    """The same by one worker: it loads what the stage needs, and its units are sent."""


@dataclass(frozen=True)
class Machine:
    """One of the machines, all alike, and the file system that they share."""

    cores: int
    memory_bytes: float
    network_bytes: float
    """Bytes a second to and from one machine."""
    shared_bytes: float
    """What the file system gives all machines together."""
    own_bytes: float
    """What it gives one."""
    num_sharing: int = 1
    """Workers that share one machine's memory and take turns at its speed."""

    def transfer(self, each_bytes: float, num_machines: int) -> float:
        """Seconds until every machine has moved so many bytes at once."""
        return each_bytes / min(self.own_bytes, self.network_bytes, self.shared_bytes / num_machines)


@dataclass(frozen=True)
class Graph:
    """Sizes: nodes, stored edges, features of four bytes, classes, rows that are learned from, hidden width."""

    name: str
    nodes: float
    edges: float
    features: int
    classes: int
    rows: float
    hidden: int = 256

    @property
    def vector_bytes(self) -> int:
        """Bytes a node of what is exchanged in a sweep."""
        return 8 if self.nodes <= EXACT_NODES else 4

    @property
    def parameters(self) -> int:
        """Weights of the model with one hidden layer."""
        return (self.features + 1) * self.hidden + (self.hidden + 1) * self.classes


@dataclass(frozen=True)
class Cost:
    """One stage: its seconds, and the bytes that one machine moves to and from shared files."""

    seconds: float
    moved_bytes: float = 0.0


def simulate(graph: Graph, machine: Machine, num_machines: int, rates: Rates) -> dict[str, Cost]:
    """Every stage of a job on so many machines."""
    job = _Job(graph, machine, num_machines, rates)
    return {
        "ingest": job.ingest(),
        "attribute": job.attribute(),
        "sweep": job.sweep(),
        "diversity": job.diversity(),
        "infer": job.infer(),
        "epoch": job.epoch(),
        "append": job.append(),
    }


def as_rows(costs: dict[str, Cost]) -> dict[str, dict[str, float]]:
    """Costs as JSON."""
    return {name: asdict(cost) for name, cost in costs.items()}


@dataclass(frozen=True)
class _Job:
    graph: Graph
    machine: Machine
    num: int
    rates: Rates

    @property
    def cores(self) -> int:
        """Cores of all machines."""
        return self.num * self.machine.cores

    def ingest(self, share: float = 1.0) -> Cost:
        """Keys of 8 bytes an edge are written, read back sorted, and become rows and tiles of 4 bytes each."""
        edges, nodes = share * self.graph.edges, share * self.graph.nodes
        moved = (24 * edges + 8 * nodes + 8 * nodes * self.graph.features) / self.num
        cpu = edges / (self.cores * self.rates.build_edges)
        return Cost(cpu + self._transfer(moved) + self._handing_out(2 * UNITS_PER_WORKER), moved)

    def append(self) -> Cost:
        """A hundredth of the graph is new, and only that is sorted and written."""
        return self.ingest(0.01)

    def attribute(self) -> Cost:
        """Two passes over the features, and 16 bytes a node between them."""
        values = 2 * self.graph.nodes * self.graph.features
        moved = (4 * values + 32 * self.graph.nodes) / self.num
        cpu = values / (self.cores * self.rates.attribute_values)
        return Cost(max(cpu, self._transfer(moved)) + self._beginning("attribute", 2 * UNITS_PER_WORKER), moved)

    def sweep(self) -> Cost:
        """Edges of own stripes, from the page cache where they fit; everybody's contributions; own rows."""
        own_edges = 4 * self.graph.edges / self.num
        cpu = self.graph.edges / (self.cores * self.rates.sweep_edges)
        from_disk = 0.0 if own_edges < 0.6 * self.machine.memory_bytes else own_edges
        moved = self.exchanged_bytes()
        seconds = max(cpu, self._transfer(from_disk))
        if self.num > 1:
            seconds += self._exchange() + self._handing_out(UNITS_PER_WORKER)
        return Cost(seconds, from_disk + moved)

    def exchanged_bytes(self) -> float:
        """What one machine reads and writes of vectors in a sweep: nothing where there is but one."""
        if self.num == 1:
            return 0.0
        width, nodes = self.graph.vector_bytes, self.graph.nodes
        return width * nodes + (8 + 4 + 8 + width + 8) * nodes / self.num

    def _exchange(self) -> float:
        width, nodes = self.graph.vector_bytes, self.graph.nodes
        read = width * nodes + 20 * nodes / self.num
        written = (8 + width) * nodes / self.num
        checked = read / self.rates.place_read_bytes + written / self.rates.place_write_bytes
        return max(checked, self._transfer(read + written))

    def diversity(self) -> Cost:
        """Every machine cuts a slice of the columns from all rows, then walks its share of the edges."""
        held = 0.6 * self.machine.memory_bytes
        passes = max(1, math.ceil(4 * self.graph.nodes * self.graph.features / held))
        loaded = 4 * self.graph.nodes * self.graph.features * passes
        sharing = self.machine.num_sharing
        rate = self.rates.column_bytes if sharing == 1 else self.rates.shared_column_bytes * 2 / sharing
        loading = max(loaded / rate, self._transfer(loaded))
        gathered = (self.graph.edges + self.graph.nodes) * self.graph.features
        walking = gathered / (self.cores * self.rates.distance_values)
        squares = 16 * self.graph.nodes / self.num * passes
        beginning = self._beginning("diversity", UNITS_PER_WORKER * passes)
        return Cost(loading + walking + beginning, loaded + squares)

    def infer(self) -> Cost:
        """Two layers: a dense product, then a mean along the edges from rows that every machine holds."""
        seconds, moved = 0.0, 0.0
        for width_in, width in ((self.graph.features, self.graph.hidden), (self.graph.hidden, self.graph.classes)):
            dense = 2 * self.graph.nodes * width_in * width / (self.cores * self.rates.flops)
            gather = self.graph.edges * width / (self.cores * self.rates.distance_values)
            rows = 4 * self.graph.nodes * width
            stays = self.num == 1 and rows < 0.6 * self.machine.memory_bytes
            between = 0.0 if stays else rows * (1 + 1 / self.num)
            seconds += dense + gather + self._transfer(between) + self._handing_out(2 * UNITS_PER_WORKER)
            moved += between
        return Cost(seconds, moved)

    def epoch(self) -> Cost:
        """Forward and backward over the rows, by ranks: lanes are added up by one exchange."""
        cpu = 6 * self.graph.parameters * self.graph.rows / (self.cores * self.rates.flops)
        ranks = min(self.num, LANES)
        cpu *= self.num / ranks
        moved = 0.0 if ranks == 1 else 4 * self.graph.parameters * (LANES / ranks + 1)
        return Cost(cpu + moved / self.machine.network_bytes, moved)

    def _transfer(self, each_bytes: float) -> float:
        return self.machine.transfer(each_bytes, self.num)

    def _beginning(self, stage: str, units_per_machine: int) -> float:
        """What a stage takes whatever the graph; one worker's units are in what was measured of it."""
        if self.num == 1:
            return self.rates.begin[stage]
        return self.rates.begin_elsewhere[stage] + units_per_machine * (self.num - 1) * self.rates.unit_seconds

    def _handing_out(self, units_per_machine: int) -> float:
        """One driver sends and hears of all units; one machine needs no messages."""
        return 0.0 if self.num == 1 else units_per_machine * self.num * self.rates.unit_seconds

"""Degree-corrected block model whose edges are distinct and exactly as many as asked, streamed.

Nodes have an inner order, class after class, and in a class from the strongest to the weakest; a keyed permutation
turns it into ids. Of the E_c edges that start in class c, of s nodes, its first x nodes own

    F(x) = cap x                       x <= knee            F(s) = E_c
    F(x) = cap (2 sqrt(x knee) - knee)  x > knee            so degrees fall like 1 / sqrt(rank): P(degree > d) ~ d^-2

Edge slot e therefore belongs to a node found by inverting F, with no table. Its other end is the owner of a random
slot (so: by degree weight) of the same class with probability ``homophily``, else of another class. A node's edges are
drawn together, from draws numbered by (node, try), and a target it already has is drawn again: distinct by
construction, whatever block they fall in. A pair {u, v} must not be drawn from both ends when edges have no direction:
u may only take v with 1 <= (v - u) mod N <= reach; reach (N-1)/2 gives each pair one owner, N-1 allows both directions.
The rule is applied to ids, which are random, so it favours no class and no degree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline, kernel
from ecgl_kernels.random import mix, permute, uniform, unpermute

MAX_TRIES = 32
EMPTY = np.uint64(2**64 - 1)
LATE_SHARE = 15.0 / 16.0
"""Share of the nodes that arrive no earlier than their class begins."""


@inline
def edges_before(x: float, cap: float, knee: float) -> float:
    """Return F(x): edges owned by the first ``x`` nodes of a class."""
    return cap * x if x <= knee else cap * (2.0 * np.sqrt(x * knee) - knee)


@inline
def rank_at(position: float, cap: float, knee: float) -> float:
    """Return the inverse of F: the rank whose node owns this edge of its class."""
    y = position / cap
    return y if y <= knee else (0.5 * (y + knee)) ** 2 / knee


@inline
def part_of(offsets: NDArray[np.int64], position: int) -> int:
    """Return the last part that begins at or before ``position``, by bisection."""
    low = 0
    high = offsets.size - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if offsets[middle] <= position:
            low = middle
        else:
            high = middle
    return low


@kernel
def first_slot(
    rank: int,
    part: int,
    class_nodes: NDArray[np.int64],
    class_edges: NDArray[np.int64],
    caps: NDArray[np.float64],
    knees: NDArray[np.float64],
) -> int:
    """Return the first edge slot of the node of this rank in class ``part``."""
    total = class_edges[part + 1] - class_edges[part]
    if rank >= class_nodes[part + 1] - class_nodes[part]:
        return class_edges[part] + total  # type: ignore[no-any-return]
    before = np.int64(edges_before(np.float64(rank), caps[part], knees[part]))
    return class_edges[part] + min(before, total)  # type: ignore[no-any-return]


@kernel
def target_of(
    bits: np.uint64,
    part: int,
    same: bool,
    class_nodes: NDArray[np.int64],
    class_edges: NDArray[np.int64],
    caps: NDArray[np.float64],
    knees: NDArray[np.float64],
) -> int:
    """Return the inner number of the owner of a random edge slot, of class ``part`` or of all the others."""
    start = class_edges[part]
    size = class_edges[part + 1] - start
    if same:
        position = np.float64(start) + uniform(bits) * np.float64(size)
        other = part
    else:
        position = uniform(bits) * np.float64(class_edges[-1] - size)
        if position >= np.float64(start):
            position += np.float64(size)
        other = part_of(class_edges, int(position))
    rank = np.int64(rank_at(position - np.float64(class_edges[other]), caps[other], knees[other]))
    return class_nodes[other] + min(rank, class_nodes[other + 1] - class_nodes[other] - 1)  # type: ignore[no-any-return]


@inline
def insert(target: np.uint64, table: NDArray[np.uint64], mask: np.uint64) -> bool:
    """Add ``target`` to an open-addressing set; False if it was there."""
    place = (target * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)) & mask
    while table[place] != EMPTY and table[place] != target:
        place = (place + np.uint64(1)) & mask
    fresh = table[place] == EMPTY
    table[place] = target
    return fresh  # type: ignore[no-any-return]


@kernel
def node_targets(
    rank: int,
    part: int,
    seed: np.uint64,
    homophily: float,
    reach: int,
    class_nodes: NDArray[np.int64],
    class_edges: NDArray[np.int64],
    caps: NDArray[np.float64],
    knees: NDArray[np.float64],
    key: NDArray[np.uint64],
    table: NDArray[np.uint64],
    targets: NDArray[np.uint64],
) -> np.uint64:
    """Write the first targets of one node, distinct and in reach, and return its id; ``table`` is scratch space."""
    table[:] = EMPTY
    mask = np.uint64(table.size - 1)
    num_nodes = np.uint64(class_nodes[-1])
    inner = np.uint64(class_nodes[part] + rank)
    source = permute(inner, key)
    node_seed = mix(seed, inner)
    has_others = class_edges[-1] > class_edges[part + 1] - class_edges[part]
    counter = np.uint64(0)
    for edge in range(targets.size):
        same = uniform(mix(node_seed, counter)) < homophily
        target = source
        found = False
        tries = 0
        while not found and tries < 2 * MAX_TRIES:
            counter += np.uint64(1)
            # after so many tries the class has hardly any room left: look elsewhere
            stay = (same and tries < MAX_TRIES) or not has_others
            other = target_of(mix(node_seed, counter), part, stay, class_nodes, class_edges, caps, knees)
            target = permute(np.uint64(other), key)
            ahead = target - source if target >= source else target + num_nodes - source
            if ahead != np.uint64(0) and ahead <= np.uint64(reach):
                found = insert(target, table, mask)
            tries += 1
        ahead = mix(node_seed, counter) % np.uint64(reach)
        while not found:
            # a dense corner: the next free node in reach; there is one, for nobody has more than ``reach`` edges
            target = source + np.uint64(1) + ahead
            target = target - num_nodes if target >= num_nodes else target
            found = insert(target, table, mask)
            ahead = (ahead + np.uint64(1)) % np.uint64(reach)
        counter += np.uint64(1)
        targets[edge] = target
    return source


@kernel
def block_model_edges(
    first_edge: int,
    seed: np.uint64,
    homophily: float,
    reach: int,
    class_nodes: NDArray[np.int64],
    class_edges: NDArray[np.int64],
    caps: NDArray[np.float64],
    knees: NDArray[np.float64],
    key: NDArray[np.uint64],
    src: NDArray[Any],
    dst: NDArray[Any],
) -> None:
    """Write the edges number ``first_edge`` and on; a node begun in the block before is drawn again from its start.

    Needs ``reach`` >= every node's number of edges. Memory: up to 40 bytes an edge of the strongest node in the block.
    """
    last_edge = first_edge + src.size
    table = np.empty(64, np.uint64)
    part = part_of(class_edges, first_edge)
    rank = min(
        int(rank_at(float(first_edge - class_edges[part]), caps[part], knees[part])),
        class_nodes[part + 1] - class_nodes[part] - 1,
    )
    # floating point may miss by one; too early is mended below
    while rank > 0 and first_slot(rank, part, class_nodes, class_edges, caps, knees) > first_edge:
        rank -= 1
    slot = first_slot(rank, part, class_nodes, class_edges, caps, knees)
    while slot < last_edge:
        if rank >= class_nodes[part + 1] - class_nodes[part]:
            part += 1
            rank = 0
        end = first_slot(rank + 1, part, class_nodes, class_edges, caps, knees)
        if end > max(slot, first_edge):
            size = 4
            while size < 2 * (end - slot):
                size *= 2
            if 2 * size > table.size:
                table = np.empty(2 * size, np.uint64)
            targets = table[size : size + min(end, last_edge) - slot]
            source = node_targets(
                rank, part, seed, homophily, reach, class_nodes, class_edges, caps, knees, key, table[:size], targets
            )
            for edge in range(max(slot, first_edge), min(end, last_edge)):
                src[edge - first_edge] = source
                dst[edge - first_edge] = targets[edge - slot]
        rank += 1
        slot = end


@kernel
def node_classes(
    first_node: int, class_nodes: NDArray[np.int64], key: NDArray[np.uint64], out: NDArray[np.int32]
) -> None:
    """Write the classes of the nodes ``first_node`` and on."""
    for i in range(out.size):
        out[i] = part_of(class_nodes, int(unpermute(np.uint64(first_node + i), key)))


@kernel
def node_arrivals(
    first_node: int,
    seed: np.uint64,
    periods: int,
    num_classes: int,
    labels: NDArray[np.int32],
    out: NDArray[np.int32],
) -> None:
    """Write when nodes arrive: class c from period floor(c periods / C) on, ever fewer; a sixteenth at any time."""
    for i in range(out.size):
        counter = np.uint64(first_node + i) * np.uint64(2)
        u = uniform(mix(seed, counter))
        if uniform(mix(seed, counter + np.uint64(1))) < LATE_SHARE:
            begin = np.int64(labels[i]) * periods // num_classes
            out[i] = begin + np.int64(np.float64(periods - begin) * u * u)
        else:
            out[i] = np.int64(np.float64(periods) * u)


@kernel
def add_class_means(labels: NDArray[np.int32], means: NDArray[np.float32], rows: NDArray[np.float32]) -> None:
    """Add to every row the mean of its class: features are class mean + noise."""
    for i in range(rows.shape[0]):
        mean = means[labels[i]]
        for k in range(rows.shape[1]):
            rows[i, k] += mean[k]


@kernel
def word_offsets(first_row: int, num_rows: int, seed: np.uint64, words_per_row: int, out: NDArray[np.int64]) -> None:
    """Write where the words of rows ``first_row`` and on begin: row * words, moved by up to a quarter of a row.

    So lengths differ, from half to one and a half of the mean, and yet the total is exactly rows * words.
    """
    span = words_per_row // 4
    for i in range(out.size):
        row = first_row + i
        out[i] = row * words_per_row
        if 0 < row < num_rows:
            out[i] += np.int64(mix(seed, np.uint64(row)) % np.uint64(2 * span + 1)) - span


@kernel
def bag_of_words(
    first_row: int,
    seed: np.uint64,
    topic_share: float,
    topic_size: int,
    key: NDArray[np.uint64],
    labels: NDArray[np.int32],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
) -> None:
    """Write sorted distinct words: from the class's topic with probability ``topic_share``, else from all, both skewed.

    A topic is ``topic_size`` words picked by hashing (class, place); ``key`` shuffles the vocabulary, so that frequent
    words do not have the smallest numbers. Sorting by insertion: rows have tens of words.
    """
    num_words = np.uint64(key[0])
    topic_seed = mix(seed, EMPTY)
    for row in range(labels.size):
        start = indptr[row]
        row_seed = mix(seed, np.uint64(first_row + row))
        counter = np.uint64(0)
        for filled in range(indptr[row + 1] - start):
            tries = 0
            word = num_words
            place = start
            while word == num_words:
                u = uniform(mix(row_seed, counter + np.uint64(1)))
                if tries >= MAX_TRIES:
                    word = np.uint64(u * np.float64(num_words))  # both lists are used up: any word will do
                elif uniform(mix(row_seed, counter)) < topic_share:
                    spot = np.uint64(labels[row]) * np.uint64(topic_size) + np.uint64(u * u * np.float64(topic_size))
                    word = mix(topic_seed, spot) % num_words
                else:
                    word = permute(np.uint64(u * u * np.float64(num_words)), key)
                counter += np.uint64(2)
                tries += 1
                place = start + filled
                while place > start and np.uint64(indices[place - 1]) > word:
                    place -= 1
                if place > start and np.uint64(indices[place - 1]) == word:
                    word = num_words
            for later in range(start + filled, place, -1):
                indices[later] = indices[later - 1]
            indices[place] = word

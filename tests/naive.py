"""Slow, obvious twins of the kernels: the oracles of the tests. One section a subject."""

from __future__ import annotations

import math
from fractions import Fraction

# --- generators

_GENERATORS_MASK = (1 << 64) - 1


def mix(seed: int, counter: int) -> int:
    z = (seed + counter * 0x9E3779B97F4A7C15) & _GENERATORS_MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _GENERATORS_MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _GENERATORS_MASK
    return z ^ (z >> 31)


def permute_bits(x: int, bits: int, seed: int) -> int:
    """Three rounds of multiply, add, xor-shift on ``bits`` bits, with the draws 0..5 of stream ``seed``."""
    for turn in range(3):
        x = (x * (mix(seed, turn) | 1) + mix(seed, 3 + turn)) % (1 << bits)
        x ^= x >> ((bits + 1) // 2)
    return x


def kronecker_edge(edge: int, scale: int, seed: int, table: list[int]) -> tuple[int, int]:
    """Edge number ``edge``: five bits of both ends by 32 random bits, low half of a draw first, then hidden labels."""
    num_draws = -(-scale // 10)
    source, target = [], []
    for draw in range(num_draws):
        bits = mix(mix(seed, 0), edge * num_draws + draw)
        for word in (bits % 2**32, bits // 2**32):
            column, fraction = word % 1024, word // 1024
            threshold, alias = table[column] // 1024, table[column] % 1024
            outcome = column if fraction < threshold else alias
            source.append(f"{outcome // 32:05b}")
            target.append(f"{outcome % 32:05b}")
    ends = (int("".join(source)[-scale:], 2), int("".join(target)[-scale:], 2))
    return permute_bits(ends[0], scale, mix(seed, 1)), permute_bits(ends[1], scale, mix(seed, 1))


# --- graph store

Edges = list[tuple[int, int]]
"""(source, destination) pairs."""


def stored_edges(
    edges: Edges, num_nodes: int, *, symmetrise: bool, keep_duplicates: bool, self_loops: str
) -> tuple[Edges, int, int]:
    """What a store of these edges holds, by destination and then source; dropped self loops; dropped duplicates."""
    loops = [(s, d) for s, d in edges if s == d]
    emitted = [(s, d) for s, d in edges if s != d]
    if symmetrise:
        emitted += [(d, s) for s, d in emitted]
    if self_loops == "keep":
        emitted += loops
    if self_loops == "add":
        emitted += [(i, i) for i in range(num_nodes)]
    kept = emitted if keep_duplicates else list(set(emitted))
    ordered = sorted(kept, key=lambda edge: (edge[1], edge[0]))
    return ordered, 0 if self_loops == "keep" else len(loops), len(emitted) - len(kept)


def csr_of(edges: Edges, num_nodes: int) -> tuple[list[int], list[int]]:
    """Offsets and sources of the rows (a row = a destination) of edges that come by destination and source."""
    degrees = [0] * num_nodes
    for _, d in edges:
        degrees[d] += 1
    indptr = [0]
    for degree in degrees:
        indptr.append(indptr[-1] + degree)
    return indptr, [s for s, _ in edges]


def tiles_of(edges: Edges, num_nodes: int, first_row: int, last_row: int) -> list[list[int]]:
    """Tile (k, d) is list ``k * width + d``: packed edges from source range k into the stripe's d-th range, sorted."""
    size = 65_536
    num_ranges, width = -(-num_nodes // size), -(-(last_row - first_row) // size)
    tiles: list[list[int]] = [[] for _ in range(num_ranges * width)]
    for s, d in edges:
        if first_row <= d < last_row:
            row = d - first_row
            tiles[s // size * width + row // size].append(row % size * size + s % size)
    return [sorted(tile) for tile in tiles]


def bucket_keys(
    edges: Edges, num_buckets: int, *, bucket_bits: int, source_bits: int, symmetrise: bool, drop_loops: bool
) -> list[list[int]]:
    """Keys of every bucket in the order the edges come, a reversed edge right after its edge."""
    buckets: list[list[int]] = [[] for _ in range(num_buckets)]
    for s, d in edges:
        if s == d and drop_loops:
            continue
        for source, row in [(s, d), (d, s)] if symmetrise and s != d else [(s, d)]:
            buckets[row // 2**bucket_bits].append(row % 2**bucket_bits * 2**source_bits + source)
    return buckets


def first_bad_row(indptr: list[int], indices: list[int], num_nodes: int, *, allow_duplicates: bool) -> int:
    if indptr[0] != 0 or indptr[-1] != len(indices):
        return 0
    for row in range(len(indptr) - 1):
        if not 0 <= indptr[row] <= indptr[row + 1] <= len(indices):
            return row
        sources = indices[indptr[row] : indptr[row + 1]]
        good = sorted(sources) if allow_duplicates else sorted(set(sources))
        if sources != good or any(not 0 <= source < num_nodes for source in sources):
            return row
    return -1


def first_bad_tile(tiles: list[list[int]], num_rows: int, num_sources: int, *, allow_duplicates: bool) -> int:
    """The same for one destination range's tiles, ``tiles[k]`` those from source range k."""
    for k, tile in enumerate(tiles):
        good = sorted(tile) if allow_duplicates else sorted(set(tile))
        if tile != good or any(e // 65_536 >= num_rows or k * 65_536 + e % 65_536 >= num_sources for e in tile):
            return k
    return -1


# --- pagerank


def pagerank(
    edges: Edges,
    num_nodes: int,
    *,
    damping: float = 0.85,
    reset: list[float] | None = None,
    dangling: str = "uniform",
    num_sweeps: int = 400,
) -> list[float]:
    """Power iteration from 1/N, every edge one add; a repeated edge counts as often as it is there."""
    uniform = [1 / num_nodes] * num_nodes
    reset = uniform if reset is None else [value / sum(reset) for value in reset]
    jump = uniform if dangling == "uniform" else reset
    degrees = [0] * num_nodes
    for s, _ in edges:
        degrees[s] += 1
    ranks = uniform
    for _ in range(num_sweeps):
        lost = sum(rank for rank, degree in zip(ranks, degrees, strict=True) if degree == 0)
        new = [damping * lost * jump[i] + (1 - damping) * reset[i] for i in range(num_nodes)]
        for s, d in edges:
            new[d] += damping * ranks[s] / degrees[s]
        if new == ranks:
            break
        ranks = new
    return ranks


def sweep_sums(tiles: list[list[int]], width: int, contributions: dict[int, float]) -> dict[int, float]:
    """What edges in tiles, as ``tiles_of`` packs them, add to each row of a stripe; only rows with edges."""
    sums: dict[int, float] = {}
    for number, tile in enumerate(tiles):
        for edge in tile:
            row = number % width * 65_536 + edge // 65_536
            source = number // width * 65_536 + edge % 65_536
            sums[row] = sums.get(row, 0.0) + contributions[source]
    return sums


# --- attribute vector


def exact_similarities(x: list[list[float]], gamma: float) -> list[float]:
    """sum_j exp(-gamma |x_i - x_j|^2) of every row, not divided by anything."""
    return [
        math.fsum(math.exp(-gamma * math.fsum((p - q) ** 2 for p, q in zip(one, other, strict=True))) for other in x)
        for one in x
    ]


def expanded_similarities(x: list[list[float]], gamma: float) -> list[float]:
    """The same with e^t, t = 2 gamma x_i.x_j, replaced by 1 + t + t^2/2, pair by pair."""
    norms = [math.fsum(value**2 for value in row) for row in x]
    sums = []
    for i, one in enumerate(x):
        terms = []
        for j, other in enumerate(x):
            t = 2 * gamma * math.fsum(p * q for p, q in zip(one, other, strict=True))
            terms.append(math.exp(-gamma * (norms[i] + norms[j])) * (1 + t + t**2 / 2))
        sums.append(math.fsum(terms))
    return sums


# --- diversity, spmm, top-k


def diversity(edges: Edges, x: list[list[float]], *, include_self: bool = False) -> list[float]:
    """Distance of each row to the mean of the rows its in-edges come from; its norm where there are none."""
    scores = []
    for i, own in enumerate(x):
        near = [x[s] for s, d in edges if d == i] + ([own] if include_self else [])
        means = [math.fsum(column) / len(near) for column in zip(*near, strict=True)] if near else [0.0] * len(own)
        scores.append(math.sqrt(math.fsum((p - q) ** 2 for p, q in zip(own, means, strict=True))))
    return scores


def propagate(
    edges: Edges, x: list[list[float]], *, include_self: bool, source_scale: list[float], row_scale: list[float]
) -> list[list[float]]:
    """row_scale[i] * sum over the edges u -> i of source_scale[u] * x[u]."""
    out = []
    for i in range(len(x)):
        sources = [s for s, d in edges if d == i] + ([i] if include_self else [])
        sums = [math.fsum(source_scale[u] * x[u][c] for u in sources) for c in range(len(x[0]))]
        out.append([row_scale[i] * total for total in sums])
    return out


def top_nodes(scores: list[float], k: int, candidates: list[int]) -> list[int]:
    return sorted(candidates, key=lambda node: (-scores[node], node))[:k]


def class_quotas(counts: list[int], k: int) -> list[int]:
    """One place at a time, round after round."""
    quotas = [0] * len(counts)
    while sum(quotas) < min(k, sum(counts)):
        for c, count in enumerate(counts):
            if quotas[c] < count and sum(quotas) < k:
                quotas[c] += 1
    return quotas


def herding(rows: list[list[float]], k: int) -> list[int]:
    """Take the row that brings the mean of those taken nearest to the mean of all, k times; exact, first of equals."""
    exact = [[Fraction(value) for value in row] for row in rows]
    means = [sum(column) / len(exact) for column in zip(*exact, strict=True)]
    taken: list[int] = []
    for _ in range(min(k, len(rows))):
        sums = [sum((exact[i][c] for i in taken), Fraction(0)) for c in range(len(means))]

        def distance(i: int, sums: list[Fraction] = sums) -> Fraction:
            own = zip(means, sums, exact[i], strict=True)
            return sum(((mean - (total + x) / (len(taken) + 1)) ** 2 for mean, total, x in own), Fraction(0))

        taken.append(min((i for i in range(len(rows)) if i not in taken), key=lambda i: (distance(i), i)))
    return taken


def nearest(row: list[float], centres: list[list[float]]) -> int:
    """The first of the centres that are nearest."""
    apart = [sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(row, centre, strict=True)) for centre in centres]
    return apart.index(min(apart))


def adam_step(
    weight: float,
    gradient: float,
    mean: float,
    square: float,
    betas: tuple[float, float],
    sizes: tuple[float, float, float, float],
) -> tuple[float, float, float]:
    """New weight and moments of one number."""
    decay, step, root, epsilon = sizes
    gradient += decay * weight
    mean = betas[0] * mean + (1 - betas[0]) * gradient
    square = betas[1] * square + (1 - betas[1]) * gradient**2
    return weight - step * mean / (math.sqrt(square) / root + epsilon), mean, square


def sum_of_lanes(numbers: list[float]) -> float:
    """Python's floats are float64; the caller rounds to float32."""
    total = numbers[0]
    for number in numbers[1:]:
        total += number
    return total


# --- the closed-form learner


def stacked_hops(x, edges, hops):
    """[x, P x, ..., P^hops x] with each part of length one; P = D^-1/2 (A + I) D^-1/2, edges as (source, target)."""
    import numpy as np

    num_nodes = len(x)
    dense = np.eye(num_nodes)
    dense[edges[1], edges[0]] = 1.0
    scale = 1 / np.sqrt(dense.sum(axis=1))
    propagate = scale[:, None] * dense * scale
    parts, now = [], np.asarray(x, np.float64)
    for _ in range(hops + 1):
        length = np.linalg.norm(now, axis=1, keepdims=True)
        parts.append(now / np.where(length == 0, 1, length))
        now = propagate @ now
    return np.hstack(parts)


def ridge_head(rows, labels, num_classes, ridge):
    """Class-balanced ridge regression: the mean over classes of f f^T and of f, and one linear system."""
    import numpy as np

    width = rows.shape[1]
    square, means = np.zeros((width, width)), np.zeros((width, num_classes))
    for label in range(num_classes):
        own = np.asarray(rows[labels == label], np.float64)
        if len(own):
            square += own.T @ own / len(own)
            means[:, label] = own.mean(axis=0)
    scale = np.trace(square) / width or 1.0
    return np.linalg.solve(square + ridge * scale * np.eye(width), means)


def with_context(edges: Edges, labels: list[int], seeds: list[int], hops: int | None) -> list[int]:
    """Nodes of a task and those without a label from which so few edges lead there through others like them, or all."""
    unlabelled = {node for node, label in enumerate(labels) if label < 0}
    if hops is None:
        return sorted({*seeds, *unlabelled})
    found = set(seeds)
    for _ in range(hops):
        found |= {source for source, target in edges if target in found and source in unlabelled}
    return sorted(found)

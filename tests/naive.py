"""Slow, obvious twins of the kernels: the oracles of the tests. One section a subject."""

from __future__ import annotations

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

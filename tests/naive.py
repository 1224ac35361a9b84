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

"""Random numbers without state: number ``counter`` of stream ``seed`` is a pure function of the two.

    mix(seed, n) = finalise(seed + n * golden)        splitmix64 (Steele, Lea, Flood 2014)

Whoever generates edge or row n needs no history, so blocks may be made in any order, size and thread and are always
the same. The permutations are three rounds of x -> (m x + a) mod 2^b, x -> x ^ (x >> ceil(b/2)); each step can be
undone, and numbers that fall beyond the size are sent round again (cycle walking), so they are bijections of [0, size)
that need no table: what a shuffle of the nodes would keep in 8 bytes a node.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ecgl_kernels._jit import inline, kernel

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
UNIT_53 = 2.0**-53
UNIT_24 = np.float32(2.0**-24)
TURN_24 = np.float32(2.0 * np.pi * 2.0**-24)
ROUNDS = 3


@inline
def mix(seed: np.uint64, counter: np.uint64) -> np.uint64:
    """Return the 64 random bits number ``counter`` of stream ``seed``."""
    z = seed + counter * GOLDEN
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return z ^ (z >> np.uint64(31))


@inline
def uniform(bits: np.uint64) -> float:
    """Turn 64 random bits into a float64 in [0, 1)."""
    return np.float64(bits >> np.uint64(11)) * UNIT_53


@inline
def scramble(x: np.uint64, key: NDArray[np.uint64]) -> np.uint64:
    """Apply the keyed bijection of [0, 2^b) once."""
    mask = key[1]
    shift = key[2]
    x = (x * key[3] + key[6]) & mask
    x = x ^ (x >> shift)
    x = (x * key[4] + key[7]) & mask
    x = x ^ (x >> shift)
    x = (x * key[5] + key[8]) & mask
    return x ^ (x >> shift)  # type: ignore[no-any-return]


@inline
def unscramble(x: np.uint64, key: NDArray[np.uint64]) -> np.uint64:
    """Undo `scramble`; the shift is at least half the bits, so that each xor-shift undoes itself."""
    mask = key[1]
    shift = key[2]
    x = x ^ (x >> shift)
    x = ((x - key[8]) * key[11]) & mask
    x = x ^ (x >> shift)
    x = ((x - key[7]) * key[10]) & mask
    x = x ^ (x >> shift)
    return ((x - key[6]) * key[9]) & mask  # type: ignore[no-any-return]


@inline
def permute(x: np.uint64, key: NDArray[np.uint64]) -> np.uint64:
    """Return where the permutation of [0, size) sends ``x``."""
    y = scramble(x, key)
    while y >= key[0]:
        y = scramble(y, key)
    return y


@inline
def unpermute(x: np.uint64, key: NDArray[np.uint64]) -> np.uint64:
    """Return which number `permute` sends to ``x``."""
    y = unscramble(x, key)
    while y >= key[0]:
        y = unscramble(y, key)
    return y


@kernel
def permute_block(first: int, key: NDArray[np.uint64], out: NDArray[np.int64]) -> None:
    """Write where the permutation sends ``first``, ``first + 1``, and so on."""
    for i in range(out.size):
        out[i] = permute(np.uint64(first + i), key)


@kernel
def unpermute_block(first: int, key: NDArray[np.uint64], out: NDArray[np.int64]) -> None:
    """Write which numbers the permutation sends to ``first``, ``first + 1``, and so on."""
    for i in range(out.size):
        out[i] = unpermute(np.uint64(first + i), key)


@kernel
def random_bits(first: int, seed: np.uint64, out: NDArray[np.uint64]) -> None:
    """Write the numbers ``first``, ``first + 1``, and so on of a stream."""
    for i in range(out.size):
        out[i] = mix(seed, np.uint64(first + i))


@kernel
def gaussian_rows(first_row: int, seed: np.uint64, out: NDArray[np.float32]) -> None:
    """Write rows of standard normal numbers: Box-Muller, two numbers from the two ends of one 64-bit draw."""
    num_rows, num_columns = out.shape
    num_pairs = (num_columns + 1) // 2
    for row in range(num_rows):
        counter = np.uint64(first_row + row) * np.uint64(num_pairs)
        for pair in range(num_pairs):
            bits = mix(seed, counter + np.uint64(pair))
            # in (0, 1]: the logarithm must stay finite
            radius = np.float32((bits >> np.uint64(40)) + np.uint64(1)) * UNIT_24
            radius = np.sqrt(np.float32(-2.0) * np.log(radius))
            angle = np.float32(bits & np.uint64(0xFFFFFF)) * TURN_24
            out[row, 2 * pair] = radius * np.cos(angle)
            if 2 * pair + 1 < num_columns:
                out[row, 2 * pair + 1] = radius * np.sin(angle)


def substream(seed: int, stream: int) -> np.uint64:
    """Return the seed of an independent stream, so that edges, labels and features share no draws."""
    out = np.empty(1, np.uint64)
    random_bits(stream, np.uint64(seed), out)
    return np.uint64(out[0])


def permutation_key(size: int, seed: np.uint64) -> NDArray[np.uint64]:
    """Describe the permutation number ``seed`` of [0, size): size, mask, shift, factors, addends, inverse factors."""
    bits = max(1, (size - 1).bit_length())
    draws = np.empty(2 * ROUNDS, np.uint64)
    random_bits(0, seed, draws)
    factors = [int(draw) | 1 for draw in draws[:ROUNDS]]
    numbers = [size, (1 << bits) - 1, (bits + 1) // 2, *factors, *(int(draw) for draw in draws[ROUNDS:])]
    numbers += [pow(factor, -1, 1 << 64) for factor in factors]
    key: NDArray[Any] = np.array(numbers, np.uint64)
    key.setflags(write=False)
    return key

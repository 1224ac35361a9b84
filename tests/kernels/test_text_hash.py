"""The hash of texts against the same formula in plain Python, and against values that may never change."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ecgl_kernels.text_hash import hash_texts

MASK = (1 << 64) - 1
KNOWN = ["0000000000000000", "db20290ac13e4a81", "9fa5b435cfb3e4dc", "4d6bbe25eaddfd02", "d56b1fbb9ceba9e8"]


def naive_hash(text: bytes) -> int:
    state = len(text)
    for start in range(0, len(text), 8):
        state = (state + int.from_bytes(text[start : start + 8], "little") * 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state


def hashes(texts: list[bytes]) -> list[int]:
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    out = np.empty(len(texts), np.uint64)
    hash_texts(offsets, np.frombuffer(b"".join(texts), np.uint8), out)
    return [int(value) for value in out]


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_hashes_follow_the_formula(texts: list[bytes]) -> None:
    assert hashes(texts) == [naive_hash(text) for text in texts]


def test_hashes_of_known_texts_never_change_as_stores_on_disks_hold_them() -> None:
    assert [f"{value:016x}" for value in hashes([b"", b"a", b"libc6", b"python3-numpy", b"\x00" * 8])] == KNOWN


def test_texts_of_zeros_differ_by_their_length() -> None:
    found = hashes([b"\x00" * length for length in range(1, 40)])
    assert len(set(found)) == len(found)

"""Sizes and counts as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecgl_scale.errors import UsageError
from ecgl_scale.units import GIB, KIB, MIB, format_bytes, format_count, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 * GIB),
        ("512MiB", 512 * MIB),
        ("2GB", 2 * 10**9),
        ("1.5GiB", 3 * GIB // 2),
        ("0.5 KiB", 512),
        ("1073741824", GIB),
        ("7b", 7),
        ("8M", 8 * MIB),
        ("8g", 8 * GIB),
        ("2 TiB", 2 << 40),
        (" 16kib ", 16 * KIB),
        (12345, 12345),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_a_size_is_read_exactly(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "4 gigs", "-4GiB", "1e9", "4GiB!", "nan", "inf", "1,000", "٤GiB", "9" * 400, "0x10", "1.GiB"]
)
def test_what_is_not_a_size_is_a_usage_error_that_shows_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageError, match="512MiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (KIB, "1 KiB"),
        (1536, "1.5 KiB"),
        (999 * MIB, "999 MiB"),
        (1000 * MIB, "0.977 GiB"),
        (1023 * MIB + 900 * KIB, "1 GiB"),
        (4 * GIB, "4 GiB"),
        (3 << 40, "3 TiB"),
        (5000 << 40, "5000 TiB"),
        (-1536, "-1.5 KiB"),
    ],
)
def test_a_size_is_written_with_a_binary_unit_and_no_exponent(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(0, 1 << 62))
def test_what_is_written_can_be_read_back_within_half_a_percent(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.005)


def test_counts_are_grouped_by_thousands() -> None:
    assert format_count(1234567) == "1,234,567"

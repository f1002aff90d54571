"""Sizes and times as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from kvhub.units import seconds, size


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("64GiB", 64 << 30), ("1.5MB", 1_500_000), ("1 KiB", 1024), ("4096", 4096), (4096, 4096), ("0", 0), (0, 0),
        ("2tib", 2 << 40), ("10kb", 10_000), ("7B", 7), ("0.5GiB", 1 << 29),
    ],
)  # fmt: skip
def test_sizes(text: Any, bytes_: int) -> None:
    assert size(text) == bytes_


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("150ms", 0.15), ("2s", 2.0), ("5min", 300.0), ("5m", 300.0), ("1.5h", 5400.0), ("1d", 86400.0),
        (3, 3.0), (0.5, 0.5), ("7us", 7e-6),
    ],
)  # fmt: skip
def test_times(text: Any, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "1 gallon", "1e3", "64Gi", "1,5GB", -1, True, None, 1.5, "nan", []]
)
def test_E01_sizes_that_are_none_name_the_units(text: Any) -> None:
    with pytest.raises(ValueError, match="size"):
        size(text)


@pytest.mark.parametrize(
    "text", ["", "ms", "-1s", "2 S", "1 hour", -1, True, None, float("nan"), float("inf"), "inf", "1:30", []]
)
def test_E01_times_that_are_none_name_the_units(text: Any) -> None:
    with pytest.raises(ValueError, match="time"):
        seconds(text)

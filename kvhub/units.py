"""Sizes and times as people write them, to numbers; plugin configurations reuse these as attrs converters."""

from __future__ import annotations

import re

_SIZES = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*$")


def size(value: str | int) -> int:
    """Bytes of `"64GiB"`, `"1.5MB"` or a plain integer.  Raises ValueError that names the allowed units."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"expected a size such as '64GiB', found {value!r}")
    if isinstance(value, int):
        number, unit = float(value), ""
        if value < 0:
            raise ValueError(f"a size cannot be negative, found {value}")
        return value
    match = _NUMBER.match(value)
    if match is None or match[2].upper() not in _SIZES:
        raise ValueError(f"expected a size such as '64GiB' (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB), found {value!r}")
    number, unit = float(match[1]), match[2].upper()
    return int(number * _SIZES[unit])


def seconds(value: str | int | float) -> float:
    """Seconds of `"150ms"`, `"2s"`, `"5min"` or a plain number of seconds.  Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected a time such as '150ms', found {value!r}")
    if isinstance(value, int | float):
        if not 0 <= value < float("inf"):
            raise ValueError(f"a time must be finite and not negative, found {value}")
        return float(value)
    match = _NUMBER.match(value)
    if match is None or match[2] not in _TIMES:
        raise ValueError(f"expected a time such as '150ms' (us, ms, s, min, h, d), found {value!r}")
    return float(match[1]) * _TIMES[match[2]]

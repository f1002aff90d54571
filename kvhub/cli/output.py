"""How commands print: tables, values as text, and nothing of what plugins print."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any, TextIO


def quiet() -> contextlib.redirect_stdout[TextIO]:
    """What plugins print while they are imported goes to stderr: stdout is ours, and may be JSON."""
    return contextlib.redirect_stdout(sys.stderr)


def table(head: list[str], rows: list[list[str]]) -> None:
    """Columns as wide as their widest cell, the last one as it comes."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head) - 1)]
    for row in [head, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[-1]]).rstrip())


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, tuple | list | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def text(value: Any) -> str:
    """A value as a table has it."""
    found = plain(value)
    if isinstance(found, str):
        return found or '""'
    if isinstance(found, list) and all(isinstance(item, str) for item in found):
        return f"[{', '.join(found)}]"
    return json.dumps(found)

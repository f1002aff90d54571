"""A picture of what was measured: a bar for each speed and a mark where its bound is, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from kvhub.bench.members import Row

WIDTH, LEFT, LINE = 900, 240, 26
RIGHT = 240
"""Room for the words behind a bar."""


def svg(rows: Sequence[Row]) -> str:
    """Rows in bytes per second on one scale; a `find` counts keys and has no place on it."""
    shown = [row for row in rows if row.rate and row.what != "find"]
    most = max([1.0, *(max(row.rate, row.bound) for row in shown)])
    scale = (WIDTH - LEFT - RIGHT) / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{LINE * (len(shown) + 1)}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="8" y="{LINE - 8}">bars: payload bytes per second; marks: this machine\'s own bound</text>',
    ]
    for at, row in enumerate(shown, 1):
        top, end = at * LINE, LEFT + max(row.rate, row.bound) * scale
        bound = f" of {row.bound / 1e6:.0f}, {row.against}" if row.bound else ""
        parts += [
            f'<text x="8" y="{top + 15}">{escape(f"{row.member}: {row.what}")}</text>',
            f'<rect class="rate" x="{LEFT}" y="{top + 3}" width="{row.rate * scale:.1f}" height="{LINE - 8}" '
            'fill="#4a7"/>',
            f'<text x="{end + 8:.1f}" y="{top + 15}">{escape(f"{row.rate / 1e6:.0f} MB/s{bound}")}</text>',
        ]
        if row.bound:
            mark = LEFT + row.bound * scale
            parts.append(
                f'<line class="bound" x1="{mark:.1f}" x2="{mark:.1f}" y1="{top}" y2="{top + LINE - 2}" stroke="#a33" '
                'stroke-width="2"/>'
            )
    return "\n".join([*parts, "</svg>", ""])

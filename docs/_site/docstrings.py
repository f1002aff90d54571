"""A griffe extension: options of attrs classes show their help and default, and columns in docstrings stay columns."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

COLUMNS = re.compile(r"\S {3,}\S")


class Docstrings(griffe.Extension):
    """Reads `attrs.field(metadata={"help": ...}, default=...)` and `kvhub.wire.options.option("help", default=...)`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each object that it finds: a paragraph of columns becomes a block of its own."""
        if obj.docstring is not None:
            parts = re.split(r"\n{2,}", obj.docstring.value)
            obj.docstring.value = "\n\n".join(_indented(part) if COLUMNS.search(part) else part for part in parts)

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        """Called by griffe for each attribute that it finds in the source."""
        call = node.value if isinstance(node, ast.AnnAssign) else None
        if not isinstance(call, ast.Call) or ast.unparse(call.func) not in ("attrs.field", "option"):
            return
        given = {each.arg: each.value for each in call.keywords}
        told = _help(call, given)
        if told is not None and attr.docstring is None:
            attr.docstring = griffe.Docstring(told, parent=attr)
        attr.value = ast.unparse(given["default"]) if "default" in given else None


def _indented(part: str) -> str:
    lines = part.splitlines()
    return part if lines[0].startswith("    ") else "\n".join(f"    {line}" for line in lines)


def _help(call: ast.Call, given: dict[str | None, ast.expr]) -> str | None:
    if isinstance(call.func, ast.Name):
        return _text(call.args[0]) if call.args else None
    metadata = given.get("metadata")
    if isinstance(metadata, ast.Dict):
        for key, value in zip(metadata.keys, metadata.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "help":
                return _text(value)
    return None


def _text(value: ast.expr) -> str | None:
    """A string, or an f-string with its names in capitals as they are in the source."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    if isinstance(value, ast.JoinedStr):
        parts = (
            str(part.value) if isinstance(part, ast.Constant) else f"`{ast.unparse(part.value)}`"
            for part in value.values
            if isinstance(part, ast.Constant | ast.FormattedValue)
        )
        return "".join(parts)
    return None

"""Which names the reference tells of, page by page.  This list is what releases keep stable (docs/versioning.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

CORE = {
    "Every plugin": (
        "kvhub",
        "kvhub.hookspecs",
        "kvhub.types",
        "kvhub.errors",
        "kvhub.member",
        "kvhub.findings",
        "kvhub.units",
        "kvhub.options.build",
        "kvhub.environ.PREFIX",
    ),
    "Stores": (
        "kvhub.store",
        "kvhub.chunkfile",
        "kvhub.mounts",
        "kvhub.pool.medium",
        "kvhub.pool.look.check_whole",
        "kvhub.pool.room.make_room",
    ),
    "Codecs": ("kvhub.codec", "kvhub.layout", "kvhub.tail.kept_tokens"),
    "Transports": (
        "kvhub.transport",
        "kvhub.wire.member",
        "kvhub.wire.lane",
        "kvhub.wire.options",
        "kvhub.wire.stream.Stream",
        "kvhub.wire.groups.Pieces",
        "kvhub.wire.frames.Attach",
        "kvhub.wire.frames.encode",
        "kvhub.wire.frames.lane_proof",
        "kvhub.wire.addresses",
    ),
    "Engine adapters": (
        "kvhub.engine",
        "kvhub.session",
        "kvhub.plan",
        "kvhub.keys",
        "kvhub.weights",
        "kvhub.hub",
        "kvhub.plugins",
        "kvhub.config",
        "kvhub.roles.RoleConfig",
        "kvhub.requests.Finish",
        "kvhub.requests.stream_of",
        "kvhub.fetch.Fetch",
        "kvhub.arena.attach",
        "kvhub.conditions.PARTS",
        "kvhub.exported",
    ),
    "Tests and tools": (
        "kvhub.testing",
        "kvhub.testing.engine_driver",
        "kvhub.testing.fake_engine_members",
        "kvhub.observe",
        "kvhub.doctor",
        "kvhub.bench",
    ),
}
"""Title of a page -> modules of the core, and names of modules that are public in that part only.

A module with `__all__` shows those names; any other shows what it defines without a leading underscore.
"""

PACKAGES = {
    "kvhub_nfs": "plugins/kvhub-nfs",
    "kvhub_s3": "plugins/kvhub-s3",
    "kvhub_ucx": "plugins/kvhub-ucx",
    "kvhub_tcp": "plugins/kvhub-tcp",
    "kvhub_zstd": "plugins/kvhub-zstd",
    "kvhub_quant": "plugins/kvhub-quant",
    "kvhub_aes": "plugins/kvhub-aes",
    "kvhub_example": "plugins/kvhub-example",
    "kvhub_vllm": "adapters/kvhub-vllm",
    "kvhub_sglang": "adapters/kvhub-sglang",
    "kvhub_front": "adapters/kvhub-front",
    "kvhub_kernels": "kernels",
}
"""Package -> its folder.  Each has a page with the names of its `__all__`."""

BY_PATH = {
    "kvhub_vllm": ("kvhub_vllm.connector.KvhubConnector",),
    "kvhub_sglang": ("kvhub_sglang.storage.KvhubStorage",),
    "kvhub_kernels": ("kvhub_kernels.copier.Copier", "kvhub_kernels.copier.Ended"),
}
"""What a package does not import by itself, so that importing it stays quick, and others name by its module."""

ROOT = Path(__file__).resolve().parents[2]


def pages() -> Iterator[tuple[str, str, list[str]]]:
    """(file, title, what the list above says) for each page."""
    for title, paths in CORE.items():
        yield f"{title.lower().replace(' ', '-')}.md", title, list(paths)
    for name in PACKAGES:
        yield f"{name}.md", name, [name, *BY_PATH.get(name, ())]


def file_of(path: str) -> Path | None:
    """The source of a module or package; None for a name in one."""
    place = ROOT / PACKAGES.get(path.partition(".")[0], "") / path.replace(".", "/")
    files = (place / "__init__.py", place.with_suffix(".py"))
    return next((file for file in files if file.exists()), None)


def exports(path: str) -> list[str] | None:
    """Where the names of a module's `__all__` are defined; None where it has no `__all__`, or is no module."""
    file = file_of(path)
    if file is None:
        return None
    tree = ast.parse(file.read_text("utf-8"))
    origins = {
        alias.asname or alias.name: f"{each.module}.{alias.name}"
        for each in ast.walk(tree)
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    for each in tree.body:
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__":
            return [origins.get(name, f"{path}.{name}") for name in ast.literal_eval(each.value)]
    return None

"""What a libucp must be: its version, and where the fields of its structures are."""

from __future__ import annotations

import ctypes as c
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvhub.errors import KvhubError

_layout, _providers = (pytest.importorskip(f"kvhub_ucx.{name}") for name in ("_layout", "_providers"))


def test_structures_are_those_of_the_api() -> None:
    _layout.check()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ((("length", c.c_size_t), ("sender_tag", c.c_uint64)), r"ucp_tag_recv_info_t\.sender_tag is at byte 8"),
        ((("sender_tag", c.c_uint64),), "ucp_tag_recv_info_t has 8 bytes"),
        (
            (("sender_tag", c.c_uint64), ("size", c.c_size_t), ("length", c.c_size_t)),
            "ucp_tag_recv_info_t has 24 bytes",
        ),
    ],
)
def test_a_structure_out_of_place_is_found(
    monkeypatch: pytest.MonkeyPatch, fields: tuple[tuple[str, Any], ...], says: str
) -> None:
    structure = type("Wrong", (c.Structure,), {"_fields_": fields})
    monkeypatch.setitem(_layout.STRUCTURES, "ucp_tag_recv_info_t", (structure, {}))
    with pytest.raises(KvhubError, match=says):
        _layout.check()


def test_the_table_against_the_headers(tmp_path: Path) -> None:
    """A C compiler is asked where the fields are, with the headers that come with libucx-cu12."""
    spec, compiler = importlib.util.find_spec("libucx"), shutil.which("cc") or shutil.which("gcc")
    if spec is None or spec.origin is None or compiler is None:
        pytest.skip("needs a C compiler, and the headers of libucx-cu12")
    lines = ["#include <ucp/api/ucp.h>", "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for name, (_, offsets) in _layout.LAYOUT.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));' for field in offsets]
    (tmp_path / "offsets.c").write_text("\n".join([*lines, "return 0; }"]))
    headers = Path(spec.origin).parent / "include"
    subprocess.run([compiler, f"-I{headers}", str(tmp_path / "offsets.c"), "-o", str(tmp_path / "offsets")], check=True)
    said = subprocess.run([str(tmp_path / "offsets")], capture_output=True, text=True, check=True).stdout
    found = {name: int(number) for name, number in (line.split() for line in said.splitlines())}
    for name, (sizes, offsets) in _layout.LAYOUT.items():
        assert found[name] in sizes, name
        for field, offset in offsets.items():
            assert found[f"{name}.{field}"] == offset, f"{name}.{field}"


@pytest.mark.parametrize("version", [(0, 9, 0), (1, 12, 1), (2, 0, 0), (11, 3, 0)])
def test_versions_that_are_not_known(version: tuple[int, int, int]) -> None:
    with pytest.raises(
        KvhubError, match=r"found libucp [0-9.]+ \(here\), but this plugin knows .* 1\.13 and later 1\.x"
    ):
        _layout.check_version(version, "here", "get another")
    for known in ((1, 13, 0), (1, 21, 0), (1, 99, 3)):
        _layout.check_version(known, "here", "get another")


def test_another_major_version_is_refused_at_load(tmp_path: Path) -> None:
    """A library that calls itself 2.0: nothing else of it is ever called."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source = "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) { *a = 2; *b = 0; *c = 1; }\n"
    (tmp_path / "ucp.c").write_text(source)
    build = ["-shared", "-fPIC", f"-Wl,-soname,{_providers.SONAME}", "-o", str(tmp_path / _providers.SONAME)]
    subprocess.run([compiler, *build, str(tmp_path / "ucp.c")], check=True)
    code = "from kvhub_ucx import _libucp; _libucp.load('system')"
    environment = dict(os.environ) | {"LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "KvhubError: UCX: found libucp 2.0.1 (system)" in done.stderr.splitlines()[-1]

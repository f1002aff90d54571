"""`kvhub config show`: effective values and where each comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvhub.cli import main

FILE = """\
kvhub: 1
plugins: {allow: [kvhub-nfs]}
stores:
  host: {use: host, capacity: 1GiB}
  pool: {use: nfs, root: /mnt/kv}
roles:
  prefill: {store: [host], retrieve: [host, pool]}
  decode: {store: [host, pool], retrieve: [host]}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "one.yaml"
    path.write_text(FILE)
    return str(path)


def test_E02_E03_every_value_is_shown_with_its_source(file: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVHUB_STORES__POOL__WORKERS", "9")
    assert main(["config", "show", file, "--role", "prefill", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["stores.pool.workers"] == {"value": 9, "origin": "environment KVHUB_STORES__POOL__WORKERS"}
    assert told["stores.pool.root"] == {"value": "/mnt/kv", "origin": "one.yaml:5"}
    assert told["limits.lease"] == {"value": 60.0, "origin": "default"}
    assert told["plugins.allow"] == {"value": ["kvhub-nfs"], "origin": "one.yaml:2"}
    assert not [path for path in told if path.startswith("roles.decode")]
    assert main(["config", "show", file]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["OPTION", "VALUE", "FROM"]
    assert ["plugins.allow", "[kvhub-nfs]", "one.yaml:2"] in rows


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{alow: []}", "plugins.alow: unknown key; did you mean 'allow'? (one.yaml:2)"),
        (
            "{allow: kvhub-nfs}",
            "plugins.allow: expected a list of distributions, as [kvhub-nfs, acme-store], found text 'kvhub-nfs' "
            "(one.yaml:2)",
        ),
        ("{allow: [../nfs]}", "plugins.allow[0]: expected a distribution's name, as kvhub-nfs, found text '../nfs' "
         "(one.yaml:2)"),
        ("[kvhub-nfs]", "plugins: expected a mapping, as 'plugins: {allow: [kvhub-nfs]}', found a list (one.yaml:2)"),
    ],
)  # fmt: skip
def test_E01_a_list_that_cannot_be_read_stops_the_start(file: str, capsys: Any, section: str, said: str) -> None:
    Path(file).write_text(FILE.replace("{allow: [kvhub-nfs]}", section))
    assert main(["config", "show", file, "--json"]) == 1
    assert said in json.loads(capsys.readouterr().out)["problems"]


def test_an_empty_list_allows_the_core_alone(file: str, capsys: Any) -> None:
    Path(file).write_text(FILE.replace("[kvhub-nfs]", "[]"))
    assert main(["check", file]) == 1
    [problem] = [line for line in capsys.readouterr().err.splitlines() if "not imported" in line]
    assert "plugin 'nfs' (kvhub-nfs 0.1.0) was not imported: plugins.allow has nothing; add 'kvhub-nfs'" in problem

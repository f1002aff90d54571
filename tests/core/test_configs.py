"""Every file in configs/ loads, for the whole deployment and for each of its roles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvhub.config import Config, load
from kvhub.plugins import Registry

FOLDER = Path(__file__).parents[2] / "configs"
FILES = sorted(FOLDER.glob("*.yaml"))


def loaded(path: Path, role: str | None = None) -> Config:
    registry = Registry()
    installed = {info.name for info in registry.available()}
    uses = set(re.findall(r"\buse: *([a-z0-9_]+)", path.read_text()))
    if missing := sorted(uses - installed):
        pytest.skip(f"{path.name} needs the plugins {', '.join(missing)}; `make test` installs them")
    return load(path, registry, role=role, environ={})


def test_the_promised_files_are_there() -> None:
    assert {"single-node-tiered.yaml", "pd-asymmetric.yaml"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_configuration_loads_without_a_warning(path: Path) -> None:
    config = loaded(path)
    assert config.warnings == ()
    for role in config.roles:
        assert set(loaded(path, role).members) == set(config.roles[role].members)


def test_F11_decode_stores_what_the_next_prefill_retrieves() -> None:
    config = loaded(FOLDER / "pd-asymmetric.yaml")
    prefill, decode = config.roles["prefill"], config.roles["decode"]
    stored = {step.member for step in decode.store}
    assert "pool" in stored & {step.member for step in prefill.retrieve}
    assert decode.write_back == {"prompt", "generated"}
    wires = {name for name, member in config.members.items() if member.kind == "transport"}
    assert wires & {step.member for step in prefill.store} & {step.member for step in decode.retrieve}

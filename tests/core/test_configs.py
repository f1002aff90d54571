"""Every file in configs/ loads, for the whole deployment and for each of its roles."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from kvhub.config import Config, Limits, load
from kvhub.plugins import Registry
from kvhub.roles import LOAD_DEADLINE, PULL_DEADLINE, SAVE_DEADLINE
from kvhub.units import seconds, size

FOLDER = Path(__file__).parents[2] / "configs"
FILES = sorted(FOLDER.glob("*.yaml"))


DOCS = Path(__file__).parents[2] / "docs" / "configure.md"


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


def test_the_documented_file_loads_and_its_defaults_are_true(tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(blocks) == 1
    path = tmp_path / "documented.yaml"
    path.write_text(blocks[0])
    config = loaded(path)
    assert config.warnings == ()
    assert (config.limits, config.chunk_tokens, config.on_miss) == (Limits(), 64, "recompute")


def test_every_limit_is_documented_with_its_default() -> None:
    text = DOCS.read_text()
    for name, written in re.findall(r"^\| `limits\.(\w+)` \| `(\w+)` \|", text, re.MULTILINE):
        read = seconds if isinstance(getattr(Limits(), name), float) else size
        assert read(written) == getattr(Limits(), name)
    assert set(re.findall(r"^\| `limits\.(\w+)`", text, re.MULTILINE)) == {field.name for field in attrs.fields(Limits)}
    defaults = re.search(r"`deadline` (\S+) from a store, (\S+) from a transport", text)
    saving = re.search(r"`deadline` (\S+), after which a background store", text)
    assert defaults is not None
    assert saving is not None
    assert [seconds(text) for text in (*defaults.groups(), *saving.groups())] == [2.0, 5.0, 30.0]
    assert (LOAD_DEADLINE, PULL_DEADLINE, SAVE_DEADLINE) == (2.0, 5.0, 30.0)

"""The store contract on `ExampleStore`, and what is its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvhub import KvhubError, MemberContext, Outcome
from kvhub.testing import Driver, Full, StoreContract, make_context, make_key, make_payload, make_region
from kvhub_example import ExampleConfig, ExampleStore


class Files:
    """The contract's hand on stored files, so that it can damage them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, context: MemberContext, key: bytes) -> Path:
        return self.root / context.namespace.hex() / key.hex()

    def read(self, context: MemberContext, key: bytes) -> bytes | None:
        path = self.path(context, key)
        return path.read_bytes() if path.exists() else None

    def write(self, context: MemberContext, key: bytes, data: bytes) -> None:
        self.path(context, key).write_bytes(data)


class TestExampleStore(StoreContract):
    @pytest.fixture
    def member_factory(self, tmp_path: Path) -> Callable[[MemberContext], ExampleStore]:
        return lambda context: ExampleStore(ExampleConfig(root=tmp_path), context)

    @pytest.fixture
    def medium(self, tmp_path: Path) -> Files:
        return Files(tmp_path)


def test_a_directory_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.write_text("in the way")
    store = ExampleStore(ExampleConfig(root=root), make_context("example"))
    before = time.monotonic()
    with pytest.raises(KvhubError, match=r"example: cannot write to .*file.* \(.*\); create the directory"):
        store.attach(make_region(2), lambda: None)
    store.close()
    assert time.monotonic() - before < 5.0


@pytest.mark.parametrize("fsync", [False, True])
def test_a_full_disk_is_an_outcome_and_not_an_error(tmp_path: Path, fsync: bool) -> None:
    store = Full(ExampleStore(ExampleConfig(root=tmp_path, fsync=fsync), make_context()))
    driver = Driver(store)
    driver.attach()
    assert driver.save({make_key("a"): make_payload("a")}).outcomes == (Outcome.FULL,)
    store.broken = False
    driver.keep({make_key("a"): make_payload("a")})
    assert driver.read([make_key("a")]) == [make_payload("a")]
    driver.close()


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    driver = Driver(ExampleStore(ExampleConfig(root=tmp_path), make_context()))
    driver.attach()
    monkeypatch.setattr(Path, "replace", no_space)
    assert driver.save({make_key("a"): make_payload("a")}).outcomes == (Outcome.FULL,)
    driver.close()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["namespace.json"]

"""Housekeeping on real NFS: the laws of a medium on one mount, and two clients that keep house at once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvhub.pool.gc import Limits, Report, collect
from kvhub.pool.medium import Medium
from kvhub.pool.pace import Pace
from kvhub.testing.medium import NAMESPACE, MediumContract, chunk, name_of, space_of
from kvhub.testing.region import make_key, make_payload
from kvhub.testing.stage import until
from kvhub_nfs import DirectoryStore
from uml.inside.conftest import A, B

SOON = 10.0
HOME = space_of(NAMESPACE).id


def house_on(root: Path) -> Medium:
    return DirectoryStore.medium(DirectoryStore.Config(root=root))


class TestMediumOnNfs(MediumContract):
    @pytest.fixture
    def medium_factory(self, tmp_path: Path) -> Callable[[], Medium]:
        return lambda: house_on(tmp_path)


@pytest.fixture
def both() -> tuple[Path, Path]:
    """One directory, by each client."""
    here = A / f"house-{time.monotonic_ns()}"
    here.mkdir()
    there = B / here.name
    until(there.is_dir, SOON, "the directory is seen by the other client")
    return here, there


def test_a_lease_excludes_across_clients(both: tuple[Path, Path]) -> None:
    with house_on(both[0]) as here, house_on(both[1]) as there:
        for round_ in range(5):
            assert here.claim(f"sweep-{round_}", "a", 60.0) and not there.claim(f"sweep-{round_}", "b", 60.0)
            here.release(f"sweep-{round_}", "a")
            until(lambda: there.claim(f"sweep-{round_}", "b", 60.0), SOON, "free again")  # noqa: B023
            assert not here.claim(f"sweep-{round_}", "a", 60.0)
        assert here.claim("dead", "a", 1.0)
        until(lambda: there.claim("dead", "b", 60.0), SOON, "taken over")


def test_C21_two_clients_collect_at_once_and_remove_each_chunk_once(both: tuple[Path, Path]) -> None:
    with house_on(both[0]) as here, house_on(both[1]) as there:
        here.admit(space_of(NAMESPACE))
        for number in range(60):
            name = name_of(number)
            here.put(HOME, name, memoryview(chunk(name, 100)))
            path = both[0] / HOME / name[:2] / name[2:4] / f"{name}.kv"
            os.utime(path, (time.time() - 86400, time.time() - 86400 - number))
        done: list[Report] = []

        def sweep(medium: Medium) -> None:
            done.append(collect(medium, Limits(unused_for=3600.0), Pace()))

        threads = [threading.Thread(target=sweep, args=(medium,)) for medium in (here, there)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == 2 and sum(report.removed.chunks for report in done) == 60
    assert list(both[0].rglob("*.kv")) == []


def test_a_load_by_one_client_is_a_use_for_a_sweeper_on_the_other(open_pool, both: tuple[Path, Path]) -> None:
    reader, key = open_pool(both[0]), make_key("used")
    reader.keep({key: make_payload("used")})
    old = time.time() - 7200
    os.utime(reader.path(key), (old, old))
    with house_on(both[1]) as there:
        home = reader.member.context.namespace.hex()[:32]

        def used() -> float:
            entry = there.read(home, key.hex(), memoryview(bytearray()))
            return entry.used if entry else 0.0

        until(lambda: used() == pytest.approx(old, abs=2), SOON, "old for the sweeper")
        assert reader.read([key]) == [make_payload("used")]
        until(lambda: used() > old + 3600, SOON, "used for the sweeper")
        assert collect(there, Limits(unused_for=3600.0), Pace()).removed.chunks == 0

"""The directory as housekeeping sees it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kvhub.errors import KvhubError
from kvhub.pool.medium import Medium
from kvhub.testing.medium import NAMESPACE, MediumContract, chunk, name_of, space_of
from kvhub.testing.region import make_key, make_payload
from kvhub.testing.stage import until
from kvhub.types import Outcome
from kvhub_nfs import DirectoryStore, LocalStore
from kvhub_nfs.scratch import AGE_SECONDS

HOME = space_of(NAMESPACE).id


class TestDirectory(MediumContract):
    @pytest.fixture
    def medium_factory(self, tmp_path: Path) -> Callable[[], Medium]:
        return lambda: DirectoryStore.medium(DirectoryStore.Config(root=tmp_path))

    def test_a_used_chunk_stays(self, house: Medium, tmp_path: Path) -> None:
        [name] = self.fill(house, 1)
        seen = self.entry(house, name)
        os.utime(tmp_path / HOME / name[:2] / name[2:4] / f"{name}.kv", (seen.used, seen.used + 1))
        assert house.remove(HOME, [seen]) == []
        assert house.remove(HOME, [self.entry(house, name)]) != []

    def test_what_is_no_chunk_is_left_alone(self, house: Medium, tmp_path: Path) -> None:
        [name] = self.fill(house, 1)
        leaf = tmp_path / HOME / name[:2] / name[2:4]
        for odd in (".nfs0001", "readme", f"{name}.kv.bak", name.upper() + ".kv"):
            (leaf / odd).write_text("?")
        (leaf / f"{name_of(1, name[:4])}.kv").mkdir()
        assert [entry.name for entry in house.entries(HOME, name[:2])] == [name]

    def test_looks_that_begin_and_end_at_once_take_nothing_from_one_another(self, tmp_path: Path) -> None:
        problems: list[BaseException] = []

        def look(claims: bool) -> None:
            try:
                for _ in range(60):
                    house = DirectoryStore.medium(DirectoryStore.Config(root=tmp_path))
                    house.now()
                    house.close()
                    house = DirectoryStore.medium(DirectoryStore.Config(root=tmp_path))
                    if claims and house.claim("sweep", "me", 0.0):
                        house.release("sweep", "me")
                    house.close()
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=look, args=(number % 2 == 0,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert problems == []
        assert not (tmp_path / ".kvhub/.tmp").exists()

    def test_closing_leaves_no_file_of_its_own(self, house: Medium, tmp_path: Path) -> None:
        self.fill(house, 3)
        house.now()
        house.close()
        assert list(tmp_path.rglob(".tmp/*")) == []

    def test_C11_files_of_the_dead_are_left_over_and_those_of_the_living_are_not(
        self, house: Medium, tmp_path: Path, open_medium: Callable[[], Medium]
    ) -> None:
        self.fill(house, 1)
        [living] = (tmp_path / HOME / ".tmp").iterdir()
        dead = living.with_name("-".join([*living.name.split("-")[:2], "999999999", "1", "aa"]))
        unknown = living.with_name("elsewhere-1-2-3-bb")
        for owner in (living, dead, unknown):
            owner.mkdir(exist_ok=True)
            (owner / "7").write_bytes(b"half")
        other = open_medium()
        found = list(other.leftovers(AGE_SECONDS))
        assert sorted(left.name for left in found) == [f"{HOME}/.tmp/{dead.name}/", f"{HOME}/.tmp/{dead.name}/7"]
        assert {left.name for left in other.leftovers(-1.0)} >= {f"{HOME}/.tmp/{unknown.name}/7"}
        assert other.clear(found) == 2 and other.clear(found) == 0
        assert (living / "7").exists() and (unknown / "7").exists() and not dead.exists()

    def test_a_watcher_whose_scratch_was_cleared_goes_on(self, house: Medium, tmp_path: Path) -> None:
        self.fill(house, 1)
        house.put_note("word", b"1")
        for owner in tmp_path.glob("*/.tmp/*"):
            owner.rmdir()
        house.put_note("word", b"2")
        assert house.note("word") == b"2" and house.put(HOME, name_of(99), memoryview(chunk(name_of(99))))

    def test_a_space_of_a_living_hub_is_not_forgotten(self, house: Medium, open_medium: Callable[[], Medium]) -> None:
        [name] = self.fill(house, 1)
        other = open_medium()
        other.remove(HOME, [self.entry(house, name)])
        assert not other.forget(HOME), "its scratch directory is in use"
        house.close()
        assert other.forget(HOME)

    def test_takers_of_one_expired_lease(self, house: Medium, open_medium: Callable[[], Medium]) -> None:
        takers, got = [open_medium() for _ in range(4)], []
        for round_ in range(20):
            lease = f"race-{round_}"
            assert house.claim(lease, "gone", -1.0)
            start = threading.Barrier(len(takers))

            def take(taker: Medium, lease: str = lease, start: threading.Barrier = start) -> None:
                start.wait()
                got.append((lease, taker.claim(lease, f"holder {id(taker)}", 60.0)))

            threads = [threading.Thread(target=take, args=(taker,)) for taker in takers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        winners = [sum(won for name, won in got if name == f"race-{round_}") for round_ in range(20)]
        assert min(winners) >= 0 and sum(winners) >= 15 and max(winners) <= 2, winners

    def test_put_fails_whole_after_an_unmount(self, house: Medium) -> None:
        house._device += 1  # type: ignore[attr-defined]
        with pytest.raises(OSError, match="another file system"):
            house.put(HOME, name_of(1), memoryview(chunk(name_of(1))))


def settle(pool: object) -> None:
    """Until everything that was noted has been touched."""
    touches = pool.member._touches
    until(lambda: not touches._waiting, 10.0, "touched")
    touches.close(10.0)


def test_local_stores_offer_it_too(tmp_path: Path) -> None:
    with LocalStore.medium(LocalStore.Config(root=tmp_path)) as medium:
        assert medium.describe() == str(tmp_path)
        assert medium.room() is not None


def test_a_root_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KvhubError, match="does not exist; mount or create it"):
        DirectoryStore.medium(DirectoryStore.Config(root=tmp_path / "gone"))


def test_a_load_moves_the_time_of_use_once_in_ten_minutes(open_pool: Callable[..., object]) -> None:
    pool = open_pool()
    keys = [make_key("old"), make_key("new"), make_key("damaged")]
    pool.keep({key: make_payload(key.hex()) for key in keys})
    old = pool.path(keys[0]).stat().st_mtime - 3600
    for key in keys:
        os.utime(pool.path(key), (old, old))
    fresh = old + 3600 - 300
    os.utime(pool.path(keys[1]), (fresh, fresh))
    with pool.path(keys[2]).open("r+b") as file:
        file.seek(5000)
        file.write(b"????")
    os.utime(pool.path(keys[2]), (old, old))
    outcomes = pool.load(keys).outcomes
    assert outcomes == (Outcome.DONE, Outcome.DONE, Outcome.CORRUPT)
    settle(pool)
    assert pool.path(keys[0]).stat().st_mtime > old + 3000
    assert pool.path(keys[1]).stat().st_mtime == fresh
    assert not pool.path(keys[2]).exists()


def test_a_save_that_kept_what_was_there_is_a_use(open_pool: Callable[..., object]) -> None:
    pool, key = open_pool(), make_key("kept")
    pool.keep({key: make_payload("kept")})
    old = pool.path(key).stat().st_mtime - 3600
    os.utime(pool.path(key), (old, old))
    assert pool.save({key: make_payload("kept")}).outcomes == (Outcome.KEPT,)
    settle(pool)
    assert pool.path(key).stat().st_mtime > old + 3000


def test_a_touch_that_is_refused_is_counted_and_changes_nothing(
    open_pool: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, key = open_pool(), make_key("refused")
    pool.keep({key: make_payload("refused")})
    old = pool.path(key).stat().st_mtime - 3600
    os.utime(pool.path(key), (old, old))

    def refuse(path: str) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr(os, "utime", refuse)
    assert pool.read([key]) == [make_payload("refused")]
    settle(pool)
    assert pool.counts == {"touches_refused": 1}


def test_what_touches_cannot_keep_up_with_is_dropped(open_pool: Callable[..., object]) -> None:
    pool = open_pool()
    hung, told = threading.Event(), threading.Event()
    touches = pool.member._touches
    touches._touch = lambda path: (told.set(), hung.wait(20))
    for number in range(5000):
        touches.note(f"/nowhere/{number}", 0)
    assert told.wait(10) and 4096 <= len(touches._waiting) + 1 <= 4097
    hung.set()

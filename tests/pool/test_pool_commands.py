"""`kvhub pool` as operators type it: stats, scan, inspect, verify."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvhub import chunkfile
from kvhub.pool.medium import Medium
from kvhub_nfs.medium import DirectoryMedium
from pool.conftest import Run
from pool.house import DAY, NAMESPACE, OTHER, House, name_of, whole, write_yaml

SIZE = 5096


def break_payload(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))


def test_stats_tell_how_much_there_is_and_of_what(house: House, run: Run) -> None:
    house.add(range(20), unused=2 * DAY)
    house.add(range(20, 23), unused=60.0, length=300)
    house.add(range(5), unused=3 * DAY, namespace=OTHER)
    status, found, _ = run("stats")
    assert (status, found["chunks"], found["bytes"], found["tails"]) == (0, 28, house.used_bytes(), 3)
    assert found["place"] == str(house.root) and found["measured_seconds_ago"] < 60 and found["free_bytes"] > 0
    told = {each["model"]: (each["chunks"], each["dtype"], each["tails"]) for each in found["namespaces"]}
    assert told == {"model-a": (23, "bfloat16", 3), "model-b": (5, "float16", 0)}
    ages = {each["for"]: each["chunks"] for each in found["unused"] if each["chunks"]}
    assert ages == {"under 10 min": 3, "under 7 d": 25}
    text = run("stats", json_=False)[1]
    assert "28 chunks" in text and "3 tails and parts" in text and "model-b 2 float16" in text


def test_a_pool_that_may_only_be_read_has_stats(house: House, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    house.add(range(20))

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(DirectoryMedium, "_fresh", refuse)
    monkeypatch.setattr(DirectoryMedium, "_inside", refuse)
    assert run("stats")[:2][1]["chunks"] == 20
    assert not (house.root / ".kvhub").exists()


def test_a_namespace_that_cannot_be_read_is_counted(house: House, run: Run) -> None:
    house.add(range(4))
    (house.home() / "namespace.json").write_bytes(b"\xff\xfe")
    [told] = run("stats")[1]["namespaces"]
    assert (told["chunks"], told["model"]) == (4, None)


def test_scan_lists_keys_by_filters_and_goes_on_behind_one(house: House, run: Run) -> None:
    house.add(range(30), unused=3 * DAY)
    house.add(range(30, 40), unused=60.0)
    house.add(range(3), namespace=OTHER)

    def keys(*words: str) -> list[str]:
        lines = run("scan", *words, "--json", json_=False)[1].splitlines()
        return [json.loads(line)["key"] for line in lines]

    mine = sorted(map(name_of, range(40)))
    assert keys("--model", "model-a") == mine and len(keys()) == 43
    assert keys("--model", "model-a", "--unused-for", "1d") == sorted(map(name_of, range(30)))
    prefix = mine[5][:3]
    assert keys("--prefix", prefix, "--model", "model-a") == [key for key in mine if key.startswith(prefix)]
    space = NAMESPACE.digest.hex()[:12]
    assert keys("--namespace", space, "--after", mine[9], "--limit", "5") == mine[10:15]
    assert keys("--older-than", "1d", "--limit", "99") != [], "their headers say that they were written in 2001"
    assert f"{SIZE}" in run("scan", json_=False)[1]


def test_inspect_shows_the_header_and_the_verdict(house: House, run: Run) -> None:
    good, bad = house.add([1, 2])
    house.add([1], namespace=OTHER)
    status, found, _ = run("inspect", good)
    assert status == 0 and {each["model"] for each in found} == {"model-a", "model-b"}
    assert all(each["verdict"] == "whole" and each["stored_bytes"] == 1000 and each["key"] == good for each in found)
    break_payload(house.path(bad))
    assert run("inspect", bad)[0] == 1 and run("inspect", bad)[1][0]["verdict"] == "damaged: checksum"
    status, found, _ = run("inspect", name_of("never"))
    assert status == 1 and "no chunk has the key" in found["problems"][0]


@pytest.fixture
def damaged(house: House) -> dict[str, str]:
    """Chunks by what is wrong with them, among twenty good ones."""
    house.add(range(20))
    kinds = ("truncated", "length", "magic", "header", "key", "namespace", "checksum", "version")
    names = dict(zip(kinds, house.add(range(100, 108)), strict=True))
    for kind, name in names.items():
        path, data = house.path(name), bytearray(whole(name))
        if kind == "truncated":
            del data[100:]
        elif kind == "length":
            data += b"?"
        elif kind in ("magic", "header", "version"):
            data[{"magic": 0, "header": 300, "version": 8}[kind]] ^= 7
        elif kind == "key":
            data[:] = whole(name_of("another"))
        elif kind == "namespace":
            data[:] = whole(name, namespace=OTHER)
        else:
            data[-1] ^= 1
        path.write_bytes(data)
    return names


def test_C03_verify_tells_what_is_damaged_and_removes_exactly_that(
    house: House, run: Run, damaged: dict[str, str]
) -> None:
    status, found, told = run("verify")
    heads = {kind: 1 for kind in damaged if kind not in ("checksum", "version")}
    assert status == 1 and found["damaged"] == heads and found["whole"] == 21 and found["removed"] == 0
    assert all(name in told for kind, name in damaged.items() if kind != "checksum")
    status, found, _ = run("verify", "--deep", "--remove")
    assert status == 0 and found["damaged"] == heads | {"checksum": 1} and found["removed"] == 7
    assert found["foreign"] == 1 and found["bytes"] == 20 * SIZE
    assert house.found() == {*map(name_of, range(20)), damaged["version"]}, "another version's objects stay"
    assert run("stats")[1]["chunks"] == 21


def test_C03_an_object_that_was_replaced_between_two_looks_stays(
    house: House, run: Run, damaged: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, path = DirectoryMedium.read, house.path(damaged["checksum"])

    def healed_meanwhile(self: Medium, space: str, name: str, into: memoryview) -> object:
        found = read(self, space, name, into)  # type: ignore[arg-type]
        if name == damaged["checksum"] and into.nbytes > chunkfile.HEADER_BYTES:
            path.with_suffix(".new").write_bytes(whole(name))
            path.with_suffix(".new").rename(path)
        return found

    monkeypatch.setattr(DirectoryMedium, "read", healed_meanwhile)
    run("verify", "--deep", "--remove")
    assert path.read_bytes() == whole(damaged["checksum"])


def test_an_error_of_the_medium_removes_nothing(house: House, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    house.add(range(10))

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(DirectoryMedium, "read", broken)
    status, found, told = run("verify", "--remove")
    assert (status, found["io_errors"], found["removed"], len(house.found())) == (1, 10, 0, 10)
    assert "error EIO" in told


def test_chunks_of_any_codec_are_verified_as_they_are_stored(house: House, run: Run) -> None:
    [name] = house.add([1])
    stored = b"compressed" * 50
    header = chunkfile.pack(bytes.fromhex(name), NAMESPACE.digest, stored, codecs=(1,), payload_bytes=4000)
    house.path(name).write_bytes(header + stored)
    assert run("verify", "--deep")[1]["whole"] == 1
    assert run("inspect", name)[1][0]["verdict"] == "whole"
    break_payload(house.path(name))
    assert run("verify", "--deep")[1]["damaged"] == {"checksum": 1}


def test_a_header_that_claims_the_world_takes_no_memory_for_it(house: House, run: Run) -> None:
    [name] = house.add([1])
    with house.path(name).open("r+b") as file:
        file.truncate(1 << 40)
    status, found, _ = run("verify", "--deep")
    assert (status, found["damaged"]) == (1, {"length": 1})


def test_every_wrong_word_is_told_at_once(run: Run, house: House) -> None:
    status, found, _ = run("gc", "--max", "10 apples", "--low", "2", "--rate", "soon", "--watch", "later")
    assert status == 1 and [problem.partition(":")[0] for problem in found["problems"]] == [
        "--max", "--low", "--watch", "--rate",
    ]  # fmt: skip
    for words, said in [
        (("gc",), "nothing says what to keep"),
        (("gc", "--max", "1GiB", "--low", "0.9", "--high", "50%"), "--low: expected at most --high"),
        (("purge",), "nothing says what is to go"),
        (("purge", "--all", "--prefix", "00", "--yes"), "--all: goes with no other choice"),
        (("purge", "--tenant", "anna"), "--tenant: expected a tag of 32 hex digits"),
        (("purge", "--salt-env", "KV_NO_SALT"), "--salt-env: the environment has no KV_NO_SALT"),
        (("purge", "--salt-file", "/nonexistent"), "--salt-file: /nonexistent cannot be read"),
        (("purge", "--adapter", "x"), "--adapter: goes with --tokens"),
        (("purge", "--tenant", "0" * 32, "--tokens", "x"), "which takes the salt; give that"),
        (("scan", "--prefix", "xyz"), "expected up to 64 hex digits"),
        (("scan", "--after", "00"), "expected a key of 64 hex digits"),
        (("inspect", "short"), "expected a key of 64 hex digits"),
        (("copy", "--from", "pool", "--to", "pool"), "expected another store than --from"),
        (("gc", "--keep-free", "100%"), "expected less than 100%"),
    ]:
        status, found, _ = run(*words)
        assert status == 1 and said in found["problems"][0], words


def test_words_that_name_nothing_are_refused_with_what_is_near(house: House, run: Run) -> None:
    house.add([1])
    status, found, _ = run("scan", "--model", "model-x", "--namespace", "ffff")
    assert status == 1 and len(found["problems"]) == 2 and "did you mean 'model-a'" in found["problems"][1]
    status, found, _ = run("stats", "--member", "pol")
    assert status == 1 and "did you mean 'pool'" in found["problems"][0]
    status, found, _ = run("stats", "--member", "host")
    assert status == 1 and "the host tier ends with its engine" in found["problems"][0]


def test_the_member_is_asked_for_where_the_file_has_several(
    tmp_path: Path, house: House, far: House, run: Callable[..., tuple[int, dict[str, list[str]], str]]
) -> None:
    both = write_yaml(tmp_path / "both.yaml", pool=house.root, far=far.root)
    status, found, _ = run("stats", yaml=both)
    assert status == 1 and "2 pools; name one with --member: pool, far" in found["problems"][0]
    assert run("stats", "--member", "far", yaml=both)[0] == 0
    none = write_yaml(tmp_path / "none.yaml")
    status, found, _ = run("stats", yaml=none)
    assert status == 1 and "its stores are the host tier alone" in found["problems"][0]
    gone = write_yaml(tmp_path / "gone.yaml", pool=tmp_path / "gone")
    status, found, _ = run("stats", yaml=gone)
    assert status == 1 and found["problems"][0].startswith(f"stores.pool: root {tmp_path / 'gone'} does not exist")


def test_only_the_named_store_is_imported(tmp_path: Path, house: House, run: Run) -> None:
    file = tmp_path / "wide.yaml"
    roles = {"both": {"store": ["pool"], "retrieve": ["pool"]}}
    stores = {"pool": {"use": "nfs", "root": str(house.root)}, "other": {"use": "s3x", "bucket": "b"}}
    file.write_text(json.dumps({"kvhub": 1, "stores": stores, "transports": {"wire": {"use": "ucy"}}, "roles": roles}))
    assert run("stats", "--member", "pool", yaml=file)[0] == 0

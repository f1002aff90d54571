"""Purging and copying, as operators type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvhub.cli import main
from kvhub.keys import Chain, Context
from kvhub_nfs.medium import DirectoryMedium
from pool.conftest import Run
from pool.house import DAY, NAMESPACE, OTHER, House, name_of, whole, write_yaml

SIZE = 5096


def test_F03_a_purge_asks_first(house: House, run: Run) -> None:
    house.add(range(5))
    status, found, _ = run("purge", "--all")
    assert status == 1 and "say --yes" in found["problems"][0] and len(house.found()) == 5
    status, found, _ = run("purge", "--all", "--dry-run")
    assert (status, found["chunks"], found["bytes"], len(house.found())) == (0, 5, 5 * SIZE, 5)


def test_F03_a_purge_of_a_model_leaves_the_others(house: House, run: Run) -> None:
    house.add(range(30))
    house.add(range(30), namespace=OTHER)
    run("stats")
    status, found, _ = run("purge", "--model", "model-a", "--yes")
    assert status == 0 and found["chunks"] == 30 and found["namespaces_gone"] == [NAMESPACE.digest.hex()[:32]]
    assert not house.home().exists() and len(house.found(OTHER)) == 30
    after = run("stats")[1]
    assert after["chunks"] == 30 and [each["model"] for each in after["namespaces"]] == ["model-b"]


def test_F03_a_purge_by_key_and_by_age(house: House, run: Run) -> None:
    house.add(range(100), unused=3 * DAY)
    house.add(range(100, 150), unused=60.0)
    keys = sorted(house.found())
    first = keys[0][:1]
    assert run("purge", "--prefix", first, "--yes")[1]["chunks"] == sum(key.startswith(first) for key in keys)
    assert house.found() == {key for key in keys if not key.startswith(first)}
    run("purge", "--unused-for", "1d", "--yes")
    young = {name_of(number) for number in range(100, 150) if not name_of(number).startswith(first)}
    assert house.found() == young
    assert run("purge", "--older-than", "1d", "--yes")[1]["chunks"] == len(young), "written in 2001, by their headers"
    assert run("stats")[1]["chunks"] == 0


def test_F03_everything_goes_with_all(house: House, run: Run) -> None:
    house.add(range(20), unused=0.0)
    house.add(range(20), namespace=OTHER)
    assert run("purge", "--all", "--yes")[1]["chunks"] == 40
    assert list(house.root.glob("[0-9a-f]*")) == [] and house.stray() == []
    assert run("purge", "--all", "--yes")[1]["chunks"] == 0


def test_F03_a_tenant_s_chunks_go_by_its_prompts(house: House, run: Run, tmp_path: Path) -> None:
    """Also those from before there were tags: with the prompts every chunk, part and tail is found."""
    prompts = [list(range(200)), list(range(500, 580))]
    kept, gone = set(), set()
    for salt, names in (("mine", gone), ("theirs", kept), (None, kept)):
        for prompt in prompts:
            chain = Chain(Context(salt=salt).root(NAMESPACE), NAMESPACE.chunk_tokens)
            chain.extend(prompt)
            keys = [*chain.keys, chain.part_key(len(prompt)), chain.tail_key(len(chain.keys)), chain.tail_key(0)]
            names |= {key.hex() for key in keys}
    house.open_space()
    for name in kept | gone:
        house.path(name).parent.mkdir(parents=True, exist_ok=True)
        house.path(name).write_bytes(whole(name))
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, prompts)))
    secret = tmp_path / "salt"
    secret.write_text("mine\n")
    words = ("--salt-file", str(secret), "--tokens", str(file))
    assert run("purge", *words, "--dry-run")[1]["chunks"] == len(gone) == 9
    assert run("purge", *words, "--yes")[1]["chunks"] == 9
    assert house.found() == kept
    assert run("purge", "--tokens", str(file), "--yes")[1]["chunks"] == 9, "no salt is a tenant of its own"
    file.write_text("[1, 2\n")
    assert f"{file}:1: expected a JSON list of token ids" in run("purge", *words, "--yes")[1]["problems"][0]
    (house.home() / "namespace.json").write_text("{}")
    file.write_text("[1]\n")
    assert "does not describe it" in run("purge", *words, "--yes")[1]["problems"][0]


ANNA, BERT = (Context(salt=salt).tenant for salt in ("anna", "bert"))


@pytest.fixture
def shared(house: House) -> dict[bytes, set[str]]:
    """A pool of two tenants and of nobody, in two namespaces; names by tag."""
    names: dict[bytes, set[str]] = {}
    for number, tag in enumerate((ANNA, BERT, b"") * 40):
        space = (NAMESPACE, OTHER)[number % 2]
        name = name_of(number)
        house.open_space(space)
        house.path(name, space).parent.mkdir(parents=True, exist_ok=True)
        house.path(name, space).write_bytes(whole(name, namespace=space, tenant=tag))
        names.setdefault(tag, set()).add(name)
    return names


def all_found(house: House) -> set[str]:
    return house.found() | house.found(OTHER)


def test_F03_exactly_a_tenant_s_chunks_go_by_its_salt_alone(
    house: House, run: Run, shared: dict[bytes, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither prompts nor tokens are needed; how much has no tag, and so may be from before, is told."""
    monkeypatch.setenv("KV_SALT", "anna")
    status, told, _ = run("purge", "--salt-env", "KV_SALT", "--dry-run")
    assert (status, told["chunks"], told["without_a_tag"]) == (0, 40, 40)
    assert len(all_found(house)) == 120
    status, told, said = run("purge", "--salt-env", "KV_SALT", "--yes")
    assert (status, told["chunks"], told["without_a_tag"]) == (0, 40, 40) and "anna" not in said + json.dumps(told)
    assert all_found(house) == shared[BERT] | shared[b""]
    assert run("purge", "--tenant", BERT.hex(), "--model", "model-b", "--yes")[1]["chunks"] == 20
    assert run("purge", "--tenant", ANNA.hex(), "--yes")[1]["chunks"] == 0
    assert all_found(house) == shared[b""] | (shared[BERT] & house.found())
    assert len(all_found(house)) == 60


def test_F03_what_is_damaged_is_nobody_s(house: House, run: Run, shared: dict[bytes, set[str]]) -> None:
    """A tag that cannot be believed removes nothing."""
    name = next(iter(shared[ANNA] & house.found()))
    data = bytearray(house.path(name).read_bytes())
    data[150] ^= 1
    house.path(name).write_bytes(data)
    assert run("purge", "--tenant", ANNA.hex(), "--yes")[1]["chunks"] == 39
    assert name in house.found()


def test_F03_stats_and_scan_tell_whose_chunks_are(
    run: Run, shared: dict[bytes, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = run("stats", "--tenants")[1]
    assert {(each["tag"], each["chunks"], each["bytes"]) for each in told["tenants"]} == {
        (ANNA.hex(), 40, 40 * SIZE),
        (BERT.hex(), 40, 40 * SIZE),
    }
    assert (told["without_a_tag"], told["unreadable"]) == ({"chunks": 40, "bytes": 40 * SIZE}, 0)
    assert f"tenant {ANNA.hex()}" in run("stats", "--tenants", json_=False)[1]
    monkeypatch.setenv("KV_SALT", "bert")
    lines = run("scan", "--salt-env", "KV_SALT", json_=False)[1].splitlines()
    assert {line.split()[1] for line in lines} == shared[BERT]


def test_a_salt_s_tag_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KV_SALT", "anna")
    assert main(["pool", "tag", "--salt-env", "KV_SALT", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"tag": ANNA.hex()}
    assert main(["pool", "tag"]) == 1


@pytest.fixture
def both(tmp_path: Path, house: House, far: House) -> Path:
    return write_yaml(tmp_path / "both.yaml", pool=house.root, far=far.root)


PATH = ("--from", "pool", "--to", "far")


def test_a_copy_brings_what_is_missing_byte_for_byte(house: House, far: House, run: Run, both: Path) -> None:
    house.add(range(60))
    house.add(range(60, 70), namespace=OTHER, length=77)
    far.add(range(10))
    assert run("copy", *PATH, "--dry-run", yaml=both)[1]["copied"] == 60 and len(far.found()) == 10
    status, done, _ = run("copy", *PATH, yaml=both)
    assert (status, done["copied"], done["there"], done["damaged"], done["failed"]) == (0, 60, 10, 0, 0)
    for namespace in (NAMESPACE, OTHER):
        assert far.found(namespace) == house.found(namespace)
        for name in far.found(namespace):
            assert far.path(name, namespace).read_bytes() == house.path(name, namespace).read_bytes()
        assert (far.home(namespace) / "namespace.json").read_text() == namespace.json
    assert far.stray() == [] and run("copy", *PATH, yaml=both)[1]["copied"] == 0


def test_what_is_there_is_not_read_again(
    house: House, far: House, run: Run, both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [number for number in range(8000) if name_of(number).startswith("7f")]
    house.add(numbers)
    far.add(number for number in numbers if number != numbers[4])
    reads, read = set(), DirectoryMedium.read

    def spy(self: DirectoryMedium, space: str, name: str, into: memoryview) -> object:
        reads.add(name)
        return read(self, space, name, into)

    monkeypatch.setattr(DirectoryMedium, "read", spy)
    done = run("copy", *PATH, yaml=both)[1]
    assert (done["copied"], done["there"], len(numbers) > 20) == (1, len(numbers) - 1, True)
    assert reads == {name_of(numbers[4])}


def test_A30_a_copy_takes_nothing_damaged_along(house: House, far: House, run: Run, both: Path) -> None:
    house.add(range(10))
    bad = house.add([100, 101])
    house.path(bad[0]).write_bytes(whole(bad[0])[:-1] + b"?")
    house.path(bad[1]).write_bytes(whole(bad[0]))
    status, done, _ = run("copy", *PATH, yaml=both)
    assert (status, done["copied"], done["damaged"]) == (1, 10, 2)
    assert far.found() == house.found() - set(bad)


def test_a_copy_goes_on_past_errors_and_stops_when_the_pool_is_full(
    house: House, far: House, run: Run, both: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, put = house.add(range(30)), DirectoryMedium.put

    def fails_once(self: DirectoryMedium, space: str, name: str, data: memoryview) -> bool:
        if name == names[3]:
            raise OSError(5, "Input/output error")
        return put(self, space, name, data)

    monkeypatch.setattr(DirectoryMedium, "put", fails_once)
    status, done, _ = run("copy", *PATH, yaml=both)
    assert (status, done["copied"], done["failed"]) == (1, 29, 1) and "Input/output error" in done["first_error"]

    def full(self: DirectoryMedium, space: str, name: str, data: memoryview) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(DirectoryMedium, "put", full)
    status, found, _ = run("copy", *PATH, yaml=both)
    assert status == 1 and "full after 0 chunks (ENOSPC)" in found["problems"][0]
    monkeypatch.setattr(DirectoryMedium, "put", put)
    assert run("copy", *PATH, yaml=both)[1]["copied"] == 1


def test_warming_brings_what_was_used_last(house: House, far: House, run: Run, both: Path) -> None:
    for number in range(40):
        house.add([number], unused=DAY + 3600 * number)
    status, done, _ = run("warm", *PATH, "--max", str(10 * SIZE + 100), yaml=both)
    assert status == 0 and 9 <= done["copied"] <= 10
    assert far.found() <= {name_of(number) for number in range(10)}
    assert run("warm", *PATH, "--max", "1GiB", yaml=both)[1]["copied"] + done["copied"] == 40

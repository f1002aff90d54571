"""`kvhub pool` on a bucket, as operators type it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from s3server import FaultProxy, Server

from kvhub.cli import main
from kvhub.keys import Context
from kvhub.testing.region import make_key, make_payload

KEPT = {make_key(number): make_payload(number, 5000) for number in range(12)}
Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def run(server: Server, bucket: str, prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """`kvhub pool COMMAND FILE --json OPTIONS`: status and what was printed; the file has `pool` and `other`."""

    def run(command: str, *words: str, endpoint: str = server.endpoint) -> tuple[int, Any]:
        file = tmp_path / "pool.yaml"
        store = f'{{use: s3, bucket: {bucket}, endpoint: "{endpoint}", credentials: {{env: KVTEST}}, prefix: {prefix}'
        file.write_text(
            f"kvhub: 1\nstores:\n  pool: {store}}}\n  other: {store}/other}}\n"
            "roles:\n  both:\n    store: [pool, other]\n    retrieve: [pool, other]\n"
        )
        capsys.readouterr()
        status = main(["pool", command, str(file), "--json", *words])
        return status, json.loads(capsys.readouterr().out)

    return run


def test_F03_a_purge_of_a_model_leaves_the_others(open_pool, run: Run) -> None:
    one, two = open_pool(namespace="model-a"), open_pool(namespace="model-b")
    one.keep(KEPT)
    two.keep(KEPT)
    status, found = run("purge", "--member", "pool", "--model", "model-a", "--yes")
    assert (status, found["chunks"]) == (0, 12)
    assert one.read([*KEPT]) == [None] * 12
    assert two.read([*KEPT]) == [*KEPT.values()]


def test_F03_a_purge_of_a_bucket_that_refuses_says_so(open_pool, run: Run, proxy: FaultProxy) -> None:
    pool = open_pool()
    pool.keep(KEPT)
    with proxy.failing("answer", methods=("POST", "DELETE"), status=403, code="AccessDenied"):
        status, found = run("purge", "--member", "pool", "--all", "--yes", endpoint=proxy.endpoint)
    assert status != 0
    assert "403 AccessDenied" in json.dumps(found)
    assert pool.read([*KEPT]) == [*KEPT.values()]


def test_F03_a_tenant_s_chunks_go_by_its_salt_alone(open_pool, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_SALT", "anna")
    pool, anna = open_pool(), Context(salt="anna").tenant
    mine = dict([*KEPT.items()][:5])
    pool.save(mine, tenant=anna)
    pool.keep({key: data for key, data in KEPT.items() if key not in mine})
    status, found = run("purge", "--member", "pool", "--salt-env", "KV_SALT", "--yes")
    assert (status, found["chunks"], found["without_a_tag"]) == (0, 5, 7)
    assert pool.read([*KEPT]) == [None if key in mine else data for key, data in KEPT.items()]


def test_C21_a_bucket_is_held_to_its_size_by_watermarks(open_pool, run: Run) -> None:
    pool = open_pool()
    pool.keep(KEPT)
    size = 12 * 9096
    words = ("gc", "--member", "pool", "--max", str(size), "--grace", "0s", "--high", "0.9", "--low", "0.5")
    status, told = run(*words)
    assert (status, told["bytes"], told["had_to_go"]) == (0, size, size // 2)
    assert 6 <= told["removed_chunks"] <= 7 and told["left_chunks"] == 12 - told["removed_chunks"]
    assert sum(data is not None for data in pool.read([*KEPT])) == told["left_chunks"]
    assert "cannot tell its free space" in json.dumps(run("gc", "--member", "pool", "--keep-free", "10%")[1])


@pytest.mark.slow
def test_stats_tell_what_there_is(open_pool, run: Run) -> None:
    open_pool(namespace="model-a").keep(KEPT)
    open_pool(namespace="model-b").keep(KEPT)
    status, found = run("stats", "--member", "pool", "--exact")
    assert (status, found["chunks"], found["bytes"]) == (0, 24, 24 * 9096)
    assert [each["model"] for each in found["namespaces"]] in (["model-a", "model-b"], ["model-b", "model-a"])


@pytest.mark.slow
def test_F03_nothing_young_is_collected(open_pool, run: Run) -> None:
    pool = open_pool()
    pool.keep(KEPT)
    assert run("gc", "--member", "pool", "--max", "1")[0] in (0, 1)
    assert pool.read([*KEPT]) == [*KEPT.values()]
    run("gc", "--member", "pool", "--max", "1", "--grace", "0s")
    assert pool.read([*KEPT]) == [None] * 12


@pytest.mark.slow
def test_chunks_are_verified_and_copied(open_pool, run: Run, objects) -> None:
    pool = open_pool()
    pool.keep(KEPT)
    key = next(iter(KEPT))
    objects.write(pool.member.context, key, (objects.read(pool.member.context, key) or b"")[:-1] + b"!")
    status, found = run("verify", "--member", "pool", "--deep", "--remove")
    assert (status, found["removed"]) == (0, 1)
    assert run("copy", "--from", "pool", "--to", "other")[0] == 0
    other = open_pool(prefix=f"{pool.member.config.prefix}/other")
    assert other.read([*KEPT]) == [None, *list(KEPT.values())[1:]]

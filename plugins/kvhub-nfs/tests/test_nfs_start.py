"""Start or refuse: what an operator reads when a directory cannot be worked in."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kvhub_nfs
from kvhub.errors import KvhubError
from kvhub.testing.region import make_key
from kvhub_nfs import DirectoryStore, LocalStore, probe, scratch


def refusal(open_pool, **options) -> str:
    with pytest.raises(KvhubError) as caught:
        open_pool(**options)
    return str(caught.value)


def test_the_hook_hands_over_two_kinds() -> None:
    assert kvhub_nfs.kvhub_register_stores() == (DirectoryStore, LocalStore)
    assert (DirectoryStore.kind, LocalStore.kind) == ("", "local")


def test_E17_missing_root_is_not_created(open_pool, tmp_path: Path) -> None:
    root = tmp_path / "absent"
    assert refusal(open_pool, root=root) == (f"pool: root {root} does not exist; mount or create it, then start again")
    assert not root.exists()


def test_E17_not_a_directory(open_pool, tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.write_text("x")
    assert refusal(open_pool, root=root) == (
        f"pool: root {root} is not a directory; name the directory that is to hold the chunks"
    )


@pytest.mark.parametrize(
    ("mounts", "words"),
    [
        ("mount -t tmpfs -o ro kv {root}", "is on a read-only file system; mount it read-write or name another root"),
        (
            "mount -t tmpfs -o size=4k kv {root}; head -c 4096 /dev/zero > {root}/fill",
            "has no space left (ENOSPC); free some or name another root",
        ),
    ],
)
def test_E17_real_mounts(other_hub, private_mount, tmp_path: Path, mounts: str, words: str) -> None:
    hub = other_hub("start", wrapper=private_mount(mounts.format(root=tmp_path)))
    assert hub.communicate()[0].splitlines() == [f"other: root {tmp_path} {words}", "soon"]


def test_E17_noexec_is_no_obstacle(other_hub, private_mount, tmp_path: Path) -> None:
    hub = other_hub("start", wrapper=private_mount(f"mount -t tmpfs -o noexec,nosuid,nodev kv {tmp_path}"))
    assert hub.communicate()[0].splitlines() == ["started", "soon"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_E17_no_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    program = (
        "import os, sys; from pathlib import Path; from kvhub_nfs import DirectoryStore, files\n"
        "from kvhub.testing.driver import Driver; from kvhub.testing.region import make_context\n"
        "root = '/proc/self/fd/' + sys.argv[1]; os.setuid(65534)\n"
        "Driver(DirectoryStore(DirectoryStore.Config(root=root), make_context('pool'))).attach()"
    )
    # Through a descriptor: the folders above the test's own may be closed to others.
    fd = os.open(tmp_path, os.O_RDONLY)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, "-c", program, str(fd)], pass_fds=[fd], capture_output=True, text=True, env=environment
    )
    os.close(fd)
    assert f"pool: root /proc/self/fd/{fd} does not permit uid 65534 to write (EACCES)" in ended.stderr


@pytest.mark.parametrize("code", [*probe._ADVICE, errno.EIO])
def test_E17_every_refusal_is_a_sentence_of_its_own(code: int) -> None:
    sentences = {str(probe.refusal("pool", Path("/mnt/kv"), OSError(c, os.strerror(c)))) for c in probe._ADVICE}
    assert len(sentences) == len(probe._ADVICE)
    sentence = str(probe.refusal("pool", Path("/mnt/kv"), OSError(code, os.strerror(code))))
    assert sentence.startswith("pool: root /mnt/kv ") and ";" in sentence and "{" not in sentence


def test_E17_a_medium_that_returns_other_bytes(open_pool, monkeypatch, tmp_path: Path) -> None:
    real = os.preadv

    def wrong(fd: int, buffers: list[memoryview], at: int) -> int:
        count = real(fd, buffers, at)
        buffers[0][0] ^= 1
        return count

    monkeypatch.setattr(os, "preadv", wrong)
    assert "what was read is not what was written; check the mount and its server" in refusal(open_pool)
    monkeypatch.undo()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_E18_a_role_that_only_retrieves_writes_nothing(open_pool, pool, tmp_path: Path) -> None:
    """Not at start, not when it meets a damaged chunk, and not at the end."""
    keys = [make_key(number) for number in range(2)]
    pool.save(dict.fromkeys(keys, b"x" * 5000))
    pool.path(keys[1]).write_bytes(b"spoilt")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    reader = open_pool(writes=False)
    assert [reader.load([key]).outcomes[0].name for key in keys] == ["DONE", "CORRUPT"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    empty = tmp_path / "empty"
    empty.mkdir()
    open_pool(writes=False, root=empty)
    assert list(empty.iterdir()) == []
    assert "does not exist" in refusal(open_pool, writes=False, root=tmp_path / "absent")


def test_the_probe_leaves_nothing(open_pool) -> None:
    pool = open_pool()
    assert [path.name for path in pool.root.rglob("*") if path.is_file()] == ["namespace.json"]


def test_another_namespace_in_our_place_is_refused(open_pool) -> None:
    pool = open_pool()
    (pool.home / "namespace.json").write_text('{"model": "another", "dtype": "float16"}')
    said = refusal(open_pool)
    assert f"pool: {pool.home}/namespace.json tells of another namespace than this hub's: dtype, model differ" in said
    assert "move that directory away or name another root" in said
    assert len([*(pool.home / ".tmp").iterdir()]) == 1, "a refused start leaves nothing"


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"'])
def test_a_broken_namespace_file_is_refused(open_pool, text: str) -> None:
    pool = open_pool()
    (pool.home / "namespace.json").write_text(text)
    assert "delete that one file, then start again" in refusal(open_pool)


def test_the_same_namespace_in_another_spelling_is_the_same(open_pool) -> None:
    pool = open_pool()
    (pool.home / "namespace.json").write_text('{\n  "model":  "tests"\n}\n')
    open_pool().keep({make_key("x"): b"x"})


def test_dead_owners_are_told_from_living_ones() -> None:
    mine = scratch.new_owner()
    boot, space, pid, start, tail = mine.split("-")
    assert pid == str(os.getpid())
    assert not scratch.surely_dead(mine)
    assert scratch.surely_dead(f"{boot}-{space}-{pid}-{int(start) - 1}-{tail}"), "the pid was used again"
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert scratch.surely_dead(f"{boot}-{space}-{ended.pid}-{start}-{tail}")
    for doubtful in (
        f"{'0' * 16}-{space}-{ended.pid}-{start}-{tail}",
        f"{boot}-1-{ended.pid}-{start}-{tail}",
        f"{boot}-{space}-x-{start}-{tail}",
        "unknown-0-1-0-aaaa",
        "x",
    ):
        assert not scratch.surely_dead(doubtful), doubtful


@pytest.mark.parametrize("hours", [1, 25])
def test_C11_what_another_machine_left_is_swept_after_a_day(open_pool, hours: int) -> None:
    first = open_pool()
    left = first.home / ".tmp" / f"{'0' * 16}-1-1-1-aaaaaaaa"
    left.mkdir()
    (left / "7").write_bytes(b"x" * 5000)
    old = time.time() - hours * 3600
    os.utime(left / "7", (old, old))
    second = open_pool()
    assert (left / "7").exists() == (hours == 1)
    assert second.counts == ({} if hours == 1 else {"swept_files": 1})

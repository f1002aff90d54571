"""What lies in the directory: damage, errors of the file system, fan-out, and what serving may not do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kvhub.chunkfile import HEADER_BYTES
from kvhub.testing.region import make_key, make_payload
from kvhub.types import Capabilities, Op, Outcome
from kvhub_nfs import files
from kvhub_nfs.store import absolute

DONE, KEPT, MISS, CORRUPT, FAILED, FULL = (
    Outcome.DONE, Outcome.KEPT, Outcome.MISS, Outcome.CORRUPT, Outcome.FAILED, Outcome.FULL,
)  # fmt: skip
KEY, OTHER, DATA = make_key("one"), make_key("two"), make_payload("one")


def test_capabilities(pool) -> None:
    assert pool.member.capabilities == Capabilities(persistent=True, shared=True, removes=True, scans=True, codecs=True)
    assert pool.member.used_bytes() is None


def test_one_file_per_chunk_beside_a_readable_namespace(pool) -> None:
    pool.keep({KEY: DATA})
    name = KEY.hex()
    found = sorted(str(path.relative_to(pool.root)) for path in pool.root.rglob("*") if path.is_file())
    space = pool.member.context.namespace.hex()[:32]
    assert found == sorted([f"{space}/namespace.json", f"{space}/{name[:2]}/{name[2:4]}/{name}.kv"])
    assert (pool.home / "namespace.json").read_text() == '{"model": "tests"}'
    assert pool.path(KEY).read_bytes()[4096:] == DATA
    assert pool.path(KEY).stat().st_mode & 0o137 == 0, "KV tells prompts: not for the world, not executable"


def test_A14_no_name_leaves_the_root(pool) -> None:
    """Names are digits of the key, whatever bytes it has."""
    keys = [b"/" * 32, b".." + b"/" * 30, bytes(32), b"\xff" * 32, b"../../../../../../../../../../etc"[:32]]
    pool.keep({key: key for key in keys})
    assert pool.read(keys) == keys
    assert sorted(key for key, _ in pool.member.scan()) == sorted(keys)
    assert {path.parent.parent.parent for path in pool.root.rglob("*.kv")} == {pool.home}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-7] ^= 4
    path.write_bytes(data)


def extend(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


DAMAGE: dict[str, Callable[[Path], None]] = {
    "truncated to nothing": lambda path: os.truncate(path, 0),
    "one byte short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "one byte long": extend,
    "one bit flipped": flip,
}


def test_C03_damaged_files_are_misses_of_their_own(pool) -> None:
    """Four kinds of damage, each counted and removed; a directory in a file's place is an I/O error and stays."""
    keys = [make_key(name) for name in DAMAGE]
    pool.keep(dict.fromkeys(keys, DATA) | {KEY: DATA, OTHER: DATA})
    for key, damage in zip(keys, DAMAGE.values(), strict=True):
        damage(pool.path(key))
    pool.path(OTHER).unlink()
    pool.path(OTHER).mkdir()
    done = pool.load([*keys, OTHER, KEY, make_key("absent")])
    assert done.outcomes == (CORRUPT,) * 4 + (FAILED, DONE, MISS)
    assert pool.counts == {"integrity_errors": 4, "io_errors": 1}
    assert [pool.path(key).exists() for key in [*keys, OTHER, KEY]] == [False] * 4 + [True, True]
    assert set(pool.save(dict.fromkeys(keys, DATA)).outcomes) == {DONE}
    assert pool.unfinished() == []


def test_C03_a_fifo_hangs_nobody(pool) -> None:
    pool.keep({KEY: DATA})
    pool.path(KEY).unlink()
    os.mkfifo(pool.path(KEY))
    assert (pool.find([KEY]), pool.load([KEY]).reason) == ((MISS,), "EINVAL")


def test_C03_a_good_chunk_saved_during_the_removal_survives(pool, monkeypatch) -> None:
    """Between our look at the file and our rename another hub puts a good chunk there: it is moved back."""
    pool.keep({KEY: DATA})
    good = pool.path(KEY).read_bytes()
    flip(pool.path(KEY))
    rename = os.rename

    def racing(source: str, target: str) -> None:
        if str(source).endswith(".kv"):
            replacement = pool.path(KEY).with_suffix(".new")
            replacement.write_bytes(good)
            rename(replacement, source)
        rename(source, target)

    monkeypatch.setattr(os, "rename", racing)
    assert pool.load([KEY]).outcomes == (CORRUPT,)
    monkeypatch.undo()
    assert pool.read([KEY]) == [DATA]
    assert pool.unfinished() == []


def test_remove_exactly_leaves_a_newer_file(tmp_path: Path) -> None:
    path, aside = tmp_path / "file", str(tmp_path / "aside")
    path.write_bytes(b"old")
    seen = files.identity(path.stat())
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "new").rename(path)
    assert not files.remove_exactly(str(path), seen, aside)
    assert path.read_bytes() == b"new"
    assert files.remove_exactly(str(path), files.identity(path.stat()), aside)
    assert not files.remove_exactly(str(path), seen, aside)
    assert [*tmp_path.iterdir()] == []


def test_A30_swapped_files(pool) -> None:
    pool.keep({KEY: DATA, OTHER: make_payload("two")})
    first, second = pool.path(KEY), pool.path(OTHER)
    one = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(one)
    done = pool.load([KEY, OTHER])
    assert (done.outcomes, done.reason, pool.counts) == ((CORRUPT, CORRUPT), "key", {"integrity_errors": 2})


def test_C25_files_of_another_version_stay(pool) -> None:
    pool.keep({KEY: DATA, OTHER: DATA})
    data = bytearray(pool.path(KEY).read_bytes())
    data[8] = 2
    pool.path(KEY).write_bytes(data)
    assert pool.load([KEY, OTHER]).outcomes == (MISS, DONE)
    assert pool.counts == {"foreign_objects": 1}
    assert pool.path(KEY).read_bytes() == data


def test_C13_a_second_save_writes_nothing(pool, failing) -> None:
    pool.keep({KEY: DATA})
    before = pool.path(KEY).stat()
    failing("writev", errno.EIO)
    assert pool.save({KEY: DATA}).outcomes == (KEPT,)
    assert pool.save({KEY: make_payload("other")}).outcomes == (KEPT,)
    assert pool.path(KEY).stat() == before
    assert pool.counts == {"conflicts": 1}


@pytest.mark.parametrize("call", ["open", "fstat", "preadv"])
def test_C19_a_stale_handle_is_opened_anew_once_and_then_a_miss(pool, failing, monkeypatch, call: str) -> None:
    pool.keep({KEY: DATA})
    failing(call, errno.ESTALE, times=1)
    assert pool.read([KEY]) == [DATA]
    assert pool.counts == {"stale_handles": 1}
    failing(call, errno.ESTALE)
    assert pool.load([KEY]).outcomes == (MISS,)
    monkeypatch.undo()
    assert pool.read([KEY]) == [DATA]
    assert pool.counts == {"stale_handles": 2}


def test_C19_a_stale_mount_is_no_miss(pool, failing) -> None:
    """Every path fails then: that has to trip the breaker, or a probe would let the store in again."""
    pool.keep({KEY: DATA})
    failing("open", errno.ESTALE)
    failing("stat", errno.ESTALE)
    for op in (Op.LOAD, Op.FIND):
        done = pool.run(op, [KEY], [40] * (op is Op.LOAD))
        assert (done.outcomes, done.reason) == ((FAILED,), "ESTALE")


def test_C19_a_stale_path_is_looked_up_as_a_miss_while_the_mount_is_well(pool, failing) -> None:
    pool.keep({KEY: DATA})
    failing("stat", errno.ESTALE, times=1)
    assert pool.find([KEY]) == (MISS,)
    assert pool.find([KEY]) == (DONE,)


@pytest.mark.parametrize("code", [errno.EIO, errno.ETIMEDOUT, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("call", ["open", "fstat", "preadv"])
def test_C03_an_io_error_on_load_removes_nothing(pool, failing, call: str, code: int) -> None:
    pool.keep({KEY: DATA})
    failing(call, code, times=1)
    done = pool.load([KEY])
    assert (done.outcomes, done.reason, pool.counts) == ((FAILED,), errno.errorcode[code], {"io_errors": 1})
    assert pool.read([KEY]) == [DATA]


def test_a_failing_lookup_is_not_a_miss(pool, failing) -> None:
    failing("stat", errno.EIO, times=1)
    done = pool.run(Op.FIND, [KEY])
    assert (done.outcomes, done.reason) == ((FAILED,), "EIO")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("call", ["open", "writev", "write", "pwrite", "fsync", "close", "rename"])
def test_C06_no_error_of_a_write_is_published(open_pool, failing, monkeypatch, call: str, code: int) -> None:
    """NFS tells of a full disk as late as fsync or close; a rename after that would publish an empty file."""
    pool = open_pool(fsync=True)
    if call == "write":
        real = os.writev
        monkeypatch.setattr(os, "writev", lambda fd, buffers: real(fd, [memoryview(b"".join(buffers))[:5000]]))
    elif call == "pwrite":
        monkeypatch.setattr(files, "HASHED_FROM", 0)
    failing(call, code, times=1, after=call == "close")
    done = pool.save({KEY: DATA})
    expected = FAILED if code == errno.EIO else FULL
    assert (done.outcomes, done.reason) == ((expected,), errno.errorcode[code])
    assert not pool.path(KEY).exists()
    assert pool.unfinished() == []
    assert pool.save({KEY: DATA}).outcomes == (DONE,)
    assert pool.read([KEY]) == [DATA]


def test_C06_full_for_ever_still_reads(pool, failing, monkeypatch) -> None:
    pool.keep({KEY: DATA})
    with monkeypatch.context():
        failing("writev", errno.ENOSPC)
        for n in range(5):
            assert pool.save({make_key(n): DATA}).outcomes == (FULL,)
            assert pool.read([KEY]) == [DATA]
    monkeypatch.undo()
    assert pool.save({OTHER: DATA}).outcomes == (DONE,)


def test_C03_short_writes_and_reads_are_continued(pool, monkeypatch) -> None:
    """A write that takes a part returns without an error; so does a read."""
    writev, write, preadv = os.writev, os.write, os.preadv
    monkeypatch.setattr(os, "writev", lambda fd, b: writev(fd, [memoryview(b"".join(b))[:3000]]))
    monkeypatch.setattr(os, "write", lambda fd, b: write(fd, b[:7001]))
    monkeypatch.setattr(os, "preadv", lambda fd, b, at: preadv(fd, [b[0][:1000]], at))
    pool.keep({KEY: DATA})
    assert pool.read([KEY]) == [DATA]


def test_C03_what_is_hashed_while_it_is_written_is_the_same_file(pool, monkeypatch) -> None:
    """In pieces and with short writes; a writer that stops half-way has put no header there yet."""
    pool.keep({KEY: DATA})
    plain = pool.path(KEY).read_bytes()[HEADER_BYTES:]
    pwrite = os.pwrite
    monkeypatch.setattr(files, "HASHED_FROM", 0)
    monkeypatch.setattr(files, "PIECE", 5000)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3000], at))
    pool.keep({OTHER: DATA})
    assert pool.path(OTHER).read_bytes()[HEADER_BYTES:] == plain
    assert pool.read([OTHER]) == [DATA]


def test_C05_fan_out_and_no_listing_while_serving(pool, monkeypatch) -> None:
    """20 000 keys: no directory above 512 entries.  Of 100 lookups, loads and saves none lists a directory."""
    names = [make_key(n).hex() for n in range(20_000)]
    paths = [Path(pool.member._path(name)) for name in names]
    for level in range(3):
        parents: dict[Path, set[str]] = {}
        for path in paths:
            here = path if level == 0 else path.parents[level - 1]
            parents.setdefault(here.parent, set()).add(here.name)
        assert max(map(len, parents.values())) <= 512

    def never(*_: object) -> None:
        raise AssertionError("a directory was listed while serving")

    for call in ("scandir", "listdir", "walk"):
        monkeypatch.setattr(os, call, never)
    for n in range(100):
        key = make_key(n)
        assert pool.find([key]) == (MISS,)
        assert pool.save({key: key}).outcomes == (DONE,)
        assert (pool.find([key]), pool.read([key])) == ((DONE,), [key])
    assert pool.remove([make_key(0)]) == (DONE,)


def test_C22_many_keys_at_once_and_no_stale_positive(pool, monkeypatch) -> None:
    """64 keys are one batch and 64 system calls, four at a time; what is deleted outside is a miss at once."""
    keys = [make_key(n) for n in range(64)]
    pool.keep({key: key for key in keys[:32]})
    real, asked = os.stat, []
    monkeypatch.setattr(os, "stat", lambda *a, **m: asked.append(a) or real(*a, **m))
    assert pool.find(keys) == (DONE,) * 32 + (MISS,) * 32
    assert len(asked) == 64
    pool.path(keys[0]).unlink()
    assert pool.load(keys[:1]).outcomes == (MISS,)
    assert pool.find(keys[:1]) == (MISS,)


def test_scan_skips_what_is_not_a_chunk(pool) -> None:
    pool.keep({KEY: DATA})
    beside = pool.path(KEY).parent
    for name in (".nfs0000001", f".{KEY.hex()}.kv", "README", f"{OTHER.hex()}.tmp", f"{'g' * 64}.kv"):
        (beside / name).write_bytes(b"x")
    assert list(pool.member.scan()) == [(KEY, len(DATA))]


def test_a_swept_scratch_directory_is_made_again(pool) -> None:
    """Another hub sweeps what a day's idle hub seems to have left behind."""
    pool.member._scratch.remove()
    assert pool.save({KEY: DATA}).outcomes == (DONE,)


def test_an_unmounted_root_is_not_written_below(pool, monkeypatch) -> None:
    """The mount point is an empty directory of another file system then; filling that disk would be worse."""
    real = os.stat

    def elsewhere(path: str | Path, **more: object) -> os.stat_result:
        found = real(path, **more)
        return os.stat_result([*found[:2], found.st_dev + 1, *found[3:10]]) if path == pool.root else found

    pool.member._scratch.remove()
    monkeypatch.setattr(os, "stat", elsewhere)
    done = pool.save({KEY: DATA})
    assert (done.outcomes, done.reason) == ((FAILED,), "ESTALE")
    assert not pool.path(KEY).exists() and not (pool.home / ".tmp").joinpath("x").exists()


def test_B03_close_leaves_no_directory_of_its_own(open_pool) -> None:
    pool = open_pool()
    pool.keep({KEY: DATA})
    pool.close()
    assert [*(pool.home / ".tmp").iterdir()] == []


@pytest.mark.parametrize("root", ["kv", "./kv", "", "~/kv"])
def test_a_relative_root_is_refused(root: str) -> None:
    with pytest.raises(ValueError, match="expected an absolute path such as /mnt/kv, found "):
        absolute(root)


@pytest.mark.parametrize("workers", [0, 257, True, "4"])
def test_worker_counts_are_held(open_pool, workers: object) -> None:
    with pytest.raises(ValueError, match="expected a number of workers from 1 to 256"):
        open_pool(attach=False, workers=workers)

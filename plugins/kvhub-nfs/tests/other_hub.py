"""Another hub on the same directory, run as a process: `other_hub.py ROOT DEED ...` (see the functions)."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import sys
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path

from kvhub.errors import KvhubError
from kvhub.testing.driver import Driver
from kvhub.testing.region import make_context, make_key, make_payload
from kvhub.types import Op, Outcome
from kvhub_nfs import DirectoryStore, room


def open_hub(root: str, *, slots: int = 16, slot_bytes: int = 2**20, counts: Counter[str] | None = None) -> Driver:
    context = make_context("other", report=lambda name, count: None if counts is None else counts.update({name: count}))
    hub = Driver(DirectoryStore(DirectoryStore.Config(root=root), context), slots=slots, slot_bytes=slot_bytes)
    hub.attach()
    return hub


def say(*words: object) -> None:
    print(*words, flush=True)


def put(root: str, key: str, length: str, times: str) -> None:
    """Save one key over and over, removing it now and then; prints how many saves were not good."""
    hub, bad = open_hub(root), 0
    say("ready")
    sys.stdin.readline()
    for turn in range(int(times)):
        done = hub.save({make_key(key): make_payload(key, int(length))})
        bad += not done.outcomes[0].good
        if turn % 8 == 7:
            hub.remove([make_key(key)])
    hub.save({make_key(key): make_payload(key, int(length))})
    hub.close()
    say("bad", bad)


def lives(root: str) -> None:
    """For every tag that is read: a child that stores for ever, to be killed; forked, so that it starts at once."""
    for tag in sys.stdin:
        child = os.fork()
        if child == 0:
            store_forever(root, tag.strip())
        os.waitpid(child, 0)
        say("killed")


def store_forever(root: str, tag: str) -> None:
    """Tell the pid, save 256 KiB chunks `tag 0`, `tag 1`, ... for ever, and tell how many are done."""
    hub = open_hub(root)
    say(os.getpid())
    number = 0
    while True:
        names = [f"{tag} {number + n}" for n in range(8)]
        done = hub.save({make_key(name): sha256(name.encode()).digest() * 8192 for name in names})
        assert set(done.outcomes) == {Outcome.DONE}, done
        number += 8
        say("saved", number)


def stop_in_write(root: str, key: str, length: str) -> None:
    """Write half of a chunk's file, then hang: to be killed."""
    writev = os.writev

    def half(fd: int, buffers: list[memoryview]) -> int:
        flat = memoryview(b"".join(buffers))
        writev(fd, [flat[: len(flat) // 2]])
        say("half")
        time.sleep(60)
        raise AssertionError("not killed")

    hub = open_hub(root)
    os.writev = half  # type: ignore[assignment]
    hub.start_save({make_key(key): make_payload(key, int(length))})
    time.sleep(60)


def fail_in_write(root: str, key: str) -> None:
    """Save with a data write that fails half way."""
    hub = open_hub(root)
    writev = os.writev

    def broken(fd: int, buffers: list[memoryview]) -> int:
        writev(fd, [buffers[0]])
        raise OSError(errno.EIO, "injected")

    os.writev = broken  # type: ignore[assignment]
    done = hub.save({make_key(key): make_payload(key)})
    say(done.outcomes[0].name, done.reason)
    hub.close()


def fill(root: str) -> None:
    """Save until the file system is full, free one chunk, and save again; prints what each phase gave."""
    hub = open_hub(root)
    names = [f"fill {n}" for n in range(20)]
    ends = [hub.save({make_key(name): make_payload(name, 2**18)}) for name in names]
    say(*(done.outcomes[0].name for done in ends))
    say(*{done.reason for done in ends if done.outcomes[0] is Outcome.FULL})
    good = [name for name, done in zip(names, ends, strict=True) if done.outcomes[0] is Outcome.DONE]
    reads = [hub.read([make_key(name)]) == [make_payload(name, 2**18)] for name in good]
    say("reads", all(reads))
    say("unfinished", sum(path.is_file() for path in Path(root).glob("*/.tmp/*/*")))
    hub.remove([make_key(good[0])])
    say("again", hub.save({make_key("again"): make_payload("again", 2**18)}).outcomes[0].name)
    hub.close()


def sweep(root: str) -> None:
    """Fill the file system with young chunks, let half of them be a day old, and save again; prints what came of it."""
    counts: Counter[str] = Counter()
    hub = open_hub(root, counts=counts)
    said = []
    for n in itertools.count():
        said.append(hub.save({make_key(n): make_payload(n, 2**18)}).outcomes[0].name)
        if said[-1] == "FULL":
            break
    kept = len(said) - 1
    say("young", counts["room_sweeps"], counts["room_chunks"], all(hub.read([make_key(n)])[0] for n in range(kept)))
    files = {n: next(Path(root).glob(f"*/??/??/{make_key(n).hex()}.kv")) for n in range(kept)}
    for n in range(0, kept, 2):
        os.utime(files[n], (time.time() - 86400 + n, time.time() - 86400 + n))
    room.REST_SECONDS = hub.member._rooms._rest_until = 0.0
    counts.clear()
    start = time.monotonic()
    done = hub.save({make_key("late"): make_payload("late", 2**18)})
    gone = [n for n, path in files.items() if not path.exists()]
    say("late", done.outcomes[0].name, hub.read([make_key("late")]) == [make_payload("late", 2**18)])
    say("gone", bool(gone), all(n % 2 == 0 for n in gone), counts["room_chunks"] == len(gone), counts["room_sweeps"])
    say("in time", time.monotonic() - start < 10)
    hub.close()
    say("left", sum(path.is_file() for path in Path(root).rglob(".tmp/*/*")))


def few_descriptors(root: str, count: str) -> None:
    """Load many chunks at once with hardly any file descriptors, then with none; prints the outcomes."""
    hub = open_hub(root, slots=600, slot_bytes=4096)
    keys = [make_key(n) for n in range(int(count))]
    hub.keep({key: key for key in keys[:200]})
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    batches = [hub.submit(Op.LOAD, keys[n::50], range(n, 500, 50)) for n in range(50)]
    most = 0
    while hub.under_way:
        most = max(most, sum(1 for _ in Path("/proc/self/fd").iterdir()))
        hub.poll()
    found = [outcome for batch in batches for outcome in hub.wait(batch).outcomes]
    say(found.count(Outcome.DONE), found.count(Outcome.MISS), len(found), most <= 64)
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    done = hub.load(keys[:8])
    say(*{outcome.name for outcome in done.outcomes}, done.reason)
    for fd in taken:
        os.close(fd)
    say(*{outcome.name for outcome in hub.load(keys[:8]).outcomes})
    hub.close()


def start(root: str) -> None:
    """Attach only; prints the sentence of a refusal, or `started`."""
    before = time.monotonic()
    try:
        hub = open_hub(root)
    except KvhubError as refusal:
        say(refusal)
    else:
        say("started")
        hub.keep({make_key("start"): make_payload("start")})
        hub.close()
    say("soon" if time.monotonic() - before < 5 else "slow")


DEEDS = {
    deed.__name__: deed for deed in (put, lives, stop_in_write, fail_in_write, fill, sweep, few_descriptors, start)
}

if __name__ == "__main__":
    DEEDS[sys.argv[2]](sys.argv[1], *sys.argv[3:])

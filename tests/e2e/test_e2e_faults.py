"""Killed engines, full disks, flipped bits and pools that hang: never a wrong token, never an engine that stops."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from e2e.asking import at_rest, flushed, hits, inside, prompt, same, turn
from e2e.conftest import PD, POOL_ONLY, TIERED, Start

pytestmark = pytest.mark.vllm
LONG = prompt(1500)


def files(pool: Path) -> list[Path]:
    return [path for path in pool.rglob("*.kv") if ".tmp" not in path.parts]


def test_prefill_killed_mid_transfer(start: Start) -> None:
    """SIGKILL while decode pulls: decode computes what did not arrive, within its deadline."""
    plain, decode = start(), start("decode", PD)
    expected = plain.complete(LONG, max_tokens=12)
    for delay in (0.0, 0.01, 0.04):
        prefill = start("prefill", PD)
        first = prefill.complete(LONG, max_tokens=1, params={"do_remote_decode": True}, logprobs=None)
        killer = threading.Timer(delay, os.kill, (prefill.pid, 9))
        killer.start()
        begun = time.monotonic()
        same(expected, decode.complete(LONG, max_tokens=12, params=dict(first.params or {})))
        assert time.monotonic() - begun < 10 + 30, "the wire's deadline, and computing it all on a busy machine"
        killer.join()
        prefill.kill()
        decode.forget_prefixes()
    flushed(decode)
    at_rest(decode)


def test_decode_killed_mid_write_back(start: Start, pool: Path) -> None:
    """SIGKILL while it stores: what is visible in the pool is whole, the rest is missing."""
    plain, prefill = start(), start("prefill", PD)
    expected = plain.complete(LONG, max_tokens=12)
    for round_ in range(3):
        decode = start("decode", PD)
        first = prefill.complete(LONG, max_tokens=1, params={"do_remote_decode": True}, logprobs=None)
        killer = threading.Timer(0.3 + 0.1 * round_, os.kill, (decode.pid, 9))
        killer.start()
        try:
            same(expected, decode.complete(LONG, max_tokens=12, params=dict(first.params or {})))
        except Exception as error:
            assert "gone" in str(error) or "no answer" in str(error)
        killer.join()
        decode.kill()
        prefill.forget_prefixes()
        same(expected, prefill.complete(LONG, max_tokens=12))
    reader = start("both", POOL_ONLY)
    same(expected, reader.complete(LONG, max_tokens=12))
    assert "faults pool checksum" not in inside(reader, "reports")
    at_rest(reader)


def test_C03_a_flipped_bit_in_every_file_is_a_miss(start: Start, pool: Path) -> None:
    plain, writer = start(), start("both", POOL_ONLY)
    expected = plain.complete(LONG, max_tokens=12)
    same(expected, writer.complete(LONG, max_tokens=12))
    flushed(writer)
    for at, path in enumerate(files(pool)):
        data = bytearray(path.read_bytes())
        place = (at * 7919 + 5) % len(data)
        data[place] ^= 1 << at % 8
        path.write_bytes(data)
    reader = start("both", POOL_ONLY)
    same(expected, reader.complete(LONG, max_tokens=12))
    assert not hits(reader).get("pool")
    writer.forget_prefixes()
    same(expected, writer.complete(LONG, max_tokens=12))
    flushed(reader)
    at_rest(reader)


def test_C06_a_full_disk_stops_storing_only(start: Start, pool: Path) -> None:
    """A tmpfs that is too small: what fits is served, the rest is dropped and counted."""
    small = pool / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        plain, engine = start(), start("both", TIERED.replace("{pool}", str(small)))
        for seed in range(3):
            tokens = prompt(700, seed)
            same(plain.complete(tokens, max_tokens=8), engine.complete(tokens, max_tokens=8))
        flushed(engine)
        told = inside(engine, "reports")
        assert told["save_full pool"] > 0
        assert told["save_done pool"] > 0
        engine.forget_prefixes()
        tokens = prompt(700, 0)
        same(plain.complete(tokens, max_tokens=8), engine.complete(tokens, max_tokens=8))
        at_rest(engine)
        engine.stop()
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_a_pool_of_fifos_costs_at_most_the_deadline(start: Start, pool: Path) -> None:
    """Every chunk is a FIFO that nobody writes: opening one the naive way hangs for ever."""
    plain, writer = start(), start("both", POOL_ONLY)
    expected = plain.complete(LONG, max_tokens=12)
    same(expected, writer.complete(LONG, max_tokens=12))
    flushed(writer)
    for path in files(pool):
        path.unlink()
        os.mkfifo(path)
    reader = start("both", POOL_ONLY.replace("lookup: 5s", "lookup: 200ms").replace("deadline: 10s", "deadline: 500ms"))
    same(expected, reader.complete(LONG, max_tokens=12))
    assert not hits(reader).get("pool")
    flushed(reader)
    at_rest(reader)


def test_B18_a_frozen_file_system_holds_up_no_request(start: Start, tmp_path: Path) -> None:
    """Every write to the pool hangs (the file system is frozen); requests go on, and stores resume after the thaw."""
    image, mounted = tmp_path / "image", tmp_path / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", image], capture_output=True).returncode
    if made or subprocess.run(["mount", "-o", "loop", image, mounted], capture_output=True).returncode:
        pytest.skip("needs mkfs.ext4 and the right to mount a loop device")
    frozen = False
    try:
        yaml = TIERED.replace("{pool}", str(mounted)).replace("lookup: 5s", "lookup: 200ms")
        plain, engine = start(), start("both", yaml)
        frozen = subprocess.run(["fsfreeze", "-f", mounted]).returncode == 0
        for seed in range(3):
            begun = time.monotonic()
            tokens = prompt(500, seed)
            same(plain.complete(tokens, max_tokens=8), engine.complete(tokens, max_tokens=8))
            assert time.monotonic() - begun < 30
        assert frozen and "save_done pool" not in inside(engine, "reports")
        subprocess.run(["fsfreeze", "-u", mounted], check=True)
        frozen = False
        flushed(engine)
        at_rest(engine)
        assert files(mounted)
        engine.stop()
    finally:
        if frozen:
            subprocess.run(["fsfreeze", "-u", mounted], check=True)
        subprocess.run(["umount", "-l", mounted], check=True)


def test_B23_a_missing_pool_stops_the_start(start: Start, pool: Path) -> None:
    from harness.engine import EngineError

    with pytest.raises(EngineError, match=r"pool: .*nowhere"):
        start("both", TIERED.replace("{pool}", str(pool / "nowhere")))


def test_turns_go_on_when_the_pool_is_taken_away(start: Start, pool: Path) -> None:
    """The pool's directory vanishes between two turns: misses, no failure."""
    prefill, decode, plain = start("prefill", PD), start("decode", PD), start()
    said = prompt(300)
    answer = turn(prefill, decode, said)
    said = [*said, *answer.tokens, *prompt(30, 2)]
    flushed(decode)
    pool.rename(pool.with_name("gone"))
    for engine in (prefill, decode):
        engine.forget_prefixes()
    same(plain.complete(said, max_tokens=20), turn(prefill, decode, said, max_tokens=20))

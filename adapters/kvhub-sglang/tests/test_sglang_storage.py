"""The faults that storage backends of HiCache had in public, and what the interface leaves to the backend."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.hicache import PAGE, YAML, Start, same

import kvhub_nfs
from kvhub.errors import ConfigError, KvhubError

pytestmark = pytest.mark.sglang
SLOW = YAML.replace("5s", "300ms")
SMALL = YAML.replace("8MiB", "256KiB")
WIDE = YAML.replace("chunk_tokens: 16", "chunk_tokens: 32")
WIRED = (
    YAML.replace("store: [pool]", "store: [pool, wire]")
    + "  decode: {{retrieve: [wire]}}\ntransports: {{wire: {{use: tcp}}}}\n"
)
READER = YAML + "  prefill: {{retrieve: [pool]}}\n"
TIERED = YAML.replace("stores:\n", "stores:\n  host: {{use: host, capacity: 8MiB}}\n").replace(
    "store: [pool], retrieve: [", "store: [host, pool], retrieve: [host, "
)


def files(pool: Path) -> list[Path]:
    return sorted(path for path in pool.rglob("*.kv") if ".tmp" not in path.parts)


@pytest.mark.parametrize("mode", ["v1", "flat"])
def test_C03_a_flipped_bit_is_a_miss(start: Start, pool: Path, mode: str) -> None:
    """Pitfall 1: SGLang serves whatever bytes it gets."""
    stack = start(zero_copy=mode == "v1")
    keys, _ = stack.stored(6, mode=mode)
    for at, path in enumerate(files(pool)):
        data = bytearray(path.read_bytes())
        data[4096 + (at * 977) % (len(data) - 4096)] ^= 1
        path.write_bytes(data)
    assert stack.loaded(keys, mode=mode)[0] == 0
    assert stack.backend.hub.reports.total("faults", member="pool", reason="checksum") > 0


def test_C01_a_torn_page_ends_the_hit(start: Start, pool: Path) -> None:
    """`exists` says yes and `get` says no: the pages before it are good, it and those behind it are not counted."""
    stack = start()
    keys, before = stack.stored(6)
    names = [page.key.hex() for page in stack.backend.ledger.find(keys)]
    (path,) = (path for path in files(pool) if names[3] in path.name)
    path.write_bytes(path.read_bytes()[:5000])
    assert stack.backend.batch_exists(keys) >= 3
    count, after = stack.loaded(keys)
    assert count == 3 and same([part[: 3 * PAGE] for part in before], after)


def test_A09_what_vanished_since_the_lookup_is_a_shorter_hit(start: Start, pool: Path) -> None:
    """Pitfall 5 and public fault 30057: lookup and get are apart, and chunks go in between."""
    stack = start()
    keys, before = stack.stored(6)
    assert stack.backend.batch_exists(keys) == 6
    names = [page.key.hex() for page in stack.backend.ledger.find(keys)]
    for path in files(pool):
        if names[2] in path.name:
            path.unlink()
    count, after = stack.loaded(keys)
    assert count == 2 and same([part[: 2 * PAGE] for part in before], after)


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        pytest.param({}, {"dtype": torch.float8_e5m2, "model": {"kv_dtype": "fp8_e5m2"}}, id="A07-dtype"),
        pytest.param({}, {"model": {"revision": "r2"}}, id="A06-weights"),
        pytest.param({}, {"model": {"config": {"num_hidden_layers": 4, "rope_theta": 2.0}}}, id="A02-rotary"),
        pytest.param({"tp_size": 2}, {"tp_size": 2, "tp_rank": 1}, id="10969-ranks"),
        pytest.param({}, {"tp_size": 2, "heads": 2}, id="tp-size"),
        pytest.param({"pp_size": 2}, {"pp_size": 2, "pp_rank": 1}, id="pp-stage"),
    ],
)
def test_A02_A06_A07_other_kv_is_never_loaded(start: Start, writer: dict[str, Any], reader: dict[str, Any]) -> None:
    """Public faults 33268, 24758 and 10969: pages of another dtype, other weights or another rank."""
    source = start(**writer)
    keys, _ = source.stored(4)
    target = start(**reader)
    target.hashes(target.tokens(4))
    assert target.backend.batch_exists(keys) == 0
    assert target.loaded(keys)[0] == 0
    assert source.loaded(keys)[0] == 4


def test_latent_pages_are_shared_by_all_ranks(start: Start) -> None:
    """MLA: the writer's rank stores, every rank loads the same chunk."""
    keys, before = start("mla", "page_first", tp_size=4).stored(4)
    other = start("mla", "page_first_direct", tp_size=4, tp_rank=3)
    other.hashes(other.tokens(4))
    count, after = other.loaded(keys)
    assert count == 4 and same(before, after)


def test_every_answer_has_one_entry_per_key(start: Start) -> None:
    """Pitfall 4: a list that is too short counts as success on a set and raises on a get."""
    stack = start()
    keys, _ = stack.stored(2)
    unknown = [f"{number:064x}" for number in range(3)]
    slots = stack.host_slots(5)
    for call in (stack.backend.batch_get_v1, stack.backend.batch_set_v1):
        assert call([*keys, *unknown], slots, None) == [True, True, False, False, False]
        assert call(unknown, slots[: 3 * PAGE], None) == [False] * 3
        assert call([], slots[:0], None) == []
    flat = [stack.host.get_dummy_flat_data_page() for _ in range(5)]
    got = stack.backend.batch_get([*keys, *unknown], flat)
    assert [page is not None for page in got] == [True, True, False, False, False]
    assert stack.backend.batch_set([*keys, *unknown], flat) is False
    assert stack.backend.batch_set(keys, flat[:1]) is False
    assert stack.backend.get(keys[0], flat[0]) is flat[0] and stack.backend.get(unknown[0], flat[0]) is None
    assert stack.backend.exists(keys[0]) and not stack.backend.exists(unknown[0])


def test_C16_whatever_raises_behind_the_interface_is_a_miss(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = start()
    keys, _ = stack.stored(3)
    slots = stack.host_slots(3)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("anything")

    for name in ("lookup", "reserve"):
        monkeypatch.setattr(stack.backend.hub, name, broken)
    assert stack.backend.batch_exists(keys) == 0
    assert stack.backend.batch_exists_v2(keys).kv_hit_pages == 0
    assert stack.take("v1", keys, slots) == [False] * 3
    assert stack.put("v1", keys, slots) == [False] * 3
    assert stack.take("flat", keys, slots) == [False] * 3
    assert stack.backend.hub.reports.total("adapter_errors", reason="RuntimeError") == 5
    assert stack.backend.hub.counts()["leased"] == 0


def test_D02_a_hung_pool_costs_its_deadline_and_no_more(start: Start, pool: Path) -> None:
    """Pitfall 3: gets run one after the other in one thread; a hung one would pin its host pages for ever."""
    keys, _ = start().stored(4)
    stack = start(yaml=SLOW)
    stack.hashes(stack.tokens(4))
    for path in files(pool):
        path.unlink()
        os.mkfifo(path)
    begun = time.monotonic()
    assert stack.loaded(keys)[0] == 0
    stack.backend.close()
    assert time.monotonic() - begun < 15


def test_B13_closing_twice_and_using_it_afterwards_is_harmless(start: Start) -> None:
    stack = start()
    keys, _ = stack.stored(2)
    slots = stack.host_slots(2)
    stack.backend.close()
    stack.backend.close()
    assert stack.backend.batch_exists(keys) == 0
    assert stack.take("v1", keys, slots) == stack.put("v1", keys, slots) == [False, False]
    stack.backend.clear()
    assert stack.backend.get_stats() is None
    with pytest.raises(KvhubError, match="not registered yet"):
        _ = stack.backend.hub


def test_statistics_cost_nothing_when_there_are_none(start: Start) -> None:
    """Pitfall 3: the scheduler asks at every step."""
    stack = start(enable_storage_metrics=True)
    keys, _ = stack.stored(2)
    stack.loaded(keys)
    told = stack.backend.get_stats()
    assert told.backup_pgs == [2] and told.prefetch_pgs == [2]
    assert all(speed > 0 for speed in (*told.backup_bandwidth, *told.prefetch_bandwidth))
    begun = time.perf_counter()
    for _ in range(20_000):
        assert stack.backend.get_stats() is None
    assert time.perf_counter() - begun < 1.0


def test_the_hubs_counters_are_shown_once_each(start: Start) -> None:
    """Beside SGLang's own, under the names that they have in vLLM; a backend that is attached again counts on."""
    from prometheus_client import REGISTRY

    def shown(source: str) -> float:
        return REGISTRY.get_sample_value("kvhub:hit_tokens_total", {"source": source}) or 0.0

    before = shown("pool")
    for number in range(2):
        stack = start(enable_storage_metrics=True)
        keys, _ = stack.stored(3, seed=40 + number)
        assert stack.loaded(keys)[0] == 3
        stack.backend.get_stats()
        stack.backend.get_stats()
        stack.backend.close()
    assert shown("pool") - before == 2 * 3 * PAGE


def test_a_lookup_of_any_length_is_one_question(start: Start) -> None:
    """Lookups come with the whole chain, however long."""
    stack = start()
    tokens = stack.tokens(3000, 9)
    hashes = stack.hashes(tokens)
    begun = time.monotonic()
    assert stack.backend.batch_exists(hashes) == 0
    assert time.monotonic() - begun < 5.0
    assert stack.backend.hub.counts() == dict.fromkeys(stack.backend.hub.counts(), 0)


def test_lookups_gets_and_sets_run_beside_one_another(start: Start) -> None:
    """HiCache has a thread for each."""
    stack = start()
    keys, _ = stack.stored(8)
    before = stack.host_slots(8)
    assert all(stack.take("v1", keys, before))
    wrong: list[object] = []

    def looped(call: Any) -> None:
        for _ in range(20):
            if not call():
                wrong.append(call)

    calls = (
        lambda: stack.backend.batch_exists(keys) == 8,
        lambda: all(stack.take("v1", keys, before)),
        lambda: all(stack.put("v1", keys, before)),
    )
    threads = [threading.Thread(target=looped, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert stack.backend.hub.flush(5.0)
    assert not any(stack.backend.hub.counts().values())


def test_pages_that_move_leave_nothing_open(start: Start) -> None:
    """Public fault 21078: a descriptor stayed open for every transfer."""
    stack = start()
    keys, _ = stack.stored(4)
    slots = stack.host_slots(4)
    assert all(stack.take("v1", keys, slots))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(40):
        assert all(stack.take("v1", keys, slots)) and all(stack.put("v1", keys, slots))
    assert stack.backend.hub.flush(5.0)
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 20
    assert not any(stack.backend.hub.counts().values())


def test_slow_writes_hold_up_no_read(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Public fault 21880: reads waited for one another and behind writes, which kept host pages pinned meanwhile."""
    stack = start()
    keys, _ = stack.stored(4)
    others, slots, taken = stack.hashes(stack.tokens(40, 7)), stack.host_slots(44), 44 * PAGE
    plainly = kvhub_nfs.DirectoryStore.write_sealed

    def slowly(*given: Any, **more: Any) -> bool:
        time.sleep(0.2)
        return plainly(*given, **more)

    monkeypatch.setattr(kvhub_nfs.DirectoryStore, "write_sealed", slowly)
    writing = threading.Thread(target=stack.put, args=("v1", others, slots[4 * PAGE : taken]))
    begun = time.monotonic()
    writing.start()
    time.sleep(0.1)
    asked = time.monotonic()
    assert all(stack.take("v1", keys, slots[: 4 * PAGE]))
    answered = time.monotonic()
    writing.join(30)
    assert stack.backend.hub.flush(30.0)
    assert answered - asked < 1.0 < time.monotonic() - begun, "40 writes of 0.2 s by 4 workers take 2 s"


def test_more_pages_than_the_arena_holds_come_in_parts(start: Start) -> None:
    stack = start(yaml=SMALL)
    keys, before = stack.stored(20)
    assert stack.backend.hub.arena.region.slots < 20
    count, after = stack.loaded(keys)
    assert count == 20 and same(before, after)


def test_E18_a_role_that_stores_nothing_stores_nothing(start: Start, pool: Path) -> None:
    stack = start(yaml=READER, role="prefill")
    stack.fill()
    slots = stack.host_slots(2)
    stack.put("v1", stack.hashes(stack.tokens(2)), slots)
    assert stack.backend.hub.flush(5.0)
    assert files(pool) == []


def test_clearing_leaves_the_pool_to_its_other_users(start: Start, pool: Path) -> None:
    stack = start(yaml=TIERED)
    keys, before = stack.stored(3)
    assert len(stack.backend.hub.arena.keys()) == 3
    stack.backend.clear()
    assert stack.backend.hub.arena.keys() == [] and len(files(pool)) == 3
    count, after = stack.loaded(keys)
    assert count == 3 and same(before, after)


def test_A18_A23_what_cannot_be_kept_is_refused_at_start(start: Start) -> None:
    """Each with a sentence that names the flag."""
    stack = start()
    with pytest.raises(ConfigError, match="keeps a mamba pool"):
        stack.backend.register_mem_host_pool_v2(stack.host, "mamba")
    with pytest.raises(ConfigError, match="--speculative-algorithm is EAGLE"):
        start(model={"speculative": "EAGLE"})
    with pytest.raises(ConfigError, match="--page-size is 16 and chunk_tokens is 32"):
        start(yaml=WIDE)
    with pytest.raises(ConfigError, match=r"model\.revision: cannot tell"):
        start(model={"revision": None})
    with pytest.raises(ConfigError, match="--attn-cp-size is 2"):
        start(attn_cp_size=2)


def test_E03_a_role_that_hicache_cannot_play_is_refused(start: Start) -> None:
    """It has no peers, and does not tell generated tokens from given ones."""
    with pytest.raises(ConfigError, match=r"roles\.both: only prompt tokens are to be stored"):
        start(yaml=YAML.replace("both: {{", "both: {{write_back: [prompt], "))
    with pytest.raises(ConfigError, match=r"roles\.both: wire is a transport"):
        start(yaml=WIRED)


def test_a_pool_without_a_buffer_is_refused_with_a_sentence(start: Start) -> None:
    """Public fault 26647: the first pool need not own memory."""
    stack = start()
    stack.host.kv_buffer = None
    with pytest.raises(KvhubError, match="keeps NoneType instead of one tensor"):
        stack.backend.on_host_pools_registered()


@pytest.mark.parametrize(
    ("extra", "said"),
    [({"rolle": "both"}, "rolle: unknown"), ({"config": None}, "config: required"), ({"role": None}, "role: required")],
)
def test_E01_a_misspelt_option_is_refused(start: Start, extra: dict[str, Any], said: str) -> None:
    given = start().backend._given.extra_config
    told = {name: value for name, value in {**given, **extra}.items() if value is not None}
    from kvhub_sglang.storage import KvhubStorage

    with pytest.raises(ConfigError, match=said):
        KvhubStorage._check(told)

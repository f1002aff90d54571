"""Who shares what: every part of a context and of a namespace, in the host tier and in a pool, across hubs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from hub.rig import NAMESPACE, Rig, chain_of, evolve, flushed, forget_all, hit, keys_of, look, prompt, spy, store, wait
from kvhub.keys import Context, Item, Namespace
from kvhub.types import Op

OWN = Context(adapter="leg@d1", salt="t1", items=[Item(20, 4, "aa" * 30 + "1a2b")])
OTHERS: dict[str, Context] = {
    "A02 image": attrs.evolve(OWN, items=[Item(20, 4, "ff" * 30 + "1a2b")]),
    "A02 no image": attrs.evolve(OWN, items=[]),
    "A02 image elsewhere": attrs.evolve(OWN, items=[Item(21, 4, "aa" * 30 + "1a2b")]),
    "A03 adapter": attrs.evolve(OWN, adapter="civ@d1"),
    "A03 base model": attrs.evolve(OWN, adapter=None),
    "A05 tenant": attrs.evolve(OWN, salt="t2"),
    "A05 no tenant": attrs.evolve(OWN, salt=None),
    "A05 empty tenant": attrs.evolve(OWN, salt=""),
    "A08 adapter reloaded": attrs.evolve(OWN, adapter="leg@d2"),
    "more": attrs.evolve(OWN, extra=[("a", "b")]),
}


@pytest.mark.parametrize("tier", ["host", "pool"])
def test_A02_A03_A05_A08_contexts_share_in_no_tier(rig: Rig, tier: str) -> None:
    """One hub, every context; the image begins in the second chunk, so the first may be shared, and only there."""
    hub = rig.open(slots=16)
    tokens = prompt(3)
    store(hub, chain_of(tokens, OWN))
    flushed(hub)
    if tier == "pool":
        forget_all(hub)
    for name, context in OTHERS.items():
        assert look(hub, name, chain_of(tokens, context)).tokens == (16 if "image" in name else 0), name
        hub.release(name)
    assert hit(hub, chain_of(tokens, OWN)) == 48


SPACES: dict[str, Namespace] = {
    "A06 revision": evolve(revision="r2"),
    "A06 model": evolve(model="other"),
    "A07 dtype": evolve(dtype="float8_e4m3fn"),
    "A22 scales": evolve(dtype="float16 k=0.05"),
    "A18 groups": evolve(groups="window 512"),
    "A19 shards": evolve(coordinates=[("tp", 0, 4)]),
    "A28 rank": evolve(coordinates=[("pp", 1, 2)]),
    "codec": evolve(extra=[("codec", "lossy")]),
}


def test_A06_A07_A18_A22_namespaces_share_a_directory_and_nothing_in_it(rig: Rig) -> None:
    chain = chain_of(prompt(2))
    store(flushed(rig.open()), chain)
    flushed(rig.hubs[-1])
    files = {path: path.read_bytes() for path in rig.root.rglob("*.kv")}
    assert len(files) == 2
    for name, space in SPACES.items():
        hub = rig.open(namespace=space)
        assert hit(hub, chain_of(prompt(2), namespace=space)) == 0, name
        # Not even a key of ours opens another namespace's file.
        assert hit(hub, chain) == 0, name
        hub.close()
        rig.hubs.remove(hub)
    assert {path: path.read_bytes() for path in rig.root.rglob("*.kv")} == files, "and nothing was touched"
    assert hit(rig.open(), chain) == 32, "the first namespace still hits in full"


def test_A06_operators_can_read_what_a_directory_holds(rig: Rig) -> None:
    rig.open()
    (text,) = [path.read_text() for path in rig.root.rglob("namespace.json")]
    assert json.loads(text)["revision"] == "r1"
    assert text == NAMESPACE.json


def test_A03_instances_that_loaded_their_adapters_in_another_order_share(rig: Rig) -> None:
    """An adapter is its name and content, never the number that an engine gave it."""
    tokens = prompt(32)
    first, second = rig.open(), rig.open()
    store(first, chain_of(tokens, Context(adapter="leg@d1")))
    flushed(first)
    assert hit(second, chain_of(tokens, Context(adapter="leg@d1"))) == 512
    for other in (Context(adapter="civ@d9"), Context()):
        assert hit(second, chain_of(tokens, other)) == 0


STRANGE = [
    "",
    "x" * 300,
    "/",
    "../../etc/passwd",
    "@@x",
    "a\0b",
    "a\nb",
    "模型",
    "🙂",
    "\ud800",
    "lab-SEP-7b",
    "lab/7b",
]


def test_E19_A14_every_salt_that_an_engine_takes_is_isolated_and_stays_under_the_root(rig: Rig) -> None:
    hub = rig.open()
    tokens = prompt(1)
    for salt in STRANGE:
        assert hit(hub, chain_of(tokens, Context(salt=salt))) == 0
        store(hub, chain_of(tokens, Context(salt=salt)))
    flushed(hub)
    forget_all(hub)
    for salt in STRANGE:
        assert hit(hub, chain_of(tokens, Context(salt=salt))) == 16
    assert hit(hub, chain_of(tokens)) == 0
    files = list(rig.root.rglob("*.kv"))
    assert len(files) == len(STRANGE)
    assert all(path.resolve().is_relative_to(rig.root / "pool") for path in files)


def test_A05_releasing_one_tenant_s_request_leaves_another_s_alone(rig: Rig) -> None:
    hub = rig.open(slots=2)
    mine, theirs = (chain_of(prompt(1), Context(salt=salt)) for salt in ("t1", "t2"))
    store(hub, mine)
    store(hub, theirs)
    flushed(hub)
    wait(lambda: hub.counts()["leased"] == 0)
    look(hub, "r1", mine)
    look(hub, "r2", theirs)
    hub.release("r2")
    store(hub, chain_of(prompt(4, seed=5)))
    assert mine.keys[0] in hub.arena
    assert theirs.keys[0] not in hub.arena
    hub.release("r1")


ROUTER = """
import json, sys
from kvhub.keys import Chain, Context, Item, Namespace
space, rows = json.loads(sys.stdin.read())
space = Namespace(**{name: space[name] for name in ("model", "revision", "dtype", "groups", "chunk_tokens")})
for adapter, salt, items in rows:
    context = Context(adapter, salt, [Item(*item) for item in items])
    chain = Chain(context.root(space), space.chunk_tokens, context.items)
    chain.extend(range(48))
    print(*(key.hex() for key in chain.keys))
"""
ROWS: list[tuple[str | None, str | None, list[tuple[int, int, str]]]] = [
    (adapter, salt, items)
    for adapter in (None, "leg@d1")
    for salt in (None, "", "tenant/1")
    for items in ([], [(20, 4, "sha256:ab")])
]


def test_G10_router_adapter_and_store_have_one_name_for_a_chunk(rig: Rig) -> None:
    """Twelve contexts: keys of another process, keys that the hub asks its member for, and the files' names."""
    rig.wraps["pool"] = spy
    hub = rig.open(slots=64)
    request = json.dumps([json.loads(NAMESPACE.json), ROWS])
    done = subprocess.run([sys.executable, "-c", ROUTER], input=request, capture_output=True, text=True, check=True)
    routed = [line.split() for line in done.stdout.splitlines()]
    assert len(routed) == len(ROWS) == 12
    for row, keys in zip(ROWS, routed, strict=True):
        adapter, salt, items = row
        chain = chain_of(list(range(48)), Context(adapter, salt, [Item(*item) for item in items]))
        assert [key.hex() for key in chain.keys] == keys
        store(hub, chain)
    flushed(hub)
    names = {key for keys in routed for key in keys}
    assert {key.hex() for key in keys_of(rig.member(hub), Op.SAVE)} == names
    assert {path.stem for path in (rig.root / "pool").rglob("*.kv")} == names
    assert len(names) == 30, "of 36, the first chunk before an item is shared with the plain one"


@pytest.mark.parametrize(
    "change", [lambda path: path.write_bytes(b""), lambda path: path.unlink()], ids=["empty", "gone"]
)
def test_A30_C03_a_pool_that_was_tampered_with_gives_misses(rig: Rig, change: Callable[[Path], object]) -> None:
    hub = rig.open()
    chain = chain_of(prompt(2))
    store(hub, chain)
    flushed(hub)
    forget_all(hub)
    for path in (rig.root / "pool").rglob("*.kv"):
        change(path)
    assert hit(hub, chain) == 0
    assert len(store(hub, chain)) == 2
    flushed(hub)
    forget_all(hub)
    hub.orders._doubts.clear()
    assert hit(hub, chain) == 32


def test_A30_two_files_that_were_swapped_are_two_misses(rig: Rig) -> None:
    hub = rig.open()
    chain = chain_of(prompt(2))
    store(hub, chain)
    flushed(hub)
    forget_all(hub)
    one, two = (next((rig.root / "pool").rglob(f"{key.hex()}.kv")) for key in chain.keys)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert hit(hub, chain) == 0
    assert hub.reports.total("integrity_errors", member="pool") == 2
    assert hub.reports.total("faults", member="pool", reason="key") == 2

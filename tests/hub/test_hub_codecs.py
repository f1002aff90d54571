"""Codecs from a file to the stored bytes: saves, promotions, probes and tails; and namespaces of lossy files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from format import toys

from hub.rig import NAMESPACE, Rig, chain_of, flushed, forget_all, hit, look, prompt, store
from kvhub import KvhubError, chunkfile
from kvhub.config import load
from kvhub.errors import ConfigError
from kvhub.hub import Hub
from kvhub.keys import Chain
from kvhub.opening import in_namespace

BOTH: dict[str, Any] = {"store": ["host", "pool"], "retrieve": ["host", "pool"]}
OpensHub = Callable[..., Hub]


@pytest.fixture
def open_hub(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> OpensHub:
    """A hub with the toy codecs; `codec` is what its step to the pool says."""
    monkeypatch.setenv("TOY_KEY", "9")
    rig.plugins["toy"] = toys.plugin()

    def open_hub(codec: str = "", roles: Mapping[str, Any] | None = None, **more: Any) -> Hub:
        step = {"to": "pool", "codec": codec} if codec else "pool"
        entries = {
            "turned": {"use": "toy"},
            "secret": {"use": "toy/seal", "key": "TOY_KEY"},
            "lossy": {"use": "toy/round"},
        }
        return rig.open(roles or {"both": {**BOTH, "store": ["host", step]}}, codecs=entries, **more)

    return open_hub


def headers(rig: Rig, name: str = "pool") -> list[chunkfile.Header]:
    return [chunkfile.parse(path.read_bytes()) for path in sorted((rig.root / name).rglob("*.kv"))]


def own_chain(hub: Hub, chunks: float = 2) -> Chain:
    return chain_of(prompt(chunks), namespace=hub.facts.namespace)


@pytest.mark.parametrize(("codec", "code"), [("toy", 200), ("secret", 201), ("", 0)])
def test_what_a_step_says_is_what_is_stored_and_read(rig: Rig, open_hub: OpensHub, codec: str, code: int) -> None:
    hub = open_hub(codec)
    assert hub.facts.namespace == NAMESPACE, "exact codecs do not touch the namespace"
    store(hub, own_chain(hub))
    flushed(hub)
    assert [header.codec for header in headers(rig)] == [code, code]
    forget_all(hub)
    assert hit(hub, own_chain(hub)) == 32


def test_hubs_with_and_without_an_exact_codec_share_a_pool(rig: Rig, open_hub: OpensHub) -> None:
    one = open_hub("toy")
    store(one, own_chain(one))
    flushed(one)
    assert hit(open_hub(), own_chain(one)) == 32, "the file's own codecs are decoders, too"
    assert hit(rig.open(), own_chain(one)) == 0, "a file that names none cannot read it"
    assert len(headers(rig)) == 2, "and leaves it alone"


def test_a_copy_by_promotion_is_encoded_like_a_save(rig: Rig, open_hub: OpensHub) -> None:
    """Also where another role's step names the codec: what one encrypts, no other puts there in plain."""
    stores = {"host": rig.host(), "cold": rig.pool("cold"), "pool": rig.pool()}
    roles = {
        "prefill": {"store": ["host", "cold"], "retrieve": ["host", {"from": "cold", "promote": ["pool"]}]},
        "decode": {"store": ["host", {"to": "pool", "codec": "secret"}], "retrieve": ["host", "pool"]},
    }
    hub = open_hub(roles=roles, role="prefill", stores=stores)
    store(hub, own_chain(hub))
    flushed(hub)
    forget_all(hub)
    assert hit(hub, own_chain(hub)) == 32
    flushed(hub)
    assert [header.codec for header in headers(rig, "cold")] == [0, 0]
    assert [header.codec for header in headers(rig)] == [201, 201]


def test_a_probe_of_a_sealed_store_is_sealed(rig: Rig, open_hub: OpensHub) -> None:
    """A probe saves a slot as it lies: perhaps someone's old KV."""
    from kvhub.types import Op

    hub = open_hub("secret")
    seen: list[int] = []
    member = rig.member(hub)
    real = member.write_sealed

    def write(name: str, seal: Any, payload: memoryview, **more: bool) -> bool:
        seen.append(chunkfile.parse(seal(chunkfile.payload_checksum(payload))).codec)
        return bool(real(name, seal, payload, **more))

    member.write_sealed = write
    hub.orders.probe("pool", Op.SAVE)
    flushed(hub)
    assert seen == [201]


def test_a_codec_without_its_key_stops_only_who_needs_it(
    rig: Rig, open_hub: OpensHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOY_KEY")
    with pytest.raises(KvhubError, match=r"codecs.secret.key: the environment has no TOY_KEY"):
        open_hub("secret")
    hub = open_hub("toy")
    store(hub, own_chain(hub))
    flushed(hub)
    assert [header.codec for header in headers(rig)] == [200, 200]


def test_a_store_that_takes_no_codecs_is_refused(rig: Rig, open_hub: OpensHub) -> None:
    from kvhub.testing.faults import Faulty
    from kvhub.types import Capabilities

    class Plain(Faulty):
        @property
        def capabilities(self) -> Capabilities:
            import attrs

            return attrs.evolve(super().capabilities, codecs=False)

    rig.wraps["pool"] = Plain
    with pytest.raises(ConfigError, match=r"roles.both.store\[1\].codec: 'pool' keeps chunks as they are: its plugin"):
        open_hub("toy")


def test_A07_lossy_and_exact_files_share_no_chunk(rig: Rig, open_hub: OpensHub) -> None:
    """One pool, three files: exact, rounded, and rounded in another role only.  The last two are one namespace."""
    exact, lossy = open_hub("toy"), open_hub("lossy")
    assert lossy.facts.namespace.extra == (("lossy codec", "round 4"),)
    for hub in (exact, lossy):
        store(hub, own_chain(hub))
        flushed(hub)
        forget_all(hub)
    assert found(lossy, exact) == found(exact, lossy) == 0
    assert found(lossy, lossy) == found(exact, exact) == 32
    decode = {"store": ["host", {"to": "cold", "codec": "lossy"}], "retrieve": ["host", "cold"]}
    stores = {"host": rig.host(), "pool": rig.pool(), "cold": rig.pool("cold")}
    other = open_hub(roles={"both": BOTH, "decode": decode}, stores=stores)
    assert (found(other, exact), found(other, lossy)) == (0, 32)


def found(hub: Hub, other: Hub) -> int:
    """Tokens that `hub` finds under the other's keys."""
    tokens = look(hub, "one", own_chain(other)).tokens
    hub.release("one")
    return tokens


def test_A07_only_what_changes_numbers_changes_the_namespace(rig: Rig) -> None:
    from hub.rig import facts

    rig.plugins["toy"] = toys.plugin()

    def digest(codecs: Mapping[str, Any], name: str) -> bytes:
        source = {
            "kvhub": 1,
            "codecs": codecs,
            "stores": {"pool": rig.pool()},
            "roles": {"both": {"store": [{"to": "pool", "codec": name}], "retrieve": ["pool"]}},
        }
        return in_namespace(facts(), load(source, rig.registry(), environ={})).namespace.digest

    one = digest({"a": {"use": "toy/round"}}, "a")
    assert digest({"b": {"use": "toy/round", "bits": 4}, "c": {"use": "toy", "by": 5}}, "b") == one
    assert digest({"a": {"use": "toy/round", "bits": 5}}, "a") != one
    assert digest({"a": {"use": "toy"}, "b": {"use": "toy/round"}}, "a") == NAMESPACE.digest != one

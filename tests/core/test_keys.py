"""Keys: frozen vectors, one reading for every input, the same bytes in every process."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvhub.errors import MisuseError
from kvhub.keys import DIGEST_BYTES, Chain, Context, Item, Namespace, encode, fingerprint, pack_tokens

SPACE = Namespace(
    model="LlamaForCausalLM", revision="r1", dtype="bfloat16", groups="full 32x8x128", coordinates=[("tp", 0, 2)],
    chunk_tokens=16, extra=[("codec", "none")],
)  # fmt: skip
TOKENS = list(range(100, 150))
IMAGE = Item(start=20, tokens=6, identity="sha256:" + "ab" * 32)


def chain(context: Context, tokens: list[int] = TOKENS, space: Namespace = SPACE) -> Chain:
    made = Chain(context.root(space), space.chunk_tokens, context.items)
    made.extend(tokens)
    return made


PLAIN = chain(Context())
SALTED = chain(Context(salt="tenant-1"))
ADAPTED = chain(Context(adapter="leg@d1"))
PICTURE = chain(Context(items=[IMAGE]))
ACROSS = chain(Context(items=[Item(28, 8, "sha256:cd")]))
ALL = chain(Context(adapter="leg@d1", salt="tenant-1", items=[IMAGE], extra=[("cache_salt", "x")]))

GOLDEN: dict[str, tuple[bytes, str]] = {
    "namespace": (
        SPACE.digest,
        "c20625527a731d9fd76aea45df98b174b70245b1be6c231ad4438b9926ea346a",
    ),
    "root": (
        Context().root(SPACE),
        "24b3d7b01616e1bc507d6d98b5f74f78c21c9bc6c6876967fe11dea1d22d3842",
    ),
    "root, salt": (
        Context(salt="tenant-1").root(SPACE),
        "f4602ff98c9a318a1147f07f7d63f3c7db5eb79527ec24150d24ab170b466f02",
    ),
    "plain, chunk 0": (
        PLAIN.keys[0],
        "826026a665171a066917f18abe027908e26446b359426f86e36e7d3552a89c22",
    ),
    "plain, chunk 2": (
        PLAIN.keys[2],
        "7bc0774d1efc762c21e88011b27401aab36774be2fe9c98dfe6a9f9dbca287ef",
    ),
    "salt, chunk 2": (
        SALTED.keys[2],
        "d80d734585b825b8326fb154abf2cf9c3d9edab4cf357a4c98284b40789e4ddf",
    ),
    "adapter, chunk 2": (
        ADAPTED.keys[2],
        "55264a80917ae0d131d95dbde1aa9e39ecb8de953906bf6407ca988483945d7e",
    ),
    "items, chunk 0, before the item": (
        PICTURE.keys[0],
        "826026a665171a066917f18abe027908e26446b359426f86e36e7d3552a89c22",
    ),
    "items, chunk 1": (
        PICTURE.keys[1],
        "5baf2f92e13f4c280991f45427f8292acbcea2fce0cf4d427035d238a23effdd",
    ),
    "items, chunk 2, behind the item": (
        PICTURE.keys[2],
        "da1903d59d47afbf1c53ae2eaa0551b991abfdb15a18788e2dd236140faf6eff",
    ),
    "items over a border, chunk 2": (
        ACROSS.keys[2],
        "92e9de040ab40b431d266664f8f88a26f862007838e69fd31163c1dfbd6a42ce",
    ),
    "all, chunk 1": (
        ALL.keys[1],
        "953262209d787739ccaef54a6e584c7ef6222bee1ca7ceed5dc34293283dedcc",
    ),
    "part": (
        PLAIN.part_key(50),
        "58b99189f01c0613ec33f687c73b5135eff82c801da2d94306f9438c2acb2c78",
    ),
    "part with items": (
        chain(Context(items=[IMAGE]), TOKENS[:24]).part_key(24),
        "a5d8e5504e7f825266da5f26a40946602d9707dccd47cb9035aaf76fa90c9c2c",
    ),
    "tail": (
        PLAIN.tail_key(3),
        "12329a6b17f72b8783e91c4df5a11999f4c0569017485c4001e985768900e530",
    ),
    "tail behind nothing": (
        PLAIN.tail_key(0),
        "04383e754193fb038703f8e29676fa9e69aa07cd96f2c6aead2743b74884ba36",
    ),
    "digest 0": (
        PLAIN.digests(3, 16)[0],
        "365d485044ad4555664929b868c37d68",
    ),
    "digest 1": (
        PLAIN.digests(3, 16)[1],
        "89c424a4008440a5ca3ad86b42b6b05b",
    ),
    "digest with items": (
        PICTURE.digests(1, 16)[8],
        "a55d3c36533f3f3f6d7ff7aa22d94428",
    ),
}
"""What is computed here, and what every release that reads the same KEY_VERSION must compute."""


@pytest.mark.parametrize(("made", "frozen"), GOLDEN.values(), ids=GOLDEN)
def test_G10_golden_vectors(made: bytes, frozen: str) -> None:
    assert made.hex() == frozen


def test_golden_vectors_are_enough_and_apart() -> None:
    hexes = [frozen for _, frozen in GOLDEN.values()]
    assert len(hexes) >= 12
    shared = {GOLDEN["plain, chunk 0"][1]}
    assert GOLDEN["items, chunk 0, before the item"][1] in shared, "equal contexts so far share"
    assert len(set(hexes)) == len(hexes) - 1


def test_the_rules_of_the_module_s_text_make_the_vectors() -> None:
    """Computed here from the documented rule with nothing of the module, so that the page and the code agree."""

    def field(letter: bytes, data: bytes) -> bytes:
        return letter + struct.pack("<Q", len(data)) + data

    words = [
        ("s", "kvhub namespace"), ("i", "1"), ("s", "LlamaForCausalLM"), ("s", "r1"), ("s", "bfloat16"),
        ("s", "full 32x8x128"), ("i", "16"), ("i", "1"), ("s", "tp"), ("i", "0"), ("i", "2"), ("i", "1"),
        ("s", "codec"), ("s", "none"),
    ]  # fmt: skip
    space = sha256(b"".join(field(letter.encode(), text.encode()) for letter, text in words)).digest()
    root = sha256(b"R" + field(b"b", space) + field(b"n", b"") * 2 + field(b"i", b"0")).digest()
    key = root
    for at in range(3):
        key = sha256(b"C" + key + struct.pack("<16I", *TOKENS[at * 16 : at * 16 + 16])).digest()
        assert key == PLAIN.keys[at]
    assert sha256(b"T" + key).digest() == PLAIN.tail_key(3)
    digest = sha256(b"D" + key + struct.pack("<I", TOKENS[48])).digest()
    assert digest[:DIGEST_BYTES] == PLAIN.digests(3, 1)[0]
    part = sha256(b"P" + key + struct.pack("<I2I", 2, *TOKENS[48:])).digest()
    assert part == PLAIN.part_key(50)


SCRIPT = """
import json
from kvhub.keys import Chain, Context, Item, Namespace
space = Namespace("m", "r", "f", "g", coordinates={("tp", 1, 2), ("pp", 0, 1)}, chunk_tokens=256)
context = Context(adapter="a", salt=None, items={Item(300, 4, "x"), Item(10, 2, "y")}, extra={("k", "v"), ("a", "b")})
chain = Chain(context.root(space), 256, context.items)
chain.extend(range(600))
keys = [space.digest, *chain.keys, chain.part_key(600), chain.tail_key(2), *chain.digests(2, 8)]
print(json.dumps([key.hex() for key in keys]))
"""


def test_A01_every_process_computes_the_same_keys() -> None:
    """Six processes with seeds unset, equal and different; sets are used, so that an order would show."""
    seen = set()
    for seed in (None, "0", "0", "1", "random", None):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        environment |= {} if seed is None else {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
        )
        seen.add(done.stdout)
    assert len(seen) == 1
    assert len(json.loads(seen.pop())) == 13


field = st.none() | st.binary(max_size=6) | st.text(max_size=6) | st.integers(-(2**70), 2**70)
fields = st.lists(field, max_size=5)


@given(fields, fields)
def test_A03_encoding_has_one_reading(one: list[object], other: list[object]) -> None:
    same = [(type(a), a) for a in one] == [(type(b), b) for b in other]
    assert (encode(one) == encode(other)) == same  # type: ignore[arg-type]


@given(fields, fields)
def test_A03_no_list_is_the_beginning_of_another(one: list[object], other: list[object]) -> None:
    """Field borders cannot be moved: what follows a list of fields never makes it look like a longer one."""
    assert encode(one) + encode(other) == encode([*one, *other])  # type: ignore[arg-type]


tokens = st.lists(st.integers(0, 2**32 - 1), max_size=80)
items = st.lists(st.builds(Item, st.integers(0, 60), st.integers(1, 20), st.sampled_from("xyz")), max_size=3)


@given(tokens, st.lists(st.integers(0, 80), max_size=5), items)
def test_a_chain_that_grows_in_any_steps_has_the_same_keys(whole: list[int], cuts: list[int], some: list[Item]) -> None:
    context = Context(items=some)
    at_once = chain(context, whole)
    grown = Chain(context.root(SPACE), 16, context.items)
    borders = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    for start, end in pairwise(borders):
        grown.extend(whole[start:end])
    assert grown.keys == at_once.keys
    assert grown.tokens == len(whole)
    full = len(whole) // 16
    assert grown.digests(full, 16) == at_once.digests(full, 16)
    if len(whole) % 16:
        assert grown.part_key(len(whole)) == at_once.part_key(len(whole))


@given(tokens, tokens)
def test_digests_agree_exactly_as_far_as_the_tokens(one: list[int], other: list[int]) -> None:
    both = min(len(one), len(other))
    common = next((at for at in range(both) if one[at] != other[at]), both)
    mine, theirs = chain(Context(), one).digests(0, 80), chain(Context(), other).digests(0, 80)
    assert [a == b for a, b in zip(mine, theirs, strict=False)] == [
        at < common for at in range(min(len(one), len(other)))
    ]


def keys_of(change: Callable[[Context], Context], tokens: list[int] = TOKENS) -> list[bytes]:
    return chain(change(Context(salt="t1", adapter="leg@d1")), tokens).keys


def test_A02_different_images_part_from_their_first_chunk_on() -> None:
    """Two hashes that end alike; the item overlaps chunk 0 in the one case and only chunk 1 in the other."""
    one, two = "aa" * 30 + "1a2b", "ff" * 30 + "1a2b"
    words = [101, 9, 9, 102, 103, 104, 105, 106]
    space = attrs.evolve(SPACE, chunk_tokens=4)
    for start, shared in ((1, 0), (5, 1)):
        made = [chain(Context(items=[Item(start, 2, identity)]), words, space).keys for identity in (one, two)]
        assert [a == b for a, b in zip(*made, strict=True)] == [at < shared for at in range(2)]
    text_only = chain(Context(), words, space).keys
    assert chain(Context(items=[Item(5, 2, one)]), words, space).keys[0] == text_only[0]
    assert chain(Context(items=[Item(5, 2, one)]), words, space).keys[1] != text_only[1]


@pytest.mark.parametrize(
    "change", [{"start": 21}, {"tokens": 7}, {"identity": IMAGE.identity + "0"}, {"identity": ""}, {"tokens": 60}]
)
def test_A02_where_an_item_lies_and_how_long_it_is_tell_it_apart(change: dict[str, object]) -> None:
    other = attrs.evolve(IMAGE, **change)  # type: ignore[arg-type]
    assert chain(Context(items=[other])).keys[1] != PICTURE.keys[1]


def test_A02_several_items_share_whatever_order_they_are_named_in() -> None:
    second = Item(40, 3, "second")
    assert chain(Context(items=[IMAGE, second])).keys == chain(Context(items=[second, IMAGE])).keys


APART = {
    "A03 adapter": lambda context: attrs.evolve(context, adapter="civ@d1"),
    "A03 no adapter": lambda context: attrs.evolve(context, adapter=None),
    "A03 empty adapter": lambda context: attrs.evolve(context, adapter=""),
    "A05 salt": lambda context: attrs.evolve(context, salt="t2"),
    "A05 no salt": lambda context: attrs.evolve(context, salt=None),
    "A05 empty salt": lambda context: attrs.evolve(context, salt=""),
    "A08 reloaded adapter": lambda context: attrs.evolve(context, adapter="leg@d2"),
    "fields swapped": lambda context: attrs.evolve(context, adapter="t1", salt="leg@d1"),
    "extra": lambda context: attrs.evolve(context, extra=[("a", "b")]),
}


@pytest.mark.parametrize("change", APART.values(), ids=APART)
def test_A03_A05_A08_each_part_of_a_context_partitions_every_chunk(change: Callable[[Context], Context]) -> None:
    own, other = keys_of(lambda context: context), keys_of(change)
    assert not set(own) & set(other)
    assert keys_of(change) == other, "and equal contexts share"


SPACES = {
    "A06 model": {"model": "Other"}, "A06 revision": {"revision": "r2"}, "A07 dtype": {"dtype": "float8_e4m3fn"},
    "A22 scales": {"dtype": "float8_e4m3fn k=0.05 v=0.05"}, "A18 groups": {"groups": "window 512"},
    "A19 size": {"coordinates": [("tp", 0, 4)]}, "A28 rank": {"coordinates": [("tp", 1, 2)]},
    "A28 axis": {"coordinates": [("tp", 0, 2), ("zz", 1, 2)]}, "E20 chunk": {"chunk_tokens": 32},
    "extra": {"extra": [("codec", "lossy")]},
}  # fmt: skip


@pytest.mark.parametrize("change", SPACES.values(), ids=SPACES)
def test_A06_A07_each_field_of_a_namespace_partitions(change: dict[str, object]) -> None:
    other = attrs.evolve(SPACE, **change)  # type: ignore[arg-type]
    assert other.digest != SPACE.digest
    assert not set(chain(Context(), space=other).keys) & set(PLAIN.keys)
    assert json.loads(other.json) != json.loads(SPACE.json), "and operators can read it"


def test_A22_scales_are_part_of_the_fingerprint() -> None:
    spaces = [attrs.evolve(SPACE, dtype=f"float8_e4m3fn k={scale} v=0.05") for scale in ("0.04", "0.05")]
    assert spaces[0].digest != spaces[1].digest


def test_A28_every_rank_has_keys_of_its_own() -> None:
    shapes = [[("tp", tp, 2), ("pp", pp, 2), ("cp", cp, 2)] for tp in (0, 1) for pp in (0, 1) for cp in (0, 1)]
    assert len({attrs.evolve(SPACE, coordinates=shape).digest for shape in shapes}) == 8
    assert attrs.evolve(SPACE, coordinates=shapes[3][::-1]).digest == attrs.evolve(SPACE, coordinates=shapes[3]).digest


STRANGE = [
    "",
    "x" * 300,
    "/",
    "../../etc",
    "@@x",
    "a\0b",
    "a\nb",
    "模型",
    "🙂",
    "\ud800",
    "\udcff",
    "lab-SEP-7b",
    "lab/7b",
]


def test_E19_every_string_is_a_salt_of_its_own() -> None:
    keys = {chain(Context(salt=salt)).keys[-1] for salt in [*STRANGE, None]}
    assert len(keys) == len(STRANGE) + 1
    assert {len(key) for key in keys} == {32}


@pytest.mark.parametrize("wrong", [[-1], [2**32], [1.5], ["a"], [None]])
def test_a_token_that_is_none_is_misuse_and_changes_nothing(wrong: list[object]) -> None:
    made = chain(Context(), TOKENS[:20])
    with pytest.raises(MisuseError, match="from 0 to 4294967295"):
        made.extend(wrong)  # type: ignore[arg-type]
    assert (made.tokens, made.keys) == (20, chain(Context(), TOKENS[:20]).keys)


def test_tokens_are_four_bytes_little_endian() -> None:
    assert pack_tokens([1, 0x01020304]).hex() == "0100000004030201"


@pytest.mark.parametrize("end", [0, 16, 48, 51, 99])
def test_a_part_ends_inside_a_chunk(end: int) -> None:
    with pytest.raises(MisuseError, match=f"no partial chunk ends at token {end} of 50"):
        PLAIN.part_key(end)


def test_a_part_a_tail_and_a_chunk_never_meet() -> None:
    whole = chain(Context(), TOKENS[:16])
    names = {whole.keys[0], whole.tail_key(0), whole.tail_key(1), *(whole.part_key(end) for end in range(1, 16))}
    assert len(names) == 18


def test_a_fingerprint_depends_on_facts_and_not_on_their_order() -> None:
    assert fingerprint({"a": "1", "b": "2"}) == fingerprint({"b": "2", "a": "1"})
    assert fingerprint({"a": "1", "b": "2"}) != fingerprint({"a": "12", "b": ""})

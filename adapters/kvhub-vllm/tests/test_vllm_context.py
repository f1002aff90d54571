"""What of a request goes into its keys: adapters, salts, images; and what must not be cached at all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvhub.keys import Chain, Context
from kvhub_vllm.context import context_of

NAMESPACE = bytes(32)


def request(**given: Any) -> SimpleNamespace:
    fields: dict[str, Any] = {
        "prompt_token_ids": [1, 2, 3],
        "prompt_embeds": None,
        "lora_request": None,
        "cache_salt": None,
        "mm_features": [],
    }
    return SimpleNamespace(**{**fields, **given})


def adapter(folder: Path, name: str, content: bytes) -> SimpleNamespace:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(content)
    return SimpleNamespace(lora_name=name, lora_int_id=7, lora_path=str(folder))


def image(identifier: str | None, offset: int, length: int) -> SimpleNamespace:
    return SimpleNamespace(identifier=identifier, mm_position=SimpleNamespace(offset=offset, length=length))


def keys(context: Context | None, tokens: list[int]) -> list[bytes]:
    assert context is not None
    chain = Chain(context.root(NAMESPACE), 4, context.items)
    chain.extend(tokens)
    return chain.keys


def test_A03_adapters_partition_whatever_their_number(tmp_path: Path) -> None:
    """The number depends on the order of loading; the same adapter under another number shares."""
    leg, civ = adapter(tmp_path / "leg", "leg", b"1" * 99), adapter(tmp_path / "civ", "civ", b"2" * 99)
    other = SimpleNamespace(lora_name="leg", lora_int_id=1, lora_path=leg.lora_path)
    tokens = list(range(8))
    plain, with_leg, with_civ, again = (
        keys(context_of(request(lora_request=one)), tokens) for one in (None, leg, civ, other)
    )
    assert with_leg == again
    assert not {*plain} & {*with_leg} and not {*with_leg} & {*with_civ}


def test_A03_the_same_weights_with_another_scale_do_not_share(tmp_path: Path) -> None:
    found = []
    for alpha in (8, 16):
        one = adapter(tmp_path / str(alpha), "leg", b"1" * 99)
        (tmp_path / str(alpha) / "adapter_config.json").write_text(f'{{"r": 8, "lora_alpha": {alpha}}}')
        found.append(keys(context_of(request(lora_request=one)), [1, 2, 3, 4]))
    assert not {*found[0]} & {*found[1]}


def test_A08_a_reloaded_adapter_of_the_same_name_does_not_share(tmp_path: Path) -> None:
    import os

    before = keys(context_of(request(lora_request=adapter(tmp_path / "leg", "leg", b"1" * 99))), [1, 2, 3, 4])
    changed = adapter(tmp_path / "leg", "leg", b"2" * 99)
    file = tmp_path / "leg" / "adapter_model.safetensors"
    os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns + 1_000_000))
    assert keys(context_of(request(lora_request=changed)), [1, 2, 3, 4]) != before


def test_an_adapter_that_cannot_be_read_is_not_cached(tmp_path: Path) -> None:
    gone = SimpleNamespace(lora_name="leg", lora_int_id=1, lora_path=str(tmp_path / "gone"))
    assert context_of(request(lora_request=gone)) is None


def test_A02_images_count_by_their_whole_hash() -> None:
    """Chunks before an item are shared, chunks that overlap it and later ones are not."""
    tokens = [101, 9, 9, 102, 103, 104, 105, 106]
    one, other = (keys(context_of(request(mm_features=[image(f"{h}1a2b", 1, 2)])), tokens) for h in ("aa", "ff"))
    assert one[0] != other[0] and one[1] != other[1]
    tokens = [101, 102, 103, 104, 105, 9, 9, 106]
    one, other = (keys(context_of(request(mm_features=[image(f"{h}1a2b", 5, 2)])), tokens) for h in ("aa", "ff"))
    assert one[0] == other[0] and one[1] != other[1]


@pytest.mark.parametrize("feature", [image(None, 0, 2), image("", 0, 2), SimpleNamespace(identifier="x")])
def test_A02_an_image_without_a_hash_or_place_is_not_cached(feature: SimpleNamespace) -> None:
    assert context_of(request(mm_features=[feature])) is None


def test_prompt_embeddings_are_not_cached() -> None:
    assert context_of(request(prompt_embeds=object())) is None


@pytest.mark.parametrize("salt", ["", "m" * 300, "/", "a\0b", "🙂", "a\nb", "../../x", "\ud800"])
def test_E19_every_salt_isolates(salt: str) -> None:
    salted, plain = (keys(context_of(request(cache_salt=one)), [1, 2, 3, 4]) for one in (salt, None))
    assert salted != plain
    assert salted == keys(context_of(request(cache_salt=salt)), [1, 2, 3, 4])

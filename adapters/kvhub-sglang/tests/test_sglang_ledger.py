"""Page hashes and keys: what the engine's hooks tell becomes the keys that every other engine computes."""

from __future__ import annotations

import queue
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness.hicache import PAGE, VOCABULARY, Stack, Start
from kvhub_sglang import ledger as ledger_module
from kvhub_sglang.ledger import Ledger

from kvhub.keys import Chain, Context

pytestmark = pytest.mark.sglang


def chain(stack: Stack, tokens: list[int], context: Context | None = None) -> list[bytes]:
    """The keys of any engine that serves the same model."""
    made = Chain((context or Context()).root(stack.backend.hub.facts.namespace), PAGE)
    made.extend(tokens)
    return made.keys


def keys(stack: Stack, hashes: list[str]) -> list[bytes]:
    return [page.key for page in stack.backend.ledger.find(hashes)]


def seeded(tokens: list[int], **context: Any) -> list[str]:
    """Hashes of a request's pages, by the function that SGLang's lookups call."""
    from sglang.srt.mem_cache import utils
    from sglang.srt.mem_cache.radix_cache import RadixKey

    return list(utils.get_storage_hash_str(RadixKey(array("q", tokens), **context), None, page_size=PAGE))


def written(tokens: list[int], hashes: list[str], prefix: list[str] | None) -> None:
    """A page is handed to the write-out, as the tree does it."""
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController

    controller = SimpleNamespace(backup_queue=queue.Queue())
    HybridCacheController.write_storage(controller, None, array("q", tokens), hashes, prefix)


def test_A01_keys_are_those_of_every_other_engine(start: Start) -> None:
    """The law that makes one pool of two engines: hashes in, kvhub's own keys out."""
    stack = start()
    tokens = stack.tokens(5)
    hashes = stack.hashes(tokens)
    assert keys(stack, hashes) == chain(stack, tokens)
    assert [page.number for page in stack.backend.ledger.find(hashes)] == list(range(5))


def test_A05_a_salt_partitions_as_in_other_engines(start: Start) -> None:
    stack = start()
    tokens = stack.tokens(3)
    hashes = {salt: seeded(tokens, cache_salt=salt) for salt in (None, "t1", "t2")}
    for salt, names in hashes.items():
        assert keys(stack, names) == chain(stack, tokens, Context(salt=salt))
    extra = seeded(tokens, extra_key="mine")
    assert keys(stack, extra) and not set(keys(stack, extra)) & set(chain(stack, tokens))


NUMBER = "0123456789abcdef" * 2
"""An adapter's id, as SGLang makes them."""


def lora(folder: Path, alpha: int = 8, content: bytes = b"1") -> str:
    """An adapter's folder."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(content * 99)
    (folder / "adapter_config.json").write_text(f'{{"r": 8, "lora_alpha": {alpha}}}')
    return str(folder)


def made(lora_id: str | None = None, extra_key: str | None = None) -> Any:
    """A request, as SGLang's scheduler makes it; with LoRA its `extra_key` ends with the adapter's id."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    tokens = array("q", [1, 2])
    return Req("r", "", tokens, SamplingParams(), lora_id=lora_id, extra_key=extra_key)


def test_A03_an_adapter_is_known_by_its_content(start: Start, tmp_path: Path) -> None:
    """Not by its id or path: those differ between engines that serve the same adapter."""
    paths = {
        "one": lora(tmp_path / "one"),
        "again": lora(tmp_path / "again"),
        "scale": lora(tmp_path / "scale", alpha=16),
        "other": lora(tmp_path / "other", content=b"2"),
    }
    found = {}
    for at, (name, path) in enumerate(paths.items()):
        number = f"{at:032x}"
        stack = start(model={"lora": True, "adapters": ((number, "leg", path),)})
        tokens = stack.tokens(3)
        found[name] = keys(stack, seeded(tokens, extra_key=made(number).extra_key))
        assert len(found[name]) == 3
        assert keys(stack, stack.hashes(tokens)) == chain(stack, tokens), "requests without one are as ever"
        mine = keys(stack, seeded(tokens, extra_key=made(number, "mine").extra_key))
        assert len(mine) == 3 and not {*mine} & {*found[name]}, "what a client adds isolates besides"
        found["plain"] = chain(stack, tokens)
    assert found["one"] == found["again"]
    parted = [found[name] for name in ("one", "scale", "other", "plain")]
    assert len({key for each in parted for key in each}) == sum(len(each) for each in parted)


def test_A03_an_adapter_whose_content_is_unknown_is_not_kept(start: Start, tmp_path: Path) -> None:
    """A name on a hub, an adapter that came as tensors, and one that was loaded twice with other files."""
    folder = lora(tmp_path / "twice")
    stack = start(model={"lora": True, "adapters": ((NUMBER, "leg", "someone/leg"), ("f" * 32, "civ", folder))})
    tokens = stack.tokens(3)
    assert keys(stack, seeded(tokens, extra_key=made(NUMBER).extra_key)) == []
    assert keys(stack, seeded(tokens, extra_key=made("e" * 32).extra_key)) == []
    assert keys(stack, seeded(tokens, extra_key=made("f" * 32).extra_key + "|elastic_ep_size=2")) == []
    assert len(keys(stack, seeded(tokens, extra_key=made("f" * 32).extra_key))) == 3
    lora(tmp_path / "twice", content=b"2")
    stack.backend.adapter_loaded("f" * 32, "civ", folder)
    later = stack.tokens(3, 7)
    assert keys(stack, seeded(later, extra_key=made("f" * 32).extra_key)) == []


def test_A03_a_client_that_writes_an_adapters_id_ends_its_keeping(start: Start, tmp_path: Path) -> None:
    """Public fault 24638: SGLang's tree then mixes base KV with the adapter's under one hash."""
    stack = start(model={"lora": True, "adapters": ((NUMBER, "leg", lora(tmp_path / "leg")),)})
    tokens = stack.tokens(3)
    hashes = seeded(tokens, extra_key=made(NUMBER).extra_key)
    assert len(keys(stack, hashes)) == 3
    made(None, "mine"), made(None, None)
    assert len(keys(stack, hashes)) == 3, "another key ends nothing"
    made(None, NUMBER)
    assert keys(stack, hashes) == []
    assert keys(stack, seeded(tokens, extra_key=made(NUMBER).extra_key)) == []
    written(tokens, hashes, [])
    assert keys(stack, hashes) == []
    plain = stack.tokens(2, 5)
    assert keys(stack, stack.hashes(plain)) == chain(stack, plain)


def test_A03_an_adapter_that_is_loaded_later_is_known(start: Start, tmp_path: Path) -> None:
    """Through the engine's own method, of which only a success counts."""
    from sglang.srt.managers.scheduler import Scheduler

    stack = start(model={"lora": True})
    for number, success in ((NUMBER, True), ("a" * 32, False)):
        answer = SimpleNamespace(success=success)
        worker = SimpleNamespace(load_lora_adapter=lambda asked, answer=answer: answer)
        names = SimpleNamespace(register=lambda **_: None)
        asked = SimpleNamespace(lora_id=number, lora_name="leg", lora_path=lora(tmp_path / number))
        Scheduler.load_lora_adapter(SimpleNamespace(tp_worker=worker, kv_event_lora_names=names), asked)
        found = keys(stack, seeded(stack.tokens(2), extra_key=made(number).extra_key))
        assert len(found) == (2 if success else 0)


def test_what_is_written_out_is_known_by_its_prefix(start: Start) -> None:
    """Generated tokens are never looked up: the write-out tells their tokens, and what they come behind."""
    stack = start()
    tokens = stack.tokens(4)
    hashes = stack.hashes(tokens[: 2 * PAGE])
    rest = Stack.hashes(tokens)[2:]
    stack.backend.ledger._waiting.clear()
    assert keys(stack, hashes) == []
    written(tokens[: 2 * PAGE], hashes, [])
    written(tokens[2 * PAGE :], rest, hashes)
    assert keys(stack, hashes + rest) == chain(stack, tokens)


def test_a_write_out_whose_prefix_is_unknown_is_not_kept(start: Start) -> None:
    """Without what it comes behind its key cannot be told; it is not taken for the start of a prompt."""
    stack = start()
    tokens = stack.tokens(4)
    hashes = stack.hashes(tokens)
    stack.backend.ledger._waiting.clear()
    written(tokens[2 * PAGE :], hashes[2:], None)
    written(tokens[2 * PAGE :], hashes[2:], hashes[:2])
    assert keys(stack, hashes[2:]) == []


def test_a_salted_chain_is_recognised_when_it_is_written_out(start: Start) -> None:
    stack = start()
    tokens = stack.tokens(2)
    hashes = seeded(tokens, cache_salt="t1")
    stack.backend.ledger._waiting.clear()
    written(tokens, hashes, [])
    assert keys(stack, hashes) == chain(stack, tokens, Context(salt="t1"))


def test_tokens_that_do_not_give_the_hash_are_not_believed(start: Start) -> None:
    """The page hash is a check: pairs of tokens, other orders or a changed scheme must not become keys."""
    from sglang.srt.mem_cache import utils
    from sglang.srt.mem_cache.radix_cache import RadixKey

    stack = start()
    tokens = stack.tokens(2)
    hashes = stack.hashes(tokens)
    stack.backend.ledger._waiting.clear()
    written(tokens[::-1], hashes, [])
    assert keys(stack, hashes) == []
    pairs = utils.get_hash_str(RadixKey(array("q", [*tokens, 1]), is_bigram=True), None, page_size=PAGE)
    assert keys(stack, pairs) == []


def test_A02_a_placeholder_stands_for_no_token(start: Start) -> None:
    """SGLang puts 30 bits of an image's hash in the place of its tokens: too few to tell images apart."""
    stack = start()
    tokens = [*stack.tokens(1), *([VOCABULARY + 12345] * PAGE), *stack.tokens(1, 1)]
    hashes = stack.hashes(tokens)
    assert keys(stack, hashes) == chain(stack, tokens)[:1]


def test_a_page_hashed_alone_is_known_too(start: Start) -> None:
    """SGLang's decode offload hashes page by page."""
    from sglang.srt.mem_cache import utils

    stack = start()
    tokens = stack.tokens(3)
    last, names = None, []
    for at in range(0, len(tokens), PAGE):
        last = utils.get_hash_str(tokens[at : at + PAGE], last)
        names.append(last)
    assert keys(stack, names) == chain(stack, tokens)


def test_the_ledger_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest pages go; what is asked for stays longest, and a page that went is a miss."""
    monkeypatch.setattr(ledger_module, "MOST_PAGES", 4)
    made = Ledger(lambda context: context.root(b"n" * 32), PAGE, VOCABULARY)
    prompts = [Stack.tokens(1, seed) for seed in range(6)]
    names = [Stack.hashes(prompt)[0] for prompt in prompts]
    for prompt, name in zip(prompts, names, strict=True):
        made.note(array("q", prompt), "", [name])
        made.find([names[0]])
    assert len(made) == 4
    assert made.find([names[0]]) and made.find([names[5]]) and not made.find([names[1]])


def test_seeds_of_passing_clients_do_not_push_out_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MOST_SEEDS", 8)
    made = Ledger(lambda context: context.root(b"n" * 32), PAGE, VOCABULARY)
    for number in range(20):
        made.note_seed(f"{number:064x}", Context(salt=str(number)))
    tokens = Stack.tokens(1)
    made.note(array("q", tokens), "", Stack.hashes(tokens))
    assert len(made.find(Stack.hashes(tokens))) == 1


def test_the_engine_hands_over_prefixes_without_a_setting_for_it() -> None:
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController

    parse = HybridCacheController.parse_storage_backend_extra_config
    assert parse('{"module_path": "kvhub_sglang.storage"}')[4] is True
    assert parse('{"module_path": "others.storage"}')[4] is False

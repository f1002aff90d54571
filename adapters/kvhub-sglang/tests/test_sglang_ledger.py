"""Page hashes and keys: what the engine's hooks tell becomes the keys that every other engine computes."""

from __future__ import annotations

import queue
from array import array
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


def test_A03_a_request_that_may_be_an_adapters_is_not_kept(start: Start) -> None:
    """Public fault 24638: with LoRA, a client's `extra_key` can be an adapter's name."""
    stack = start(model={"lora": True})
    tokens = stack.tokens(3)
    hashes = seeded(tokens, extra_key="adapter-1")
    assert keys(stack, hashes) == []
    written(tokens, hashes, [])
    assert keys(stack, hashes) == []
    assert keys(stack, stack.hashes(tokens)) == chain(stack, tokens), "requests without one are kept"


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

"""SGLang's own prefill and decode: what its decode offload writes back is what the next prefill takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from e2e.asking import NOISE, prompt
from harness.outputs import difference, widest_gap
from harness.paths import free_port
from harness.sglang import PAGE, SglangEngine, backend

from sglang_e2e.conftest import Begin
from sglang_e2e.test_sglang_server import wait_for

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(not find_spec("mooncake"), reason="needs Mooncake, which moves KV over TCP: make sglang"),
]
GIVEN, MADE = 300, 150
OVER_TCP = {"MC_FORCE_TCP": "1", "MOONCAKE_PROTOCOL": "tcp", "SGLANG_HOST_IP": "127.0.0.1"}


@pytest.fixture(scope="module")
def legs(begin: Begin, home: Path) -> tuple[SglangEngine, SglangEngine, int]:
    """Prefill, decode and the port where they meet.  Decode has no hierarchical cache: it offloads by itself."""
    port = free_port()

    def flags(mode: str) -> list[str]:
        told = ["--disaggregation-mode", mode, "--disaggregation-transfer-backend", "mooncake"]
        return [*told, "--disaggregation-bootstrap-port", str(port)]

    prefill = begin("prefill", flags=flags("prefill"), env=OVER_TCP)
    offload = ["--disaggregation-decode-enable-offload-kvcache", "--hicache-ratio", "2"]
    offload += ["--hicache-mem-layout", "layer_first", "--hicache-io-backend", "kernel"]
    storage = backend(home / "prefill.yaml", "both")
    offload += ["--hicache-storage-backend", "dynamic", "--hicache-storage-backend-extra-config", json.dumps(storage)]
    decode = begin("decode", plain=True, flags=[*flags("decode"), *offload], env=OVER_TCP)
    return prefill, decode, port


def test_what_decode_offloads_is_what_the_next_prefill_takes(
    begin: Begin, legs: tuple[SglangEngine, SglangEngine, int], chunks: Callable[[], list[Path]]
) -> None:
    """The pages behind the prompt, which decode alone had; every turn's answer is the plain engine's."""
    prefill, decode, port = legs
    plain = begin("plain", plain=True)
    for engine in (prefill, decode, plain):
        engine.ready()
    said = prompt(GIVEN, 5)
    taken = []
    with ThreadPoolExecutor(2) as both:
        for room in (1, 2):
            more = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room}
            asked = [both.submit(engine.generate, said, max_tokens=MADE, **more) for engine in (prefill, decode)]
            first, answer = (one.result() for one in asked)
            expected = plain.generate(said, max_tokens=MADE)
            assert difference(expected, answer) is None and widest_gap(expected, answer) <= NOISE
            assert first.tokens == answer.tokens[:1]
            taken.append(first.storage)
            said = [*said, *answer.tokens]
            wait_for(chunks, (len(said) - 1) // PAGE)
            said += prompt(40, 6)
            prefill.forget_prefixes()
    whole = (GIVEN + MADE - 1) // PAGE * PAGE
    assert whole > GIVEN and taken == [0, whole]

"""The negative control: with wrong KV in the pool the same comparison must fail, else it proves nothing."""

from __future__ import annotations

from harness.outputs import difference

from demo.compared import LOGPROBS, verdicts
from demo.deployment import Deployment
from demo.pool import Pool
from demo.progress import say
from demo.turns import HITS, settled
from kvhub import chunkfile


def falsify(pool: Pool, name: str) -> None:
    """Turn a chunk's payload by a third and give it a header that vouches for it: wrong KV that looks right."""
    data = pool.read(name)
    header = chunkfile.parse(data)
    payload = data[chunkfile.HEADER_BYTES :]
    by = len(payload) // 3 // 256 * 256
    payload = payload[by:] + payload[:by]
    head = chunkfile.pack(
        header.key,
        header.namespace,
        payload,
        layout=header.layout,
        generated=header.generated,
        writer=header.writer,
        payload_bytes=header.payload_bytes,
        created_ns=header.created_ns,
    )
    pool.replace(name, head + payload)


def control(run: Deployment, prompt: list[int], *, max_tokens: int) -> list[str]:
    """Ask the prefill engine itself, twice, with right and with falsified chunks in the pool; problems as text."""
    run.plain.forget_prefixes()
    expected = run.plain.stream(prompt, max_tokens=max_tokens, logprobs=LOGPROBS)
    found = []
    for falsified in (False, True):
        if falsified:
            for name in run.pool.chunks():
                falsify(run.pool, name)
        run.prefill.forget_prefixes()
        before = run.prefill.metrics()
        answer = run.prefill.stream(prompt, max_tokens=max_tokens, logprobs=LOGPROBS)
        hit = (settled(run.prefill, before) - before).total(HITS, source="pool")
        where = difference(expected, answer)
        state = "falsified" if falsified else "right"
        say(f"control: {hit:.0f} tokens of {state} KV from the pool, {where or 'tokens are equal'}")
        found += verdicts("prefill", hit, where, falsified=falsified)
    return found

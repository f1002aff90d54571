"""The demo's three engines and its front: each a process of its own, all on loopback."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import attrs
from harness.paths import ROOT, model
from harness.serving import Engine, FrontProcess, connector

from demo.pool import Pool, opened
from demo.progress import say

CHUNK_TOKENS = 64
BLOCK_TOKENS = 32
YAML = """\
kvhub: 1
chunk_tokens: {chunk_tokens}
limits: {{lookup: 5s}}                   # a busy laptop must not turn hits into misses here
stores:
  host: {{use: host, capacity: 256MiB}}
  pool: {pool}
transports:
  wire: {{use: ucx, listen: "127.0.0.1:0", path: message}}   # through UCX, as between machines
roles:
  prefill:
    store:    [wire]                    # offered to decode, and kept nowhere: what it retrieves is the pool's
    retrieve: [{{from: pool, deadline: 10s}}]
  decode:
    store:    [host, pool]
    retrieve: [host, {{from: wire, deadline: 10s}}, {{from: pool, deadline: 10s}}]
    write_back: [prompt, generated]
"""


@attrs.frozen
class Deployment:
    """What runs."""

    prefill: Engine
    decode: Engine
    plain: Engine
    front: FrontProcess
    pool: Pool

    def restart_prefill(self) -> None:
        """Stop the prefill engine and start it again: nothing of the conversation is left in its memory."""
        say("stopping prefill and starting it again: its memory is empty now")
        self.prefill.stop()
        self.prefill.start()
        say(f"prefill serves again after {self.prefill.ready():.0f} s")


@contextmanager
def deployed(model_name: str, pool_kind: str) -> Iterator[Deployment]:
    """Start everything, wait until it serves, and stop it at the end."""
    home = ROOT / ".demo"
    shutil.rmtree(home, ignore_errors=True)
    config = home / "kvhub.yaml"
    weights = model(model_name)

    def engine(name: str, role: str | None) -> Engine:
        transfer = connector(config, role) if role else None
        return Engine(
            name, weights, home / f"{name}.log", transfer=transfer, block_size=BLOCK_TOKENS, kv_bytes=128 << 20
        )

    with ExitStack() as running:
        pool = running.enter_context(opened(pool_kind, home))
        config.write_text(YAML.format(chunk_tokens=CHUNK_TOKENS, pool=pool.options))
        prefill, decode, plain = engine("prefill", "prefill"), engine("decode", "decode"), engine("plain", None)
        front = FrontProcess([prefill.url], [decode.url], home / "front.log")
        say(f"starting three vLLM engines and the front (logs and pool in {home.relative_to(ROOT)}/)")
        for process in (prefill, decode, plain, front):
            running.enter_context(process)
        for process in (plain, prefill, decode, front):
            process.ready()
            say(f"{process.name} serves at {process.url}")
        yield Deployment(prefill, decode, plain, front, pool)
        say("stopping")

"""The rows of the comparison: which engine, which connector, and how one cold and one warm request are measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from peer.lmcache_server import LMCacheServer, Spent
from peer.process import EngineFailed, EngineProcess

PLAIN = "no connector"
OWN = "vLLM prefix cache"
KVHUB_HOST = "kvhub host"
KVHUB_POOL = "kvhub directory"
PEER_DRAM = "LMCache DRAM"
PEER_FILES = "LMCache fs_native"
ORDER = (PLAIN, OWN, KVHUB_HOST, PEER_DRAM, KVHUB_POOL, PEER_FILES)

PATIENCE = "30s"
"""A benchmark waits for what an engine would rather compute again: a busy machine must not change what is measured."""

SERVED = 0.9
"""Part of a warm prompt that has to come from the cache, else the row measures something else."""


@attrs.frozen
class Moved:
    """Bytes and the seconds that moving them took, as the one who moved them says."""

    bytes: float = 0.0
    seconds: float = 0.0

    @property
    def rate(self) -> float | None:
        """GB/s, or None where nothing moved."""
        return self.bytes / self.seconds / 1e9 if self.bytes and self.seconds else None


@attrs.frozen
class Sample:
    """One request: the engine's answer (see `engine.run`) and what its connector moved for it."""

    seconds: float
    cpu: float
    queued: float
    """Seconds of these in which the engine's thread was ready to run and had no core."""
    cached: int
    token: int
    logprobs: Mapping[str, float]
    moved: Moved = Moved()


@attrs.frozen
class Setup:
    """What all rows share."""

    model: Path
    python: str
    peer_python: str
    prompt_tokens: int
    step_tokens: int
    kv_bytes: int
    cache_gigabytes: int
    threads: int
    folder: Path

    @property
    def token_bytes(self) -> int:
        """KV bytes of one token, all layers, in fp32."""
        config = json.loads((self.model / "config.json").read_text())
        heads = config.get("num_key_value_heads", config["num_attention_heads"])
        dimension = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return int(config["num_hidden_layers"] * heads * dimension * 2 * 4)


def kvhub_connector(setup: Setup, name: str, step: str) -> dict[str, Any]:
    """A kvhub whose only place is `step`: host memory, or the directory with the host tier left out of the route."""
    folder = setup.folder / name.replace(" ", "-")
    folder.mkdir()
    room = f"{setup.cache_gigabytes}GiB"
    to, source = f"{{to: {step}, deadline: {PATIENCE}}}", f"{{from: {step}, deadline: {PATIENCE}}}"
    if step == "host":
        places = f"stores:\n  host: {{use: host, capacity: {room}}}\n"
        to = source = step
    else:
        files = json.dumps(str(folder / "files"))
        (folder / "files").mkdir()
        places = f"stores:\n  pool: {{use: nfs, root: {files}}}\nlimits: {{staging: {room}, lookup: {PATIENCE}}}\n"
    roles = f"roles:\n  both:\n    store: [{to}]\n    retrieve: [{source}]\n"
    (folder / "kvhub.yaml").write_text(f"kvhub: 1\n{places}{roles}")
    return {
        "kv_connector": "KvhubConnector",
        "kv_connector_module_path": "kvhub_vllm.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"config": str(folder / "kvhub.yaml"), "role": "both"},
    }


class Row:
    """One engine with one connector.  Built in two steps, so that the engines of all rows can start side by side."""

    def __init__(self, name: str, setup: Setup) -> None:
        self.name = name
        self._setup = setup
        self._source = {KVHUB_HOST: "host", KVHUB_POOL: "pool"}.get(name)
        self.server: LMCacheServer | None = None
        if name in (PEER_DRAM, PEER_FILES):
            self.server = LMCacheServer(
                setup.peer_python,
                name.replace(" ", "-"),
                setup.folder,
                gigabytes=setup.cache_gigabytes,
                directory=name == PEER_FILES,
            )
        self._engine: EngineProcess | None = None

    def start(self) -> None:
        """Begin to build the engine; `ready` waits for it."""
        setup, connector = self._setup, None
        if self.server:
            self.server.ready()
            connector = self.server.connector()
        elif self._source:
            connector = kvhub_connector(setup, self.name, self._source)
        order = {
            "model": str(setup.model),
            "prefix_cache": self.name != PLAIN,
            "connector": connector,
            "max_tokens": setup.prompt_tokens + 64,
            "step_tokens": setup.step_tokens,
            "kv_bytes": setup.kv_bytes,
        }
        python = setup.peer_python if self.server else setup.python
        log = setup.folder / f"{self.name.replace(' ', '-')}.log"
        self._engine = EngineProcess(self.name, python, order, threads=setup.threads, log=log)

    @property
    def engine(self) -> EngineProcess:
        assert self._engine, "start() comes first"
        return self._engine

    @property
    def pids(self) -> list[int]:
        return [self.engine.pid] + ([self.server.pid] if self.server else [])

    def cold(self, prompt: list[int]) -> Sample:
        """A prompt that nobody has seen; ends when all of its KV is where the row keeps it."""
        if self.name != OWN:
            self.engine.ask("reset")
        mark, before = self._mark()
        answer = self.engine.ask("run", prompt=prompt)
        self.engine.ask("settle")
        if self.server:
            self.server.settle()
        if answer["cached"]:
            raise EngineFailed(f"{self.name}: {answer['cached']} tokens of a new prompt were served from a cache")
        return Sample(**answer, moved=self._moved("stored", mark, before))

    def warm(self, prompt: list[int]) -> Sample | None:
        """The same prompt again, served by what the row is about; None for the row that keeps nothing."""
        if self.name == PLAIN:
            return None
        if self.name != OWN:
            self.engine.ask("reset")
        if self.name == PEER_FILES and self.server:
            self.server.clear_memory()
        mark, before = self._mark()
        answer = self.engine.ask("run", prompt=prompt)
        self.engine.ask("settle")
        if answer["cached"] < SERVED * len(prompt):
            raise EngineFailed(f"{self.name}: the cache served only {answer['cached']} of {len(prompt)} tokens")
        self._check_source(answer["cached"], mark, before)
        return Sample(**answer, moved=self._moved("loaded", mark, before))

    def _mark(self) -> tuple[int, dict[str, Any]]:
        return (self.server.mark() if self.server else 0), (self.engine.ask("counters") if self._source else {})

    def _moved(self, what: str, mark: int, before: dict[str, Any]) -> Moved:
        if self.server:
            spent: Spent = self.server.stored(mark) if what == "stored" else self.server.retrieved(mark)
            return Moved(spent.tokens * self._setup.token_bytes, spent.seconds)
        if not self._source:
            return Moved()
        after = self.engine.ask("counters")
        if after["faults"] != before["faults"]:
            raise EngineFailed(
                f"{self.name}: chunks failed to move; faults were {before['faults']}, now {after['faults']}"
            )

        def moved(kind: str) -> Moved:
            return Moved(*(after[kind][name] - before[kind][name] for name in ("bytes", "seconds")))

        if self._source == "host":
            return moved("gathers" if what == "stored" else "scatters")
        if what == "stored":
            return moved("saves")
        read, copied = moved("loads"), moved("scatters")
        return Moved(copied.bytes, read.seconds + copied.seconds)

    def _check_source(self, cached: int, mark: int, before: dict[str, Any]) -> None:
        """The numbers of a row are only worth something if the place that it is named after has served."""
        if self._source:
            after = self.engine.ask("counters")["sources"].get(self._source, 0)
            served = after - before["sources"].get(self._source, 0)
            if served < cached:
                raise EngineFailed(f"{self.name}: {self._source!r} served {served} of {cached} tokens")
        if self.name == PEER_FILES and self.server and not self.server.from_files(mark):
            raise EngineFailed(f"{self.name}: its files served nothing; look into {self._setup.folder}")

    def close(self) -> None:
        if self._engine:
            self._engine.close()
        if self.server:
            self.server.close()

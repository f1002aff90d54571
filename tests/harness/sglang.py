"""`sglang.launch_server` in processes of its own, on a CPU."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.outputs import Output
from harness.paths import ROOT, free_port
from harness.processes import Leashed
from harness.serving import HttpError, Served, ask

SGLANG_PYTHON = Path(os.environ.get("KVHUB_TEST_SGLANG", ROOT / ".venv-sglang/bin/python"))
PAGE = 64
NATIVE_IO = {"page_first_direct": "direct"}
"""Host memory layouts that SGLang copies page by page; the others go through its kernels."""


def backend(config: Path, role: str, **more: Any) -> dict[str, Any]:
    """The JSON of `--hicache-storage-backend-extra-config`."""
    return {
        "backend_name": "kvhub",
        "module_path": "kvhub_sglang.storage",
        "class_name": "KvhubStorage",
        "interface_v1": 1,
        "prefetch_threshold": PAGE,
        "config": str(config),
        "role": role,
        **more,
    }


def sglang_environment(**more: str) -> dict[str, str]:
    """Environment of a process that imports SGLang on a CPU: small, offline."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SGLANG_", "KVHUB_"))}
    path = [str(ROOT / "tests"), *filter(None, [env.get("PYTHONPATH")])]
    return env | {
        "PYTHONPATH": os.pathsep.join(path),
        "PATH": os.pathsep.join([str(SGLANG_PYTHON.parent), env.get("PATH", "")]),  # ninja, for its page hashes
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "TORCH_EXTENSIONS_DIR": str(SGLANG_PYTHON.parents[1] / "extensions"),
    } | more  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Answer(Output):
    """One finished request, with where SGLang says that its prompt came from."""

    device: int = 0
    host: int = 0
    storage: int = 0


class SglangEngine(Served, Leashed):
    """One server.  `storage` is the backend's JSON; without it the engine is a plain one."""

    def __init__(
        self,
        name: str,
        model: Path,
        log: Path,
        *,
        storage: Mapping[str, Any] | None = None,
        layout: str = "page_first",
        dtype: str = "float32",
        tokens: int = 8192,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        port = free_port()
        Served.__init__(self, f"http://127.0.0.1:{port}")
        command: list[str | Path] = [SGLANG_PYTHON, "-m", "sglang.launch_server", "--model-path", model]
        command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--served-model-name", "tiny"]
        command += ["--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "none"]
        command += ["--disable-overlap-schedule", "--skip-server-warmup", "--random-seed", "0", "--dtype", dtype]
        # The fraction is checked against the memory of the whole machine; what counts is the number of tokens.
        command += ["--mem-fraction-static", "0.4", "--max-total-tokens", str(tokens), "--max-running-requests", "4"]
        command += ["--page-size", str(PAGE), "--enable-cache-report", "--enable-metrics", *flags]
        if storage is not None:
            command += ["--enable-hierarchical-cache", "--hicache-ratio", "2", "--hicache-mem-layout", layout]
            command += ["--hicache-io-backend", NATIVE_IO.get(layout, "kernel")]
            command += ["--hicache-storage-prefetch-policy", "wait_complete", "--hicache-storage-backend", "dynamic"]
            command += ["--hicache-storage-backend-extra-config", json.dumps(storage)]
        Leashed.__init__(self, name, command, log, sglang_environment(**(env or {})))

    def ready(self, *, deadline: float = 600.0) -> float:
        """Wait until it serves; seconds that took.  Raises NotReady with the log's end."""
        return self.wait_ready(self.answers, deadline=deadline)

    def generate(
        self, prompt: Sequence[int], *, max_tokens: int, logprobs: int = 5, stream: bool = False, **more: Any
    ) -> Answer:
        """Greedy completion of token ids; ends by length only."""
        body = {
            "input_ids": list(prompt),
            "sampling_params": {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True},
            "return_logprob": True,
            "top_logprobs_num": logprobs,
            "stream": stream,
            **more,
        }
        start = time.perf_counter()
        first = 0.0
        if stream:
            request = urllib.request.Request(
                self.url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            told: dict[str, Any] = {}
            try:
                with urllib.request.urlopen(request, timeout=300) as lines:
                    for line in lines:
                        if line.startswith(b"data: {"):
                            told = json.loads(line[6:])
                            first = first or time.perf_counter() - start
            except urllib.error.HTTPError as why:
                raise HttpError(why.code, why.read().decode(errors="replace")) from None
        else:
            told = json.loads(ask(self.url + "/generate", body, timeout=300))
        return _answer(prompt, told, time.perf_counter() - start, first)

    def forget_prefixes(self, *, deadline: float = 20.0) -> None:
        """Empty device and host cache; what kvhub holds stays.  Refused while anything is under way."""
        until = time.monotonic() + deadline
        while True:
            try:
                ask(self.url + "/flush_cache", {})
                return
            except HttpError:
                assert time.monotonic() < until, f"{self.name} still holds pages"
                time.sleep(0.05)


def _answer(prompt: Sequence[int], told: Mapping[str, Any], seconds: float, first: float) -> Answer:
    if "meta_info" not in told:
        raise HttpError(500, json.dumps(told))
    meta = told["meta_info"]
    chosen, top = meta.get("output_token_logprobs") or (), meta.get("output_top_logprobs") or ()
    logprobs = tuple(
        {int(token): float(value) for value, token, *_ in [*(more or ()), one]}
        for one, more in zip(chosen, top or [()] * len(chosen), strict=True)
    )
    details = meta.get("cached_tokens_details") or {}
    return Answer(
        prompt=tuple(prompt),
        tokens=tuple(told["output_ids"]),
        logprobs=logprobs,
        finish=(meta.get("finish_reason") or {}).get("type"),
        cached=int(meta.get("cached_tokens") or 0),
        seconds=seconds,
        first_token_seconds=first,
        device=int(details.get("device") or 0),
        host=int(details.get("host") or 0),
        storage=int(details.get("storage") or 0),
    )

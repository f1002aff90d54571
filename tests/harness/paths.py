"""Where the checkout keeps what `make` builds."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODELS = Path(os.environ.get("KVHUB_TEST_MODELS", ROOT / ".models"))
ENGINE_PYTHON = Path(os.environ.get("KVHUB_TEST_PYTHON", ROOT / ".venv-vllm/bin/python"))
OLDER_ENGINE = Path(os.environ.get("KVHUB_TEST_OLDER_ENGINE", ROOT / ".engine-0.27.1"))
_taken: set[int] = set()


def model(name: str) -> Path:
    """Directory of a tiny model.  Raises FileNotFoundError that says how to build it."""
    path = MODELS / name
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"model {name}: nothing in {path}; build it with `make models`")
    return path


def needed(model: Path) -> dict[str, Any]:
    """Settings without which vLLM does not run a tiny model on every CPU.

    Latent attention: the backend that vLLM prefers where it finds AMX computes in bf16 only, ours is fp32; the other
    has a kernel for blocks of 16 tokens.  (0.27 has neither.)
    """
    return {"attention_backend": "CPU_MLA", "block_size": 16} if "mla" in model.name else {}


def free_port() -> int:
    """A loopback port on which nothing listens and that this process has not given out before."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _taken:
            _taken.add(port)
            return port


def engine_environment(*, older: bool = False, **more: str) -> dict[str, str]:
    """Environment of a process that imports vLLM on a CPU: small, offline, and the same block hashes every time."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "KVHUB_"))}
    path = [str(OLDER_ENGINE)] if older else []
    path += [str(ROOT / "tests"), *filter(None, [env.get("PYTHONPATH")])]
    env |= {
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONHASHSEED": "0",  # vLLM's own block hashes begin with it
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # One per release: two releases would overwrite each other's notes on models, at 12 s of work per model.
        "VLLM_CACHE_ROOT": str((OLDER_ENGINE if older else ENGINE_PYTHON.parents[1]) / "cache"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else every engine pins itself to the first core
        "VLLM_LOGGING_LEVEL": "INFO",
        "TORCHDYNAMO_DISABLE": "1",  # the logprobs path is compiled even when eager: five seconds and a compiler
    }
    return env | more

"""What two engines that serve the same model must agree on: which weights, and the namespace of their KV.

Adapters find the facts in their engine; how facts become a namespace is said here once, so that two engines share KV
exactly when the facts are equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvhub.keys import Namespace

SAMPLES = 16
SAMPLE_BYTES = 65536
_VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "architectures")
"""Entries of a model's configuration that do not change its KV, or that are told apart."""


def fingerprint(folder: Path) -> str:
    """Digest of the weight files in a folder: their sizes and samples spread over each; "" without weights.

    Reading all of a large model would delay the start by minutes.  Weights of another training differ in almost every
    byte, so that 16 samples of 64 KiB per file tell them apart; an adversary who edits single weights in a
    shared folder is not what this is for.
    """
    files = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin", ".pt", ".gguf") and p.is_file())
    if not files:
        return ""
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with file.open("rb") as data:
            for at in range(SAMPLES):
                data.seek(max(size - SAMPLE_BYTES, 0) * at // (SAMPLES - 1))
                digest.update(data.read(SAMPLE_BYTES))
    return f"files {digest.hexdigest()[:32]}"


def adapter_identity(name: str, folder: Path) -> str | None:
    """Name and content of a LoRA adapter; None when its content cannot be told.

    Its configuration counts, too: it has the scale by which the weights are applied.
    """
    content = fingerprint(folder) if folder.is_dir() else ""
    config = folder / "adapter_config.json"
    scale = hashlib.sha256(config.read_bytes()).hexdigest()[:16] if config.is_file() else "none"
    return f"{name} {content} config {scale}" if content else None


def weights_revision(model: str, revision: str | None) -> str:
    """What tells these weights from others: a digest of local files, or the hub's revision; "" if unknown."""
    path = Path(model)
    if path.is_dir():
        return fingerprint(path)
    return f"revision {revision}" if revision else ""


def model_namespace(
    *,
    named: str | None,
    architectures: Sequence[str] | None,
    revision: str,
    dtype: str,
    layers: int,
    config: Mapping[str, Any],
    chunk_tokens: int,
    coordinates: Iterable[tuple[str, int, int]] = (),
    extra: Iterable[tuple[str, str]] = (),
) -> Namespace:
    """The namespace of a model's KV.

    `named`: the operator's name for the model, or none; `layers`: those that keep KV; `config`: the text model's
    Hugging Face configuration, with what the operator overrode and without what an engine added; `extra`: what else
    makes KV unusable elsewhere, such as quantised KV with scales of one engine.
    """
    facts = {name: value for name, value in config.items() if name not in _VOLATILE}
    return Namespace(
        model=named or "+".join(architectures or ["unknown"]),
        revision=revision,
        dtype=dtype,
        groups=json.dumps({"layers": layers, "config": facts}, sort_keys=True, default=str),
        coordinates=coordinates,
        chunk_tokens=chunk_tokens,
        extra=extra,
    )

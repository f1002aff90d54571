"""Weights told from others, whatever engine reads them; and the namespace of a model's KV."""

from __future__ import annotations

from pathlib import Path

from kvhub.weights import fingerprint, model_namespace


def test_a_fingerprint_sees_the_first_and_the_last_byte(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    data = bytearray(5_000_000)
    file.write_bytes(data)
    seen = {fingerprint(tmp_path)}
    for at in (0, len(data) - 1):
        data[at] ^= 1
        file.write_bytes(data)
        seen.add(fingerprint(tmp_path))
    assert len(seen) == 3
    file.unlink()
    assert fingerprint(tmp_path) == ""


def test_a_namespace_holds_what_makes_kv_unusable_elsewhere() -> None:
    def made(**other: object) -> bytes:
        facts: dict[str, object] = {
            "named": None, "architectures": ["A"], "revision": "r", "dtype": "bfloat16", "layers": 2,
            "config": {"rope_parameters": {"factor": 8.0}}, "chunk_tokens": 64,
        }  # fmt: skip
        return model_namespace(**{**facts, **other}).digest  # type: ignore[arg-type]

    others = [
        {"named": "C"}, {"architectures": ["B"]}, {"revision": "s"}, {"dtype": "float16"}, {"layers": 3},
        {"config": {"rope_parameters": {"factor": 4.0}}}, {"chunk_tokens": 32}, {"coordinates": [("tp", 0, 2)]},
        {"extra": [("kv_cache_dtype", "fp8")]},
    ]  # fmt: skip
    assert len({made(), *(made(**other) for other in others)}) == 1 + len(others)
    assert made(config={"rope_parameters": {"factor": 8.0}, "transformers_version": "9", "dtype": "x"}) == made()

"""`kvhub inspect`: what a stored chunk says of itself, whether it is whole, and whether a file's codecs can read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from kvhub import chunkfile
from kvhub.codec import About, Codec, Codecs
from kvhub.config import Config
from kvhub.errors import Damaged, Foreign, KvhubError
from kvhub.plugins import Registry
from kvhub.pool.look import header_facts

OF_THIS_PROJECT = {0: "none", 1: "zstd", 2: "fp8", 3: "int8", 4: "aes", 5: "several"}
"""Names of the codec bytes that this project gave away (docs/codecs.md), for files whose plugin is not installed."""
MOST_DECODED = 1 << 30
"""Bytes that are allocated on a header's word."""


def examine(place: str, registry: Registry, config: Config | None, *, header_only: bool) -> dict[str, Any]:
    """The facts of the object at a path or URL, in the order to print them; never a key of a codec.

    `payload` is `whole`, `damaged: REASON` or `not read`.  With a `config`, `decodable` tells whether its codecs can
    read the chunk: by trying it, or where only the header is read by the codec's byte.  Raises KvhubError.
    """
    try:
        with _opened(place, registry, config) as file:
            header = chunkfile.parse(_read(file, chunkfile.HEADER_BYTES))
            payload = None if header_only else file.read()
    except OSError as error:
        raise KvhubError(f"{place}: cannot be read: {error.strerror or error}") from error
    except Foreign as error:
        raise KvhubError(f"{place}: a chunk of another {error.reason}, which this kvhub does not read") from error
    except (Damaged, ValueError) as error:
        raise KvhubError(f"{place}: not a whole chunk: {error}") from error
    told: dict[str, Any] = header_facts(header)
    layout = told.pop("layout")
    told |= {
        "codec_name": ", then ".join(_name(code, config) for code in header.codecs or (0,)),
        "ratio": round(header.payload_bytes / header.stored_bytes, 3) if header.stored_bytes else 1.0,
        "layout": layout,
        "payload": "not read" if payload is None else _verdict(header, payload),
    }
    if config is not None:
        told["decodable"] = _decodable(header, payload if told["payload"] == "whole" else None, config)
    return told


def _opened(place: str, registry: Registry, config: Config | None) -> BinaryIO:
    scheme = urlsplit(place).scheme if "://" in place else ""
    if not scheme:
        return Path(place).open("rb")
    registry.load(scheme)
    plain: Mapping[str, Any] = config.plain if config is not None else {}
    found: BinaryIO | None = registry.hooks.kvhub_open_url(url=place, config=plain)
    if found is None:
        raise KvhubError(f"{place}: plugin '{scheme}' does not open such a URL; name a copy of the object")
    return found


def _read(file: BinaryIO, size: int) -> bytes:
    """`size` bytes, fewer only at the end: a raw stream may return less than it was asked for."""
    data = b""
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data


def _name(code: int, config: Config | None) -> str:
    for codec in config.encodings.codecs.values() if config is not None else ():
        if codec.cls.code == code:
            return codec.cls.name
    return OF_THIS_PROJECT.get(code, "unknown")


def _verdict(header: chunkfile.Header, payload: bytes) -> str:
    try:
        room, codecs = header.payload_bytes, header.codecs or (0,)
        chunkfile.check(header, header.key, header.namespace, len(payload) + chunkfile.HEADER_BYTES, room, codecs)
        chunkfile.check_payload(header, payload)
    except Damaged as error:
        return f"damaged: {error.reason}"
    return "whole"


def _decodable(header: chunkfile.Header, payload: bytes | None, config: Config) -> str:
    if not header.codecs:
        return "yes"
    codecs: dict[int, Codec] = {}
    reasons: list[str] = []
    for entry in config.encodings.codecs.values():
        if entry.cls.code in header.codecs and entry.cls.code not in codecs:
            try:
                codec = entry.cls(entry.options, entry.name)
            except KvhubError as error:
                reasons.append(f"'{entry.name}': {error}")
                continue
            codecs[codec.code] = codec
    if missing := [code for code in header.codecs if code not in codecs]:
        named = ", ".join(_name(code, config) for code in missing)
        return "no: " + ("; ".join(reasons) or f"the file names no such codec ({named})")
    names = ", ".join(f"'{codecs[code].label}'" for code in header.codecs)
    if payload is None:
        return f"perhaps: by {names}, whose codec it is; the payload was not tried"
    reason = _tried(header, payload, list(codecs.values()))
    return f"no: {names}: {reason}" if reason else f"yes, by {names}"


def _tried(header: chunkfile.Header, payload: bytes, codecs: list[Codec]) -> str:
    """Why these codecs cannot decode a payload, or ""."""
    if header.payload_bytes > MOST_DECODED:
        return f"{header.payload_bytes} bytes are more than is tried here"
    room = memoryview(bytearray(header.payload_bytes))
    about = About(header.key, header.namespace, header.layout, room.nbytes, header.generated, header.tenant)
    try:
        Codecs((), codecs).decode(header.codecs, memoryview(payload), room, about, header.between)
    except Foreign as error:
        return f"made with another {error.reason}"
    except Exception as error:
        return f"it fails with {type(error.__cause__ or error).__name__}"
    return ""

"""A store in a dictionary, for what stores do with codecs."""

from __future__ import annotations

from typing import Any

from format.toys import Turn
from kvhub import chunkfile
from kvhub.codec import Codecs
from kvhub.store import BlockingStore
from kvhub.testing.driver import Driver
from kvhub.testing.region import LAYOUT, make_context, make_key, make_payload

KEY, DATA = make_key("one"), make_payload("one")


class Shelf(BlockingStore):
    """Objects in a dictionary that stores of one medium share."""

    persistent = shared = True

    def has(self, name: str) -> bool:
        return name in self.config

    def read(self, name: str, header: memoryview, payload: memoryview) -> int | None:
        data = self.config.get(name)
        if data is None:
            return None
        head, rest = data[: header.nbytes], data[header.nbytes :][: payload.nbytes]
        header[: len(head)], payload[: len(rest)] = head, rest
        return len(data)

    def write(self, name: str, header: bytes, payload: memoryview) -> bool:
        self.config[name] = header + bytes(payload)
        return True

    def drop(self, name: str) -> None:
        self.config.pop(name, None)


class Bench:
    """A store on `objects` with codecs of its own, its driver and its counters."""

    def __init__(self, objects: dict[str, bytes], codecs: Codecs | None) -> None:
        self.objects, self.counts = objects, dict[str, int]()
        context = make_context("shelf", codecs=codecs, report=self._report)
        self.context = context
        self.hub = Driver(Shelf(objects, context))
        self.hub.attach()

    def _report(self, name: str, count: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + count

    def header(self, key: bytes = KEY) -> chunkfile.Header:
        return chunkfile.parse(self.objects[key.hex()])

    def put(self, stored: bytes, **facts: Any) -> None:
        """What some writer might have stored under KEY."""
        facts = {"codecs": (Turn.code,), "payload_bytes": len(DATA), "layout": LAYOUT.text, **facts}
        self.objects[KEY.hex()] = chunkfile.pack(KEY, self.context.namespace, stored, **facts) + stored

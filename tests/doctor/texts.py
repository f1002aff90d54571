"""Files and plugins that the doctor's tests have in common."""

from __future__ import annotations

HOST = """\
kvhub: 1
stores:
  host: {use: host, capacity: 64MiB}
roles:
  both: {store: [host], retrieve: [host]}
"""
POOL = """\
kvhub: 1
stores:
  pool: {use: nfs/local, root: ROOT}
limits: {staging: 1GiB}
roles:
  both: {store: [pool], retrieve: [pool]}
"""
WIRE = """\
kvhub: 1
stores:
  host: {use: host, capacity: 64MiB}
transports:
  wire: {use: tcp, listen: "127.0.0.1:0"}
roles:
  prefill: {store: [host, wire], retrieve: [host]}
  decode: {store: [host], retrieve: [host, wire]}
"""


FLIPS = """
from collections import deque
import attrs
from kvhub import Capabilities, hookimpl
from kvhub.store import Store
from kvhub.types import Completion, Op, Outcome

@attrs.frozen
class Options:
    pass

class Flip(Store):
    Config = Options
    capabilities = property(lambda self: Capabilities(persistent=True, shared=True, removes=True))
    def attach(self, region, wake): self.region, self.wake, self.done = region, wake, deque()
    def submit(self, batch):
        good = Outcome.MISS if batch.op is Op.FIND else Outcome.DONE
        lengths = batch.lengths if batch.op is Op.LOAD else ()
        self.done.append(Completion(batch.id, (good,) * len(batch.keys), lengths))
        self.wake()
    def poll(self): return [self.done.popleft() for _ in range(len(self.done))]
    def close(self): pass
    def used_bytes(self): return None

@hookimpl
def kvhub_register_stores():
    return (Flip,)
"""


def bad(lines: list[str]) -> list[str]:
    """Everything but passes, and but the engine, which this environment may or may not have."""
    return [each for each in lines if not each.startswith("pass ") and " engine" not in each.partition(":")[0]]

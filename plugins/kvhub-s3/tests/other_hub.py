"""Another hub on the same bucket, in a process of its own: python other_hub.py ENDPOINT BUCKET PREFIX WORD [BYTES].

Words: `save` saves one chunk of BYTES and prints what became of it; `fork-first` forks and opens a hub in the child;
`fork-after` forks with an open hub and says what the child can do with it and with a new one.
"""

from __future__ import annotations

import os
import sys

from kvhub.errors import KvhubError
from kvhub.testing.driver import Driver
from kvhub.testing.region import SLOT_BYTES, make_context, make_key, make_payload
from kvhub_s3 import BucketStore
from kvhub_s3.config import BucketConfig, Credentials
from kvhub_s3.failures import Forked

KEY, DATA = make_key("other hub"), make_payload("other hub")


def opened(slot_bytes: int = SLOT_BYTES) -> Driver:
    endpoint, bucket, prefix = sys.argv[1:4]
    config = BucketConfig(
        bucket=bucket, prefix=prefix, endpoint=endpoint, credentials=Credentials("KVTEST"), part_size=5 << 20
    )
    hub = Driver(BucketStore(config, make_context("other")), slots=2, slot_bytes=slot_bytes, patience=30.0)
    hub.attach()
    return hub


def use(hub: Driver) -> str:
    hub.keep({KEY: DATA})
    return "well" if hub.read([KEY]) == [DATA] else "wrong"


def in_child(say: object) -> int:
    """Fork, print in the child what `say` returns, and wait for the child's end as it would come by itself."""
    pid = os.fork()
    if pid == 0:
        print(f"child: {say()}", flush=True)  # type: ignore[operator]
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork_first() -> None:
    print("child ended with", in_child(lambda: use(opened())), flush=True)
    print("parent:", use(opened()), flush=True)


def fork_after() -> None:
    hub = opened()
    use(hub)

    def child() -> str:
        member = hub.member
        assert isinstance(member, BucketStore)
        try:
            member.has(KEY.hex())
            call = "answered"
        except Forked:
            call = "Forked"
        member.close()
        try:
            opened()
        except KvhubError as refusal:
            return f"{call}, {refusal}"
        return f"{call}, opened"

    print("child ended with", in_child(child), flush=True)
    print("parent:", use(hub), flush=True)
    hub.close()


def save() -> None:
    size = int(sys.argv[5])
    hub = opened(size)
    hub.region.slot(0)[:] = bytes(size)
    print("saving", flush=True)
    print(hub.wait(hub.start_save({KEY: bytes(size)})).outcomes[0].name, flush=True)


if __name__ == "__main__":
    {"save": save, "fork-first": fork_first, "fork-after": fork_after}[sys.argv[4]]()

"""A small front for prefill/decode serving: one OpenAI-compatible address before engines that share KV by kvhub.

A request runs as two legs.  The *prefill leg* computes the prompt and one token that nobody reads; its answer says
where the KV is (`kv_transfer_params`).  The *decode leg* is the client's own request plus these parameters, and its
answer is the client's answer.  The first leg that fails decides what the client is told.

`bodies` makes the legs' requests, `legs` sends them, `events` cuts streams into whole events, `failures` says what a
client may read of an engine's error, `app` joins them, `cli` starts a process.
"""

from kvhub_front.app import Front
from kvhub_front.config import FrontConfig

__all__ = ["Front", "FrontConfig"]

"""kvhub keeps the KV that serving engines compute, and moves it where the next request needs it.

Read in this order: `types` (the data that crosses), `keys` (which KV is the same KV), `arena` (slots and leases),
`member`, `store` and `transport` (what plugins implement), `router`, `jobs` and `hub` (how a
request is served), `session` (what engine adapters share).
"""

from kvhub.errors import ConfigError, KvhubError, LayoutError, MisuseError, PluginError
from kvhub.hookspecs import hookimpl
from kvhub.types import Batch, Capabilities, Completion, Held, Key, MemberContext, Op, Outcome, Peer, Region

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "Capabilities",
    "Completion",
    "ConfigError",
    "Held",
    "Key",
    "KvhubError",
    "LayoutError",
    "MemberContext",
    "MisuseError",
    "Op",
    "Outcome",
    "Peer",
    "PluginError",
    "Region",
    "hookimpl",
]

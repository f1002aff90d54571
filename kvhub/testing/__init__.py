"""The contracts that members are held to, and the faults that hubs are held to.  Needs `kvhub[testing]`.

StoreContract, TransportContract    pytest classes: subclass one with a fixture, and every law runs on your member
EngineContract                      the same for an engine adapter, driven step by step as an `EngineDriver`
FakeEngine                          a paged engine in plain Python, whose tokens follow from every byte of its KV
MemoryStore, MemoryMedium           a store in memory, for the contract through a codec, and its `Medium`
Medium                              optional second fixture: lets laws damage what a store has stored
Slow, Torn, Dropping, Full, Raising, Hanging    wrappers that make any member misbehave (`faults`)
Driver                              what a hub does with one member, for tests of your own
make_region, make_context, make_key, make_payload    what a member needs, without a hub
WirePairing, WireFaults             for transports made of `kvhub.wire`: who is let in, and what real processes survive
FakeSource                          the hub as a serving transport sees it
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvhub.testing.driver import Driver
    from kvhub.testing.engine import EngineContract
    from kvhub.testing.fake_engine import FakeEngine
    from kvhub.testing.fake_engine_members import MemoryConfig, MemoryMedium, MemoryStore
    from kvhub.testing.faults import Dropping, Full, Hanging, Raising, Slow, Torn
    from kvhub.testing.region import make_context, make_key, make_payload, make_region
    from kvhub.testing.source import FakeSource
    from kvhub.testing.store import StoreContract
    from kvhub.testing.store_safety import Medium
    from kvhub.testing.transport import TransportContract
    from kvhub.testing.wire_faults import WireFaults
    from kvhub.testing.wire_pairing import WirePairing

_WHERE = {
    "Driver": "driver",
    "EngineContract": "engine",
    "FakeEngine": "fake_engine",
    "MemoryConfig": "fake_engine_members", "MemoryMedium": "fake_engine_members", "MemoryStore": "fake_engine_members",
    "Dropping": "faults", "Full": "faults", "Hanging": "faults", "Raising": "faults", "Slow": "faults",
    "Torn": "faults",
    "make_context": "region", "make_key": "region", "make_payload": "region", "make_region": "region",
    "FakeSource": "source",
    "StoreContract": "store",
    "Medium": "store_safety",
    "TransportContract": "transport",
    "WireFaults": "wire_faults",
    "WirePairing": "wire_pairing",
}  # fmt: skip
_ASSERTING = (
    "driver", "engine_basic", "engine_flow", "engine_life", "engine_safety", "engine_soak", "engine_stage",
    "guard", "stage", "source", "store_basic", "store_claims", "store_safety", "store_time",
    "transport_basic", "transport_claims", "transport_safety", "wire_forgery", "wire_hub", "wire_lies", "wire_pairing",
    "wire_states", "wire_time",
)  # fmt: skip

try:
    import pytest
except ModuleNotFoundError:
    # Wrappers and regions are of use without pytest; only the contracts are pytest classes.
    pass
else:
    # Before those modules are imported, or their asserts say nothing but AssertionError.
    pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _ASSERTING))


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise ImportError(f"kvhub.testing.{name} needs pytest: pip install 'kvhub[testing]'", name="pytest") from error


__all__ = [
    "Driver",
    "Dropping",
    "EngineContract",
    "FakeEngine",
    "FakeSource",
    "Full",
    "Hanging",
    "Medium",
    "MemoryConfig",
    "MemoryMedium",
    "MemoryStore",
    "Raising",
    "Slow",
    "StoreContract",
    "Torn",
    "TransportContract",
    "WireFaults",
    "WirePairing",
    "make_context",
    "make_key",
    "make_payload",
    "make_region",
]

"""What the engine laws stand on: engines on one pool, requests driven step by step, the plain twin's tokens."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs
import pytest

from kvhub.keys import Context
from kvhub.testing import under
from kvhub.testing.engine_driver import DriverFactory, EngineDriver, EngineSetup, Result, Unable
from kvhub.testing.engine_tap import Tap
from kvhub.testing.guard import Guarded
from kvhub.testing.stage import Traces

OFFER = {"do_remote_decode": True}
ROOMY = EngineSetup()


@attrs.frozen
class Pair:
    """A prefill and a decode engine with a wire between them and a pool behind them."""

    prefill: EngineDriver
    decode: EngineDriver


class Stand:
    """Engines of one law, and what is done with them.  Every wait ends after `patience` with an AssertionError."""

    def __init__(
        self,
        factory: DriverFactory,
        pool: Mapping[str, Any],
        wire: Mapping[str, Any],
        *,
        block: int,
        chunk: int,
        vocabulary: int,
        patience: float,
        memory: str = "8MiB",
        fault: str = "",
    ) -> None:
        self.factory, self.pool, self.wire = factory, pool, wire
        self.block, self.chunk, self.vocabulary, self.patience = block, chunk, vocabulary, patience
        self.memory, self.fault = memory, fault
        self._slot_bytes = 0
        self.opened: list[EngineDriver] = []
        self._plain: dict[str, EngineDriver] = {}
        self._known: dict[tuple[object, ...], tuple[int, ...]] = {}

    # -- engines ---------------------------------------------------------------------------------------------------

    def config(self, roles: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """A hub configuration with the members that the roles name, and lookups that may take their time."""
        text = str(roles)
        members = {"host": {"use": "host", "capacity": self.memory}, "pool": dict(self.pool)} | more.pop("stores", {})
        config: dict[str, Any] = {
            "kvhub": 1,
            "chunk_tokens": self.chunk,
            "limits": {"lookup": "5s", "lease": "30s", "staging": self.memory} | more.pop("limits", {}),
            "stores": {name: options for name, options in members.items() if f"'{name}'" in text},
            "roles": dict(roles),
        }
        if "'wire'" in text:
            config["transports"] = {"wire": dict(self.wire)}
        return config | more

    def open(self, config: Mapping[str, Any] | None, role: str = "both", setup: EngineSetup = ROOMY) -> EngineDriver:
        """An engine that is closed with the law."""
        driver = self.factory(config, role, setup)
        self.opened.append(driver)
        if self.fault and config is not None:
            under.trouble(driver.hub, self.fault)
        return driver

    def tiered(self, setup: EngineSetup = ROOMY, *, slots: int = 0) -> EngineDriver:
        """A single engine with a host tier of its own before the shared pool; of so many chunks, if that is said."""
        capacity = self.memory if not slots else slots * self._slot()
        roles = {"both": {"store": ["host", "pool"], "retrieve": ["host", "pool"]}}
        return self.open(self.config(roles, stores={"host": {"use": "host", "capacity": capacity}}), setup=setup)

    def _slot(self) -> int:
        """Bytes of a slot, which only an engine that has started knows."""
        if not self._slot_bytes:
            probe = self.tiered()
            self._slot_bytes = probe.hub.arena.region.slot_bytes
            self.opened.remove(probe)
            probe.close()
        return self._slot_bytes

    def pooled(self, setup: EngineSetup = ROOMY, *, deadline: str = "2s") -> EngineDriver:
        """A single engine with nothing but the shared pool."""
        roles = {"both": {"store": ["pool"], "retrieve": [{"from": "pool", "deadline": deadline}]}}
        return self.open(self.config(roles), setup=setup)

    def reader(self, setup: EngineSetup = ROOMY) -> EngineDriver:
        """A single engine that looks into the shared pool and stores nothing anywhere."""
        writer = {"store": ["pool"], "retrieve": ["pool"]}
        return self.open(self.config({"both": writer, "prefill": {"retrieve": ["pool"]}}), "prefill", setup)

    def deployment(self) -> dict[str, Any]:
        """Roles of the whole flow: prefill offers, decode pulls and writes back, prefill finds that in the pool."""
        prefill = {"store": ["host", "wire"], "retrieve": ["host", "pool"]}
        decode = {"store": ["host", "pool"], "retrieve": ["host", "wire", "pool"]}
        return self.config({"prefill": prefill, "decode": decode})

    def pair(self, prefill: EngineSetup = ROOMY, decode: EngineSetup = ROOMY) -> Pair:
        config = self.deployment()
        return Pair(self.open(config, "prefill", prefill), self.open(config, "decode", decode))

    def close(self) -> None:
        for driver in [*self.opened, *self._plain.values()]:
            driver.close()

    # -- driving ---------------------------------------------------------------------------------------------------

    def until(self, true: Callable[[], object], *drivers: EngineDriver, what: str = "") -> None:
        """Step the engines until something is true."""
        end = time.monotonic() + self.patience
        while not true():
            assert time.monotonic() < end, f"{what or 'this'}: not so within {self.patience:g} s"
            for driver in drivers:
                driver.step()

    def results(self, driver: EngineDriver, names: Sequence[str], *others: EngineDriver) -> list[Result]:
        """Step until all of these requests have ended; their results."""
        self.until(
            lambda: all(driver.result(name) is not None for name in names), driver, *others, what=f"the end of {names}"
        )
        found = [driver.result(name) for name in names]
        return [result for result in found if result is not None]

    def run(
        self, driver: EngineDriver, prompt: Sequence[int], wanted: int = 4, context: Context | None = None
    ) -> tuple[int, ...]:
        """One request to its end; its tokens, held against the plain twin's."""
        return self.check(driver, driver.submit(prompt, wanted, context), prompt, wanted, context)

    def check(
        self,
        driver: EngineDriver,
        name: str,
        prompt: Sequence[int],
        wanted: int,
        context: Context | None = None,
        revision: str = "r1",
    ) -> tuple[int, ...]:
        """Drive a request to its end; AssertionError unless it made the plain twin's tokens."""
        (result,) = self.results(driver, [name])
        assert result.reason == "length", f"{name} ended by {result.reason}"
        assert result.tokens == self.expected(prompt, wanted, context, revision), f"{name}: wrong tokens"
        return result.tokens

    def rest(self, *drivers: EngineDriver) -> None:
        """Step engines that nobody asks anything until all they hold is given back; background saves included."""

        def left() -> dict[str, int]:
            return {
                f"{at}: {name}": count
                for at, driver in enumerate(drivers)
                for name, count in driver.counts().items()
                if count
            }

        end = time.monotonic() + self.patience
        while left():
            assert time.monotonic() < end, f"never given back: {left()}"
            for driver in drivers:
                driver.step()

    def expected(
        self, prompt: Sequence[int], wanted: int, context: Context | None = None, revision: str = "r1"
    ) -> tuple[int, ...]:
        """What an engine without kvhub generates."""
        known = (tuple(prompt), wanted, context, revision)
        if known not in self._known:
            if revision not in self._plain:
                self._plain[revision] = self.factory(None, "both", EngineSetup(revision=revision))
            plain = self._plain[revision]
            (result,) = self.results(plain, [plain.submit(prompt, wanted, context)])
            self._known[known] = result.tokens
        return self._known[known]

    def prompt(self, tokens: int, seed: object = 0) -> list[int]:
        """A prompt of so many tokens; equal seeds begin alike."""
        dice = random.Random(str(seed))
        return [dice.randrange(self.vocabulary) for _ in range(tokens)]

    def chat(self, pair: Pair, prompt: Sequence[int], wanted: int) -> tuple[int, ...]:
        """A request through both legs, held against the plain twin."""
        params = self.prefilled(pair.prefill, prompt, settled=False)
        name = pair.decode.submit(prompt, wanted, params=params)
        self.until(
            lambda: pair.decode.result(name) is not None, pair.decode, pair.prefill, what=f"the decode leg of {name}"
        )
        return self.check(pair.decode, name, prompt, wanted)

    def prefilled(
        self, prefill: EngineDriver, prompt: Sequence[int], *, settled: bool = True
    ) -> Mapping[str, Any] | None:
        """The prefill leg alone: what it gives the client for the decode leg.

        An engine steps on while it has copies to end; with `settled=False` that is left to who steps it later.
        """
        (result,) = self.results(prefill, [prefill.submit(prompt, 1, params=OFFER)])
        assert result.tokens == self.expected(prompt, 1), "the prefill leg's token is wrong"
        self.until(lambda: not settled or not prefill.step(), what="the end of the prefill's copies")
        return result.params

    # -- looking ---------------------------------------------------------------------------------------------------

    def tap(self, driver: EngineDriver, member: str) -> Tap:
        return Tap(driver.hub, member)

    def hits(self, driver: EngineDriver) -> dict[str, int]:
        """Prompt tokens that were not computed so far, by where they came from."""
        counts = driver.hub.reports.counts()
        return {member: count for (name, member, _), count in counts.items() if name == "hit_tokens" and count}

    def loaded(self, driver: EngineDriver) -> int:
        """Tokens that kvhub loaded so far."""
        return sum(count for member, count in self.hits(driver).items() if member != "engine")


class EngineStage(Guarded):
    """Settings and fixtures of the engine laws."""

    block: ClassVar[int] = 4
    """Tokens of an engine block."""
    chunk: ClassVar[int] = 16
    """Tokens of a chunk, four blocks."""
    vocabulary: ClassVar[int] = 60_000
    """Token ids below this may stand in a prompt."""
    memory: ClassVar[str] = "8MiB"
    """Of each engine's host tier: room for a few hundred chunks."""
    patience: ClassVar[float] = 15.0
    """Seconds after which an engine that does not end counts as stuck."""

    @pytest.fixture
    def driver_factory(self) -> DriverFactory:
        """Override: a callable that starts an engine; see `DriverFactory`."""
        raise NotImplementedError(
            f"{type(self).__name__}: define the fixture driver_factory, a callable (config, role, setup) -> driver"
        )

    @pytest.fixture
    def pool(self) -> Mapping[str, Any]:
        """Override: options of a persistent, shared store, on the same empty medium for a whole law."""
        raise NotImplementedError(f"{type(self).__name__}: define the fixture pool, the options of a shared store")

    @pytest.fixture
    def wire(self) -> Mapping[str, Any]:
        """Override: options of a transport whose ends find each other within this machine."""
        raise NotImplementedError(f"{type(self).__name__}: define the fixture wire, the options of a transport")

    @pytest.fixture
    def stand(
        self, driver_factory: DriverFactory, pool: Mapping[str, Any], wire: Mapping[str, Any], kvhub_fault: str
    ) -> Iterator[Stand]:
        traces = Traces()

        def factory(config: Mapping[str, Any] | None, role: str, setup: EngineSetup) -> EngineDriver:
            try:
                return driver_factory(config, role, setup)
            except Unable as why:
                self.leave_out(str(why))

        stand = Stand(
            factory,
            pool,
            wire,
            block=self.block,
            chunk=self.chunk,
            vocabulary=self.vocabulary,
            patience=self.patience,
            memory=self.memory,
            fault=kvhub_fault,
        )
        try:
            yield stand
        finally:
            stand.close()
        traces.gone()

"""Contract classes for members that are installed: by the word that a file says after `use:`, without a test file."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvhub import options, yamlfile
from kvhub.codec import Codec, Codecs
from kvhub.errors import ConfigError, KvhubError, PluginError
from kvhub.plugins import Registry
from kvhub.store import Store
from kvhub.testing.driver import Driver
from kvhub.testing.fake_engine_members import MemoryConfig, MemoryMedium, MemoryStore
from kvhub.testing.region import like_floats, make_context
from kvhub.testing.scratch import Hand, Scratch, medium_of
from kvhub.testing.store import StoreContract
from kvhub.testing.transport import TransportContract
from kvhub.transport import Transport
from kvhub.types import Capabilities, MemberContext

KINDS = ("store", "transport", "codec")
_numbers = itertools.count()


@attrs.frozen
class Chosen:
    """A class that a plugin brings, with options."""

    use: str
    kind: str
    cls: type[Any]
    options: Any


def choose(use: str, file: str | None, kind: str | None, registry: Registry | None = None) -> list[Chosen]:
    """What is installed under `use`, one for each kind, or of one `kind`, with the options in a file.

    Raises ConfigError and PluginError.
    """
    registry = registry or Registry()
    loaded = registry.load(use.partition("/")[0])
    brings = {"store": loaded.stores, "transport": loaded.transports, "codec": loaded.codecs}
    kinds = [each for each in KINDS if kind in (None, each) and use in brings[each]]
    if not kinds:
        engine = "; an engine adapter needs a driver: subclass kvhub.testing.EngineContract" if loaded.engines else ""
        known = sorted({f"{each} {word}" for each, words in brings.items() for word in words})
        raise PluginError(
            f"plugin '{loaded.name}' has no {kind or 'member'} '{use}'; it has {', '.join(known) or 'none'}{engine}"
        )
    if len(kinds) > 1 and file is not None:
        raise PluginError(f"'{use}' is a {' and a '.join(kinds)}, and options fit only one; say --kvhub-kind")
    values = {} if file is None else read_options(file)
    chosen, problems = [], list[str]()
    for each in kinds:
        cls: type[Any] = brings[each][use]
        made = options.build(cls.Config, values, "", lambda path, said: problems.append(f"{path}: {said}"))
        chosen.append(Chosen(use, each, cls, made))
    if problems:
        hint = "" if file else "; say --kvhub-options FILE"
        raise ConfigError([problem + hint for problem in problems], where=file or f"options of '{use}'")
    return chosen


def read_options(file: str) -> Mapping[str, Any]:
    """A member's options from YAML.  Raises ConfigError."""
    try:
        tree = yamlfile.read(Path(file).read_text(encoding="utf-8"), Path(file).name)
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else f"not UTF-8: {error}"
        raise ConfigError([f"cannot be read: {said}"], where=file) from error
    data = {} if tree.data is None else tree.data
    if tree.problems or not isinstance(data, dict):
        raise ConfigError(tree.problems or [f"expected a mapping of options, found {options.found(data)}"], where=file)
    if "use" in data:
        raise ConfigError(["use: leave it out here; --kvhub-use says it"], where=file)
    return data


class Run:
    """The contract classes of one run, and the scratch namespaces that they used."""

    def __init__(self, *, must_remove: bool = False) -> None:
        self.must_remove = must_remove
        """Refuse stores that keep what they are given and cannot remove it."""
        self.classes: dict[str, type] = {}
        self._scratches: list[Scratch] = []
        self.left: list[str] = []
        """What could not be removed, as sentences."""

    def add(self, chosen: Chosen, codecs: Codecs | None = None, title: str = "") -> None:
        """Add the contract of one member.  Raises KvhubError where it cannot start at all."""
        title = title or f"{chosen.kind} {chosen.use}"
        if issubclass(chosen.cls, Store):
            made = self._store(chosen, codecs, title)
        elif issubclass(chosen.cls, Transport):
            made = (TransportContract, {"member_factory": _transports(chosen)})
        else:
            made = _codec(chosen)
        contract, parts = made
        # Not a module of ours: what a class of this package defines would count as laws.
        # An operator's own medium is not asked for everything twice.
        faults = "none" if self.must_remove else "one"
        about = {"__module__": "kvhub_installed", "__doc__": title, "faults": faults}
        name = "Test_" + "".join(letter if letter.isalnum() else "_" for letter in title)
        self.classes[name] = type(name, (contract,), about | parts)

    def clean(self) -> list[str]:
        """Remove what laws left; called again, it does nothing that was done."""
        while self._scratches:
            scratch = self._scratches[0]
            self.left += scratch.clean()
            self._scratches.remove(scratch)
        return self.left

    def _store(self, chosen: Chosen, codecs: Codecs | None, title: str) -> tuple[type, dict[str, Any]]:
        cls, given = chosen.cls, chosen.options
        claims = self._probe(cls, given)
        medium = medium_of(cls, given)
        if self.must_remove and claims.persistent and not claims.removes and medium is None:
            raise KvhubError(
                f"{title}: the store keeps what it is given and cannot remove it, so what laws save would stay; "
                "run its contract on a medium of its own: pytest --kvhub-use NAME --kvhub-options FILE"
            )
        # Where nothing takes a namespace away as a whole, a run uses few of them and empties them after each law.
        shared = Scratch(cls, given, codecs) if medium is None and claims.removes else None

        @pytest.fixture
        def kvhub_scratch(_: Any) -> Iterator[Scratch]:
            scratch = shared or Scratch(cls, given, codecs)
            self._scratches.append(scratch)
            yield scratch
            said = scratch.clean()
            self._scratches.remove(scratch)
            self.left += said

        @pytest.fixture
        def member_factory(_: Any, kvhub_scratch: Scratch) -> Callable[[MemberContext], Store]:
            return kvhub_scratch.open

        parts: dict[str, Any] = {"kvhub_scratch": kvhub_scratch, "member_factory": member_factory}
        if medium is not None:
            medium.close()

            @pytest.fixture(name="medium")
            def hand(_: Any) -> Iterator[Hand]:
                with cls.medium(given) as opened:
                    yield Hand(opened)

            parts["medium"] = hand
        return StoreContract, parts

    def _probe(self, cls: type[Store], given: Any) -> Capabilities:
        """What the store can do, from its own start.  Raises KvhubError where it cannot start."""
        scratch = Scratch(cls, given)
        self._scratches.append(scratch)
        driver = Driver(scratch.open(make_context("probe")), slots=2)
        try:
            driver.attach()
            return driver.member.capabilities
        finally:
            driver.close()
            self.left += scratch.clean()
            self._scratches.remove(scratch)


def _transports(chosen: Chosen) -> Any:
    @pytest.fixture
    def member_factory(_: Any) -> Callable[[MemberContext], Transport]:
        return lambda context: chosen.cls(chosen.options, context)

    return member_factory


def _codec(chosen: Chosen) -> tuple[type, dict[str, Any]]:
    """The store contract on a store in memory whose chunks pass through the codec."""
    if chosen.cls.lossy:
        raise KvhubError(f"codec '{chosen.use}' is lossy: laws of exact bytes do not fit it; test it by its own error")
    codec: Codec = chosen.cls(chosen.options, chosen.use)

    @pytest.fixture(autouse=True)
    def kvhub_texture(_: Any) -> Iterator[None]:
        with like_floats():
            yield

    @pytest.fixture
    def medium(_: Any) -> MemoryMedium:
        return MemoryMedium(f"codec-{next(_numbers)}")

    @pytest.fixture
    def member_factory(_: Any, medium: MemoryMedium) -> Callable[[MemberContext], Store]:
        return lambda context: MemoryStore(MemoryConfig(medium.name), attrs.evolve(context, codecs=Codecs(codec)))

    return StoreContract, {"kvhub_texture": kvhub_texture, "medium": medium, "member_factory": member_factory}

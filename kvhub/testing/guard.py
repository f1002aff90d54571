"""What keeps a contract from being hollowed out: no law of it may be overridden without a reason.

A third party's test class may set what is in `OPEN`, add tests of its own, and name in `excuses` the laws that it
cannot keep, each with a reason.  An excused law is skipped (or replaced, if the class defines it anew) and the
reason is printed.  Anything else of the contract that the class changes stops it from being defined at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, NoReturn, TypeVar

import pytest

from kvhub.testing import under

OPEN = frozenset(
    {"member_factory", "medium", "slots", "slot_bytes", "patience", "excuses", "loopback"}
    | {"driver_factory", "pool", "wire", "block", "chunk", "vocabulary", "memory"}
    | {"use", "path", "options", "tls", "moments", "aborts", "fenced", "faults"}
)
"""Names that a third party's class is meant to define."""
LEVELS = ("works", "safe", "fast")
"""Each has the laws of those before it."""
REASON_MIN = 12
"""Characters of a reason: a word like "flaky" is none."""

Law = TypeVar("Law", bound=Callable[..., Any])


def fast(law: Law) -> Law:
    """Marks a law of the level "fast": nobody who calls a member waits for it."""
    law.kvhub_level = "fast"  # type: ignore[attr-defined]
    return law


def level_of(law: Callable[..., Any]) -> str:
    """The level of a law: what is not marked is "works" in the modules of basics, and "safe" in all others."""
    marked = getattr(law, "kvhub_level", "")
    return marked or ("works" if law.__module__.endswith(("_basic", ".guard")) else "safe")


def _ours(cls: type) -> bool:
    return cls.__module__.startswith("kvhub.testing.")


def laws_of(contract: type) -> dict[str, Callable[..., Any]]:
    """The laws of a contract by name, as this package wrote them, whatever a subclass made of them."""
    laws: dict[str, Callable[..., Any]] = {}
    for cls in reversed(contract.__mro__):
        if _ours(cls):
            laws |= {name: law for name, law in vars(cls).items() if name.startswith("test_")}
    return laws


def _apparatus(contract: type) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for cls in reversed(contract.__mro__):
        if _ours(cls):
            parts |= {n: part for n, part in vars(cls).items() if not n.startswith("__") and n not in OPEN}
    return parts


def problems(contract: type) -> list[str]:
    """Why this test class does not test the whole contract; empty when it does."""
    found = []
    excuses: Mapping[str, str] = getattr(contract, "excuses", {})
    laws = laws_of(contract)
    for name, reason in excuses.items():
        if name not in laws:
            found.append(f"excuses[{name!r}]: there is no such law")
        elif len(reason.strip()) < REASON_MIN:
            found.append(f"excuses[{name!r}]: {reason!r} is no reason; say what the member cannot do and why")
    for name, part in _apparatus(contract).items():
        if inspect.getattr_static(contract, name) is not part and name not in excuses:
            what = "law" if name in laws else "part of the contract"
            found.append(f"{name}: this {what} was overridden; remove that, or say why in excuses[{name!r}]")
    return found


class Guarded:
    """The foot of every contract class."""

    excuses: ClassVar[Mapping[str, str]] = {}
    """Law → why this member cannot keep it."""
    faults: ClassVar[str] = "none"
    """Faults of `kvhub.testing.under` that each law runs under, too: none, one or all; `--kvhub-faults` goes before."""
    _left_out: ClassVar[list[tuple[str, str]]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        law = laws_of(type(self)).get(metafunc.definition.originalname)
        if law is None or law.__module__ == __name__:
            return
        how_many = metafunc.config.getoption("kvhub_faults", None) or self.faults
        if names := under.chosen(law, how_many):
            metafunc.parametrize("kvhub_fault", ["", *names], indirect=True, ids=["plain", *names])

    @pytest.fixture
    def kvhub_fault(self, request: pytest.FixtureRequest) -> str:
        """The fault of `kvhub.testing.under` that this case runs under; "" for none."""
        return getattr(request, "param", "")

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        found = [] if _ours(cls) else problems(cls)
        if found:
            raise TypeError(f"{cls.__module__}.{cls.__qualname__}: " + "; ".join(found))

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def kvhub_summary(cls, request: pytest.FixtureRequest) -> Iterator[None]:
        """Prints which laws were left out, with or without `-rs`: a silent gap looks like a pass."""
        cls._left_out = []
        yield
        plugins = request.config.pluginmanager
        terminal, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")
        if terminal is not None and cls._left_out:
            reasons = "; ".join(f"{law}: {reason}" for law, reason in sorted(set(cls._left_out)))
            with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
                terminal.write_line(f"\n{cls.__name__} leaves out {len(cls._left_out)} cases: {reasons}")

    @pytest.fixture(autouse=True)
    def kvhub_excuses(self, request: pytest.FixtureRequest, kvhub_fault: str) -> None:
        name = getattr(request.node, "originalname", request.node.name)
        law = laws_of(type(self)).get(name)
        if law is not None and (why := under.reasons(law).get(kvhub_fault)):
            said = f"{under.NO_MEANING} '{kvhub_fault}': {why}"
            type(self)._left_out.append((name, said))
            pytest.skip(said)
        if name in self.excuses:
            type(self)._left_out.append((name, self.excuses[name]))
            if inspect.getattr_static(type(self), name) is laws_of(type(self)).get(name):
                pytest.skip(f"excused: {self.excuses[name]}")

    def leave_out(self, reason: str) -> NoReturn:
        """Skip the running law because this member offers nothing to test it on."""
        law = next(frame.function for frame in inspect.stack() if frame.function.startswith("test_"))
        type(self)._left_out.append((law, reason))
        pytest.skip(reason)

    def test_no_law_is_overridden_without_a_reason(self) -> None:
        """A contract with a hole passes everything: what is left out must be named and reasoned."""
        assert not problems(type(self))

"""Faults seeded into correct code by changing its text, each with the law that has to catch it."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import attrs

from kvhub import fetch, hub, keys, offers, requests, search, session, sinks, stream, tail
from kvhub.testing import fake_engine


@attrs.frozen
class Mutant:
    """`old` becomes `new` in the source of `owner.name`."""

    owner: Any
    name: str
    old: str
    new: str
    law: str
    """A law that must fail."""
    late: bool = False
    """Seen only where copies happen as late as they may."""
    arguments: tuple[tuple[str, Any], ...] = ()
    """Of a law that is parametrized."""

    def __str__(self) -> str:
        return f"{self.owner.__name__.rpartition('.')[2]}.{self.name}: {self.old.strip()} -> {self.new.strip()}"

    def build(self) -> Any:
        """The function with the fault in it.  AssertionError when the text is no longer there."""
        function = inspect.getattr_static(self.owner, self.name)
        wrapper = type(function) if isinstance(function, staticmethod | classmethod) else None
        plain = function.__func__ if wrapper else function
        source = textwrap.dedent(inspect.getsource(plain))
        assert source.count(self.old) == 1, f"{self}: found {source.count(self.old)} times"
        namespace: dict[str, Any] = {}
        # The decorator, if any, is part of the source.
        code = compile(f"from __future__ import annotations\n{source.replace(self.old, self.new)}", str(self), "exec")
        exec(code, plain.__globals__, namespace)
        return namespace[self.name]


SESSION, SEARCH = session.Session, search.Search

MUTANTS = [
    # Blocks that change owners.
    Mutant(SESSION, "preempted", "self._fences += sorted(state.fills)", "pass", "A12_what_is_being_read", late=True),
    Mutant(SESSION, "finish", "hold=bool(state.fills)", "hold=False", "A12_blocks", late=True),
    Mutant(SESSION, "preempted", "if state is None or not state.placed:", "if state is None:", "A29"),
    Mutant(SESSION, "lookup", "if computed < state.computed:", "if False:", "what_the_engine_lost"),
    Mutant(SESSION, "lookup", "limit=len(state.tokens)", "limit=state.prompt", "A29"),
    # Only computed and accepted tokens.
    Mutant(SESSION, "advance", "computed = min(computed, len(state.tokens))", "pass", "A24"),
    Mutant(fake_engine.FakeEngine, "_finish", "min(job.computed, len(job.tokens) - 1)", "len(job.tokens)",
           "F11_the_next"),
    Mutant(requests.Sizes, "row", "chunk * count : (chunk + 1) * count", "chunk * count + 1 : (chunk + 1) * count + 1",
           "what_was_computed_once"),
    # Loads.
    Mutant(requests, "build_load", "max(state.computed - n * size, 0)", "0", "A10_live"),
    Mutant(requests, "build_load", "failed = () if state.ended else", "failed = () if True else", "A09_what_vanished"),
    Mutant(fetch.Fetch, "_one_over", "min(chunk * self.chunk_tokens, self.tokens)", "self.tokens", "A09_what_vanished"),
    Mutant(fetch.Fetch, "_take", "if not self.hub.measure.fits(held.layout, count, held.length):", "if False:",
           "A13_a_short"),
    Mutant(tail.Measure, "layout", "not found.same_content(self.own)", "False", "opaque"),
    Mutant(SESSION, "lookup", "state.short >= MOST_SHORT", "False", "no_slot"),
    Mutant(tail, "common_tokens", "            return at\n", "            return count\n", "F11_a_tail_is_used"),
    # Keys.
    Mutant(keys.Context, "root", "self.adapter, self.salt", "None, self.salt", "contexts",
           arguments=(("stored", keys.Context(adapter="leg")), ("others", [keys.Context()]))),
    Mutant(keys.Context, "root", "self.adapter, self.salt", "self.adapter, None", "contexts",
           arguments=(("stored", keys.Context(salt="t1")), ("others", [keys.Context(salt="t2")]))),
    Mutant(keys.Chain, "_digest", "item.tokens, item.identity]", "item.tokens]", "contexts",
           arguments=(("stored", keys.Context(items=[keys.Item(3, 8, "aa")])),
                      ("others", [keys.Context(items=[keys.Item(3, 8, "ab")])]))),
    # Leases.
    Mutant(SESSION, "allocated", "self._let_go(request, state)", "pass", "B01"),
    Mutant(SESSION, "_loaded", "self._let_go(request, state)", "pass", "B08_an_abort",
           arguments=(("state", "loading"),)),
    Mutant(SEARCH, "stop", "self.hub.give_back(slots)", "pass", "B04"),
    Mutant(SESSION, "plan", "(fetch.over is None and not state.ended)", "fetch.over is None", "B08_an_abort",
           arguments=(("state", "loading"),)),
    Mutant(hub.Hub, "lookup", "if search is not None:", "if search is not None and search.found:", "B04"),
    Mutant(SESSION, "decline", "self.hub.fulfil(named[0])", "pass", "B06", arguments=(("when", "before it began"),)),
    # The flow.
    Mutant(SESSION, "_keep_rest", "if rest and cut and self._stores:", "if False:", "F11_the_next"),
    Mutant(SESSION, "_filled", "replace=fill.tail is not None", "replace=False", "F11_a_new_tail"),
    Mutant(SESSION, "finish", "if not aborted and", "if", "A16"),
    Mutant(offers.Offers, "answer", "any(self._is_to_come(key) for key in ticket.keys)", "False", "pull_waits"),
    Mutant(fetch.Fetch, "start", "if slot is not None:", "if False:", "E18_every"),
    # Streams.
    Mutant(offers.Offers, "_is_to_come", " or (key in self._to_come and key not in self._hub.arena)", "",
           "stream_early_chunks"),
    Mutant(SESSION, "finish", "    self.hub.offers.break_off(state.stream)\n    if state.fills:", "    if state.fills:",
           "stream_whose_prefill_is_aborted"),
    Mutant(stream.Stream, "_may_come", "return absent and", "return False and", "stream_prefill_that_hears"),
    Mutant(stream.Stream, "stop", "self._drop(0)", "pass", "stream_whose_decode_is_aborted",
           arguments=(("when", "while it loads"),)),
    Mutant(sinks.Sinks, "arrived", "if source.is_transport:", "if False:", "A17"),
    Mutant(requests, "_count_hits", "made = end - max(start, first)", "made = min(held.generated, end - start)",
           "F01_generated"),
    Mutant(requests, "count_prompt", "if not state.counted:", "if True:", "F01_each"),
]  # fmt: skip

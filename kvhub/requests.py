"""What a session knows of each request: where its KV comes from, what of it is being stored, and its loads."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from kvhub.fetch import Fetch
from kvhub.keys import Chain
from kvhub.observe import Reports
from kvhub.plan import Copy, Load
from kvhub.types import Held, Key, Peer

if TYPE_CHECKING:
    from kvhub.hub import Hub

PARAMS = "kvhub"
"""Under this name the engine-specific request parameters carry what a prefill promised."""
LONGEST_NAME = 64


@attrs.frozen
class Finish:
    """What the engine should do with a request that ended."""

    hold: bool
    """Keep its blocks until the worker reports the request as sent."""
    params: dict[str, Any] | None = None
    """For the client to hand to the decode leg."""


def read_params(params: Mapping[str, Any]) -> tuple[Peer, int] | None:
    """The peer that a request's parameters name, and how many tokens it promised; None where they name none.

    A stream promises the whole prompt, since nobody has counted its tokens yet.  Raises ValueError for parameters that
    make no sense: they come from a client.
    """
    given = params.get(PARAMS)
    if not isinstance(given, Mapping) or stream_of(params):
        return None
    try:
        streaming = given.get("streaming") is True
        name = str(given.get("promise", ""))
        peer = Peer(str(given["address"]), str(given["incarnation"]), name, streaming=streaming)
        return peer, sys.maxsize if streaming else int(given["tokens"])
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{PARAMS}: {type(error).__name__}: {error}") from error


def write_params(peer: Peer, tokens: int) -> dict[str, Any]:
    """Request parameters that tell a decode of a promise."""
    told = {"address": peer.address, "incarnation": peer.incarnation, "promise": peer.promise, "tokens": tokens}
    return {PARAMS: told}


def stream_of(params: Mapping[str, Any] | None) -> str:
    """The name under which a prefill is to promise a request's chunks before they are computed; "" where it is not.

    Such a request should begin as soon as the engine knows of it: the decode leg is on its way already.
    """
    given = params.get(PARAMS) if params and params.get("do_remote_decode") else None
    name = given.get("promise") if isinstance(given, Mapping) and "address" not in given else None
    return name if isinstance(name, str) and len(name) <= LONGEST_NAME else ""


@attrs.frozen
class Fill:
    """A gather under way: what becomes of its slots."""

    request: str
    chunks: tuple[tuple[Key, Held], ...]
    tail: tuple[bytes, ...] | None = None
    spread: bool = True


@attrs.define
class Request:
    tokens: Sequence[int]
    prompt: int
    chain: Chain
    peer: Peer | None = None
    promised: int = 0
    offers: bool = False
    stream: str = ""
    """The name of its promise while it is being computed."""
    computed: int = 0
    seen: int = 0
    """Leading tokens that were computed or loaded, as of the last step."""
    target: int = 0
    blocks: Sequence[int] = ()
    fetch: Fetch | None = None
    load: int | None = None
    stored: int = 0
    fills: set[int] = attrs.field(factory=set)
    on_pump: bool = False
    """Its tokens are being keyed on the hub's pump."""
    placed: bool = False
    """It has engine blocks, as far as the session was told."""
    ended: bool = False
    short: int = 0
    """Loads in a row that brought less than the lookup had said."""
    counted: bool = False
    accounted: int = 0
    """Leading prompt tokens of which is known where they come from."""


def announce(hub: Hub, state: Request) -> None:
    """Promise what a request will bring, its prompt being keyed; unless it has ended by now."""
    full, rest = divmod(state.prompt, state.chain.chunk_tokens)
    keys = list(state.chain.keys[:full])
    if rest and hub.measure.own.cuttable:
        keys.append(state.chain.part_key(state.prompt))
    with hub.lock:
        if state.ended or not hub.offers.announce(state.stream, keys):
            state.stream = ""


@attrs.frozen
class Sizes:
    """Token counts of an engine: its block and the hub's chunk, a multiple of it."""

    block: int
    chunk: int

    def row(self, blocks: Sequence[int], chunk: int) -> tuple[int, ...]:
        """The engine blocks of one chunk, -1 where the request has none."""
        count = self.chunk // self.block
        row = tuple(blocks[chunk * count : (chunk + 1) * count])
        return row + (-1,) * (count - len(row))

    def generated(self, prompt: int, chunk: int, tokens: int) -> int:
        """How many of the first `tokens` tokens of a chunk lie behind a prompt of `prompt` tokens."""
        start = chunk * self.chunk
        return max(start + tokens - max(prompt, start), 0)


def build_load(number: int, request: str, state: Request, fetch: Fetch, sizes: Sizes, reports: Reports) -> Load:
    """What the worker copies for a request whose fetch is over, and the blocks that it must not count on."""
    valid = 0 if state.ended else min(fetch.over or 0, state.target)
    size, block = sizes.chunk, sizes.block
    failed: tuple[int, ...] = ()
    if valid < state.target:
        # Whole blocks only: the engine recomputes from the first block that it is told of.
        valid = max(valid // block * block, state.computed)
        failed = () if state.ended else tuple(state.blocks[valid // block : -(-state.target // block)])
    numbers = range(state.computed // size, -(-valid // size)) if valid > state.computed else range(0)
    helds = [fetch.helds[n] for n in numbers]
    layouts = tuple(held.layout for held in helds)
    copy = Copy(
        number,
        request,
        tuple(held.slot for held in helds),
        tuple(sizes.row(state.blocks, n) for n in numbers),
        tuple(max(state.computed - n * size, 0) for n in numbers),
        tuple(min(valid - n * size, size) for n in numbers),
        layouts if any(layouts) else None,
    )
    if not state.ended:
        count_prompt(state, reports)
        _count_hits(state, fetch, valid, size, reports)
    return Load(copy, failed)


def count_prompt(state: Request, reports: Reports) -> None:
    """Count a request's prompt once, and what of it the engine had by itself."""
    if not state.counted:
        state.counted = True
        state.accounted = min(state.computed, state.prompt)
        reports.count("prompt_tokens", state.prompt)
        reports.count("hit_tokens", state.accounted, member="engine")


def _count_hits(state: Request, fetch: Fetch, valid: int, size: int, reports: Reports) -> None:
    """Count each prompt token once, under the member that it came from before any promotion.

    What is loaded again after a preemption was counted, or computed, the first time.
    """
    search, counted = fetch.search, max(state.accounted, state.computed)
    for number, held in fetch.helds.items():
        start, end = max(number * size, counted), min((number + 1) * size, valid, state.prompt)
        if end <= start:
            continue
        at = number - search.first
        full = at < len(search.origin)
        name = search.origin[at] if full else search.tail_origin
        reports.count("hit_tokens", end - start, member=name)
        # Generated tokens are the last of a chunk, and of a tail that may hold more than was loaded of it.
        first = number * size + (size if full else search.tail_tokens) - held.generated
        made = end - max(start, first)
        if made > 0:
            reports.count("generated_hit_tokens", made, member=name)
        state.accounted = max(state.accounted, end)

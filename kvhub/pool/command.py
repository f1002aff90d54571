"""`kvhub pool COMMAND FILE`: the command lines of housekeeping, and what each does."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import attrs

from kvhub import units
from kvhub.errors import ConfigError, KvhubError
from kvhub.keys import Context
from kvhub.pool import report
from kvhub.pool.copy import IN_FLIGHT, Copier, hottest
from kvhub.pool.gc import GRACE_SECONDS, Limits, collect
from kvhub.pool.medium import NAME, Medium
from kvhub.pool.opening import open_mediums
from kvhub.pool.pace import Pace, Stopped
from kvhub.pool.purge import purge, purge_prompts, read_prompts
from kvhub.pool.select import Selection
from kvhub.pool.tenants import count as count_tenants
from kvhub.pool.verify import verify
from kvhub.pool.walk import Walk, measure
from kvhub.pool.words import Words, bytes_per_second, count, fraction, free_space, per_second

MOST_IN_FLIGHT = 256


def add_parser(commands: Any) -> None:
    """Add `pool` with its commands to the parser of `kvhub`."""
    pool = commands.add_parser("pool", help="keep house in a shared pool: see, check, purge, collect, copy")
    inner = pool.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str, *options: str) -> Any:
        parser = inner.add_parser(name, help=text)
        parser.add_argument("file", help="the YAML file that names the pool")
        parser.add_argument("--json", action="store_true", help="print JSON")
        for option in options:
            parser.add_argument(f"--{option}", **_OPTIONS[option])
        parser.set_defaults(run=run)
        return parser

    whose = ("tenant", "salt-env", "salt-file")
    chosen = ("member", "namespace", "model", "prefix", "unused-for", "older-than", *whose)
    stats = command("stats", _stats, "how much there is, of which models, and how long unused", "member", "exact")
    stats.add_argument("--tenants", **_flag("read every header, and tell how much is whose"))
    tag = inner.add_parser("tag", help="print the tag that chunks of a tenant's salt carry")
    tag.add_argument("--json", action="store_true", help="print JSON")
    for option in whose[1:]:
        tag.add_argument(f"--{option}", **_OPTIONS[option])
    tag.set_defaults(run=_tag)
    command("scan", _scan, "list keys", *chosen, "after", "limit")
    inspect = command("inspect", _inspect, "one key's header and verdict", "member", "namespace")
    inspect.add_argument("key", help="64 hex digits")
    command("verify", _verify, "check headers, or whole chunks", *chosen, "deep", "remove", "rate", "bandwidth")
    command("purge", _purge, "remove chunks", *chosen, "adapter", "tokens", "all", "dry-run", "yes", "rate")
    collecting = ("max", "high", "low", "keep-free", "unused-for", "grace", "watch", "fresh", "dry-run", "rate")
    command("gc", _gc, "remove what was longest unused", "member", *collecting)
    moving = ("namespace", "model", "prefix", "dry-run", "bandwidth", "rate", "in-flight")
    command("copy", _copy, "copy chunks to another pool", "from", "to", "unused-for", "older-than", *moving)
    command("warm", _warm, "copy the chunks used last to another pool", "from", "to", "max", *moving)


def _text(text: str) -> dict[str, Any]:
    return {"help": text}


def _flag(text: str) -> dict[str, Any]:
    return {"help": text, "action": "store_true"}


_OPTIONS: dict[str, dict[str, Any]] = {
    "member": _text("the store in the file; may be left out where it has one pool"),
    "from": _text("the store to copy from") | {"dest": "source", "required": True},
    "to": _text("the store to copy to") | {"dest": "destination", "required": True},
    "namespace": _text("only this namespace: its first hex digits"),
    "model": _text("only namespaces of this model"),
    "prefix": _text("only keys that begin with these hex digits"),
    "unused-for": _text("only what nobody used for so long (7d)"),
    "older-than": _text("only what was written so long ago (7d)"),
    "exact": _flag("list everything instead of adding up what was noted"),
    "after": _text("go on behind this key (with --namespace)"),
    "limit": _text("list at most so many"),
    "deep": _flag("read payloads, too"),
    "remove": _flag("remove what fails twice"),
    "tenant": _text("only chunks with this tenant's tag, as `kvhub pool tag` prints it"),
    "salt-env": _text("only the tenant whose salt this environment variable holds"),
    "salt-file": _text("only the tenant whose salt this file holds"),
    "adapter": _text("with --tokens: the prompts' adapter"),
    "tokens": _text("a file with one JSON list of token ids per line"),
    "all": _flag("everything in the pool"),
    "dry-run": _flag("say what would go, and leave it"),
    "yes": _flag("do not ask"),
    "max": _text("the most that is to be kept (500GiB); warm: the most that is copied"),
    "high": _text("fraction of --max above which collecting begins (0.9)"),
    "low": _text("fraction of --max down to which it collects (0.8)"),
    "keep-free": _text("free space of the file system to keep (10%%, 50GiB)"),
    "grace": _text("never collect what was written or used since (10min)"),
    "watch": _text("do it again after so long, until SIGTERM (60s)"),
    "fresh": _text("take what any sweeper measured so long ago for true (with --watch: its time, else nothing)"),
    "rate": _text("chunks per second at most (500/s)"),
    "bandwidth": _text("bytes per second at most (200MiB/s)"),
    "in-flight": _text(f"chunks under way at once ({IN_FLIGHT})"),
}


@contextmanager
def _opened(words: Words, file: str, *members: str, pace: Pace | None = None) -> Iterator[list[Medium]]:
    """Media of the stores, after every wrong word was told; errors of theirs get the store's name."""
    if words.problems:
        raise ConfigError(words.problems, where="kvhub pool")
    with ExitStack() as stack:
        media = open_mediums(file, *members)
        for medium in media:
            stack.callback(medium.close)
        if pace is not None:
            stack.enter_context(_stoppable(pace))
        try:
            yield media
        except Stopped as error:
            said = "stopped as asked; what was begun is ended, and the same command goes on from there"
            raise KvhubError(said) from error
        except OSError as error:
            where = ", ".join(medium.describe() for medium in media)
            raise KvhubError(f"{where}: {error}") from error


@contextmanager
def _stoppable(pace: Pace) -> Iterator[None]:
    """SIGTERM and SIGINT end what is under way cleanly; a second one ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def stop(number: int, frame: Any) -> None:
        pace.stop()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        pace.show("")
        for number, handler in before.items():
            signal.signal(number, handler)


def _pace(words: Words) -> Pace:
    rate = words.read("rate", per_second, 0.0)
    return Pace(rate, words.read("bandwidth", bytes_per_second, 0.0), show=sys.stderr.isatty())


def _stats(chosen: argparse.Namespace) -> int:
    words = Words(chosen)
    pace = _pace(words)
    with _opened(words, chosen.file, chosen.member or "", pace=pace) as [medium]:
        spaces, now = list(medium.spaces()), medium.now()
        walk = Walk(medium, pace)
        found = measure(walk, walk.spaces, now if chosen.exact else float("-inf"))
        facts = report.stats(medium, [(space, found[space.id]) for space in spaces if space.id in found])
        if chosen.tenants:
            facts |= report.tenant_facts(count_tenants(Walk(medium, pace), Selection()))
    report.show_stats(facts, chosen.json)
    return 0


def _tag(chosen: argparse.Namespace) -> int:
    words = Words(chosen)
    salt = words.salt()
    if salt is None and not words.problems:
        words.problems.append("nothing says whose tag: give --salt-env or --salt-file")
    if words.problems or salt is None:
        raise ConfigError(words.problems, where="kvhub pool")
    report.show({"tag": Context(salt=salt).tenant.hex()}, chosen.json)
    return 0


def _scan(chosen: argparse.Namespace) -> int:
    words = Words(chosen)
    selection, most = words.selection(), words.read("limit", count, 0)
    after = words.read("after", _key, "")
    if after and not selection.namespace:
        words.problems.append("--after: keys are listed namespace by namespace, so name one with --namespace")
    with _opened(words, chosen.file, chosen.member or "") as [medium]:
        report.scan(medium, selection, after, most, chosen.json)
    return 0


def _inspect(chosen: argparse.Namespace) -> int:
    words = Words(chosen)
    selection, key = Selection(namespace=words.selection().namespace), words.read("key", _key, "")
    with _opened(words, chosen.file, chosen.member or "") as [medium]:
        return report.inspect(medium, selection, key, chosen.json)


def _key(text: str) -> str:
    if not NAME.fullmatch(text.lower()):
        raise ValueError(f"expected a key of 64 hex digits, found {text!r}")
    return text.lower()


def _verify(chosen: argparse.Namespace) -> int:
    words = Words(chosen)
    selection, pace = words.selection(), _pace(words)
    with _opened(words, chosen.file, chosen.member or "", pace=pace) as [medium]:
        walk = Walk(medium, pace)
        found = verify(walk, selection, deep=chosen.deep, remove=chosen.remove, tell=report.bad_chunk)
    facts = attrs.asdict(found) | {"damaged": dict(found.damaged), "removed": walk.removed.chunks}
    report.show(facts, chosen.json)
    return 1 if found.io_errors or found.damaged.total() > walk.removed.chunks else 0


def _purge(chosen: argparse.Namespace) -> int:
    words = Words(chosen)
    selection, pace = words.selection(), _pace(words)
    if selection.everything and not chosen.all and chosen.adapter is None and chosen.tokens is None:
        words.problems.append("nothing says what is to go: name a namespace, a model, a tenant, an age, or --all")
    if chosen.all and not selection.everything:
        words.problems.append("--all: goes with no other choice")
    if chosen.adapter is not None and chosen.tokens is None:
        words.problems.append("--adapter: goes with --tokens; no chunk tells which adapter it is of")
    if chosen.tokens is not None:
        if chosen.tenant is not None:
            words.problems.append("--tenant: with --tokens keys are computed, which takes the salt; give that")
        selection = attrs.evolve(selection, tenant=b"")
        if not selection.whole_spaces:
            words.problems.append("--tokens: goes with a salt, --namespace and --model, and with no other choice")
    salt = words.salt() if chosen.tokens is not None and not words.problems else None
    prompts = read_prompts(chosen.tokens) if chosen.tokens is not None and not words.problems else []
    with _opened(words, chosen.file, chosen.member or "", pace=pace) as [medium]:
        if not chosen.dry_run and not chosen.yes and not report.asked(f"remove chunks of {medium.describe()}"):
            raise KvhubError("nothing was removed: say --yes, or --dry-run to see what would go")
        walk = Walk(medium, pace, dry=chosen.dry_run)
        if chosen.tokens is not None:
            gone = purge_prompts(walk, selection, prompts, salt=salt, adapter=chosen.adapter)
            facts: dict[str, Any] = attrs.asdict(gone)
        else:
            purged = purge(walk, selection)
            facts = attrs.asdict(purged.removed) | {"namespaces_gone": list(purged.forgotten)}
            if purged.untagged is not None:
                facts["without_a_tag"] = purged.untagged
    report.show({"dry_run": chosen.dry_run, **facts}, chosen.json)
    return 0


def _gc(chosen: argparse.Namespace) -> int:
    words = Words(chosen)
    limits = Limits(
        most=words.read("max", units.size, None),
        keep_free=words.read("keep-free", free_space, None),
        unused_for=words.read("unused-for", units.seconds, None),
        high=words.read("high", fraction, 0.9),
        low=words.read("low", fraction, 0.8),
        grace=words.read("grace", units.seconds, GRACE_SECONDS),
    )
    if (limits.most, limits.keep_free, limits.unused_for) == (None, None, None) and not words.problems:
        words.problems.append("nothing says what to keep: give --max, --keep-free or --unused-for")
    if limits.low > limits.high:
        words.problems.append(f"--low: expected at most --high, found {limits.low} above {limits.high}")
    every = words.read("watch", units.seconds, 0.0)
    fresh, pace = words.read("fresh", units.seconds, every), _pace(words)
    with _opened(words, chosen.file, chosen.member or "", pace=pace) as [medium]:
        if limits.keep_free is not None and medium.room() is None:
            raise KvhubError(f"{medium.describe()} cannot tell its free space; use --max instead of --keep-free")
        while True:
            try:
                since = medium.now() - fresh
                report.show(
                    report.round_facts(collect(medium, limits, pace, since=since, dry=chosen.dry_run)), chosen.json
                )
                if not every:
                    return 0
            except OSError as error:
                if not every:
                    raise
                print(f"{medium.describe()}: {error}; trying again in {every:.0f} s", file=sys.stderr, flush=True)
            except Stopped:
                if not every:
                    raise
                return 0
            try:
                pace.sleep(every)
            except Stopped:
                return 0


def _copy(chosen: argparse.Namespace) -> int:
    return _copied(chosen, None)


def _warm(chosen: argparse.Namespace) -> int:
    return _copied(chosen, "max")


def _copied(chosen: argparse.Namespace, most_word: str | None) -> int:
    words = Words(chosen)
    selection, pace = words.selection(), _pace(words)
    in_flight = words.read("in-flight", count, IN_FLIGHT)
    most = words.read(most_word, units.size, None) if most_word else None
    if in_flight > MOST_IN_FLIGHT:
        words.problems.append(f"--in-flight: at most {MOST_IN_FLIGHT}, found {in_flight}")
    if chosen.source == chosen.destination:
        words.problems.append(f"--to: expected another store than --from, found {chosen.source} twice")
    with _opened(words, chosen.file, chosen.source, chosen.destination, pace=pace) as [source, destination]:
        since = hottest(source, selection, most, pace, dry=chosen.dry_run) if most is not None else 0.0
        copier = Copier(source, destination, pace, in_flight=in_flight)
        done = copier.run(selection, since=since, dry=chosen.dry_run)
    report.show({"dry_run": chosen.dry_run, **attrs.asdict(done)}, chosen.json)
    return 1 if done.failed or done.damaged else 0
